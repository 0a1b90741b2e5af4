/** A recorded answer: its text, a time slider over the rounds with the heat of acceptance, play, and save. */

import { AnswerView } from "./answer.js";
import { count, el, percent } from "./dom.js";
import { add, emptyFigures } from "./figures.js";
import { milliseconds, save } from "./recording.js";
import { sentence } from "./round.js";

const SPEEDS = [1, 0.5, 0.25, 0.1];

/** Return the milliseconds at which each round ended, from the first one's start. */
export function endsOf(rounds) {
  let sum = 0;
  return rounds.map((round) => (sum += milliseconds(round)));
}

/** Return a menu of speeds at which measured times are played. */
export function speedMenu() {
  const options = SPEEDS.map((one) => el("option", { value: one, text: one === 1 ? "as measured" : `${1 / one}× slower` }));
  return el("select", { "aria-label": "Speed of the replay" }, ...options);
}

/** Call `show(milliseconds)` each frame until `end`; returns a function that stops. Without motion it ends at once. */
export function play(from, end, speed, show, done) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
    show(end);
    done();
    return () => {};
  }
  let frame = 0;
  let began = null;
  const step = (now) => {
    began ??= now;
    const at = from + (now - began) * speed;
    show(Math.min(at, end));
    if (at < end) frame = requestAnimationFrame(step);
    else done();
  };
  frame = requestAnimationFrame(step);
  return () => cancelAnimationFrame(frame);
}

/**
 * An answer that is written or was recorded. `onopen(card, index)` shows a round, `onfigures(card)` sums. `plain` is the pace of
 * a plain answer to the same question, or null.
 */
export class AnswerCard {
  constructor(label, { onopen, onfigures }) {
    this.figures = emptyFigures();
    this.recording = this.plain = null;
    this.ended = false;
    this.view = new AnswerView(label, (index) => onopen(this, index));
    this.onfigures = onfigures;
    this.facts = el("p", { class: "note sum" });
    this.slider = el("input", { type: "range", min: 0, step: 1, "aria-label": "Time: passes", oninput: () => this._seek() });
    this.button = el("button", { type: "button", text: "Play", onclick: () => this._toggle() });
    this.speed = speedMenu();
    this.save = el("button", { type: "button", text: "Save", title: "Save this answer with every pass as a file", onclick: () => save(this.recording) });
    this.heat = el("div", { class: "heat", "aria-hidden": "true" });
    this.controls = el("div", { class: "replay", hidden: true }, this.button, el("div", { class: "track" }, this.heat, this.slider), this.speed, this.save);
    this.element = el("article", { class: "card", "aria-label": label }, this.view.element, this.controls, this.facts);
  }

  /** Add a round while the answer is written. */
  push(round) {
    this.ended = false;
    add(this.figures, round);
    this.view.push(round);
    this.onfigures(this);
  }

  /** End. `about`: method, seed (null if the text does not depend on one). `recording`: what the server recorded, or null. */
  finish(about, recording = null) {
    const { rounds } = this.view;
    this.ended = true;
    this.recording = recording;
    this.view.flush();
    this.ends = endsOf(rounds);
    this.controls.hidden = !rounds.length;
    this.save.hidden = !recording;
    this.slider.max = rounds.length; // before the value, which it limits
    this.slider.value = rounds.length;
    this._describe();
    this.heat.replaceChildren(...rounds.map(heatOf));
    this.facts.textContent = rounds.length ? factsOf(this.figures, about) : "";
    this.onfigures(this);
  }

  /** Fill with a recording. */
  load(recording) {
    for (const round of recording.rounds) {
      add(this.figures, round);
      this.view.push(round);
    }
    this.finish({ method: recording.method, seed: isGreedy(recording) ? null : recording.seed }, recording);
  }

  _describe() {
    const at = Number(this.slider.value);
    const round = this.view.rounds[at - 1];
    this.slider.setAttribute("aria-valuetext", round ? `Pass ${at}: ${sentence(round)}` : "Before the first pass");
  }

  _seek() {
    const at = Number(this.slider.value);
    this.view.show(at);
    this.view.select(at ? at - 1 : null);
    this._describe();
  }

  _toggle() {
    if (this.stop) return this._pause();
    const { rounds } = this.view;
    const at = Number(this.slider.value) % rounds.length;
    this.button.textContent = "Pause";
    const show = (ms) => {
      const done = this.ends.findIndex((end) => end > ms);
      this.slider.value = done < 0 ? rounds.length : done;
      this._seek();
    };
    this.stop = play(at ? this.ends[at - 1] : 0, this.ends.at(-1), Number(this.speed.value), show, () => this._pause());
  }

  _pause() {
    this.stop?.();
    this.stop = null;
    this.button.textContent = "Play";
  }
}

/** Return whether the text of a recording depends on no seed. */
export const isGreedy = (recording) => recording.params?.temperature === 0;

function factsOf({ tokens, passes, drafted, accepted }, { method, seed }) {
  return [
    `${count(tokens, "token")} in ${count(passes, "pass", "passes")}${drafted && passes < tokens ? ` instead of ${tokens.toLocaleString("en")}` : ""}`,
    ...(drafted ? [`${percent(accepted / drafted)} of ${drafted.toLocaleString("en")} drafted kept`] : ["plain"]),
    `method ${method}`,
    ...(seed === null ? [] : [`seed ${seed}`]),
  ].join(" · ");
}

function heatOf(round) {
  const cell = el("i", {});
  cell.style.flexGrow = milliseconds(round);
  cell.style.setProperty("--share", round.draft.length ? round.accepted.length / (round.accepted.length + 1) : 0);
  return cell;
}
