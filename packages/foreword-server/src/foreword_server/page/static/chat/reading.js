/**
 * Answers to read: Markdown, code with colours and maths, by four small libraries in vendor/ that are loaded when first
 * needed. An answer is untrusted: marked makes HTML of it, DOMPurify keeps the harmless part.
 */

import { copyButton, el } from "../dom.js";

const LIBRARIES = ["marked", "purify", "highlight", "temml"];
const ALLOWED = {
  FORBID_TAGS: ["audio", "button", "form", "img", "input", "picture", "select", "source", "style", "svg", "textarea", "video"],
  FORBID_ATTR: ["class", "id", "name", "style"],
  ALLOW_UNKNOWN_PROTOCOLS: false,
  RETURN_DOM_FRAGMENT: true,
};
/** Maths in a text: the delimiters that models write, and whether it stands in a line of its own. */
const MATHS = [
  { name: "blockMaths", level: "block", from: /\$\$|\\\[/, rule: /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])/, display: true },
  { name: "lineMaths", level: "inline", from: /\\\(|\$/, rule: /^(?:\\\(([\s\S]+?)\\\)|\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d))/, display: false },
];
/** A Markdown answer in a fence of its own, as some models write it: the fence is left out. */
const FENCED = /^\s*```(?:markdown|md)\n([\s\S]*?)(?:\n```\s*)?$/;
const LONG_CODE = 16; // lines: longer code has its buttons at both ends
let loading = null;

/** Return a promise that the libraries are there. */
export function readable() {
  loading ??= Promise.all(LIBRARIES.map(loadLibrary)).then(() => {
    const renderer = { code: codeOf };
    globalThis.marked.use({ gfm: true, breaks: true, renderer, extensions: MATHS.map(mathsRule) });
  });
  return loading;
}

function loadLibrary(name) {
  return new Promise((resolve, reject) => {
    const lost = () => reject(new Error(`cannot show Markdown: ${name}.js did not load. Reload the page`));
    document.head.append(el("script", { src: `page/vendor/${name}.js`, onload: resolve, onerror: lost }));
  });
}

const escaped = (text) => text.replace(/[&<>"]/g, (one) => `&#${one.charCodeAt(0)};`);

/** Return code as HTML; its language stays beside it, since classes are removed. */
function codeOf({ text, lang }) {
  const language = (lang ?? "").match(/^\S*/)[0];
  return `<pre><code data-language="${escaped(language)}">${escaped(text)}</code></pre>`;
}

function mathsRule({ name, level, from, rule, display }) {
  return {
    name,
    level,
    start: (text) => text.match(from)?.index,
    tokenizer(text) {
      const found = rule.exec(text);
      if (found) return { type: name, raw: found[0], text: found[1] ?? found[2] };
    },
    renderer: (token) => `<code data-maths="${display ? "display" : "line"}">${escaped(token.text)}</code>`,
  };
}

/** Put an answer into a place as Markdown. The libraries must be there. */
export function render(place, text) {
  const { DOMPurify, hljs, marked, temml } = globalThis;
  const shown = DOMPurify.sanitize(marked.parse(FENCED.exec(text)?.[1] ?? text), ALLOWED);
  for (const code of shown.querySelectorAll("[data-maths]")) {
    const maths = el("span", { class: "maths" });
    temml.render(code.textContent, maths, { displayMode: code.dataset.maths === "display", throwOnError: false });
    code.replaceWith(maths);
  }
  for (const code of shown.querySelectorAll("pre code")) {
    const language = code.dataset.language;
    if (hljs.getLanguage(language)) code.innerHTML = hljs.highlight(code.textContent, { language }).value;
    dress(code, language);
  }
  for (const link of shown.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  place.replaceChildren(shown);
}

/** Put a bar over a code block: its language, a switch that wraps long lines, and a copy; long code is copied at its foot too. */
function dress(code, language) {
  const block = code.parentElement;
  const text = code.textContent;
  const copy = () => copyButton(() => text, "Copy code");
  const wrap = el("button", { type: "button", class: "small", "aria-pressed": "false", text: "Wrap" });
  wrap.addEventListener("click", () => wrap.setAttribute("aria-pressed", String(block.classList.toggle("wrapped"))));
  const bar = el("div", { class: "code-bar" }, el("span", { text: language }), wrap, copy());
  const foot = text.split("\n").length > LONG_CODE ? [el("div", { class: "code-bar" }, copy())] : [];
  block.tabIndex = 0; // it may scroll
  const frame = el("div", { class: "code" });
  block.replaceWith(frame);
  frame.append(bar, block, ...foot);
}
