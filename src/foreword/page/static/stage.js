/** The stage beside the text: figures of the answer in view, and the round that is open. */

import { el, oncePerFrame } from "./dom.js";
import { Strip } from "./figures.js";
import { AnswerCard } from "./replay.js";
import { RoundPanel } from "./round.js";

/** The panel beside the text: figures of the answer in view, and the round that is open. */
export class Stage {
  constructor(place) {
    this.strip = new Strip("This answer");
    this.panel = new RoundPanel();
    this.close = el("button", { type: "button", class: "close", "aria-label": "Close", text: "×", onclick: () => this.hide() });
    this.place = place;
    place.append(el("div", { class: "inside" }, this.close, this.panel.element, this.strip.element));
    this.plain = null;
    [this.view, this.kept] = [null, new Map()]; // view -> its card
    this.draw = oncePerFrame(() => this._draw());
    this.clear();
  }

  clear() {
    this.card = null;
    this.draw();
    this.panel.clear();
    this.hide();
  }

  hide() {
    this.place.classList.remove("up");
  }

  /** Show what belongs to a view, in place of what belongs to another. */
  turnTo(view) {
    this.kept.set(this.view, this.card);
    this.view = view;
    this.card = this.kept.get(view) ?? null;
    this.panel.clear();
    this.hide();
    this.draw();
  }

  /** Return the card that was last in a view, or null. */
  of(view) {
    return (view === this.view ? this.card : this.kept.get(view)) ?? null;
  }

  /** Show the figures of a card. */
  follow(card) {
    this.card = card;
    this.draw();
  }

  /** Return a card whose rounds and figures are shown here. */
  newCard(label) {
    return new AnswerCard(label, {
      onopen: (card, index) => this.open(card, index),
      onfigures: (card) => this.follow(card),
    });
  }

  /** Open a round of a card; null closes it. */
  open(card, index) {
    this.card = card;
    if (index === null) this.panel.clear();
    else this.panel.show(card.view.rounds[index], index + 1, card.view.rounds.length);
    this.place.classList.toggle("up", index !== null);
    this.draw();
  }

  _draw() {
    this.strip.element.hidden = !this.card;
    if (this.card) this.strip.show(this.card.figures, this.card.recording?.totals.plain_tokens_per_second ?? this.plain);
  }
}
