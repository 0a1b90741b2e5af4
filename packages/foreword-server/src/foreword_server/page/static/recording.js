/** Recordings: the form of docs/formats/recordings.md, checked before it is shown; saved and opened as files. */

import { download } from "./dom.js";

const VERSION = 1;

/** Return the recording in a JSON text. Throws an Error that says what is wrong. */
export function parsed(text, name) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error(`cannot open ${name}: it is not JSON. Open a file that was saved here or by foreword --record`);
  }
  const fault = faultOf(value);
  if (fault) throw new Error(`cannot open ${name}: ${fault}. Open a file that was saved here or by foreword --record`);
  return value;
}

function faultOf(value) {
  if (value === null || typeof value !== "object" || !Array.isArray(value.rounds)) return "it is not a recording";
  if (value.version !== VERSION) return `it has version ${String(value.version)}, and this page reads ${VERSION}`;
  for (const name of ["model", "method", "prompt", "answer"]) {
    if (typeof value[name] !== "string") return `its ${name} is not text`;
  }
  if (value.totals === null || typeof value.totals !== "object") return "it lacks totals";
  const at = value.rounds.findIndex((round) => !isRound(round));
  return at < 0 ? null : `round ${at + 1} is damaged`;
}

function isRound(round) {
  if (round === null || typeof round !== "object") return false;
  const { draft, accepted, added, pieces } = round;
  if (![draft, accepted, pieces].every(Array.isArray) || typeof added?.text !== "string") return false;
  const times = [round.propose_ms, round.score_ms, round.verify_ms, round.commit_ms, round.prefill_ms];
  if (!times.every((one) => Number.isFinite(one) && one >= 0)) return false;
  const isTree = draft.every((node, at) => typeof node?.text === "string" && node.parent >= -1 && node.parent < at);
  let last = -1;
  const isPath = accepted.every((node) => {
    const follows = draft[node]?.parent === last;
    last = node;
    return follows;
  });
  return isTree && isPath && pieces.length <= accepted.length + 1 && pieces.every((one) => typeof one === "string");
}

/** Return the ids of the tokens that the rounds emitted. */
export function tokensOf(rounds) {
  return rounds.flatMap((round) => emitted(round).map((one) => one.token));
}

/** Return the tokens that a round emitted, each with its text and its kind: accepted, correction, bonus or plain. */
export function emitted(round) {
  const path = round.accepted.map((node) => ({ token: round.draft[node].token, kind: "accepted" }));
  const all = [...path, { token: round.added.token, kind: round.added.kind }];
  return all.slice(0, round.pieces.length).map((one, at) => ({ ...one, text: round.pieces[at] }));
}

/** Return the milliseconds of a round, without the prefill before it. */
export const milliseconds = (round) => round.propose_ms + round.score_ms + round.verify_ms + round.commit_ms;

/** Save a recording as a file. */
export function save(recording) {
  download(`foreword-${recording.method.replace(/\W+/g, "-")}-${recording.seed}.json`, `${JSON.stringify(recording)}\n`, "application/json");
}
