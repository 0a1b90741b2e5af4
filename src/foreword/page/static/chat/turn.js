/** One turn of a conversation: a question, its answer as tokens and to read, and what can be done with them. */

import { copyButton, el, oncePerFrame } from "../dom.js";
import { content, picture } from "./images.js";
import { readable, render } from "./reading.js";

/** Milliseconds between two renderings of an answer that is still written: each takes all of it. */
const PAUSE = 120;

/**
 * Return the messages of a request about these turns. A question that the server refused is left out, since it would be
 * refused again; two questions in a row become one, which every chat template takes.
 */
export function messagesOf(turns) {
  const messages = [];
  for (const { question, answer } of turns) {
    if (answer?.refused) continue;
    if (question.results) messages.push(...question.results.map(({ id, text }) => ({ role: "tool", tool_call_id: id, content: text })));
    else addQuestion(messages, content(question.text, question.images));
    if (answer?.content || answer?.calls?.length) messages.push(answerMessage(answer));
  }
  return messages;
}

function addQuestion(messages, asked) {
  const before = messages.at(-1);
  if (before?.role !== "user") messages.push({ role: "user", content: asked });
  else if (typeof before.content === "string" && typeof asked === "string") before.content += `\n\n${asked}`;
  else before.content = [...partsOf(before.content), ...partsOf(asked)];
}

const partsOf = (asked) => (typeof asked === "string" ? [{ type: "text", text: asked }] : asked);

function answerMessage({ content: text, calls = [] }) {
  if (!calls.length) return { role: "assistant", content: text };
  const asked = calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  return { role: "assistant", content: text || null, tool_calls: asked };
}

/** Return a new answer: what a stream has written so far. */
export const emptyAnswer = (seed) => ({ seed, content: "", reasoning: "", calls: [], rounds: [], recording: null, error: null, refused: false });

/** Add a piece of a stream to an answer. */
export function addDelta(answer, delta) {
  answer.content += delta.content ?? "";
  answer.reasoning += delta.reasoning_content ?? "";
  for (const { index, id, function: called } of delta.tool_calls ?? []) {
    const call = (answer.calls[index] ??= { id, name: "", arguments: "" });
    call.name += called?.name ?? "";
    call.arguments += called?.arguments ?? "";
  }
}

/** A turn on the page. `acts`: edit(turn), again(turn, seed or null), result(turn, results), grown(), compare(recording). */
export class Turn {
  constructor(data, card, acts) {
    [this.data, this.card, this.acts] = [data, card, acts];
    this.prose = el("div", { class: "prose" });
    this.draw = paced(() => this._draw());
    this.bar = el("progress", { class: "reading", "aria-label": "Prompt read", max: 1, value: 0 });
    this.failure = el("div", { class: "failure", role: "alert", hidden: true });
    this.called = el("div", { class: "calls" });
    this.buttons = el("div", { class: "acts" });
    this.compared = el("div", {});
    card.element.prepend(this.bar, this.prose);
    card.element.append(this.called, this.failure, this.buttons, this.compared);
    card.element.classList.add("both");
    this.element = el("section", { class: "turn" }, this._question(), card.element);
    this.running = true;
  }

  _question() {
    const { text, images = [], results } = this.data.question;
    if (results) return el("div", { class: "question" }, ...results.map(({ name, text: said }) => el("p", { class: "asked", text: `${name} → ${said}` })));
    const pictures = images.length ? [el("p", { class: "images sent" }, ...images.map(picture))] : [];
    const edit = el("button", { type: "button", class: "small", text: "Edit", onclick: () => this.acts.edit(this) });
    const acts = el("div", { class: "acts" }, edit, copyButton(() => text));
    return el("div", { class: "question" }, ...pictures, el("p", { class: "asked", dir: "auto", text }), acts);
  }

  /** Show how much of the prompt is read. */
  read(done, all) {
    [this.bar.max, this.bar.value] = [all, done];
  }

  /** Add a round, and what it wrote. */
  push(round, deltas) {
    this.bar.remove();
    for (const delta of deltas) addDelta(this.data.answer, delta);
    if (round) this.card.push(round);
    this.draw();
  }

  /** End: complete, with what the server recorded; or with an error; or stopped. */
  end({ recording = null, error = null } = {}) {
    const { answer } = this.data;
    this.bar.remove();
    this.running = false;
    answer.rounds = this.card.view.rounds;
    if (recording) {
      this.card.finish(recording);
      answer.recording = this.card.recording;
    }
    if (error) {
      answer.error = error.message;
      answer.refused = error.status >= 400 && error.status < 500;
    }
    this._finished();
  }

  /** Show an answer that was kept. */
  restore() {
    const { recording, rounds } = this.data.answer;
    this.bar.remove();
    this.running = false;
    if (recording) this.card.load(recording);
    else for (const round of rounds) this.card.push(round); // it was stopped
    this._finished();
  }

  _finished() {
    const { answer } = this.data;
    this.failure.hidden = !answer.error;
    this.failure.replaceChildren(...(answer.error ? this._failed() : []));
    const form = answer.calls.length && !answer.error ? [this._resultForm()] : [];
    this.called.replaceChildren(...answer.calls.map(shownCall), ...form);
    this.buttons.replaceChildren(...(answer.error ? [] : this._acts()));
    this.compared.replaceChildren(...(answer.recording ? [this.acts.compare(answer.recording)] : []));
    this._draw();
  }

  _failed() {
    const again = el("button", { type: "button", text: "Try again", onclick: () => this.acts.again(this, this.data.answer.seed) });
    const edit = el("button", { type: "button", text: "Edit", onclick: () => this.acts.edit(this) });
    const acts = this.data.question.results ? [again] : [again, edit];
    return [el("p", { text: this.data.answer.error }), el("div", { class: "row" }, ...acts)];
  }

  _acts() {
    const { answer } = this.data;
    const button = (text, title, onclick) => el("button", { type: "button", class: "small", text, title, onclick });
    return [
      copyButton(() => answer.content),
      button("Again", `Answer anew with the same seed, ${answer.seed}`, () => this.acts.again(this, answer.seed)),
      button("New seed", "Answer anew with another seed", () => this.acts.again(this, null)),
    ];
  }

  /** Bring the text to read up to date; where tokens are shown, it is not made. */
  async _draw() {
    if (document.body.dataset.view !== "read") return;
    await readable();
    const { content: text, reasoning } = this.data.answer;
    this.text ??= el("div", { dir: "auto" });
    render(this.text, text);
    this.prose.replaceChildren(...(reasoning ? [this._reasoning()] : []), this.text);
    this.acts.grown();
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
