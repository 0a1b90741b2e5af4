/** The menu of conversations: opened, searched, renamed, exported as Markdown and deleted. */

import { byId, download, el } from "../dom.js";

/** The menu. `acts`: open(conversation), removed(id) after a deletion, clear() after all. `current()` is the id in view. */
export class History {
  constructor(store, acts, current) {
    [this.store, this.acts, this.current] = [store, acts, current];
    [this.menu, this.search] = [byId("chats"), byId("search")];
    this.renamed = null; // id of the one whose title is edited
    this.search.addEventListener("input", () => this.list());
    byId("forget").addEventListener("click", async () => {
      await store.clear();
      this.menu.open = false;
      acts.clear();
    });
    document.addEventListener("click", (event) => {
      if (this.menu.open && !event.composedPath().includes(this.menu)) this.menu.open = false;
    });
    this.menu.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.menu.open = false;
    });
  }

  /** List the conversations that hold what is searched for. */
  list() {
    const all = this.store.all();
    this.menu.hidden = !all.length;
    const words = this.search.value.trim().toLowerCase();
    const shown = all.filter((one) => !words || textOf(one).toLowerCase().includes(words));
    byId("kept").replaceChildren(...shown.map((one) => this._item(one)));
    byId("unfound").hidden = shown.length > 0;
  }

  _item(one) {
    if (one.id === this.renamed) return el("li", {}, this._naming(one));
    const small = (text, name, onclick) => el("button", { type: "button", class: "small", "aria-label": `${name} ${one.title}`, title: name, text, onclick });
    const open = () => {
      this.menu.open = false;
      this.acts.open(one);
    };
    const rename = () => {
      this.renamed = one.id;
      this.list();
      byId("kept").querySelector("input").select();
    };
    const remove = async () => {
      await this.store.remove(one.id);
      this.acts.removed(one.id);
      this.list();
    };
    const current = one.id === this.current() ? "true" : null;
    return el(
      "li",
      {},
      el("button", { type: "button", class: "title", "aria-current": current, text: one.title, onclick: open }),
      small("✎", "Rename", rename),
      small("↓", "Export", () => download(`${one.title.replace(/[^\w -]+/g, "").trim() || "conversation"}.md`, markdownOf(one), "text/markdown")),
      small("×", "Delete", remove),
    );
  }

  _naming(one) {
    const field = el("input", { type: "text", value: one.title, "aria-label": `Title of ${one.title}`, required: true });
    const name = async (event) => {
      event.preventDefault();
      this.renamed = null;
      await this.store.put({ ...one, title: field.value.trim() || one.title, named: true });
      this.list();
    };
    return el("form", { class: "row", onsubmit: name }, field, el("button", { text: "Rename" }));
  }
}

const textOf = ({ title, turns }) => [title, ...turns.flatMap(({ question, answer }) => [question.text ?? "", answer.content])].join("\n");

/** Return a conversation as Markdown. */
export function markdownOf({ title, turns }) {
  const parts = turns.flatMap(({ question, answer }) => {
    const asked = question.results?.map(({ name, text }) => `${name} → ${text}`).join("\n") ?? question.text;
    return [`**You**\n\n${asked}`, `**Model**\n\n${answer.content || answer.error || ""}`];
  });
  return `# ${title}\n\n${parts.join("\n\n")}\n`;
}
