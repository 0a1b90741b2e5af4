/** One turn of a conversation: a question, its answer as tokens and to read, and what can be done with them. */

import { covered } from "../answer.js";
import { copyButton, count, el, oncePerFrame } from "../dom.js";
import { gainOf } from "../figures.js";
import { paceOf } from "../pace.js";
import { picture } from "./images.js";
import { addDelta } from "./messages.js";
import { mark } from "./origins.js";
import { Progress } from "./progress.js";
import { readable, render } from "./reading.js";
import { afterwards, besideEarlier, ending, triedAs } from "./ending.js";
import { PLAIN } from "./words.js";

/** Milliseconds between two renderings of an answer that is still written: each takes all of it. */
const PAUSE = 120;
const [FOLDED_LINES, FOLDED_CHARACTERS] = [24, 1800]; // a longer question is folded

/**
 * A turn on the page. `acts`: edit(turn), again(turn, seed or null, drafting), goOn(turn), result(turn, results), grown(),
 * compare(recording), choices() of drafting, context().
 */
export class Turn {
  constructor(data, card, acts) {
    [this.data, this.card, this.acts] = [data, card, acts];
    this.prose = el("div", { class: "prose", onpointerover: (event) => this._point(event), onpointerleave: () => this._leave(), onclick: (event) => this._press(event) });
    this.draw = paced(() => this._draw());
    this.progress = new Progress();
    this.failure = el("div", { class: "failure", role: "alert", hidden: true });
    this.called = el("div", { class: "calls" });
    this.below = el("div", { class: "below" });
    card.element.prepend(this.progress.element, this.prose);
    card.element.append(this.called, this.failure, this.below);
    card.element.classList.add("both");
    card.controls.remove(); // it comes back below, behind "…"
    card.facts.remove();
    this.element = el("section", { class: "turn" }, this._question(), card.element);
    this.from = 0; // rounds of requests before
  }

  /** Begin to write on. */
  begin() {
    this.from = this.data.answer.rounds.length;
    this.data.answer.ended = null;
    this.below.replaceChildren();
  }

  /** Note how many tokens stand before the answer; a request that goes on reads the first part of it, too. */
  _readPrompt(tokens) {
    const { answer } = this.data;
    answer.prompt = tokens - answer.rounds.slice(0, this.from).reduce((sum, round) => sum + round.pieces.length, 0);
  }

  _question() {
    const { text, images = [], results } = this.data.question;
    if (results) return el("div", { class: "question" }, ...results.map(({ name, text: said }) => el("p", { class: "asked", text: `${name} → ${said}` })));
    const pictures = images.length ? [el("p", { class: "images sent" }, ...images.map(picture))] : [];
    const edit = el("button", { type: "button", class: "small", text: "Edit", onclick: () => this.acts.edit(this) });
    const acts = el("div", { class: "acts" }, edit, copyButton(() => text));
    return el("div", { class: "question" }, ...pictures, ...questionText(text), acts);
  }

  /** Show how much of the prompt is read: `processed` of `total` tokens, `cache` of them known before, in `time_ms`. */
  read(progress) {
    this._readPrompt(progress.total);
    this.progress.show(progress);
  }

  /** Show why the answer waits. */
  wait(text) {
    this.progress.say(text);
  }

  /** Add a round, and what it wrote. */
  push(round, deltas) {
    this.progress.hide();
    const { answer } = this.data;
    for (const delta of deltas) addDelta(answer, delta);
    if (round) {
      this.card.push(round);
      answer.rounds = this.card.view.rounds;
    }
    this.draw();
  }

  /** End: complete, with what the server recorded; or with an error; or stopped. */
  end({ recording = null, error = null } = {}) {
    const { answer } = this.data;
    answer.rounds = this.card.view.rounds;
    answer.ended = error ? "error" : (recording?.finish_reason ?? "stopped");
    if (recording) {
      this._readPrompt(recording.prompt_tokens.length);
      answer.recording = { ...recording, rounds: answer.rounds.slice(this.from) };
    }
    if (error) {
      answer.error = error.message;
      answer.refused = error.status >= 400 && error.status < 500;
    }
    this._finished();
  }

  /** Show an answer that was kept. */
  restore() {
    const { answer } = this.data;
    for (const round of answer.rounds) this.card.push(round);
    answer.ended ??= answer.recording?.finish_reason ?? "left";
    this._finished();
  }

  _finished() {
    const { answer } = this.data;
    this.progress.hide();
    this.card.plain = answer.earlier.find((one) => one.plain)?.pace ?? null;
    this.card.finish({ method: answer.drafting.method, seed: answer.temperature > 0 ? answer.seed : null }, answer.recording);
    this.failure.hidden = !answer.error;
    this.failure.replaceChildren(...(answer.error ? this._failed() : []));
    const form = answer.calls.length && !answer.error ? [this._resultForm()] : [];
    this.called.replaceChildren(...answer.calls.map(shownCall), ...form);
    this.below.replaceChildren(...(answer.error ? [] : this._below()));
    this._draw();
  }

  _failed() {
    const again = el("button", { type: "button", text: "Try again", onclick: () => this.acts.again(this, this.data.answer.seed) });
    const edit = el("button", { type: "button", text: "Edit", onclick: () => this.acts.edit(this) });
    const acts = this.data.question.results ? [again] : [again, edit];
    return [el("p", { text: this.data.answer.error }), el("div", { class: "row" }, ...acts)];
  }

  /** Return what stands below an answer: how it ended, what it gained, one row of instruments, and the rest folded. */
  _below() {
    const { answer } = this.data;
    const more = el("div", { class: "rest", hidden: true }, ...this._rest());
    const opens = el("button", { type: "button", class: "small", "aria-label": "More of this answer", "aria-expanded": "false", text: "…" });
    opens.addEventListener("click", () => {
      more.hidden = !more.hidden;
      opens.setAttribute("aria-expanded", String(!more.hidden));
      more.scrollIntoView({ block: "nearest" });
    });
    const button = (text, title, onclick) => el("button", { type: "button", class: "small", text, title, onclick });
    const measures = answer.drafting.method !== PLAIN && this.card.figures.drafted && !gainOf(this.card.figures, answer.rounds, this.card.plain).known;
    const plain = measures ? [button("Measure against plain", "Write it again without a draft, to see what drafting saved", () => this.acts.again(this, answer.seed, { method: PLAIN, nodes: "auto" }))] : [];
    const seeds = answer.temperature > 0 ? [button("New seed", "Answer anew with another seed", () => this.acts.again(this, null))] : [];
    const again = button("Again", "Answer anew as it was asked", () => this.acts.again(this, answer.seed));
    const row = el("div", { class: "instruments" }, this.card.facts, ...plain, ...(answer.content ? [copyButton(() => answer.content)] : []), again, ...seeds, opens);
    return [...ending(this, this.acts), ...afterwards(this, this.acts), ...besideEarlier(answer, this.card), row, more];
  }

  _rest() {
    const { recording, seed, drafting } = this.data.answer;
    const others = this.acts.choices().filter((one) => one.method !== drafting.method || one.nodes !== drafting.nodes);
    const buttons = others.map((one) => el("button", { type: "button", text: one.text, onclick: () => this.acts.again(this, seed, one) }));
    const anew = el("div", { class: "row", role: "group", "aria-label": "Write it again" }, el("span", { class: "note", text: "Write it again:" }), ...buttons);
    return [anew, this.card.controls, ...(recording ? [this.acts.compare(recording)] : [])];
  }

  /** Return what this answer took, for a comparison with another of the same question; null if it was cut short. */
  tried() {
    const { answer } = this.data;
    return answer.ended === "stop" || answer.ended === "length" ? triedAs(answer, this.card.figures, paceOf(answer.rounds)) : null;
  }

  /** Bring the text to read up to date; where tokens are shown, it is not made. */
  async _draw() {
    if (document.body.dataset.view !== "read") return;
    await readable();
    const { content: text, reasoning, rounds } = this.data.answer;
    this.text ??= el("div", { dir: "auto" });
    render(this.text, text);
    mark(this.text, rounds, text);
    this.prose.replaceChildren(...(reasoning ? [this._reasoning()] : []), this.text);
    this.acts.grown();
  }

  _point(event) {
    const at = event.target.dataset?.round;
    if (at !== undefined && !covered.matches) this.card.view.onopen(Number(at));
  }

  _leave() {
    if (!covered.matches) this.card.view.onopen(this.card.view.selected);
  }

  _press(event) {
    const at = event.target.dataset?.round;
    if (at !== undefined && !getSelection().toString()) this.card.view.select(Number(at));
  }

  _reasoning() {
    this.folded ??= el("details", { class: "reasoning" }, el("summary", { text: "Reasoning" }), el("div", { dir: "auto" }));
    this.folded.lastChild.textContent = this.data.answer.reasoning;
    return this.folded;
  }

  /** Return a form for what the called tools return: the page runs none. */
  _resultForm() {
    const { calls } = this.data.answer;
    const fields = calls.map((call) => el("label", {}, `Result of ${call.name}`, el("textarea", { rows: 2, required: true })));
    const send = (event) => {
      event.preventDefault();
      const texts = [...event.target.querySelectorAll("textarea")].map((field) => field.value);
      this.acts.result(this, calls.map(({ id, name }, at) => ({ id, name, text: texts[at] })));
    };
    return el("form", { class: "results", onsubmit: send }, ...fields, el("button", { text: "Send results" }));
  }
}

/** Return a question as it stands in the conversation: a long one is folded. */
function questionText(text) {
  const shown = el("p", { class: "asked", dir: "auto", text });
  const lines = text.split("\n").length;
  if (lines <= FOLDED_LINES && text.length <= FOLDED_CHARACTERS) return [shown];
  const size = lines > FOLDED_LINES ? count(lines, "line") : count(text.length, "character");
  shown.classList.add("folded");
  const unfold = (event) => {
    const folded = shown.classList.toggle("folded");
    event.target.textContent = folded ? `Show all ${size}` : "Show less";
    event.target.setAttribute("aria-expanded", String(!folded));
  };
  return [shown, el("button", { type: "button", class: "small unfold", "aria-expanded": "false", text: `Show all ${size}`, onclick: unfold })];
}

function shownCall({ name, arguments: given }) {
  let text = given;
  try {
    text = JSON.stringify(JSON.parse(given), null, 2);
  } catch {
    // it is still written, or was cut
  }
  return el("div", { class: "call" }, el("b", { text: `Calls ${name}` }), el("pre", { tabindex: "0", text }));
}

/** Return a function that calls `draw` in a frame, and then not again for PAUSE milliseconds; the last call counts. */
function paced(draw) {
  let waiting = false;
  const frame = oncePerFrame(draw);
  return () => {
    if (waiting) return;
    waiting = true;
    setTimeout(() => {
      waiting = false;
      frame();
    }, PAUSE);
  };
}
