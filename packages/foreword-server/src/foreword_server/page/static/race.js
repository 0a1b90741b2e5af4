/** The race: the same request plain and drafted, each measured alone, shown on one clock, then compared token by token. */

import { alone } from "./alone.js";
import { answer } from "./api.js";
import { AnswerView } from "./answer.js";
import { byId, count, duration, el, percent, short } from "./dom.js";
import { add, emptyFigures } from "./figures.js";
import { over, paceOf } from "./pace.js";
import { tokensOf } from "./recording.js";
import { endsOf, isGreedy, play } from "./replay.js";
import { methodName, PLAIN } from "./chat/words.js";

const LONGEST_RACE = 256; // tokens of each run where the settings name no limit
const WARM = 4; // tokens of a first, uncounted request: both runs then find the prompt read

/** Return how many tokens of two answers differ, and how many there are. */
export function compared(one, other) {
  const [a, b] = [one, other].map((recording) => tokensOf(recording.rounds));
  const length = Math.max(a.length, b.length);
  let differing = 0;
  for (let at = 0; at < length; at += 1) differing += a[at] === b[at] ? 0 : 1;
  return { differing, length };
}

/** Two lanes on one clock. */
export class Lanes {
  constructor(stage) {
    this.stage = stage;
    this.element = el("div", { class: "lanes" });
    this.proof = el("p", { class: "proof", role: "status" });
  }

  /** Begin anew: nothing is shown. */
  clear() {
    this.stop?.();
    this.proof.replaceChildren();
    this.element.replaceChildren();
  }

  /** Add a lane that is being written; returns the function that adds a round. */
  write(method) {
    const lane = this._lane({ method, rounds: [] });
    this.element.append(lane.element);
    return (round) => {
      lane.push(round);
      this.stage.follow(lane);
    };
  }

  /** Show two recordings, the plain one first, as they were written; `done` is called at the end. */
  show(recordings, speed, done = () => {}) {
    this.clear();
    const lanes = recordings.map((recording) => this._lane(recording));
    this.element.replaceChildren(...lanes.map((lane) => lane.element));
    const end = Math.max(...lanes.map((lane) => lane.ends.at(-1) ?? 0));
    const frame = (ms) => lanes.forEach((lane) => lane.at(ms));
    this.stop = play(0, end, speed, frame, () => {
      this._prove(recordings, lanes);
      this.stage.follow(lanes[1]);
      done();
    });
  }

  _lane(recording) {
    const ends = endsOf(recording.rounds);
    const total = ends.at(-1) ?? 0;
    const name = recording.method === PLAIN ? "Plain" : `Drafted: ${methodName(recording.method)}`;
    const lane = { figures: emptyFigures(), plain: null };
    lane.view = new AnswerView(`${name}: answer`, (index) => this.stage.open(lane, index));
    lane.push = (round) => {
      add(lane.figures, round);
      lane.view.push(round);
      clock.textContent = duration(lane.figures.ms);
      passes.textContent = count(lane.figures.passes, "pass", "passes");
    };
    const clock = el("b", { class: "clock" });
    const passes = el("span", { class: "note" });
    const element = el("section", { class: "lane card", "aria-label": name }, el("header", {}, el("h3", { text: name }), clock, passes), lane.view.element);
    for (const round of recording.rounds) lane.push(round);
    const at = (ms) => {
      const done = ends.findIndex((one) => one > ms);
      const rounds = done < 0 ? ends.length : done;
      lane.view.show(rounds);
      clock.textContent = duration(Math.min(ms, total));
      passes.textContent = count(rounds, "pass", "passes");
      element.classList.toggle("done", done < 0);
    };
    return Object.assign(lane, { element, ends, total, at });
  }

  _prove(recordings, [plain, drafted]) {
    const { differing, length } = compared(...recordings);
    drafted.plain = paceOf(recordings[0].rounds);
    drafted.ended = true;
    const times = `${duration(drafted.total)} after ${duration(plain.total)}: ${outcomeOf(...recordings)}`;
    const seeds = seedsOf(...recordings);
    this.proof.replaceChildren(
      el("strong", { class: differing ? "wrong" : "right", text: `${differing} of ${count(length, "token")} differ` }),
      el("span", { text: `${times} ${seeds}` }),
    );
  }
}

/** Return in words which of two recordings was faster, the plain one first: nothing is won by noise, or without a draft. */
export function outcomeOf(plain, drafted) {
  if (!drafted.rounds.some((one) => one.draft.length)) return "nothing was drafted, so both are plain and differ by noise only.";
  const gain = over(paceOf(plain.rounds), paceOf(drafted.rounds));
  if (!gain) return "too few passes to compare.";
  if (!gain.sure) return "the difference is within the noise.";
  return gain.times > 1 ? `${short(gain.times, 2)} times as fast.` : `drafting was slower here, by ${percent(1 / gain.times - 1)}.`;
}

function seedsOf(plain, drafted) {
  if (plain.seed !== drafted.seed) return "The seeds differ, so the texts may.";
  return isGreedy(plain) ? "" : `Both had the seed ${plain.seed}.`;
}

/** Return the drafted run as a point of "when it helps": draft tokens in a pass, and measured speed over the plain one; or null. */
function pointOf([plain, drafted]) {
  const gain = over(paceOf(plain.rounds), paceOf(drafted.rounds));
  const tokens = drafted.rounds.reduce((sum, one) => sum + one.draft.length, 0);
  return gain?.sure && tokens ? { name: "side by side", draft: tokens / drafted.rounds.length, speed: gain.times } : null;
}

/** The view in which a race is run. */
export class Race {
  constructor(settings, stage, speeds, onerror) {
    [this.settings, this.stage, this.onerror] = [settings, stage, onerror];
    this.lanes = new Lanes(stage);
    this.speeds = speeds;
    this.again = el("button", { type: "button", text: "Show again", hidden: true, onclick: () => this._show() });
    byId("race-controls").append(speeds, this.again);
    byId("track").append(this.lanes.element, this.lanes.proof);
    this.start = byId("race-start");
    byId("race-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.running.abort();
      else this.run(event.target.elements.prompt.value);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.running?.abort();
    });
  }

  /** Run both, one after the other, then show them together. */
  async run(text) {
    if (!text.trim() || this.running) return;
    this.running = new AbortController();
    this.start.textContent = "Stop";
    this.again.hidden = true;
    this.onerror(null);
    this.lanes.clear();
    this.stage.clear();
    const { signal } = this.running;
    try {
      await alone(() => this._both(text, signal), signal, () => this._say("Waiting until what was asked for before has ended, so that each runs alone"));
      this._show();
    } catch (error) {
      const stopped = error.name === "AbortError";
      if (!stopped) this.onerror(error);
      this._say(stopped ? "Stopped" : "");
    }
    this.running = null;
    this.start.textContent = "Compare";
  }

  _say(words) {
    byId("status").textContent = byId("race-state").textContent = words;
  }

  /** Run a request plain, then drafted. */
  async _both(text, signal) {
    const [messages, seed] = [[{ role: "user", content: text }], this.settings.seed()];
    const drafted = this.settings.method === PLAIN ? { method: byId("race-form").dataset.method, nodes: "auto" } : this.settings.drafting;
    const bodyOf = (drafting) => ({ max_tokens: LONGEST_RACE, ...this.settings.body(messages, seed, drafting) });
    this._say("Warming up: the prompt is read once");
    await answer({ ...bodyOf(drafted), max_tokens: WARM }, () => {}, signal);
    this.recordings = [];
    for (const drafting of [{ method: PLAIN, nodes: "auto" }, drafted]) {
      this._say(`Running alone: ${methodName(drafting.method)}`);
      const [rounds, write] = [[], this.lanes.write(drafting.method)];
      const onround = (round) => {
        if (!round) return;
        rounds.push(round);
        write(round);
      };
      const recording = await answer(bodyOf(drafting), onround, signal);
      this.recordings.push({ ...recording, rounds });
    }
  }

  _show() {
    byId("race-state").textContent = "Each ran alone; now both on one clock, by the server's measured times";
    this.again.hidden = false;
    this.lanes.show(this.recordings, Number(this.speeds.value), () => {
      byId("status").textContent = this.lanes.proof.textContent;
      this.point = pointOf(this.recordings);
    });
  }
}
