/** Words for people: models without the marks of their files, methods by what they do, and examples for the model served. */

/** The method without draft tokens. */
export const PLAIN = "none";
/** The bundled models, which serve every method. */
const BUNDLED = "foreword-family";

/** What each method does, in the words of the menu. A method of another package has its own name. */
const METHODS = {
  none: "Plain: nothing drafted",
  lm: "Small model writes ahead",
  ngram: "Copies from this text",
  suffix: "Copies from this text and past answers",
  cascade: "Copies, else the small model",
  auto: "Whatever measures fastest",
  recycle: "Remembers likely next words",
  lookahead: "Drafts several places at once",
  eagle: "Trained head, one layer (EAGLE-3)",
  medusa: "Trained heads, one a word (Medusa)",
  mtp: "The model's own extra layers (MTP)",
  dflash: "Trained head, a block at once (DFlash)",
  dspark: "Trained head with word pairs (DSpark)",
  pard: "Small model, several words at once",
  layers: "The model itself with fewer layers",
  quantized: "The model itself, coarser",
  retrieval: "Copies from a datastore",
  tli: "Small model with other tokens",
  slem: "Small model, by its text",
};
/** Methods in the order of the menu. */
const ORDER = Object.keys(METHODS);
/** Methods that need what not every pair has: layers of the checkpoint, a mask token, other tokens, a file, full weights. */
const PARTICULAR = ["mtp", "pard", "layers", "quantized", "tli", "slem", "eagle", "medusa", "dflash", "dspark", "retrieval"];

/** Return the name of a method for people. `plain`: it drafted nothing. */
export const methodName = (method, plain = false) => (plain ? "plain" : (METHODS[base(method)] ?? method).replace(/^./, (first) => first.toLowerCase()));
/** Return the name of a method without its members. */
const base = (method) => method.split("(")[0];

/** Return the methods that this target and draft serve: `name`, `text` and `title`, the default first. */
export function servedMethods({ model, method, methods }) {
  const crossed = method === "tli" || method === "slem"; // the draft has other tokens
  const serves = (name) => {
    if (name === base(method) || name === PLAIN) return true;
    if (name === "predicted" || (crossed && ["lm", "cascade", "auto"].includes(name))) return false;
    return model === BUNDLED || !PARTICULAR.includes(name);
  };
  const listed = methods.filter((one) => serves(one.name)); // the default is listed with its members
  const usual = listed.findIndex((one) => one.name === base(method));
  if (usual >= 0) listed[usual] = { ...listed[usual], name: method };
  const place = (name) => (name === method ? -1 : ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length);
  listed.sort((one, other) => place(one.name) - place(other.name));
  return listed.map(({ name, summary }) => ({ name, text: METHODS[base(name)] ?? name, title: `${name}: ${summary}` }));
}

/** Return a model's name without the marks of its file: "qwen2.5-coder-0.5b-q4_k_m.gguf" is "Qwen2.5 Coder 0.5B · Q4_K_M". */
export function modelName(name) {
  if (!name || name === BUNDLED) return name ?? "";
  const bare = name.split("/").at(-1).replace(/\.gguf$/i, "");
  const weights = bare.match(/[-.](i?q\d[\w]*|f16|bf16|f32)$/i)?.[1] ?? "";
  const words = (weights ? bare.slice(0, -weights.length - 1) : bare).split(/[-_\s]+/).filter(Boolean);
  const title = words.map((word) => (/^\d+(\.\d+)?[bm]$/i.test(word) ? word.toUpperCase() : word.replace(/^[a-z]/, (first) => first.toUpperCase()))).join(" ");
  return weights ? `${title} · ${weights.toUpperCase()}` : title;
}

const EXAMPLES = {
  bundled: [
    ["Write a long list of animals", "Write a long list of animals."],
    ["Shell command: list all files by size"],
    ["Split a sentence in two", "Split this sentence into two shorter ones: Many people like having more than one Arowana in the tank, that's fine and all but they must be at least 5 - 6 or more in the tank at a time because Arowanas are very aggressive towards each other."],
  ],
  coder: [
    ["A class with tests", "Write a Python class for a bank account with deposit, withdraw and transfer, and pytest tests for it."],
    ["A command for the shell", "Shell command: the ten largest files below this folder, with readable sizes."],
    ["Add types and docstrings", "Add type hints and docstrings to this, and change nothing else:\n\n```python\nclass Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        self.items.append(item)\n\n    def pop(self):\n        if not self.items:\n            raise IndexError(\"pop from an empty stack\")\n        return self.items.pop()\n```"],
  ],
  chat: [
    ["Explain it simply", "Explain in five sentences why the sky is blue."],
    ["Write an e-mail", "Write a short, friendly e-mail that moves a meeting from Tuesday to Thursday."],
    ["Make a plan", "Plan a weekend in Vienna as a table: time, place, why."],
  ],
  base: [["Once upon a time, in a village by the river,"], ["The three laws of thermodynamics are:\n\n1."], ["def fibonacci(n):"]],
};

/** Return examples for a model: `text` of a button and the `prompt` it sends. */
export function examplesFor(model, isBase = false) {
  const kind = isBase ? "base" : model === BUNDLED ? "bundled" : /code|starcoder|devstral/i.test(model) ? "coder" : "chat";
  return EXAMPLES[kind].map(([text, prompt = text]) => ({ text, prompt }));
}
