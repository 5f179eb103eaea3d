/** Puts the page together: a run from the server, or the one inside this file. */

import { App } from "./app.js";
import { drawAct, processMenu } from "./act.js";
import { Controls } from "./controls.js";
import { Diagram } from "./diagram.js";
import { helpDialog, openDialog } from "./dialogs.js";
import { h, icon, save, show } from "./dom.js";
import { drawFigures } from "./figures.js";
import { listen } from "./keyboard.js";
import { drawLegend } from "./legend.js";
import { drawOrder } from "./order.js";
import { splitter, store, stored } from "./panes.js";
import { picture } from "./picture.js";
import { drawProcesses } from "./processes.js";
import { Recording } from "./recording.js";
import { drawScenarios } from "./scenarios.js";
import { SetupDialog } from "./setup.js";
import { drawCode, drawWords } from "./steppane.js";
import { startTheme, switchTheme } from "./theme.js";

const TABS = {
  processes: ["Processes", drawProcesses],
  order: ["Order", drawOrder],
  figures: ["Figures", drawFigures],
  act: ["Act", drawAct],
};
const SAY_MS = 6000;

const $ = (id) => document.getElementById(id);

startTheme();
const app = new App({ draw, say, lost });
const toast = h("div", { class: "toast", role: "status", "aria-live": "polite", hidden: true });
const menu = h("div", { class: "menu", role: "dialog", "aria-label": "Process", hidden: true });
document.body.append(toast, menu);

const on = {
  start: () => app.go(0),
  back: () => app.go(app.step - 1),
  play: () => app.play(),
  step: () => app.forward(),
  delivery: () => app.nextDelivery(),
  deliveryBefore: () => app.go(app.recording.previousDelivery(app.step) ?? 0),
  end: () => app.end(),
  go: (step) => app.go(step),
  violation: () => app.violation(),
  pace: (name) => changed(() => (app.pace = name)),
  axis: () => changed(() => (app.view.axis = diagram.axis.kind === "time" ? "steps" : "time")),
  future: () => changed(() => (app.view.future = !app.view.future)),
  housekeeping: () => changed(() => (app.view.housekeeping = !app.view.housekeeping)),
  type: (name) => changed(() => app.view.hiddenTypes.delete(name) || app.view.hiddenTypes.add(name)),
  highlight: (name) => changed(() => (app.highlight = app.highlight === name ? null : name)),
  drop: () =>
    changed(() => {
      app.highlight = app.chosen = null;
      menu.hidden = true;
    }),
  choose: (process) => changed(() => (app.chosen = app.chosen === process ? null : process)),
  destinations: (chosen) => changed(() => (app.destinations = chosen)),
  tab: (name) => changed(() => (app.view.tab = name)),
  zoom: (factor) => diagram.scaleBy(factor),
  fit: () => diagram.fit(),
  help: () => help(),
  process: openMenu,
  deliver: (from, to) => app.act(["arrive", from, to]),
  act: (action) => {
    menu.hidden = true;
    app.act(action);
  },
  scenario: (id) => app.open({ scenario: id }).catch((problem) => app.complain(problem)),
};

const help = helpDialog();
const openRun = openDialog((content) => app.open(content));
const setup = new SetupDialog((content) => app.open({ setup: content }));
const diagram = new Diagram($("canvas"), { ...on, step: on.go });
const controls = new Controls($("controls"), on);

// -- drawing -----------------------------------------------------------------------------------------------------------

function changed(change) {
  if (!app.recording) return;
  change();
  draw();
}

function draw() {
  const tab = TABS[app.view.tab];
  diagram.draw(app);
  drawLegend($("legend"), app, on);
  controls.draw(app, diagram.axis.kind);
  drawWords($("words"), app);
  drawCode($("code"), app);
  drawScenarios($("scenarios"), app, on);
  tab[1]($("tab-pane"), app, { ...on, step: on.go });
  $("tab-pane").setAttribute("aria-label", tab[0]);
  drawTabs();
  drawTop();
  if (!menu.hidden) showMenu();
}

function drawTabs() {
  const bad = app.recording.violations.some((found) => found.step <= app.step);
  show(
    $("tabs"),
    Object.entries(TABS).map(([name, [title]]) =>
      h(
        "button",
        {
          role: "tab",
          "aria-selected": String(name === app.view.tab),
          "data-key": `tab-${name}`,
          "aria-controls": "tab-pane",
          class: name === "order" && bad ? "bad" : null,
          onclick: () => on.tab(name),
        },
        title,
        name === "order" && bad && " ✗",
      ),
    ),
  );
}

function drawTop() {
  const { header } = app.recording;
  const { settings = {}, seed } = header;
  const scenario = app.catalogue?.scenarios?.find((one) => one.id === app.scenario);
  const named = header.title?.startsWith(`${header.protocol},`);
  const what = [
    !named && header.protocol,
    !app.live && !named && !scenario && seed !== undefined && `seed ${seed}`,
    (settings.bug ?? header.bug) && `planted bug: ${settings.bug ?? header.bug}`,
  ]
    .filter(Boolean)
    .join(" · ");
  show(
    $("title"),
    h("b", {}, scenario?.title ?? header.title ?? "A recorded run"),
    h("span", { class: "quiet" }, ` ${what}`),
    app.recording.violations.length > 0 &&
      h(
        "button",
        { class: "alarm", "data-key": "alarm", title: "To the violation (V)", onclick: on.violation },
        "✗ violation",
      ),
  );
  document.title = `${scenario?.title ?? header.protocol ?? "Run"}: atomic multicast, step by step`;
}

function buildTop() {
  const button = (text, title, action, more = {}) => h("button", { title, onclick: action, ...more }, text);
  $("top").append(
    ...(app.exported && !app.catalogue
      ? []
      : [
          h(
            "button",
            { class: "control", "aria-label": "Scenarios", title: "Scenarios", onclick: toggleScenarios },
            icon("list"),
          ),
        ]),
    h("h1", { id: "title" }, "Atomic multicast, step by step"),
    h(
      "div",
      { class: "buttons" },
      ...(app.exported
        ? []
        : [
            button(
              "New world",
              "Choose protocol, processes, clocks and delays",
              () => setup.open(app.catalogue, app.live ? app.recording?.header.settings : null),
              { id: "new-world" },
            ),
            button("Open…", "A trace file, or a seed of the simulator", () => openRun(app.catalogue), { id: "open" }),
            button("Copy link", "The address of exactly this step", copyLink, { id: "copy" }),
          ]),
      button("SVG", "The diagram as a file, for papers and slides", () => save("diagram.svg", "image/svg+xml", svg()), {
        id: "svg",
      }),
      h(
        "button",
        { class: "control", "aria-label": "Dark or light", title: "Dark or light", onclick: switchTheme, id: "theme" },
        icon("theme"),
      ),
      button("?", "Help (?)", () => help(), { "aria-label": "Help", id: "help" }),
    ),
  );
}

/** As it is on the page, or the whole run. */
function svg({ whole = false } = {}) {
  const title = app.recording.header.title ?? app.recording.header.protocol;
  return whole ? diagram.whole(() => picture(diagram.svg, title)) : picture(diagram.svg, `${title}, step ${app.step}`);
}

function toggleScenarios() {
  const closed = document.body.classList.toggle("no-scenarios");
  store("scenarios", closed ? "closed" : "open");
  if (app.recording) draw();
}

// -- a process ---------------------------------------------------------------------------------------------------------

let menuOf = null;

function openMenu(process, target) {
  app.chosen = process;
  menuOf = { process, box: target.getBoundingClientRect() };
  menu.hidden = false;
  draw();
  menu.querySelector("input, button")?.focus();
}

function showMenu() {
  show(
    menu,
    processMenu(app, menuOf.process, on),
    h("button", { class: "control close", "aria-label": "Close", onclick: () => (menu.hidden = true) }, icon("close")),
  );
  menu.style.left = `${menuOf.box.right + 6}px`;
  menu.style.top = `${Math.min(menuOf.box.top - 10, innerHeight - menu.offsetHeight - 10)}px`;
}

document.addEventListener("pointerdown", (event) => {
  if (!menu.contains(event.target) && !event.target.closest?.(".name")) menu.hidden = true;
});

// -- sentences ---------------------------------------------------------------------------------------------------------

let silence = 0;

function say(sentence) {
  toast.textContent = sentence;
  toast.hidden = false;
  clearTimeout(silence);
  silence = setTimeout(() => (toast.hidden = true), SAY_MS);
}

/** The run stays; what needs the server waits for a new connection. */
function lost(sentence) {
  const again = h(
    "button",
    {
      id: "reconnect",
      onclick: async () => {
        try {
          await app.reconnect();
          $("banner").hidden = true;
        } catch (problem) {
          lost(problem.message);
        }
      },
    },
    "Reconnect",
  );
  show(
    $("banner"),
    h("span", {}, `${sentence} ${app.recording ? "What is shown stays, and can be stepped through." : ""}`),
    again,
  );
  $("banner").hidden = false;
}

/** A mistake of this page itself. The run that is open can still be stepped through, mostly. */
function failed(event) {
  say(`This page failed: ${event.message ?? event.reason?.message ?? "unknown"}. Reload it to go on.`);
}

async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    say("The address of this step is copied.");
  } catch {
    say("The browser does not let the page copy; the address line has it.");
  }
}

// -- start -------------------------------------------------------------------------------------------------------------

function build() {
  buildTop();
  const root = document.documentElement;
  splitter(document.querySelector(".side"), {
    property: "--side",
    label: "Width of the panes at the right",
    horizontal: false,
    grows: -1,
    least: 280,
    most: () => innerWidth * 0.6,
    first: innerWidth * 0.34,
  });
  splitter($("controls"), {
    property: "--below",
    label: "Height of the panes below",
    horizontal: true,
    grows: -1,
    least: 90,
    most: () => innerHeight * 0.6,
    first: innerHeight * 0.28,
  });
  root.classList.add("ready");
  addEventListener(
    "popstate",
    () => app.catalogue && !app.exported && app.openAddress().catch((problem) => app.complain(problem)),
  );
  listen(on);
  addEventListener("error", failed);
  addEventListener("unhandledrejection", failed);
}

function startExported(element) {
  const content = JSON.parse(element.textContent);
  app.exported = true;
  if (content.scenario) app.catalogue = { scenarios: [content.scenario] };
  document.body.classList.toggle("no-scenarios", !content.scenario);
  build();
  app.show(new Recording(content), { step: content.at ?? 0, scenario: content.scenario?.id ?? null });
  app.on.draw();
}

async function startLive() {
  document.body.classList.toggle("no-scenarios", stored("scenarios") === "closed");
  build();
  try {
    app.catalogue = await (await fetch("api/catalogue")).json();
    await app.connection.connect();
    await app.openAddress();
  } catch (problem) {
    if (app.connection.open && app.catalogue) await startAnew(problem);
    else lost(problem.message);
  }
}

/** The address says nothing that can be opened: say so, and show something that can. */
async function startAnew(problem) {
  history.replaceState(null, "", location.pathname);
  await app.openAddress();
  say(problem.message);
}

const embedded = $("recording");
if (embedded) startExported(embedded);
else startLive();

/** For the command that makes pictures, and for tests. */
window.visual = { app, svg };
