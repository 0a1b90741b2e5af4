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
    this.draw = oncePerFrame(() => this._draw());
    this.clear();
  }

  clear() {
    this.card = this.last = null;
    this.strip.element.hidden = true;
    this.panel.clear();
    this.hide();
  }

  hide() {
    this.place.classList.remove("up");
  }

  /** Return a card whose rounds and figures are shown here. */
  newCard(label) {
    return new AnswerCard(label, {
      onopen: (card, index) => this.open(card, index),
      onfigures: (card) => {
        this.card = card;
        this.draw();
      },
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
    this.last = this.card ?? this.last;
    this.strip.element.hidden = !this.card;
    if (this.card) this.strip.show(this.card.figures, this.card.recording?.totals.plain_tokens_per_second ?? this.plain);
  }
}
