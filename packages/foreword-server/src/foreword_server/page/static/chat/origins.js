/** Origins in an answer to read: each word of the page is found in the written text, and marked as its token was made. */

import { emitted } from "../recording.js";

const WINDOW = 240; // characters of markup that may lie between two words: a link's address
const SKIPPED = ".maths, button, .code-bar";

/** Mark the words below `place`, which shows `text`, by the rounds that wrote it. Words that are not found stay as they are. */
export function mark(place, rounds, text) {
  const tokens = rounds.flatMap((round, at) => emitted(round).map((one) => ({ ...one, at })));
  const start = tokens.map((one) => one.text).join("").indexOf(text);
  if (start < 0 || !text) return;
  const owners = ownersOf(tokens, start, text.length);
  const walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) if (!walker.currentNode.parentElement.closest(SKIPPED)) nodes.push(walker.currentNode);
  let cursor = 0;
  for (const node of nodes) {
    const [origins, next] = originsOf(node.data, text, owners, cursor);
    cursor = next;
    if (origins.some(Boolean)) node.replaceWith(...originSpans(node.data, origins));
  }
}

/** Return the token of each character. */
function ownersOf(tokens, start, length) {
  const owners = [];
  let at = -start;
  for (const token of tokens) {
    for (let one = 0; one < token.text.length; one += 1, at += 1) if (at >= 0 && at < length) owners.push(token);
  }
  return owners;
}

/** Return the token of each character of a piece of the page, and where the text goes on. */
function originsOf(shown, text, owners, cursor) {
  const origins = new Array(shown.length).fill(null);
  for (const { 0: word, index } of shown.matchAll(/\S+/g)) {
    const found = text.indexOf(word, cursor);
    if (found < 0 || found - cursor > WINDOW) continue;
    for (let at = 0; at < word.length; at += 1) origins[index + at] = owners[found + at];
    if (index > 1 && /\S/.test(shown[index - 2]) && found && /\s/.test(text[found - 1])) origins[index - 1] = owners[found - 1];
    cursor = found + word.length;
  }
  return [origins, cursor];
}

/** Return the text in spans, one for each run of a round and a kind. */
function originSpans(text, origins) {
  const pieces = [];
  let from = 0;
  for (let at = 1; at <= text.length; at += 1) {
    const [before, here] = [origins[at - 1], origins[at]];
    if (at < text.length && before?.at === here?.at && before?.kind === here?.kind) continue;
    pieces.push(before ? originSpan(text.slice(from, at), before) : document.createTextNode(text.slice(from, at)));
    from = at;
  }
  return pieces;
}

function originSpan(text, { at, kind }) {
  const element = document.createElement("span");
  element.className = `origin ${kind}`;
  element.dataset.round = at;
  element.textContent = text;
  return element;
}
