/** What is said below an answer: how it ended and goes on, what to try where nothing was drafted, and other tries. */

import { count, duration, el, percent, short } from "../dom.js";
import { why } from "../figures.js";
import { over, paceOf } from "../pace.js";
import { methodName, PLAIN } from "./words.js";

/** Return how an answer ended before its own end, with *Continue* where it can go on; nothing of a complete one. */
export function ending(turn, acts) {
  const { answer } = turn.data;
  const tokens = turn.card.figures.tokens;
  const full = answer.prompt + tokens >= acts.context();
  const said = {
    length: full ? `The context is full: ${count(acts.context(), "token")}.` : `Cut at ${count(tokens, "token")}.`,
    stopped: tokens ? `Stopped by you after ${count(tokens, "token")}.` : "Stopped by you before the first word.",
    left: `This page was left after ${count(tokens, "token")}.`,
    abort: `The server ended this after ${count(tokens, "token")}.`,
  }[answer.ended];
  if (!said) return [];
  const goesOn = answer.content && !answer.calls.length && !full;
  const button = el("button", { type: "button", text: "Continue", onclick: () => acts.goOn(turn) });
  return [el("p", { class: "row ending" }, el("span", { text: said }), ...(goesOn ? [button] : []))];
}

/** Return one sentence and next steps of an answer in which nothing was drafted. */
export function afterwards(turn, acts) {
  const { figures } = turn.card;
  const { answer } = turn.data;
  if (figures.drafted || !figures.passes) return [];
  const tries = acts.choices().filter((one) => one.method !== PLAIN && !(one.method === answer.drafting.method && one.nodes === answer.drafting.nodes));
  const buttons = tries.map((one) => el("button", { type: "button", text: one.text, title: one.title, onclick: () => acts.again(turn, answer.seed, one) }));
  return [el("p", { class: "row plainly" }, el("span", { text: why(figures) }), ...buttons)];
}

/** Return what an answer took, to be compared with another try of the same question. */
export const triedAs = ({ drafting, content }, { tokens, passes, drafted, ms }, pace) => ({ method: drafting.method, nodes: drafting.nodes, plain: !drafted, content, tokens, passes, ms, pace });

/** Return a line on earlier tries of the same question with other drafting. */
export function besideEarlier(answer, { figures }) {
  const last = answer.earlier.at(-1);
  if (!last || !["stop", "length"].includes(answer.ended)) return [];
  const words = (one) => `${one.tokens} tokens in ${count(one.passes, "pass", "passes")}, ${duration(one.ms)}`;
  const gain = over(last.pace, paceOf(answer.rounds));
  const outcome = !figures.drafted && last.plain ? "both plain" : gain?.sure ? paceWords(gain.times) : "the difference is within the noise";
  const same = last.content === answer.content ? "The same text." : answer.temperature > 0 ? "" : "The texts differ.";
  const text = `Before, ${methodName(last.method, last.plain)}: ${words(last)}. Now: ${words(figures)}; ${outcome}. ${same}`;
  return [el("p", { class: "note earlier", text })];
}

const paceWords = (times) => (times > 1 ? `${short(times, 2)} times as fast` : `slower by ${percent(1 / times - 1)}`);
