/** Sums over rounds: tokens per pass, acceptance by depth, and why nothing was drafted. */

import { count, el, percent, short } from "./dom.js";
import { over, paceOf, plainPaceOf } from "./pace.js";
import { milliseconds } from "./recording.js";

const DEPTHS = 8;

/** Return empty sums. */
export const emptyFigures = () => ({ tokens: 0, passes: 0, drafted: 0, accepted: 0, ms: 0, depths: [], undrafted: new Map() });

/** Add a round to the sums. */
export function add(figures, round) {
  figures.tokens += round.pieces.length;
  figures.passes += 1;
  figures.drafted += round.draft.length;
  figures.accepted += round.accepted.length;
  figures.ms += milliseconds(round);
  if (round.undrafted) {
    const { reason, text } = round.undrafted;
    const before = figures.undrafted.get(reason);
    figures.undrafted.set(reason, { text, rounds: (before?.rounds ?? 0) + 1 });
  }
  // A depth counts where the target chose among drafted tokens: at every accepted one, and at the first refusal.
  const path = [-1, ...round.accepted];
  path.forEach((node, depth) => {
    if (depth < round.accepted.length || round.draft.some((one) => one.parent === node)) {
      const cell = (figures.depths[depth] ??= { tried: 0, kept: 0 });
      cell.tried += 1;
      cell.kept += depth < round.accepted.length ? 1 : 0;
    }
  });
}

/** The live strip: figures of one answer while it is written. */
export class Strip {
  constructor(label) {
    const fact = (unit) => {
      const value = el("dd", { text: "–" });
      const label = el("dt", { text: unit });
      return { label, value, node: el("div", { class: "fact" }, label, value) };
    };
    this.pass = fact("tokens a pass");
    this.pace = fact("tokens a second");
    this.speed = fact("over plain");
    this.bars = el("ol", { class: "depths", "aria-label": "Acceptance by depth of the draft" });
    this.caption = el("p", { class: "caption", text: "Accepted, by depth of the draft" });
    this.note = el("p", { class: "note" });
    this.element = el(
      "section",
      { class: "strip", "aria-label": label },
      el("dl", { class: "facts" }, this.pass.node, this.pace.node, this.speed.node),
      this.caption,
      this.bars,
      this.note,
    );
  }

  /** Show sums over `rounds`. `plain`: the pace of a plain answer to the same question, or null. */
  show(figures, rounds, plain) {
    const pace = figures.ms ? (1000 * figures.tokens) / figures.ms : null;
    this.pass.value.textContent = figures.passes ? short(figures.tokens / figures.passes) : "–";
    this.pace.value.textContent = short(pace);
    const gain = gainOf(figures, rounds, plain);
    this.speed.value.textContent = gain.text;
    this.speed.label.textContent = gain.plain ? "plain" : "over plain";
    const cells = figures.depths.slice(0, DEPTHS);
    while (this.bars.children.length < cells.length) this.bars.append(bar(this.bars.children.length + 1));
    while (this.bars.children.length > cells.length) this.bars.lastChild.remove();
    cells.forEach(({ tried, kept }, at) => {
      const [fill, text] = this.bars.children[at].children;
      fill.style.setProperty("--share", kept / tried);
      text.textContent = percent(kept / tried);
      this.bars.children[at].title = `${kept} of ${tried} at depth ${at + 1}`;
    });
    this.bars.hidden = this.caption.hidden = !cells.length;
    this.note.textContent = [why(figures), gain.note].filter(Boolean).join(" ");
  }
}

/**
 * Return how fast an answer was beside plain decoding: `times` (null where they are not `known`, or within the noise), a `text`, whether it is `plain`, and
 * a `note` on what it was measured against: plain rounds of the answer itself, or else `plain`.
 */
export function gainOf(figures, rounds, plain = null) {
  const known = true;
  if (!figures.passes) return { times: null, text: "–", note: "" };
  if (!figures.drafted) return { known, plain: true, times: null, text: "1×", note: "" };
  const own = plainPaceOf(rounds);
  const gain = over(own ?? plain, paceOf(rounds));
  if (!gain) return { times: null, text: "–", note: "No plain pace was measured at this length and load." };
  const note = own ? `Plain pace of ${count(own.rounds, "pass", "passes")} of this answer without a draft.` : "Plain pace of the plain answer to this question.";
  return gain.sure ? { known, times: gain.times, text: `${short(gain.times, 2)}×`, note } : { known, times: null, text: "even", note: `${note} The difference is within the noise.` };
}

function bar(depth) {
  const fill = el("span", { class: "fill", "aria-hidden": "true" });
  return el("li", {}, fill, el("span", { class: "share" }), el("span", { class: "depth", text: String(depth) }));
}

/** What is said of rounds without a draft, by reason; for others, the server's own sentence. */
const REASONS = {
  method: "drafting was off",
  budget: "the server expected a draft to cost more time than it saves",
  "no-match": "there was nothing to copy",
  dropped: "no drafted word was likely enough to be worth checking",
};

/** Return one sentence on the rounds that drafted nothing. */
export function why(figures) {
  const reasons = [...figures.undrafted].filter(([reason]) => reason !== "last-token" || !figures.drafted);
  const [first] = reasons.sort(([, one], [, other]) => other.rounds - one.rounds);
  if (!first) return "";
  const [reason, { text }] = first;
  const rounds = reasons.reduce((sum, [, one]) => sum + one.rounds, 0);
  const which = figures.drafted ? `Written plainly in ${rounds} of ${count(figures.passes, "pass", "passes")}` : "Written plainly, one token a pass";
  return `${which}: ${REASONS[reason] ?? text.replace(/\.$/, "")}.`;
}
