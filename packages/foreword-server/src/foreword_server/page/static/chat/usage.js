/** The line below the box: how much of the context a conversation takes, with the text that is being written. */

import { tokenCount } from "../api.js";
import { byId } from "../dom.js";

const LONG = 200; // characters of a text from which its tokens are counted
const PAUSED = 400; // milliseconds without a key until they are

/** Counts tokens. `prompt` is the box; `turns()` are those of the conversation. */
export class Usage {
  constructor(prompt, turns, settings) {
    [this.prompt, this.turns, this.settings] = [prompt, turns, settings];
    this.written = 0; // tokens in the box
    this.place = byId("usage");
    prompt.addEventListener("input", () => this._typed());
  }

  _typed() {
    clearTimeout(this.timer);
    const { value } = this.prompt;
    if (value.length < LONG) return this._count(0);
    this.timer = setTimeout(() => tokenCount(value).then((tokens) => value === this.prompt.value && this._count(tokens), () => this._count(0)), PAUSED);
  }

  _count(tokens) {
    this.written = tokens;
    this.draw();
  }

  /** Show the counts. */
  draw() {
    const { context } = this.settings;
    if (!context) return;
    const answer = this.turns().at(-1)?.data.answer;
    const used = answer ? answer.prompt + answer.rounds.reduce((sum, one) => sum + one.pieces.length, 0) : 0;
    const number = (value) => value.toLocaleString("en");
    const more = this.written ? ` + ${number(this.written)} in the box` : "";
    this.place.textContent = `${number(used)}${more} of ${number(context)} tokens`;
    this.place.classList.toggle("full", used + this.written > context);
  }
}
