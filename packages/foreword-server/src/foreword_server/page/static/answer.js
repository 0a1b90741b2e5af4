/** An answer as coloured tokens, round by round: appended at most once a frame, opened by pointer, focus or keys. */

import { el, oncePerFrame } from "./dom.js";
import { emitted } from "./recording.js";

let answers = 0;
/** Whether the stage covers the text, as in style.css: then a round opens by a tap or a key, not by passing over it. */
export const covered = matchMedia("(max-width: 860px)");

/** A text made of rounds. `onopen(index)` is called with the round to show, or null to show none. */
export class AnswerView {
  constructor(label, onopen) {
    this.rounds = [];
    this.shown = this.drawn = 0;
    this.selected = null;
    this.pressed = false;
    this.ongrown = () => {};
    this.id = `answer-${(answers += 1)}`;
    this.onopen = onopen;
    this.draw = oncePerFrame(() => this.flush());
    this.element = el("p", {
      class: "answer",
      dir: "auto",
      role: "listbox",
      tabindex: "0",
      "aria-label": label,
      onpointerover: (event) => this._hover(event),
      onpointerleave: () => covered.matches || this.onopen(this.selected),
      onclick: (event) => this._click(event),
      onkeydown: (event) => this._key(event),
      onpointerdown: () => (this.pressed = true), // the click that follows opens its own round
      onpointerup: () => (this.pressed = false),
      onpointercancel: () => (this.pressed = false),
      onfocus: () => !this.pressed && this.selected === null && this.rounds.length && this.select(0),
    });
  }

  /** Add a round. */
  push(round) {
    this.rounds.push(round);
    this.shown = this.rounds.length;
    this.draw();
  }

  /** Show the first `count` rounds only. */
  show(count) {
    this.shown = count;
    this.draw();
  }

  /** Open a round, and keep it open. */
  select(index) {
    this.element.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
    this.selected = index;
    if (index === null) this.element.removeAttribute("aria-activedescendant");
    else {
      this.flush();
      this.element.children[index].setAttribute("aria-selected", "true");
      this.element.setAttribute("aria-activedescendant", `${this.id}-${index}`);
      if (covered.matches) this.element.children[index].scrollIntoView({ block: "start" });
    }
    this.onopen(index);
  }

  /** Bring the page up to date at once. */
  flush() {
    const more = document.createDocumentFragment();
    for (let at = this.element.children.length; at < this.rounds.length; at += 1) more.append(this._option(at));
    if (more.childNodes.length) {
      this.element.append(more);
      this.ongrown();
    }
    const [low, high] = [this.drawn, this.shown].sort((one, other) => one - other);
    for (let at = low; at < high; at += 1) this.element.children[at].classList.toggle("later", at >= this.shown);
    this.drawn = this.shown;
  }

  _option(at) {
    const tokens = emitted(this.rounds[at]).map((one) => el("span", { class: `token ${one.kind}`, text: one.text }));
    return el(
      "span",
      { class: "round", id: `${this.id}-${at}`, role: "option", "aria-selected": "false" },
      ...tokens,
    );
  }

  _indexOf(event) {
    const option = event.target.closest?.(".round");
    return option ? [...this.element.children].indexOf(option) : null;
  }

  _hover(event) {
    const index = this._indexOf(event);
    if (index !== null && !covered.matches) this.onopen(index);
  }

  _click(event) {
    const index = this._indexOf(event);
    if (index !== null) this.select(index);
  }

  _key(event) {
    const last = this.rounds.length - 1;
    const now = this.selected ?? 0;
    const to = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: last };
    if (event.key === "Escape") this.select(null);
    else if (event.key in to && last >= 0) this.select(Math.min(Math.max(to[event.key], 0), last));
    else return;
    event.preventDefault();
  }
}
