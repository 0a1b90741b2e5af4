/** One round, opened: what happened in a sentence, the draft tree with probabilities, and the time of each step. */

import { count, duration, el, percent, short, visible } from "./dom.js";
import { milliseconds } from "./recording.js";

const STEPS = [
  ["propose", "propose_ms", "the drafter proposes"],
  ["score", "score_ms", "the target reads all drafted tokens in one pass"],
  ["verify", "verify_ms", "keep what the target would have written"],
  ["commit", "commit_ms", "append it to the text"],
];

/** Return what happened in a round, in one or two sentences. */
export function sentence(round) {
  const kept = round.accepted.length;
  const own = `“${visible(round.added.text.trim() || round.added.text)}”`;
  if (!round.draft.length) return `${round.undrafted?.text ?? "Nothing was drafted."} The target wrote ${own}.`;
  const drafted = `${count(round.draft.length, "token")} drafted, ${kept || "none"} accepted`;
  const total = `${count(round.pieces.length, "token")} from one pass.`;
  const added = round.added.kind === "correction" ? `the target wrote ${own} instead` : `the target added ${own}`;
  return `${drafted}; ${added}. ${total}`;
}

/** Return which method wrote a round and why, where several could; recordings of older versions do not say. */
export function chosenBy({ method, speeds = {} }) {
  if (!method) return "";
  const named = (name, plain) => (name === "none" ? plain : name);
  const others = Object.entries(speeds).filter(([name]) => name !== method).sort(([, one], [, other]) => other - one);
  const rest = others.map(([name, speed]) => `; ${named(name, "plain")} ${short(speed, 2)}`).join("");
  const own = method in speeds ? short(speeds[method], 2) : "";
  const expected = own && `: ${own} ${own === "1" ? "token" : "tokens"} in the time of one ${own === "1" ? "was" : "were"} expected`;
  return ` ${named(method, "Plain decoding")} wrote this pass${expected}${rest}.`;
}

/** The panel that shows one round at a time. */
export class RoundPanel {
  constructor() {
    this.title = el("h2", { text: "A pass, opened" });
    this.text = el("p", { class: "sentence", "aria-live": "polite" });
    this.tree = el("div", { class: "tree", tabindex: "0", role: "group", "aria-label": "Draft tree" });
    this.before = el("button", { type: "button", class: "small cut", text: "← the draft begins further left", hidden: true, onclick: () => (this.tree.scrollLeft = 0) });
    this.tree.addEventListener("scroll", () => this._cut());
    this.times = el("div", { class: "times" });
    this.element = el("section", { class: "opened", "aria-label": "A pass" }, this.title, this.text, this.before, this.tree, this.times);
    this.clear();
  }

  /** Show how to open a round, after what is `said` of the answer. */
  clear(said = "") {
    this.title.textContent = "A pass, opened";
    this.text.textContent = `${said} Point at a word of an answer, or move through its tokens with the arrow keys, to see what was drafted there.`.trim();
    this.tree.hidden = this.times.hidden = this.before.hidden = true;
  }

  /** Show a round. */
  show(round, title) {
    this.title.textContent = title;
    this.text.textContent = sentence(round) + chosenBy(round);
    this.tree.hidden = this.times.hidden = false;
    this.tree.replaceChildren(branches(round, -1, new Set(round.accepted)));
    this.times.replaceChildren(...timed(round));
    const end = this.tree.querySelector(".own"); // where the target's choice and the refused tokens part
    const [left, start] = [end, this.tree].map((one) => one.getBoundingClientRect().left);
    this.tree.scrollLeft += left - start - this.tree.clientWidth / 2;
    this._cut();
  }

  /** Say where the tree goes on outside its panel. */
  _cut() {
    const { scrollLeft, scrollWidth, clientWidth } = this.tree;
    this.before.hidden = scrollLeft < 1;
    this.tree.classList.toggle("cut-left", scrollLeft >= 1);
    this.tree.classList.toggle("cut-right", scrollLeft + clientWidth < scrollWidth - 1);
  }
}

/** Return the draft tree of a round, for a replay, in which the target gave no probabilities. */
export const draftTree = (round) => el("div", { class: "tree" }, branches(round, -1, new Set(round.accepted)));

/** Return the drafted tokens after a node as a list, the accepted one first, then the target's own. */
function branches(round, node, path) {
  const next = round.draft.map((token, at) => ({ token, at })).filter(({ token }) => token.parent === node);
  next.sort((one, other) => path.has(other.at) - path.has(one.at));
  const last = round.accepted.at(-1) ?? -1;
  const items = next.map(({ token, at }) =>
    el("li", {}, drafted(token, path.has(at)), ...(hasNext(round, at, last) ? [branches(round, at, path)] : [])),
  );
  if (node === last) items.splice(0, 0, el("li", {}, own(round.added)));
  return el("ul", {}, ...items);
}

const hasNext = (round, node, last) => node === last || round.draft.some((one) => one.parent === node);

function drafted(token, isAccepted) {
  const text = visible(token.text);
  const odds = [token.draft_prob, token.target_prob].map(percent);
  const outcome = isAccepted ? "accepted" : "refused";
  const shown = odds.filter((one) => one !== "–").join(" → ");
  const label = token.target_prob === null ? outcome : `drafted with ${odds[0]}, the target gives ${odds[1]}: ${outcome}`;
  return el(
    "span",
    { class: `node ${isAccepted ? "accepted" : "refused"}`, title: `${text}: ${label}` },
    el(isAccepted ? "b" : "s", { text }),
    ...(shown ? [el("small", { "aria-hidden": "true", text: shown })] : []),
    el("span", { class: "unseen", text: `, ${label}` }),
  );
}

function own(added) {
  const text = visible(added.text);
  const odds = added.target_prob === null ? "" : percent(added.target_prob);
  return el(
    "span",
    { class: `node own ${added.kind}`, title: `${text}: the target's own${odds && `, ${odds}`}` },
    el("b", { text }),
    el("small", { "aria-hidden": "true", text: `target ${odds}` }),
    el("span", { class: "unseen", text: `, the target's own token${odds && `, ${odds}`}` }),
  );
}

function timed(round) {
  const total = milliseconds(round);
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  const list = el("dl", {});
  for (const [name, key, meaning] of STEPS) {
    const piece = el("i", { class: name });
    piece.style.flexGrow = round[key];
    bar.append(piece);
    list.append(el("div", { title: meaning }, el("dt", { class: name, text: name }), el("dd", { text: `${short(round[key], 2)} ms` })));
  }
  const others = round.sequences > 1 ? `, shared with ${count(round.sequences - 1, "other request")}` : "";
  const prefill = round.prefill_tokens ? ` ${count(round.prefill_tokens, "prompt token")} had been read in ${duration(round.prefill_ms)}.` : "";
  const read = `${duration(total)}. The target read ${count(round.rows, "token")} in this pass${others}.${prefill}`;
  return [bar, list, el("p", { class: "note", text: read })];
}
