/** The members and what is inside them: attributes of all, then the messages of the chosen one, in queue order. */

import { h, show } from "./dom.js";
import { chip } from "./chip.js";
import { processName, shortened, value } from "./words.js";

const DELIVERED_SHOWN = 6;
const WAITING_SHOWN = 40;
const COLUMNS = ["phase", "local", "stamps", "final"];

/** on: { choose(process), highlight(name) } */
export function drawProcesses(pane, app, on) {
  const { recording, step } = app;
  const rows = recording.processes.map((process) => ({
    process,
    status: recording.status(process, step),
    now: recording.state(process, step),
    before: step ? recording.state(process, step - 1) : null,
  }));
  show(
    pane,
    attributes(app, rows, on),
    messages(
      app,
      rows.find((row) => row.process === app.process),
      on,
    ),
  );
}

// -- attributes --------------------------------------------------------------------------------------------------------

function attributes(app, rows, on) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.now)))].filter(
    (name) => name !== "messages" && rows.every((row) => !isObject(row.now[name])),
  );
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "process"),
    names.map((name) => h("th", { scope: "col" }, name.replaceAll("_", " "))),
  );
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      { class: "attributes" },
      h("caption", { class: "unseen" }, "Attributes of all processes; those that the last step changed are marked"),
      h("thead", {}, head),
      h(
        "tbody",
        {},
        rows.map((row) => attributeRow(app, row, names, on)),
      ),
    ),
  );
}

function attributeRow(app, row, names, on) {
  const group = app.recording.groupOf(row.process);
  const button = h(
    "button",
    {
      class: "link",
      "data-key": `process-${row.process}`,
      "aria-pressed": String(row.process === app.process),
      title: group === null ? "outside all groups" : `group ${group}`,
      onclick: () => on.choose(row.process),
    },
    processName(row.process),
  );
  const cells =
    row.status === "up" || row.status === "paused"
      ? names.map((name) => cell(row.now[name], row.before && changed(row.before[name], row.now[name])))
      : [
          h(
            "td",
            { colspan: Math.max(1, names.length), class: "quiet" },
            row.status === "down" ? "down: what it kept is on its disk" : "not started",
          ),
        ];
  const classes = [
    row.process === app.process ? "chosen" : "",
    row.status,
    firstOfGroup(app.recording, row.process) ? "first" : "",
  ];
  return h(
    "tr",
    { class: classes.join(" ") },
    h("th", { scope: "row" }, button, row.status === "paused" ? " ‖" : ""),
    cells,
  );
}

function firstOfGroup(recording, process) {
  return recording.groups.some((group) => group.members[0] === process);
}

function cell(data, isNew) {
  return h("td", { class: isNew ? "new" : null, title: shortened(value(data), 400) }, shortened(value(data), 26));
}

function changed(before, now) {
  return JSON.stringify(before) !== JSON.stringify(now);
}

function isObject(data) {
  return data !== null && typeof data === "object" && !Array.isArray(data);
}

// -- messages ----------------------------------------------------------------------------------------------------------

/** Sorted as the queue is: by the place in the order, or the least it can be; delivered ones last. */
export function queue(inside) {
  const all = Object.entries(inside ?? {}).map(([name, message]) => ({ name, message }));
  const place = ({ message }) => message.final ?? message.local ?? null;
  all.sort((a, b) => compare(place(a), place(b)));
  return {
    waiting: all.filter(({ message }) => message.phase !== "delivered"),
    delivered: all.filter(({ message }) => message.phase === "delivered"),
  };
}

function compare(a, b) {
  if (!a || !b) return (a ? 0 : 1) - (b ? 0 : 1);
  return a[0] - b[0] || a[1] - b[1];
}

function messages(app, row, on) {
  if (!row) return null;
  const { waiting, delivered } = queue(row.now.messages);
  const title = h(
    "h3",
    {},
    `Messages at ${processName(row.process)}`,
    h("span", { class: "quiet" }, " in the order of its queue"),
  );
  const rest = details(row);
  if (!waiting.length && !delivered.length) {
    const begun = [...app.recording.multicasts.values()].some((one) => one.line && one.line.s <= app.step);
    return [
      title,
      h("p", { class: "empty" }, begun ? "None: it knows of none that is not delivered and settled." : "None yet."),
      rest,
    ];
  }
  const extra = [...new Set([...waiting, ...delivered].flatMap(({ message }) => Object.keys(message)))].filter(
    (name) => !COLUMNS.includes(name) && name !== "blocked_by" && name !== "why",
  );
  const columns = [...COLUMNS, ...extra];
  const body = [
    ...waiting.slice(0, WAITING_SHOWN).flatMap((item, number) => messageRows(app, row, item, columns, number + 1, on)),
    ...delivered.slice(-DELIVERED_SHOWN).flatMap((item) => messageRows(app, row, item, columns, null, on)),
  ];
  const more = waiting.length - WAITING_SHOWN;
  const earlier = delivered.length - DELIVERED_SHOWN;
  return [
    title,
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "messages" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["", "message", ...columns].map((name) => h("th", { scope: "col" }, name)),
          ),
        ),
        h("tbody", {}, body),
      ),
    ),
    more > 0 && h("p", { class: "quiet" }, `… and ${more} more that wait`),
    earlier > 0 && h("p", { class: "quiet" }, `… and ${earlier} delivered before`),
    rest,
  ];
}

function messageRows(app, row, { name, message }, columns, number, on) {
  const before = row.before?.messages?.[name];
  const cells = columns.map((column) => {
    const isNew = row.before && changed(before?.[column], message[column]);
    return column === "stamps" && message.stamps
      ? h(
          "td",
          { class: isNew ? "new" : null },
          Object.entries(message.stamps).map(([group, at]) => h("div", {}, `g${group}: ${value(at)}`)),
        )
      : cell(message[column], isNew);
  });
  const main = h(
    "tr",
    { class: `${number === null ? "done" : ""}${name === app.highlight ? " chosen" : ""}` },
    h("td", { class: "place" }, number === null ? "✓" : String(number)),
    h("td", {}, chip(app.recording, name, on.highlight)),
    cells,
  );
  const why = reasons(message);
  if (!why.length) return [main];
  const isNew = row.before && changed(before?.blocked_by, message.blocked_by);
  return [
    main,
    h(
      "tr",
      { class: "why" },
      h("td"),
      h(
        "td",
        { colspan: columns.length + 1, class: isNew ? "new" : null },
        why.map((text) => h("div", {}, text)),
      ),
    ),
  ];
}

/** Why a message waits: the sentence that came with it, or one for each obstacle. */
function reasons(message) {
  if (message.why) return [message.why].flat();
  return (message.blocked_by ?? []).map((blocker) => `waits for ${value(blocker)}`);
}

/** Attributes that are tables themselves. */
function details(row) {
  const found = Object.entries(row.now).filter(
    ([name, data]) => name !== "messages" && isObject(data) && Object.keys(data).length > 0,
  );
  if (!found.length) return null;
  return found.map(([name, data]) =>
    h(
      "dl",
      { class: "details" },
      h("dt", {}, name.replaceAll("_", " ")),
      Object.entries(data).map(([key, item]) =>
        h(
          "dd",
          { class: row.before && changed(row.before[name]?.[key], item) ? "new" : null },
          h("b", {}, key),
          ` ${shortened(value(item), 200)}`,
        ),
      ),
    ),
  );
}
