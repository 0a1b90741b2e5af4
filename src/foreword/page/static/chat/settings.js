/** How requests draft and sample: one form for the chat and the race, kept by the browser. */

import { byId, el } from "../dom.js";
import { savedSettings, saveSettings } from "./store.js";

/** The method without draft tokens. */
export const PLAIN = "none";

/** Methods that are listed first, beside the server's default; the others are under "More". */
const FIRST = ["ngram", PLAIN];
/** Sampling parameters of the form: their names in a request, and what a server uses that has no defaults of its own. */
const SAMPLING = { top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0 };

/** The settings of requests, in the form at the foot of the page. */
export class Settings {
  constructor() {
    this.form = byId("settings");
    this.values = this.form.elements;
    this.saved = savedSettings();
    this.usable = []; // methods that requests may name
    this.usual = SAMPLING; // what the server uses for parameters that a request leaves out
    for (const field of this._fields()) {
      if (field.name in this.saved && field.name !== "method") field.value = this.saved[field.name];
    }
    this.form.addEventListener("input", () => this._changed());
    byId("defaults").addEventListener("click", () => this._reset());
    this._name();
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
    const fault = this._toolsFault();
    byId("tools-fault").textContent = fault;
    this.values.tools.setAttribute("aria-invalid", String(Boolean(fault)));
  }

  /** Fill in what the server serves. */
  describe(info) {
    const first = [...new Set([info.method, ...FIRST])];
    const known = new Map(info.methods.map((one) => [one.name, one.summary]));
    const option = (name, text) => el("option", { value: name, title: known.get(name), text });
    const listed = first.filter((name) => known.has(name)).map((name) => option(name, `${name}: ${known.get(name)}`));
    const others = [...known.keys()].filter((name) => !first.includes(name)).map((name) => option(name, name));
    const chosen = this.values.method.value || this.saved.method || info.method;
    this.served = info.method;
    this.usable = [...known.keys()];
    this.values.method.replaceChildren(...listed, el("optgroup", { label: "More methods" }, ...others));
    this.values.method.value = known.has(chosen) ? chosen : info.method;
    this.values.tokens.max = info.context;
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

  /** Return the body of a request; `method` replaces the one chosen. */
  body(messages, seed, method = this.method) {
    const nodes = this.values.nodes.value === "auto" ? "auto" : Number(this.values.nodes.value);
    const system = this.values.system.value.trim();
    return {
      messages: system ? [{ role: "system", content: system }, ...messages] : messages,
      seed,
      temperature: Number(this.values.temperature.value),
      max_tokens: Math.max(1, Number(this.values.tokens.value) || 1),
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
    const tools = this._toolsFault() ? [] : this._tools();
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
