/** The page: tabs, recordings that are opened, and errors. */

import { described, useKey } from "./api.js";
import { Chat } from "./chat/chat.js";
import { Costs } from "./costs.js";
import { byId, el } from "./dom.js";
import { Scene } from "./chat/scene.js";
import { isImage } from "./chat/images.js";
import { Lanes, Race } from "./race.js";
import { paceOf } from "./pace.js";
import { parsed } from "./recording.js";
import { speedMenu } from "./replay.js";
import { gainOf } from "./figures.js";
import { Settings } from "./chat/settings.js";
import { examplesFor, methodName, modelName } from "./chat/words.js";
import { Stage } from "./stage.js";
import { savedSettings, saveSettings } from "./chat/store.js";

const stage = new Stage(byId("stage"));

function showError(error) {
  byId("error").hidden = !error;
  byId("error").textContent = error?.message ?? "";
  const key = byId("key"); // a file has none
  if (key) key.hidden = error?.status !== 401;
}

/** Make the tabs work: click, arrow keys, and the address' fragment. */
function wireTabs() {
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const show = (tab, { focus = false, first = false } = {}) => {
    for (const one of tabs) {
      const chosen = one === tab;
      one.setAttribute("aria-selected", String(chosen));
      one.tabIndex = chosen ? 0 : -1;
      byId(one.getAttribute("aria-controls")).hidden = !chosen;
    }
    document.body.dataset.tab = tab.dataset.tab;
    stage.turnTo(tab.dataset.tab);
    if (!first && tab.dataset.tab !== "chat") scrollTo(0, 0);
    // a fragment that is set while the page loads would scroll to its section
    if (!first) history.replaceState(null, "", `#${tab.dataset.tab}`);
    if (focus) tab.focus();
  };
  tabs.forEach((tab, at) => {
    tab.addEventListener("click", () => show(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) show(tabs[(at + step + tabs.length) % tabs.length], { focus: true });
    });
  });
  show(tabs.find((tab) => `#${tab.dataset.tab}` === location.hash) ?? tabs[0], { first: true });
  return (name) => show(tabs.find((tab) => tab.dataset.tab === name));
}

/** Show a recording, beside its plain counterpart if there is one. */
function shown({ title, recording, plain = null }) {
  const card = stage.newCard(title);
  card.plain = plain && paceOf(plain.rounds);
  card.load(recording);
  const nodes = [el("p", { class: "asked", dir: "auto", text: title }), card.element];
  if (plain) {
    const lanes = new Lanes(stage);
    const speeds = speedMenu();
    const run = el("button", { type: "button", text: "Race against plain decoding", onclick: () => lanes.show([plain, recording], Number(speeds.value)) });
    nodes.push(el("div", { class: "row" }, run, speeds), lanes.element, lanes.proof);
  }
  return nodes;
}

/** Wire the ways to open a file: the button, and dropping it on the page. Images that are dropped go to `images`. */
function wireFiles(add, images = null) {
  const open = async (file) => {
    if (!file) return;
    try {
      const recording = parsed(await file.text(), file.name);
      showError(null);
      add(...shown({ title: recording.prompt, recording }));
    } catch (error) {
      showError(error);
    }
  };
  byId("file").addEventListener("change", (event) => {
    open(event.target.files[0]);
    event.target.value = "";
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    const pictures = [...event.dataTransfer.files].filter(isImage);
    if (images && pictures.length) images.add(pictures);
    else open(event.dataTransfer.files[0]);
  });
}

/** Make the switch between reading and tokens work, and keep it. */
function wireViews(chat) {
  const switches = [...document.querySelectorAll('[name="view"]')];
  const show = (view) => {
    document.body.dataset.view = view;
    saveSettings({ ...savedSettings(), view });
    chat.redraw();
  };
  for (const one of switches) {
    one.checked = one.value === (savedSettings().view ?? "read");
    one.addEventListener("change", () => show(one.value));
  }
  show(switches.find((one) => one.checked)?.value ?? "read");
}

/** Return what the last answer and the race measured, for the view of costs. */
function measured(racePoint) {
  const card = stage.of("chat");
  const figures = card?.figures;
  const depths = figures?.depths ?? [];
  const [tried, kept] = ["tried", "kept"].map((name) => depths.reduce((sum, one) => sum + one[name], 0));
  const times = tried ? gainOf(figures, card.view.rounds, card.plain).times : null;
  const points = racePoint ? [racePoint] : [];
  if (times) points.unshift({ name: "the last answer", draft: figures.drafted / figures.passes, speed: times });
  return { kept, tried, points, rounds: card?.view.rounds ?? [] };
}

/** Return the model, and who drafts for it, in words. */
function servedWords({ model, draft, method }) {
  return `${modelName(model)}, drafts by ${draft ? modelName(draft) : `“${methodName(method)}”`}`;
}

/** Show what the server serves. */
async function connect(settings, costs, chat) {
  try {
    const info = await described();
    showError(null);
    settings.describe(info);
    chat.describe(info);
    byId("race-form").dataset.method = info.method;
    byId("race-form").elements.prompt.defaultValue = examplesFor(info.model).at(-1).prompt; // until another is typed
    byId("served").textContent = servedWords(info);
    byId("served").title = `${info.model} on ${info.machine.cpu}, ${info.machine.threads} threads`;
    costs.describe(info);
  } catch (error) {
    showError(error);
  }
}

const embedded = byId("recordings");
if (embedded) {
  const log = byId("log");
  for (const one of JSON.parse(embedded.textContent)) log.append(...shown(one));
  wireFiles((...nodes) => {
    log.prepend(...nodes);
    scrollTo(0, 0);
  });
} else {
  const settings = new Settings();
  const show = wireTabs();
  const costs = new Costs();
  const chat = new Chat(settings, stage, showError);
  const race = new Race(settings, stage, speedMenu(), showError);
  new Scene(settings, showError);
  wireViews(chat);
  wireFiles((...nodes) => {
    show("chat");
    chat.add(...nodes);
  }, chat.images);
  byId("key").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(event.target.elements.key.value);
    connect(settings, costs, chat);
  });
  document.querySelector('[data-tab="costs"]').addEventListener("click", async () => {
    await connect(settings, costs, chat);
    costs.measure(measured(race.point));
  });
  connect(settings, costs, chat);
}
