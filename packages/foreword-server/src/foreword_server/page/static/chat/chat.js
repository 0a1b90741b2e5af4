/** Conversations: turns that are asked, stopped, gone on with, tried again, edited and kept by the browser. */

import { alone } from "../alone.js";
import { answer } from "../api.js";
import { byId, count, el, Follow } from "../dom.js";
import { History } from "./history.js";
import { Images } from "./images.js";
import { emptyAnswer, messagesOf } from "./messages.js";
import { newSeed } from "./settings.js";
import { openedBefore, rememberOpen, Store } from "./store.js";
import { Turn } from "./turn.js";
import { Usage } from "./usage.js";
import { whatIfFold } from "./whatif.js";
import { examplesFor } from "./words.js";

const TITLE = 60; // characters of the first question
const KEEPING = 2000; // milliseconds between two times that an answer is kept while it is written

/** The chat. `stage` shows rounds and figures; `onerror` an error. */
export class Chat {
  constructor(settings, stage, onerror) {
    [this.settings, this.stage, this.onerror] = [settings, stage, onerror];
    [this.log, this.form, this.send] = [byId("log"), byId("composer"), byId("send")];
    this.prompt = this.form.elements.prompt;
    this.images = new Images(this.prompt, onerror);
    this.follow = new Follow();
    this.store = new Store();
    this.usage = new Usage(this.prompt, () => this.turns, settings);
    const acts = {
      open: (one) => this._open(one),
      removed: (id) => id === this.id && this.clear(),
      clear: () => this.clear(),
    };
    this.history = new History(this.store, acts, () => this.id);
    this.acts = {
      edit: (turn) => this._edit(turn),
      again: (turn, seed, drafting) => this._again(turn, seed, drafting),
      goOn: (turn) => this._goOn(turn),
      result: (turn, results) => this._ask({ results }, this.turns.indexOf(turn) + 1),
      grown: () => this.follow.grown(),
      compare: (recording) => whatIfFold(() => recording, this.settings.usable, recording.method),
      choices: () => this.settings.choices,
      context: () => this.settings.context,
    };
    this._begin();
    this._wireComposer();
  }

  _wireComposer() {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.running.abort();
      else this.ask(this.prompt.value);
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.running) this.form.requestSubmit();
      }
      if (event.key === "ArrowUp" && !this.prompt.value) this._last(event);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.running?.abort();
      this._leaveEdit();
    });
    byId("leave-edit").addEventListener("click", () => this._leaveEdit());
    byId("fresh").addEventListener("click", () => this.clear());
  }

  /** Show what the server serves, and on the first time the conversation that was open before a reload. */
  async describe(info) {
    this.images.describe(info);
    const button = ({ text, prompt }) => el("button", { type: "button", text, onclick: () => this.ask(prompt) });
    if (!this.described) await this.settings.findTemplate();
    const { isBase } = this.settings;
    document.querySelector(".scene").hidden = isBase;
    if (isBase) this.prompt.placeholder = "Begin a text, and the model goes on";
    byId("examples").replaceChildren(...examplesFor(info.model, isBase).map(button));
    this.usage.draw();
    if (this.described) return;
    this.described = true;
    await this.store.ready;
    this.history.list();
    const before = this.store.all().find((one) => one.id === openedBefore());
    if (before && !this.turns.length) this._open(before);
  }

  _begin() {
    this.id = crypto.randomUUID?.() ?? `${Date.now()}-${newSeed()}`; // a page over plain HTTP has no randomUUID
    this.turns = [];
  }

  /** Begin a new conversation. */
  clear() {
    this.running?.abort();
    this._begin();
    rememberOpen(null);
    this._leaveEdit();
    this.log.replaceChildren();
    this._welcome(true);
    this.stage.clear();
    this.history.list();
    this.usage.draw();
    this.prompt.focus();
  }

  _welcome(shown) {
    byId("welcome").hidden = !shown;
    byId("fresh").hidden = shown;
  }

  /** Show a conversation that was kept. */
  _open({ id, turns }) {
    this.clear();
    this.id = id;
    rememberOpen(id);
    for (const { question, answer: kept } of structuredClone(turns)) {
      const drafting = { method: kept.recording?.method ?? this.settings.method, nodes: "auto" }; // of an older page, which kept none
      this._show({ question, answer: { ...emptyAnswer(kept.seed, 1, drafting), ...kept } }).restore();
    }
    this.history.list();
    this.usage.draw();
    this.follow.start();
  }

  /** Keep the conversation as it is. */
  _keep() {
    if (!this.turns.length) return;
    const before = this.store.get(this.id);
    const { text = "" } = this.turns[0].data.question;
    const title = before?.named ? before.title : text.trim().replace(/\s+/g, " ").slice(0, TITLE) || "An image";
    this.kept = Date.now();
    this.store.put({ id: this.id, title, named: before?.named ?? false, changed: this.kept, turns: this.turns.map((turn) => turn.data) });
    rememberOpen(this.id);
    this.history.list();
  }

  /** Add a card to the conversation: a recording that was opened. */
  add(...nodes) {
    this._welcome(false);
    this.log.append(...nodes);
    nodes.at(-1).scrollIntoView({ block: "nearest" });
  }

  /** Draw all answers again: how they are shown has changed. */
  redraw() {
    for (const turn of this.turns) turn.draw();
  }

  /** Send a prompt and show its answer. */
  async ask(text) {
    if (!text.trim() || this.running) return;
    const from = this.editing ? this.turns.indexOf(this.editing) : this.turns.length;
    this._leaveEdit();
    this.prompt.value = "";
    this.prompt.dispatchEvent(new Event("input")); // its tokens are counted anew
    await this._ask({ text, images: this.images.take() }, from);
  }

  /** Ask in place of all turns from the `at`-th on. */
  async _ask(question, at, { seed = this.settings.seed(), drafting = this.settings.drafting, earlier = [] } = {}) {
    if (this.running) return;
    for (const turn of this.turns.splice(at)) turn.element.remove();
    await this._write(this._show({ question, answer: emptyAnswer(seed, this.settings.temperature, drafting, earlier) }));
  }

  /** Go on with an answer that was cut or stopped, in its place. */
  async _goOn(turn) {
    if (this.running) return;
    for (const later of this.turns.splice(this.turns.indexOf(turn) + 1)) later.element.remove();
    turn.begin();
    await this._write(turn, this.settings.isBase ? {} : { continue_final_message: true });
  }

  /** Write an answer, from its beginning or on. */
  async _write(turn, more = {}) {
    this.onerror(null);
    this.running = new AbortController();
    this.send.textContent = "Stop";
    byId("status").textContent = "Writing";
    this.follow.start();
    this._keep();
    const said = await this._answered(turn, more);
    this.running = null;
    this.send.textContent = "Send";
    this._keep();
    this.usage.draw();
    this.follow.grown();
    byId("status").textContent = said;
  }

  /** Write the answer of a turn; returns what is said of it. */
  async _answered(turn, more) {
    const { seed, drafting } = turn.data.answer;
    const body = { ...this.settings.body(messagesOf(this.turns.map((one) => one.data)), seed, drafting), ...more };
    const onround = (round, deltas) => {
      turn.push(round, deltas);
      if (Date.now() - this.kept > KEEPING) this._keep();
    };
    const { signal } = this.running;
    const onwait = () => turn.wait("Waiting until what was asked for before has ended, so that each is measured alone …");
    try {
      const recording = await alone(() => answer(body, onround, signal, (progress) => turn.read(progress)), signal, onwait);
      turn.end({ recording });
      return `Answer complete: ${turn.card.facts.textContent}`;
    } catch (error) {
      const stopped = error.name === "AbortError";
      turn.end(stopped ? {} : { error });
      if (error.status === 401) this.onerror(error);
      return stopped ? "The answer has ended early" : `No answer: ${error.message}`;
    }
  }

  _show(data) {
    this._welcome(false);
    const turn = new Turn(data, this.stage.newCard("Answer"), this.acts);
    turn.card.view.ongrown = () => this.follow.grown();
    this.turns.push(turn);
    this.log.append(turn.element);
    return turn;
  }

  /** Take a question back into the box; sending it replaces what came after. */
  _edit(turn) {
    if (this.running) return;
    const { text, images = [] } = turn.data.question;
    this.editing = turn;
    this.prompt.value = text;
    this.images.put(images);
    byId("editing").hidden = false;
    const after = this.turns.length - this.turns.indexOf(turn) - 1;
    byId("editing-note").textContent = after ? `Sending replaces this question and ${count(after, "turn")} after it.` : "Sending replaces this question.";
    this.prompt.focus();
  }

  _leaveEdit() {
    if (!this.editing) return;
    this.editing = null;
    this.prompt.value = "";
    this.images.put([]);
    byId("editing").hidden = true;
  }

  /** Answer a question anew; other `drafting` is compared with what was written before. */
  _again(turn, seed, drafting = turn.data.answer.drafting) {
    if (this.running) return;
    const tried = turn.tried();
    const earlier = seed === null ? [] : [...turn.data.answer.earlier, ...(tried ? [tried] : [])].slice(-4);
    this._ask(turn.data.question, this.turns.indexOf(turn), { seed: seed ?? newSeed(), drafting, earlier });
  }

  /** Put the last question into the empty box. */
  _last(event) {
    const asked = this.turns.map((turn) => turn.data.question.text).filter(Boolean);
    if (!asked.length) return;
    event.preventDefault();
    this.prompt.value = asked.at(-1);
    this.prompt.setSelectionRange(this.prompt.value.length, this.prompt.value.length);
  }
}
