/** Conversations: turns that are asked, stopped, tried again, edited and kept by the browser. */

import { answer } from "../api.js";
import { byId, count, el, Follow } from "../dom.js";
import { Images } from "./images.js";
import { newSeed } from "./settings.js";
import { Store } from "./store.js";
import { emptyAnswer, messagesOf, Turn } from "./turn.js";
import { whatIfFold } from "./whatif.js";

const TITLE = 60; // characters of the first question

/** The chat. `stage` shows rounds and figures; `onerror` an error. */
export class Chat {
  constructor(settings, stage, onerror) {
    [this.settings, this.stage, this.onerror] = [settings, stage, onerror];
    [this.log, this.form, this.send] = [byId("log"), byId("composer"), byId("send")];
    this.prompt = this.form.elements.prompt;
    this.images = new Images(this.prompt, onerror);
    this.follow = new Follow();
    this.store = new Store();
    this.acts = {
      edit: (turn) => this._edit(turn),
      again: (turn, seed) => this._again(turn, seed),
      result: (turn, results) => this._ask({ results }, this.turns.indexOf(turn) + 1),
      grown: () => this.follow.grown(),
      compare: (recording) => whatIfFold(() => recording, this.settings.usable, recording.method),
    };
    this._begin();
    this._wireComposer();
    this._wireMenu();
    this.store.ready.then(() => this._list());
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
    for (const example of document.querySelectorAll("[data-prompt]")) {
      example.addEventListener("click", () => this.ask(example.dataset.prompt));
    }
  }

  _wireMenu() {
    const menu = byId("chats");
    byId("fresh").addEventListener("click", () => this.clear());
    byId("forget").addEventListener("click", async () => {
      await this.store.clear();
      menu.open = false;
      this.clear();
    });
    document.addEventListener("click", (event) => {
      if (!menu.contains(event.target)) menu.open = false;
    });
    menu.addEventListener("keydown", (event) => {
      if (event.key === "Escape") menu.open = false;
    });
  }

  /** List the conversations that are kept. */
  _list() {
    const all = this.store.all();
    byId("chats").hidden = !all.length;
    const item = (one) => {
      const open = () => {
        byId("chats").open = false;
        this._open(one);
      };
      const remove = async () => {
        await this.store.remove(one.id);
        if (one.id === this.id) this.clear();
        this._list();
      };
      const current = one.id === this.id ? "true" : null;
      return el(
        "li",
        {},
        el("button", { type: "button", class: "title", "aria-current": current, text: one.title, onclick: open }),
        el("button", { type: "button", class: "small", "aria-label": `Delete ${one.title}`, text: "×", onclick: remove }),
      );
    };
    byId("kept").replaceChildren(...all.map(item));
  }

  _begin() {
    this.id = crypto.randomUUID?.() ?? `${Date.now()}-${newSeed()}`; // a page over plain HTTP has no randomUUID
    this.turns = [];
  }

  /** Begin a new conversation. */
  clear() {
    this.running?.abort();
    this._begin();
    this._leaveEdit();
    this.log.replaceChildren();
    this._welcome(true);
    this.stage.clear();
    this._list();
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
    for (const data of turns) {
      const turn = this._show(structuredClone(data));
      turn.restore();
    }
    this._list();
    this.follow.start();
  }

  /** Keep the conversation as it is. */
  _keep() {
    if (!this.turns.length) return;
    const { text } = this.turns[0].data.question;
    const title = text.trim().replace(/\s+/g, " ").slice(0, TITLE) || "An image";
    this.store.put({ id: this.id, title, changed: Date.now(), turns: this.turns.map((turn) => turn.data) });
    this._list();
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
    await this._ask({ text, images: this.images.take() }, from);
  }

  /** Ask in place of all turns from the `at`-th on. */
  async _ask(question, at, seed = this.settings.seed()) {
    if (this.running) return;
    this.onerror(null);
    for (const turn of this.turns.splice(at)) turn.element.remove();
    const turn = this._show({ question, answer: emptyAnswer(seed) });
    this.running = new AbortController();
    this.send.textContent = "Stop";
    byId("status").textContent = "Writing";
    this.follow.start();
    byId("status").textContent = await this._answered(turn);
    this.running = null;
    this.send.textContent = "Send";
    this._keep();
    this.follow.grown();
  }

  /** Write the answer of a turn; returns what is said of it. */
  async _answered(turn) {
    const messages = messagesOf(this.turns.map((one) => one.data));
    const body = this.settings.body(messages, turn.data.answer.seed);
    const onround = (round, deltas) => turn.push(round, deltas);
    const onread = (read, all) => turn.read(read, all);
    try {
      const recording = await answer(body, onround, this.running.signal, onread);
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

  _again(turn, seed) {
    if (this.running) return;
    this._ask(turn.data.question, this.turns.indexOf(turn), seed ?? newSeed());
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
