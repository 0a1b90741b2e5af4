/** "What if": an answer, re-scored by the server for other methods; the text would be the same. */

import { whatIf } from "../api.js";
import { count, el, percent, short } from "../dom.js";
import { PLAIN } from "./settings.js";

/** Methods that are compared, where the server can draft with them: lookups, the default, and one trained head. */
const COMPARED = ["suffix", "ngram", "lm", "eagle"];
const NODES = [4, 8];

/** Return a fold under an answer that compares methods once it is opened. `recording()` is the answer's. */
export function whatIfFold(recording, usable, own) {
  const place = el("div", { class: "compared", "aria-live": "polite" });
  const fold = el("details", { class: "whatif" }, el("summary", { text: "What if" }), place);
  fold.addEventListener("toggle", async () => {
    if (!fold.open || place.hasChildNodes()) return;
    place.append(el("p", { class: "note", text: "The server replays this answer with other drafters …" }));
    try {
      const methods = [...new Set([own, ...COMPARED])].filter((name) => usable.includes(name) && name !== PLAIN);
      place.replaceChildren(...comparison(await whatIf({ recording: recording(), methods, nodes: NODES })));
    } catch (error) {
      place.replaceChildren(el("p", { class: "fault", text: error.message }));
      place.append(el("button", { type: "button", text: "Try again", onclick: () => again(fold, place) }));
    }
  });
  return fold;
}

function again(fold, place) {
  place.replaceChildren();
  fold.open = false;
  fold.open = true;
}

function comparison({ outcomes, left_out: leftOut }) {
  const heads = ["method", "draft tokens", "passes", "a pass", "accepted", "ms", "over plain"];
  const rows = outcomes.map((one) => {
    const accepted = one.drafted ? `${percent(one.accepted / one.drafted)} of ${one.drafted}` : "–";
    const cells = [one.method, one.nodes || "–", one.passes, short(one.tokens_per_pass), accepted, short(1000 * one.seconds), `${short(one.over_plain, 2)}×`];
    return el("tr", { class: one.method === PLAIN ? "plain" : "" }, ...cells.map((text) => el("td", { text: String(text) })));
  });
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col", text })))), el("tbody", {}, ...rows));
  const passes = "Passes and acceptance are facts: the text does not depend on the drafter. Milliseconds are predicted from measured costs.";
  const missing = leftOut.length ? [el("p", { class: "note", text: `${count(leftOut.length, "method")} left out: ${leftOut.map((one) => one.why).join(" ")}` })] : [];
  return [el("div", { class: "wide-table", tabindex: "0", role: "group", "aria-label": "Methods compared" }, table), el("p", { class: "note", text: passes }), ...missing];
}
