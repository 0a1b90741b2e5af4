/** "What if": an answer, re-scored by the server for other methods; the text would be the same. */

import { alone } from "../alone.js";
import { whatIf } from "../api.js";
import { count, el, percent, short } from "../dom.js";
import { draftTree, sentence } from "../round.js";
import { methodName, PLAIN } from "./words.js";

/** Methods that are compared, where the server can draft with them: lookups, the default, and one trained head. */
const COMPARED = ["suffix", "ngram", "lm", "eagle"];
const NODES = [4, 8];
const SHOWN = 8; // passes that are drawn at first

/** Return a fold under an answer that compares methods once it is opened. `recording()` is the answer's. */
export function whatIfFold(recording, usable, own) {
  const place = el("div", { class: "compared", "aria-live": "polite" });
  const fold = el("details", { class: "whatif" }, el("summary", { text: "What if others had drafted" }), place);
  const drafts = (name) => usable.includes(name) && name !== PLAIN && !name.startsWith("auto("); // its members are there
  const methods = [...new Set([own, ...COMPARED])].filter(drafts);
  fold.addEventListener("toggle", () => fold.open && !place.hasChildNodes() && replay(place, recording(), methods));
  return fold;
}

/** Replay an answer, one method after the other: it waits for what runs, and can be stopped. */
async function replay(place, recording, methods) {
  const stopping = new AbortController();
  const said = el("span", { text: "Waiting until what was asked for before has ended …" });
  const bar = el("progress", { "aria-label": "Methods replayed", max: methods.length, value: 0 });
  place.replaceChildren(el("p", { class: "row note" }, said, bar, el("button", { type: "button", text: "Stop", onclick: () => stopping.abort() })));
  place.scrollIntoView({ block: "nearest" });
  const found = { outcomes: [], left_out: [] };
  const add = ({ outcomes, left_out: leftOut }) => {
    found.outcomes.push(...outcomes.filter((one) => one.method !== PLAIN || !found.outcomes.some((other) => other.method === PLAIN)));
    found.left_out.push(...leftOut);
  };
  const run = async () => {
    for (const [at, method] of methods.entries()) {
      said.textContent = `The server replays this answer: ${methodName(method)}, ${at + 1} of ${methods.length}`;
      bar.value = at;
      add(await whatIf({ recording, methods: [method], nodes: NODES }, stopping.signal));
    }
  };
  const again = (text) => el("button", { type: "button", text, onclick: () => replay(place, recording, methods) });
  try {
    await alone(run, stopping.signal);
    place.replaceChildren(...comparison(found, recording));
    place.scrollIntoView({ block: "nearest" });
  } catch (error) {
    if (error.name !== "AbortError") place.replaceChildren(el("p", { class: "fault", text: error.message }), again("Try again"));
    else place.replaceChildren(...(found.outcomes.length ? comparison(found, recording) : []), el("p", { class: "row note" }, "Stopped; the server still ends the method that it was at.", again("Replay all")));
  }
}

function comparison({ outcomes, left_out: leftOut }, recording) {
  const passes = new Passes(recording);
  const heads = ["method", "drafted", "passes", "a pass", "kept", "ms", "over plain"];
  const rows = outcomes.sort((one, other) => one.seconds - other.seconds).map((one) => {
    const accepted = one.drafted ? `${percent(one.accepted / one.drafted)} of ${one.drafted}` : "–";
    const cells = [one.method, one.nodes || "–", one.passes, short(one.tokens_per_pass), accepted, short(1000 * one.seconds), `${short(one.over_plain, 2)}×`];
    const row = el("tr", { class: one.method === PLAIN ? "plain" : "" }, ...cells.map((text) => el("td", { text: String(text) })));
    if (one.method !== PLAIN) row.firstChild.replaceChildren(passes.button(one));
    return row;
  });
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col", text })))), el("tbody", {}, ...rows));
  const facts = "Passes and acceptance are facts: the text does not depend on the drafter. Milliseconds are predicted from measured costs.";
  const missing = leftOut.length ? [el("p", { class: "note", text: `${count(leftOut.length, "method")} left out: ${leftOut.map((one) => one.why).join(" ")}` })] : [];
  return [el("div", { class: "wide-table", tabindex: "0", role: "group", "aria-label": "Methods compared" }, table), passes.element, el("p", { class: "note", text: facts }), ...missing];
}

/** The passes of one method of the table, drawn once its button is pressed. */
class Passes {
  constructor(recording) {
    this.recording = recording;
    this.element = el("section", { class: "passes", "aria-label": "Passes of a method", hidden: true });
    this.pressed = null;
  }

  /** Return the button of a row, which opens and closes its passes. */
  button(outcome) {
    const button = el("button", { type: "button", class: "small", "aria-expanded": "false", text: outcome.method });
    button.setAttribute("aria-label", `${outcome.method}, ${count(outcome.nodes, "draft token")}: show its passes`);
    button.addEventListener("click", () => this._toggle(button, outcome));
    return button;
  }

  async _toggle(button, { method, nodes }) {
    const opens = this.pressed !== button;
    this.pressed?.setAttribute("aria-expanded", "false");
    this.pressed = opens ? button : null;
    this.element.hidden = !opens;
    if (!opens) return;
    button.setAttribute("aria-expanded", "true");
    this.element.replaceChildren(el("p", { class: "note", text: `The server replays this answer with ${method} …` }));
    const drawn = await this._drawn(method, nodes);
    if (this.pressed === button) this.element.replaceChildren(...drawn);
  }

  async _drawn(method, nodes) {
    try {
      const found = await whatIf({ recording: this.recording, methods: [method], nodes: [nodes], trees: true });
      const { rounds } = found.outcomes.find((one) => one.method === method);
      const title = el("h3", { text: `${method}, ${count(nodes, "draft token")}: ${count(rounds.length, "pass", "passes")}` });
      const list = el("ol", {}, ...rounds.slice(0, SHOWN).map(pass));
      const rest = rounds.slice(SHOWN);
      const more = el("button", { type: "button", class: "small", text: `Show ${rest.length} more` });
      more.addEventListener("click", () => {
        list.append(...rest.map((round, at) => pass(round, SHOWN + at)));
        list.children[SHOWN].focus();
        more.remove();
      });
      return [title, list, ...(rest.length ? [more] : [])];
    } catch (error) {
      return [el("p", { class: "fault", text: error.message })];
    }
  }
}

/** Return a pass of a replay: what happened, and its draft tree. */
function pass(round, at) {
  const tree = draftTree(round);
  tree.setAttribute("tabindex", "0");
  tree.setAttribute("role", "group");
  tree.setAttribute("aria-label", `Draft tree of pass ${at + 1}`);
  return el("li", { tabindex: "-1" }, el("p", { class: "note", text: `${at + 1}. ${sentence(round)}` }), tree);
}
