/** Elements, numbers and tokens as text. Text enters the page through textContent only, so it is never markup. */

const SVG = "http://www.w3.org/2000/svg";
const MARKS = { " ": "␣", "\n": "⏎", "\t": "⇥" };

/** Return the element with this id. */
export const byId = (id) => document.getElementById(id);

/** Return a new element: attributes and listeners ("onclick") by name, then children: nodes or text. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Return a new SVG element. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** Return a number with a few significant digits, or a dash if there is none. */
export function short(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value) || 1)));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(places, 6) });
}

/** Return a duration in milliseconds or, from one second on, in seconds. */
export const duration = (ms) => (ms < 1000 ? `${short(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);

/** Return a probability as a percentage. */
export function percent(value) {
  if (value === null || value === undefined) return "–";
  if (value > 0 && value < 0.005) return "<1%";
  return value < 1 && value > 0.995 ? ">99%" : `${Math.round(100 * value)}%`;
}

/** Return the noun with its number. */
export const count = (number, noun, plural = `${noun}s`) => `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;

/** Return the text of a token with its white space and control characters made visible. */
export function visible(text) {
  const shown = [...text].map((one) => {
    const code = one.codePointAt(0);
    if (one in MARKS) return MARKS[one];
    if (code < 32) return String.fromCodePoint(0x2400 + code);
    return /\p{Cf}|\p{Co}|\p{Cn}/u.test(one) ? `U+${code.toString(16).toUpperCase().padStart(4, "0")}` : one;
  });
  return shown.join("") || "∅";
}

/** Return a function that runs `draw` before the next frame, once however often it is called. */
export function oncePerFrame(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  };
}

/** Return a button that copies what `text()` returns. */
export function copyButton(text, label = "Copy") {
  const copy = async (event) => {
    const button = event.currentTarget;
    await copied(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500); // milliseconds
  };
  return el("button", { type: "button", class: "small copy", text: label, onclick: copy });
}

/** Save a text as a file. */
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 0);
}

/** Copy a text. Over plain HTTP a browser has no clipboard of its own, and a selection is copied instead. */
async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).catch(() => {});
  const holder = el("textarea", { class: "unseen" });
  holder.value = text;
  document.body.append(holder);
  holder.select();
  document.execCommand("copy");
  holder.remove();
}

const NEAR = 60; // pixels from the foot of the page that count as its foot

/** Keeps the foot of the page in view while it grows, until the reader scrolls up; from the foot on it follows again. */
export class Follow {
  constructor() {
    this.on = true;
    this.top = 0;
    addEventListener("scroll", () => {
      const left = document.documentElement.scrollHeight - innerHeight - scrollY;
      if (left < NEAR) this.on = true;
      else if (scrollY < this.top) this.on = false; // growth never scrolls up: it was the reader
      this.top = scrollY;
    }, { passive: true });
  }

  /** Go to the foot, and stay there. */
  start() {
    this.on = true;
    this.grown();
  }

  /** The page has grown. */
  grown() {
    if (this.on) scrollTo(0, document.documentElement.scrollHeight);
  }
}
