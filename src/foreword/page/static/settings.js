/** How requests draft and sample: one form for the chat and the race. */

import { byId, el } from "./dom.js";

/** The method without draft tokens. */
export const PLAIN = "none";

/** The settings of requests, in the form at the foot of the page. */
export class Settings {
  constructor() {
    this.form = byId("settings");
    this.values = this.form.elements;
    this.values.temperature.addEventListener("input", () => this._name());
    this._name();
  }

  _name() {
    this.form.querySelector("output").textContent = Number(this.values.temperature.value).toFixed(1);
  }

  /** Fill in what the server serves. */
  describe(info) {
    const options = info.methods.map(({ name, summary }) => el("option", { value: name, title: summary, text: name }));
    const chosen = this.values.method.value || info.method;
    this.values.method.replaceChildren(...options);
    this.values.method.value = chosen;
    this.values.tokens.max = info.context;
  }

  get method() {
    return this.values.method.value;
  }

  /** Return the body of a request; `method` replaces the one chosen. */
  body(messages, seed, method = this.method) {
    const nodes = this.values.nodes.value === "auto" ? "auto" : Number(this.values.nodes.value);
    return {
      messages,
      seed,
      temperature: Number(this.values.temperature.value),
      max_tokens: Math.max(1, Number(this.values.tokens.value) || 1),
      speculative: method === PLAIN ? { method } : { method, nodes },
    };
  }

  /** Return the seed in the form, or a new one. */
  seed() {
    const { value } = this.values.seed;
    return value === "" ? Math.floor(Math.random() * 2 ** 31) : Math.max(0, Math.floor(Number(value)));
  }
}
