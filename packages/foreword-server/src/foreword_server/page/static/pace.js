/** Measured paces: milliseconds a token of some rounds, how sure that is, and whether two paces differ beyond noise. */

import { milliseconds } from "./recording.js";

const [FEWEST, ENOUGH] = [4, 8]; // rounds that say something of an answer, and of plain passes among others
const SURE = 2; // standard errors that a difference must exceed
const LEAST = 0.05; // share of the pace: a smaller difference is noise of the clock

const sum = (rounds, value) => rounds.reduce((total, round) => total + value(round), 0);

/** Return the pace of rounds: `perToken` milliseconds, its relative standard `error`, and the number of `rounds`. Null of too few. */
export function paceOf(rounds, cost = milliseconds, least = FEWEST) {
  const [tokens, ms, size] = [sum(rounds, (one) => one.pieces.length), sum(rounds, cost), rounds.length];
  if (size < least || !tokens || !ms) return null;
  const perToken = ms / tokens;
  const squares = sum(rounds, (one) => (cost(one) - perToken * one.pieces.length) ** 2);
  const few = 1 + 2 / size; // Student's t: few rounds know their own spread badly
  return { perToken, error: (few * Math.sqrt(squares / (size * (size - 1)))) / (ms / size), rounds: size };
}

/** Return the pace of the rounds of an answer in which nothing was drafted: plain decoding at its context and load. Null of too few. */
export function plainPaceOf(rounds) {
  const plain = rounds.filter((one) => !one.draft.length && !one.prompt_rows && one.pieces.length);
  return paceOf(plain, (one) => milliseconds(one) - one.propose_ms, ENOUGH);
}

/** Return how many times as fast as `plain` a pace is, and whether that is `sure`. Null where one is unknown. */
export function over(plain, pace) {
  if (!plain || !pace) return null;
  const times = plain.perToken / pace.perToken;
  const noise = SURE * Math.hypot(plain.error, pace.error);
  return { times, sure: Math.abs(Math.log(times)) > Math.max(noise, LEAST) };
}
