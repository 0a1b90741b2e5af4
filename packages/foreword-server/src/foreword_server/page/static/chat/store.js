/** What the browser keeps: conversations in its database, settings in its storage. Nothing of it leaves the browser. */

const DATABASE = "foreword";
const CONVERSATIONS = "conversations";
const SETTINGS = "foreword-settings";
const OPENED = "foreword-open"; // of this tab

/** Return a promise of what a request to the database gives. */
const resultOf = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** The conversations of this browser. Where it keeps none, as in some private windows, they last until the page is left. */
export class Store {
  constructor() {
    this.kept = new Map(); // id -> conversation
    this.ready = this._open();
  }

  async _open() {
    try {
      const request = indexedDB.open(DATABASE, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(CONVERSATIONS, { keyPath: "id" });
      this.database = await resultOf(request);
      for (const one of await resultOf(this._table("readonly").getAll())) this.kept.set(one.id, one);
    } catch {
      this.database = null;
    }
  }

  _table(mode) {
    return this.database.transaction(CONVERSATIONS, mode).objectStore(CONVERSATIONS);
  }

  /** Return all conversations, the latest first. */
  all() {
    return [...this.kept.values()].sort((one, other) => other.changed - one.changed);
  }

  /** Return the conversation of this id, if it is kept. */
  get(id) {
    return this.kept.get(id);
  }

  /** Keep a conversation: id, title, changed (milliseconds) and turns. */
  async put(conversation) {
    this.kept.set(conversation.id, conversation);
    await this.ready;
    if (this.database) await resultOf(this._table("readwrite").put(conversation)).catch(() => {});
  }

  /** Forget one conversation. */
  async remove(id) {
    this.kept.delete(id);
    await this.ready;
    if (this.database) await resultOf(this._table("readwrite").delete(id));
  }

  /** Forget all of them. */
  async clear() {
    this.kept.clear();
    await this.ready;
    if (this.database) await resultOf(this._table("readwrite").clear());
  }
}

/** Return the settings that were saved: name -> value. */
export function savedSettings() {
  try {
    return JSON.parse(localStorage.getItem(SETTINGS)) ?? {};
  } catch {
    return {};
  }
}

/** Save settings; a browser that keeps nothing goes on without. */
export function saveSettings(values) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(values));
  } catch {
    // no storage here
  }
}

/** Remember, for this tab, the conversation that is open; null forgets it. */
export function rememberOpen(id) {
  try {
    if (id === null) sessionStorage.removeItem(OPENED);
    else sessionStorage.setItem(OPENED, id);
  } catch {
    // no storage here
  }
}

/** Return the conversation that was open in this tab, or null. */
export function openedBefore() {
  try {
    return sessionStorage.getItem(OPENED);
  } catch {
    return null;
  }
}
