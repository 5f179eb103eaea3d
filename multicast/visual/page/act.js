/** What can be done in a live world: what comes next, and what one can do to a process. */

import { h, icon, show } from "./dom.js";
import { duration, processName } from "./words.js";

/** The pane. on: { act(action), process(p) } */
export function drawAct(pane, app, on) {
  if (!app.live) {
    show(
      pane,
      h(
        "p",
        { class: "empty" },
        app.exported
          ? "This file is a recording: it can be stepped through, not changed. In a live world (python -m multicast.visual) messages are chosen by click, and processes crash when you say so."
          : "This is a recording: it can be stepped through, not changed. Choose a scenario or “New world” to act yourself.",
      ),
    );
    return;
  }
  show(
    pane,
    h("h3", {}, "Multicast a message"),
    multicastForm(app, app.process, on),
    h("h3", {}, "What can come next", h("span", { class: "quiet" }, " the first is next by time")),
    enabled(app, on),
    h("h3", {}, `Do something to ${processName(app.process)}`),
    faults(app, app.process, on),
    h("h3", {}, `Links of ${processName(app.process)}`),
    links(app, app.process, on),
  );
}

/** The menu of a process, beside its name in the diagram. */
export function processMenu(app, process, on) {
  const { recording, step } = app;
  const role = recording.state(process, step).role;
  const group = recording.groupOf(process);
  const title = h(
    "h3",
    {},
    processName(process),
    h(
      "span",
      { class: "quiet" },
      ` ${group === null ? "outside all groups" : `group ${group}`}${role ? `, ${role}` : ""}, ${recording.status(process, step)}`,
    ),
  );
  if (!app.live)
    return [
      title,
      h("p", { class: "empty" }, "A recording: its messages are shown beside. In a live world you can act here."),
    ];
  return [title, multicastForm(app, process, on), faults(app, process, on)];
}

function multicastForm(app, process, on) {
  const chosen = app.destinations;
  const send = h(
    "button",
    {
      class: "primary",
      "data-key": `send-${process}`,
      disabled: !app.canAct || !chosen.size || app.recording.status(process, app.step) !== "up",
      onclick: () => on.act(["multicast", process, [...chosen].map(Number)]),
    },
    icon("letter"),
    ` Multicast from ${processName(process)}`,
  );
  const boxes = app.recording.groups.map(({ name }) =>
    h(
      "label",
      { class: "check" },
      h("input", {
        type: "checkbox",
        checked: chosen.has(name),
        "data-key": `to-${process}-${name}`,
        onchange: (event) => {
          if (event.target.checked) chosen.add(name);
          else chosen.delete(name);
          on.destinations(chosen);
        },
      }),
      `group ${name}`,
    ),
  );
  return h(
    "div",
    { class: "form" },
    h("span", { class: "boxes", role: "group", "aria-label": "Destination groups" }, "to ", boxes),
    send,
  );
}

function enabled(app, on) {
  if (!app.enabled) return h("p", { class: "empty" }, "…");
  if (!app.enabled.length)
    return h("p", { class: "empty" }, "Nothing: no message is under way, no timer runs. Multicast something.");
  return h(
    "ul",
    { class: "enabled" },
    app.enabled.map(({ action, text, at_us: at }, number) =>
      h(
        "li",
        {},
        h(
          "button",
          {
            class: number ? "" : "first",
            disabled: !app.canAct,
            "data-key": `do-${action.join("-")}`,
            onclick: () => on.act(action),
          },
          capital(text),
          at !== undefined && h("span", { class: "quiet" }, ` at ${duration(at, app.recording.deltaUs)}`),
        ),
      ),
    ),
  );
}

function capital(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : text;
}

const ON_PROCESS = [
  ["crash", "Crash", "up paused"],
  ["restart", "Restart", "down"],
  ["pause", "Pause", "up"],
  ["resume", "Resume", "paused"],
  ["lose_disk", "Crash and lose the disk", "up paused"],
  ["timer", "Let its timer expire", "up"],
];

function faults(app, process, on) {
  const status = app.recording.status(process, app.step);
  const delta = app.recording.deltaUs || 1000;
  const wait = h(
    "button",
    { disabled: !app.canAct, "data-key": "wait", onclick: () => on.act(["wait", Math.round(delta / 2)]) },
    "Let ½ δ pass",
  );
  return h(
    "div",
    { class: "buttons" },
    ON_PROCESS.filter(([, , when]) => when.includes(status)).map(([kind, text]) =>
      h(
        "button",
        {
          disabled: !app.canAct,
          "data-key": `${kind}-${process}`,
          onclick: () => on.act([kind, process]),
        },
        text,
      ),
    ),
    wait,
  );
}

function links(app, process, on) {
  const others = app.recording.processes.filter((other) => other !== process);
  const isCut = (from, to) => (app.links ?? []).some((link) => link.from === from && link.to === to && link.cut);
  const button = (from, to) =>
    h(
      "button",
      {
        disabled: !app.canAct,
        "aria-pressed": String(isCut(from, to)),
        "data-key": `link-${from}-${to}`,
        title: isCut(from, to) ? "Heal this link" : "Cut this link: nothing arrives until it is healed",
        onclick: () => on.act([isCut(from, to) ? "mend" : "cut", from, to]),
      },
      `${isCut(from, to) ? "⊘ " : ""}${processName(from)} → ${processName(to)}`,
    );
  return h(
    "div",
    { class: "buttons links" },
    others.map((other) => [button(process, other), button(other, process)]),
  );
}
