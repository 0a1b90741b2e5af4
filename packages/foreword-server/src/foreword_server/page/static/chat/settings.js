/** How requests draft and sample: one form for the chat and the race, kept by the browser. */

import { templated } from "../api.js";
import { byId, el } from "../dom.js";
import { savedSettings, saveSettings } from "./store.js";
import { methodName, PLAIN, servedMethods } from "./words.js";

const LOOKUP = "ngram"; // the lookup that is offered where another method drafted nothing
const TRIED = 4; // draft tokens in a pass of a try
/** Sampling parameters of the form: their names in a request, and what a server uses that has no defaults of its own. */
const SAMPLING = { top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0 };

/** The settings of requests, in the form at the foot of the page. */
export class Settings {
  constructor() {
    this.form = byId("settings");
    this.values = this.form.elements;
    this.saved = savedSettings();
    this.isBase = false; // the model has no chat template: it goes on with a text
    this.usable = []; // methods that requests may name
    this.usual = SAMPLING; // what the server uses for parameters that a request leaves out
    for (const field of this._fields()) {
      if (field.name in this.saved && field.name !== "method") field.value = this.saved[field.name];
    }
    this.form.addEventListener("input", () => this._changed());
    byId("defaults").addEventListener("click", () => this._reset());
    this.form.addEventListener("keydown", (event) => event.key === "Escape" && this._sheet(false));
    this.openers = [...document.querySelectorAll(".opens-settings")];
    for (const opener of this.openers) opener.addEventListener("click", () => this._sheet(true, byId("close-settings")));
    byId("close-settings").addEventListener("click", () => this._sheet(false, this.openers.find((one) => one.checkVisibility())));
    this.form.querySelector("details.more").addEventListener("toggle", () => this._showTemplate(), { once: true });
    this._name();
  }

  /** Open or close the form where it is a sheet over the page, and go on from there. */
  _sheet(up, focused) {
    this.form.classList.toggle("up", up);
    for (const opener of this.openers) opener.setAttribute("aria-expanded", String(up));
    focused?.focus();
  }

  /** Show what the chat template writes around a first question. */
  async _showTemplate() {
    const question = "your question";
    const text = await templated(question).catch(() => "");
    const [before] = text.split(question);
    if (before) byId("template").textContent = `Left empty, the model reads: ${before.trim()} …`;
  }

  _fields() {
    return [...this.values].filter((field) => field.name);
  }

  _changed() {
    this._name();
    const { view } = savedSettings();
    const changed = this._fields().filter((field) => field.value !== field.defaultValue); // lists have no default value
    this.saved = Object.fromEntries(changed.map((field) => [field.name, field.value]));
    saveSettings({ ...this.saved, view });
  }

  _reset() {
    this.form.reset();
    this.values.method.value = this.served;
    this._changed();
  }

  _name() {
    this.form.querySelector("output").textContent = this.values.temperature.value;
    this.values.seed.closest("label").hidden = this.temperature === 0; // no text depends on it
    const fault = this._toolsFault();
    byId("tools-fault").textContent = fault;
    this.values.tools.setAttribute("aria-invalid", String(Boolean(fault)));
  }

  /** Fill in what the server serves. */
  describe(info) {
    const methods = servedMethods(info);
    this.usable = methods.map((one) => one.name);
    const chosen = this.values.method.value || this.saved.method || info.method;
    this.served = info.method;
    this.values.method.replaceChildren(...methods.map(({ name, text, title }) => el("option", { value: name, title, text })));
    this.values.method.value = this.usable.includes(chosen) ? chosen : info.method;
    this.values.tokens.max = this.context = info.context;
    this.usual = { ...SAMPLING, ...info.sampling };
    for (const [name, value] of Object.entries(info.sampling)) {
      const field = this.values[name];
      if (!field) continue;
      field.defaultValue = value;
      if (!(name in this.saved)) field.value = value;
    }
    this._name();
  }

  get method() {
    return this.values.method.value;
  }

  /** Learn whether the model has a chat template. */
  async findTemplate() {
    this.isBase = await templated("x").then(() => false, (error) => error.status === 400);
  }

  /** Return the method and the draft tokens that are chosen. */
  get drafting() {
    const { value } = this.values.nodes;
    return { method: this.method, nodes: value === "auto" ? value : Number(value) };
  }

  get temperature() {
    return Number(this.values.temperature.value);
  }

  /** Return the ways to draft that are offered for another try, each with the `text` of a button. */
  get choices() {
    const drafter = this.usable.includes(this.served) && this.served !== PLAIN ? this.served : LOOKUP;
    const all = [
      { method: drafter, nodes: TRIED, text: `Draft ${TRIED}`, title: `${methodName(drafter)}, ${TRIED} words a pass` },
      { method: LOOKUP, nodes: TRIED, text: "Copy from the text", title: `${LOOKUP}: ${methodName(LOOKUP)}` },
      { method: PLAIN, nodes: "auto", text: "Plain", title: "Nothing drafted, to compare" },
    ];
    return all.filter((one, at) => this.usable.includes(one.method) && all.findIndex((other) => other.method === one.method) === at);
  }

  /** Return the body of a request; `drafting`, a method and draft tokens, replaces what is chosen. */
  body(messages, seed, { method, nodes } = this.drafting) {
    const longest = Math.floor(Number(this.values.tokens.value));
    const system = this.values.system.value.trim();
    const asked = this.isBase ? { prompt: messages.map((one) => one.content).join("") } : { messages: system ? [{ role: "system", content: system }, ...messages] : messages };
    return {
      ...asked,
      seed,
      temperature: this.temperature,
      ...(longest >= 1 ? { max_tokens: longest } : {}), // else up to the end of the context
      speculative: method === PLAIN ? { method } : { method, nodes },
      ...this._sampling(),
    };
  }

  /** Return what was changed of the other sampling parameters, the stop strings and the tools. */
  _sampling() {
    const changed = Object.entries(SAMPLING)
      .map(([name]) => [name, this.values[name].value === "" ? this.usual[name] : Number(this.values[name].value)])
      .filter(([name, value]) => value !== this.usual[name]);
    const stop = this.values.stop.value.split("\n").filter((line) => line !== "");
    const tools = this._toolsFault() || this.isBase ? [] : this._tools();
    return { ...Object.fromEntries(changed), ...(stop.length ? { stop } : {}), ...(tools.length ? { tools } : {}) };
  }

  _tools() {
    const text = this.values.tools.value.trim();
    return text ? JSON.parse(text) : [];
  }

  _toolsFault() {
    try {
      return Array.isArray(this._tools()) ? "" : "Tools are a JSON list, and are left out until they are one.";
    } catch {
      return "This is not JSON; tools are left out until it is.";
    }
  }

  /** Return the seed in the form, or a new one. */
  seed() {
    const { value } = this.values.seed;
    return value === "" ? newSeed() : Math.max(0, Math.floor(Number(value)));
  }
}

/** Return a random seed. */
export const newSeed = () => Math.floor(Math.random() * 2 ** 31);
