/** Turns as data: the messages of a request about them, and what a stream adds to an answer. */

import { content } from "./images.js";

/**
 * Return the messages of a request about these turns. A question that the server refused is left out, since it would be
 * refused again; two questions in a row become one, which every chat template takes.
 */
export function messagesOf(turns) {
  const messages = [];
  for (const { question, answer } of turns) {
    if (answer?.refused) continue;
    if (question.results) messages.push(...question.results.map(({ id, text }) => ({ role: "tool", tool_call_id: id, content: text })));
    else addQuestion(messages, content(question.text, question.images));
    if (answer?.content || answer?.calls?.length) messages.push(answerMessage(answer));
  }
  return messages;
}

function addQuestion(messages, asked) {
  const before = messages.at(-1);
  if (before?.role !== "user") messages.push({ role: "user", content: asked });
  else if (typeof before.content === "string" && typeof asked === "string") before.content += `\n\n${asked}`;
  else before.content = [...partsOf(before.content), ...partsOf(asked)];
}

const partsOf = (asked) => (typeof asked === "string" ? [{ type: "text", text: asked }] : asked);

function answerMessage({ content: text, calls = [] }) {
  if (!calls.length) return { role: "assistant", content: text };
  const asked = calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  return { role: "assistant", content: text || null, tool_calls: asked };
}

/**
 * Return a new answer: what a stream has written so far. `drafting`: method and nodes it is asked with. `ended`: null while it is
 * written, then "stop", "length", "stopped" by the reader, or "error". `earlier`: what other drafting made of the same question.
 */
export const emptyAnswer = (seed, temperature, drafting, earlier = []) => ({
  seed, temperature, drafting, earlier,
  content: "", reasoning: "", calls: [], rounds: [], recording: null, prompt: 0, ended: null, error: null, refused: false,
});

/** Add a piece of a stream to an answer. */
export function addDelta(answer, delta) {
  answer.content += delta.content ?? "";
  answer.reasoning += delta.reasoning_content ?? "";
  for (const { index, id, function: called } of delta.tool_calls ?? []) {
    const call = (answer.calls[index] ??= { id, name: "", arguments: "" });
    call.name += called?.name ?? "";
    call.arguments += called?.arguments ?? "";
  }
}
