/** How much of a prompt is read, in words and as a bar, until the answer begins. */

import { el } from "../dom.js";

/** The bar over an answer that has not begun. */
export class Progress {
  constructor() {
    this.text = el("span", { text: "Waiting for the model …" });
    this.bar = el("progress", { "aria-label": "Prompt read", max: 1, value: 0 });
    this.element = el("p", { class: "reading note" }, this.text, this.bar);
  }

  /** Show prompt tokens read: `processed` of `total`, of which `cache` were known, after `time_ms`. */
  show({ processed, total, cache = 0, time_ms: ms = 0 }) {
    this.element.hidden = false;
    [this.bar.max, this.bar.value] = [total, processed];
    const number = (value) => value.toLocaleString("en");
    const known = cache ? `, ${number(cache)} of them known from before` : "";
    const read = processed - cache;
    const left = read > 0 && processed < total ? timeLeft((ms / read) * (total - processed)) : "";
    this.text.textContent = `Reading the conversation: ${number(processed)} of ${number(total)} tokens${known}${left}`;
  }

  /** Show a text without a bar's progress. */
  say(text) {
    this.element.hidden = false;
    this.bar.removeAttribute("value");
    this.text.textContent = text;
  }

  hide() {
    this.element.hidden = true;
  }
}

function timeLeft(ms) {
  const seconds = Math.max(1, Math.round(ms / 1000));
  return seconds < 90 ? `, about ${seconds} s left` : `, about ${Math.round(seconds / 60)} minutes left`;
}
