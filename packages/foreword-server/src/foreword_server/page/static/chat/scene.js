/** A scene to play with: the reader drafts the next words, and the model checks all of them in one pass. */

import { answer } from "../api.js";
import { byId, el, percent, visible } from "../dom.js";
import { newSeed } from "./settings.js";
import { PLAIN } from "./words.js";

const MOST = 24; // tokens that one turn of the scene may write
const CHECKED = 16; // draft tokens of the reader that one pass checks
/** The question of the scene, and how its answer begins: a reader can tell how it goes on. */
const QUESTION = "Summarise: The river rose in the night and the miller moved his grain upstairs.";
const BEGINNING = "The river";

/** The scene. `settings` are those of the chat; `onerror` shows an error. */
export class Scene {
  constructor(settings, onerror) {
    [this.settings, this.onerror] = [settings, onerror];
    this.form = byId("scene-form");
    this.field = this.form.elements.words;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.field.value.trim()) this._turn(this.field.value);
    });
    byId("scene-drafter").addEventListener("click", () => this._turn(null));
    byId("scene-again").addEventListener("click", () => this.restart());
    byId("scene-question").textContent = QUESTION;
    this.restart();
  }

  /** Begin anew. */
  restart() {
    this.text = BEGINNING;
    this.seed = newSeed();
    this.busy = this.over = false;
    this.field.value = "";
    byId("scene-text").replaceChildren(el("span", { class: "token", text: BEGINNING }));
    byId("scene-why").replaceChildren();
    byId("scene-said").textContent = "";
    this._enable();
  }

  _enable() {
    for (const one of [this.field, ...this.form.querySelectorAll("button")]) one.disabled = this.busy || this.over;
  }

  /** Check a draft; null lets the server's own drafter make one. */
  async _turn(typed) {
    if (this.busy) return;
    this.busy = true;
    this.onerror(null);
    this._enable();
    try {
      const [round, recording] = await this._firstRound(typed);
      if (round) this._show(round, recording, typed !== null);
      else this.over = true;
    } catch (error) {
      this.onerror(error);
    }
    this.busy = false;
    this._enable();
    if (this.over) byId("scene-said").textContent += " The answer ends here.";
    else this.field.focus();
  }

  /** Return the first pass after the text so far, and what the server recorded of the request. */
  async _firstRound(typed) {
    const messages = [{ role: "user", content: QUESTION }, { role: "assistant", content: this.text }];
    const own = this.settings.body(messages, this.seed);
    const asked = { messages, seed: own.seed, temperature: own.temperature, max_tokens: MOST, continue_final_message: true };
    const rounds = [];
    const draft = typed === null ? this._drafter(own.speculative.method) : this._typed(typed);
    const recording = await answer({ ...asked, ...draft }, (round) => round && rounds.push(round));
    this.ends = rounds.length === 1 && recording.finish_reason === "stop";
    return [rounds[0], recording];
  }

  /** What the reader typed, as the prediction that OpenAI's API knows. */
  _typed(typed) {
    const joined = /\s$/.test(this.text) || /^[\s.,;:!?)]/.test(typed) ? typed : ` ${typed}`;
    return { prediction: { type: "content", content: joined }, speculative: { method: "predicted", nodes: CHECKED } };
  }

  _drafter(method) {
    return { speculative: method === PLAIN ? {} : { method, nodes: 4 } };
  }

  _show(round, recording, typed) {
    const path = round.accepted.map((node) => round.draft[node]);
    const tokens = [...path.map((one) => ({ ...one, kind: "accepted" })), round.added].slice(0, round.pieces.length);
    const shown = tokens.map((one, at) => el("span", { class: `token ${one.kind}`, text: round.pieces[at] }));
    byId("scene-text").append(...shown);
    this.text += round.pieces.join("");
    this.over = this.ends;
    this.field.value = "";
    byId("scene-said").textContent = said(round, typed);
    byId("scene-why").replaceChildren(...reasons(round, recording, typed));
  }
}

function said(round, typed) {
  const whose = typed ? "your" : "its";
  const [all, kept] = [round.draft.length, round.accepted.length];
  const own = `“${visible(round.added.text.trim() || round.added.text)}”`;
  if (!all) return `Nothing was drafted; the model wrote ${own}.`;
  const taken = kept === all ? `all ${all} of ${whose} words` : `${kept} of ${whose} ${all} words`;
  return `The model kept ${taken} and wrote ${own} itself: ${round.pieces.length} from one pass.`;
}

/** Return the reasons: a line for each word of the draft, and folded how it is decided. */
function reasons(round, { params, seed }, typed) {
  const kept = new Set(round.accepted);
  const last = round.accepted.at(-1) ?? -1;
  const outcome = (token, at) => (kept.has(at) ? "kept" : token.parent === last ? "refused" : "not reached");
  const lines = round.draft.map((token, at) => line(token, outcome(token, at)));
  if (!lines.length) return [];
  const greedy = params.temperature === 0;
  const rule = greedy
    ? "At temperature 0 the model writes its likeliest word, and keeps a drafted one that is this word."
    : `The model draws its own word with the noise of seed ${seed}, and keeps a drafted one that is this word.`;
  const other = " The rule of the papers keeps a drafted word with probability min(1, p/q) instead, p from the model and q from the drafter: as often or more so, but then the text depends on the draft. Here it never does.";
  const heads = [typed ? "Your word" : "Its word", "The model gives it", ""];
  return [
    el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col", text })))), el("tbody", {}, ...lines)),
    el("details", { class: "note" }, el("summary", { text: "How this is decided" }), rule + other),
  ];
}

function line(token, outcome) {
  const cells = [visible(token.text.trim() || token.text), outcome === "not reached" ? "" : percent(token.target_prob), outcome];
  return el("tr", { class: outcome === "kept" ? "accepted" : outcome }, ...cells.map((text) => el("td", { text })));
}
