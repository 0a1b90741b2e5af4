/** A conversation: prompts, and answers that are written round by round. */

import { answer } from "./api.js";
import { byId, el } from "./dom.js";
import { content, Images, picture } from "./images.js";

/** The chat. `stage` shows rounds and figures; `onerror` an error. */
export class Chat {
  constructor(settings, stage, onerror) {
    [this.settings, this.stage, this.onerror] = [settings, stage, onerror];
    this.messages = [];
    this.log = byId("log");
    this.form = byId("composer");
    this.prompt = this.form.elements.prompt;
    this.send = byId("send");
    this.images = new Images(this.prompt, onerror);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.running.abort();
      else this.ask(this.prompt.value);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.running?.abort();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.running) this.form.requestSubmit();
      }
    });
    byId("fresh").addEventListener("click", () => this.clear());
    for (const example of document.querySelectorAll("[data-prompt]")) {
      example.addEventListener("click", () => this.ask(example.dataset.prompt));
    }
  }

  /** Begin a new conversation. */
  clear() {
    this.running?.abort();
    this.messages = [];
    this.log.replaceChildren();
    byId("welcome").hidden = false;
    byId("fresh").hidden = true;
    this.stage.clear();
    this.prompt.focus();
  }

  /** Add a card to the conversation. */
  add(...nodes) {
    byId("welcome").hidden = true;
    byId("fresh").hidden = false;
    this.log.append(...nodes);
    nodes.at(-1).scrollIntoView({ block: "nearest" });
  }

  /** Send a prompt and show its answer. */
  async ask(text) {
    if (!text.trim() || this.running) return;
    this.prompt.value = "";
    this.onerror(null);
    const images = this.images.take();
    const messages = [...this.messages, { role: "user", content: content(text, images) }];
    const card = this.stage.newCard("Answer");
    const pictures = images.length ? [el("p", { class: "images sent" }, ...images.map(picture))] : [];
    this.add(...pictures, el("p", { class: "asked", dir: "auto", text }), card.element);
    this.running = new AbortController();
    this.send.textContent = "Stop";
    byId("status").textContent = "Writing";
    const reading = el("progress", { class: "reading", "aria-label": "Prompt read", max: 1, value: 0 });
    card.element.prepend(reading);
    let written = "";
    try {
      const asked = this.settings.body(messages, this.settings.seed());
      const onread = (read, total) => {
        reading.max = total;
        reading.value = read;
      };
      const onround = (round) => {
        reading.remove();
        written += round.pieces.join("");
        card.push(round);
      };
      card.finish(await answer(asked, onround, this.running.signal, onread));
      this.messages = [...messages, { role: "assistant", content: written }];
      byId("status").textContent = `Answer complete: ${card.facts.textContent}`;
    } catch (error) {
      if (error.name !== "AbortError") this.onerror(error);
      // what was written stays in the conversation
      if (written) this.messages = [...messages, { role: "assistant", content: written }];
      byId("status").textContent = "The answer has ended early";
      if (!card.view.rounds.length) card.element.remove();
    }
    reading.remove();
    this.running = null;
    this.send.textContent = "Send";
  }
}
