/** Sums over rounds: tokens per pass, acceptance by depth, and why nothing was drafted. */

import { count, el, percent, short } from "./dom.js";
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
      return { value, node: el("div", { class: "fact" }, el("dt", { text: unit }), value) };
    };
    this.pass = fact("tokens a pass");
    this.pace = fact("tokens a second");
    this.speed = fact("over plain");
    this.bars = el("ol", { class: "depths", "aria-label": "Acceptance by depth of the draft" });
    this.note = el("p", { class: "note" });
    this.element = el(
      "section",
      { class: "strip", "aria-label": label },
      el("dl", { class: "facts" }, this.pass.node, this.pace.node, this.speed.node),
      el("p", { class: "caption", text: "Accepted, by depth of the draft" }),
      this.bars,
      this.note,
    );
  }

  /** Show sums. `plain`: tokens per second of plain decoding, as the server measured, or null. */
  show(figures, plain) {
    const pace = figures.ms ? (1000 * figures.tokens) / figures.ms : null;
    this.pass.value.textContent = figures.passes ? short(figures.tokens / figures.passes) : "–";
    this.pace.value.textContent = short(pace);
    this.speed.value.textContent = pace && plain ? `${short(pace / plain, 2)}×` : "–";
    const cells = figures.depths.slice(0, DEPTHS);
    while (this.bars.children.length < cells.length) this.bars.append(bar(this.bars.children.length + 1));
    while (this.bars.children.length > cells.length) this.bars.lastChild.remove();
    cells.forEach(({ tried, kept }, at) => {
      const [fill, text] = this.bars.children[at].children;
      fill.style.setProperty("--share", kept / tried);
      text.textContent = percent(kept / tried);
      this.bars.children[at].title = `${kept} of ${tried} at depth ${at + 1}`;
    });
    this.bars.hidden = !cells.length;
    this.note.textContent = why(figures);
  }
}

function bar(depth) {
  const fill = el("span", { class: "fill", "aria-hidden": "true" });
  return el("li", {}, fill, el("span", { class: "share" }), el("span", { class: "depth", text: String(depth) }));
}

/** Return one sentence on the rounds that drafted nothing. */
export function why(figures) {
  const off = [...figures.undrafted.values()].sort((one, other) => other.rounds - one.rounds);
  if (!off.length) return "";
  const rounds = off.reduce((sum, one) => sum + one.rounds, 0);
  const which = rounds === figures.passes ? "Nothing was drafted" : `Nothing was drafted in ${count(rounds, "pass", "passes")} of ${figures.passes}`;
  return off.length === 1 ? `${which}. ${off[0].text}` : `${which}. Mostly: ${off[0].text}`;
}
