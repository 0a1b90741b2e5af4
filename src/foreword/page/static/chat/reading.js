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
  const shown = DOMPurify.sanitize(marked.parse(text), ALLOWED);
  for (const code of shown.querySelectorAll("[data-maths]")) {
    const maths = el("span", { class: "maths" });
    temml.render(code.textContent, maths, { displayMode: code.dataset.maths === "display", throwOnError: false });
    code.replaceWith(maths);
  }
  for (const code of shown.querySelectorAll("pre code")) {
    const language = code.dataset.language;
    if (hljs.getLanguage(language)) code.innerHTML = hljs.highlight(code.textContent, { language }).value;
    code.parentElement.append(copyButton(() => code.textContent, "Copy code"));
    code.parentElement.tabIndex = 0; // it may scroll
  }
  for (const link of shown.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  place.replaceChildren(shown);
}
