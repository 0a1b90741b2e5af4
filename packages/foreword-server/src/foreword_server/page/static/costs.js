/** When drafting helps on this machine: speed by draft length, from the measured cost table and a chosen acceptance. */

import { byId, count, percent, short, svg } from "./dom.js";

const LONGEST = 16; // draft tokens on the axis
const [WIDTH, HEIGHT, LEFT, BOTTOM] = [640, 340, 60, 50];
const [LOWEST_TOP, TOP_STEP] = [2, 0.5]; // speeds over plain decoding: the axis ends at a multiple of the step

/** Return the milliseconds of a forward over `rows` tokens: measured, in a straight line between measurements. */
export function forward(table, rows) {
  const points = Object.keys(table).map(Number).sort((one, other) => one - other);
  const at = Math.min(Math.max(points.findIndex((one) => one >= rows), 1), points.length - 1);
  const [low, high] = rows > points.at(-1) ? points.slice(-2) : [points[at - 1], points[at]];
  if (high === undefined) return table[points[0]];
  return table[low] + ((table[high] - table[low]) * (rows - low)) / (high - low);
}

/** Return the expected tokens of a round of `length` draft tokens, each accepted with probability `alpha` (Leviathan et al. 2023, eq. 1). */
export const expected = (alpha, length) => (alpha === 1 ? length + 1 : (1 - alpha ** (length + 1)) / (1 - alpha));

/** Return the speed of drafting chains over plain decoding, for `batch` requests that share each pass. */
export function speedUp(costs, alpha, length, batch) {
  const drafting = length ? (costs.drafting?.start_ms ?? 0) + batch * length * (costs.drafting?.token_ms ?? 0) : 0;
  const overhead = batch * costs.overhead_ms;
  const plain = forward(costs.forward_ms, batch) + overhead;
  return (expected(alpha, length) * plain) / (forward(costs.forward_ms, batch * (length + 1)) + drafting + overhead);
}

const [EVEN, SLIGHT] = [0.05, 0.2]; // shares: no gain, and "the time of one"

/** Return how many words a pass reads in about the time of one. */
export function wordsInTimeOfOne(table) {
  const limit = (1 + SLIGHT) * forward(table, 1);
  let words = 1;
  while (words < LONGEST && forward(table, words + 1) <= limit) words += 1;
  return words;
}

/** Return what rounds measured of drafting: for each draft length its rounds and the median milliseconds. */
export function draftingOf(rounds) {
  const byLength = Map.groupBy(rounds.filter((one) => one.draft.length), (one) => one.draft.length);
  return [...byLength].sort(([one], [other]) => one - other).map(([length, all]) => ({ length, rounds: all.length, ms: median(all.map((one) => one.propose_ms)) }));
}

function median(values) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.floor(sorted.length / 2)];
}

/** The view with the sliders. */
export class Costs {
  constructor() {
    this.form = byId("costs-form");
    this.plot = byId("plot");
    [this.points, this.drafting] = [[], []];
    this.form.addEventListener("input", () => this.draw());
  }

  /** Draw from what the server measured. */
  describe(info) {
    this.costs = info.costs;
    this.info = info;
    this.draw();
  }

  /**
   * Show what was measured here: `kept` of `tried` draft tokens of the last answer set the acceptance, and `points` (name,
   * draft, speed) are drawn beside the curve; the fitted cost of drafting stands beside what its `rounds` took.
   */
  measure({ kept, tried, points, rounds }) {
    this.points = points;
    this.drafting = draftingOf(rounds);
    if (tried) this.form.elements.alpha.value = kept / tried;
    byId("alpha-source").textContent = tried ? `Of the last answer: of ${tried} drafted words that the model came to, it kept ${kept}.` : "A first value; an answer in the chat sets its own.";
    if (this.costs) this.draw();
  }

  draw() {
    const [alpha, length, batch] = ["alpha", "draft", "batch"].map((name) => Number(this.form.elements[name].value));
    for (const [name, text] of [["alpha", percent(alpha)], ["draft", String(length)], ["batch", String(batch)]]) {
      this.form.querySelector(`output[for="${name}"]`).textContent = text;
    }
    const speeds = Array.from({ length: LONGEST + 1 }, (_, at) => speedUp(this.costs, alpha, at, batch));
    const best = speeds.indexOf(Math.max(...speeds));
    const loses = speeds.findIndex((one, at) => at > best && one < 1);
    this._plot(speeds, length, loses);
    byId("verdict").textContent = verdict(speeds, length, best, loses);
    byId("reads").textContent = readsWords(wordsInTimeOfOne(this.costs.forward_ms));
    byId("costs-source").textContent = `Passes were measured on ${this.info.machine.cpu}, ${count(this.info.machine.threads, "thread")}, once for this model: over 1, 8 and 16 tokens they take ${[1, 8, 16].map((rows) => short(forward(this.costs.forward_ms, rows), 2)).join(", ")} ms. ${this._fit()}`;
  }

  /** Return the fitted cost of drafting, and what it can be compared with. */
  _fit() {
    const { drafting } = this.costs;
    const rounds = drafting?.rounds ? `the last ${count(drafting.rounds, "pass", "passes")} that drafted` : "past passes";
    const method = this.info.method.match(/^auto\(([^,)]+)/)?.[1] ?? this.info.method; // of several, its first one
    const fit = drafting ? `Drafting (${method}) is taken as ${short(drafting.start_ms, 2)} ms and ${short(drafting.token_ms, 2)} ms a token, a line through ${rounds}.` : "The server has fitted no cost of drafting yet, and it is 0 here.";
    const seen = this.drafting.map(({ length, rounds: size, ms }) => `${count(length, "token")} took ${short(ms, 2)} ms (${size}×)`);
    return `${fit} ${seen.length ? `In the last answer: ${seen.join(", ")}.` : "The last answer has no pass that drafted, to compare."}`;
  }

  _plot(speeds, length, loses) {
    const highest = Math.max(...speeds, ...this.points.map((one) => one.speed));
    const top = Math.max(LOWEST_TOP, Math.ceil(highest / TOP_STEP) * TOP_STEP);
    const x = (at) => LEFT + (at / LONGEST) * (WIDTH - LEFT - 12);
    const y = (speed) => HEIGHT - BOTTOM - (speed / top) * (HEIGHT - BOTTOM - 12);
    const line = speeds.map((speed, at) => `${at ? "L" : "M"}${x(at).toFixed(1)} ${y(speed).toFixed(1)}`).join("");
    const label = (at, text, more = {}) => svg("text", { x: at[0], y: at[1], ...more }, text);
    const ticks = [];
    for (let at = 0; at <= LONGEST; at += 4) ticks.push(label([x(at), HEIGHT - BOTTOM + 18], String(at), { "text-anchor": "middle" }));
    const axes = [
      label([(LEFT + WIDTH) / 2, HEIGHT - 8], "drafted words in a pass", { "text-anchor": "middle" }),
      label([-(HEIGHT - BOTTOM) / 2, 14], "speed beside plain", { "text-anchor": "middle", transform: "rotate(-90)" }),
    ];
    for (let speed = 1; speed <= top; speed += Math.max(1, Math.round(top / 4))) ticks.push(label([LEFT - 8, y(speed) + 4], `${speed}×`, { "text-anchor": "end" }));
    const mark = loses < 0 ? [] : [
      svg("line", { class: "edge", x1: x(loses), x2: x(loses), y1: y(top), y2: y(0) }),
      label([x(loses) + (loses > LONGEST / 2 ? -6 : 6), y(top) + 12], `plain is faster from ${loses}`, { class: "edge", "text-anchor": loses > LONGEST / 2 ? "end" : "start" }),
    ];
    this.plot.replaceChildren(
      svg("rect", { class: "loss", x: LEFT, y: y(1), width: x(LONGEST) - LEFT, height: y(0) - y(1) }),
      label([x(0) + 8, y(0) - 8], "slower than plain", { class: "faint" }),
      svg("line", { class: "even", x1: LEFT, x2: x(LONGEST), y1: y(1), y2: y(1) }),
      ...axes,
      ...ticks,
      ...mark,
      svg("path", { class: "curve", d: line }),
      svg("circle", { class: "here", cx: x(length), cy: y(speeds[length]), r: 6 }),
      ...this.points.flatMap((one, number) => {
        const at = [x(Math.min(one.draft, LONGEST)), y(one.speed)];
        const anchor = one.draft > LONGEST / 2 ? "end" : "start";
        const beside = anchor === "end" ? -10 : 10;
        return [
          svg("circle", { class: "measured", cx: at[0], cy: at[1], r: 5 }),
          label([at[0] + beside, at[1] + (number ? 16 : -4)], pointLabel(one), { class: "measured", "text-anchor": anchor }),
        ];
      }),
    );
  }
}

const pointLabel = ({ name, draft, speed }) => `${name} measured ${short(speed, 2)}×${draft > LONGEST ? ` with ${short(draft, 2)}` : ""}`;

function readsWords(words) {
  const names = ["", "", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
  return words > 1 ? `This machine reads ${names[words] ?? words} words in about the time of one.` : "This machine reads two words no faster than one after the other.";
}

function verdict(speeds, length, best, loses) {
  if (best === 0) return "On this machine, with this drafter, plain is faster.";
  const gain = speeds[length] - 1;
  const here = Math.abs(gain) < EVEN ? "as fast as plain" : gain > 0 ? `${short(speeds[length], 2)} times as fast as plain` : `slower than plain, by ${percent(1 / speeds[length] - 1)}`;
  const edge = loses < 0 ? "" : ` From ${loses} on, plain is faster.`;
  return `${count(length, "drafted word")} a pass: ${here}. Best: ${best}, ${short(speeds[best], 2)} times as fast.${edge}`;
}
