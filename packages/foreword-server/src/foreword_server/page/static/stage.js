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
    this._rest();
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
    if (card.ended) this._rest();
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
    if (index === null) this._rest();
    else this.panel.show(card.view.rounds[index], `Pass ${index + 1} of ${card.view.rounds.length}`);
    this.place.classList.toggle("up", index !== null);
    this.draw();
  }

  /** Show the best pass of an answer that is complete, while none is opened. */
  _rest() {
    const { rounds = [], selected = null } = this.card?.view ?? {};
    const at = bestOf(rounds);
    if (!this.card?.ended || selected !== null) this.panel.clear();
    else if (at < 0) this.panel.clear("Every word of this answer took a pass of its own: nothing was drafted.");
    else this.panel.show(rounds[at], `Best pass: ${at + 1} of ${rounds.length}`);
  }

  _draw() {
    this.strip.element.hidden = !this.card;
    if (this.card) this.strip.show(this.card.figures, this.card.view.rounds, this.card.plain);
  }
}

/** Return the number of the round that wrote most from its draft, or -1. */
function bestOf(rounds) {
  const written = rounds.map((one) => (one.accepted.length ? one.pieces.length : 0));
  const most = Math.max(...written, 0);
  return most ? written.indexOf(most) : -1;
}
