/** The order: what every process has delivered, side by side. A row is a multicast, rows stand in the order of their
 *  timestamps; a process that delivered out of that order, or left one out, is red. */

import { h, show } from "./dom.js";
import { chip } from "./chip.js";
import { plural, processName, value } from "./words.js";

const ROWS = 40;

/** on: { highlight(name), step(k) } */
export function drawOrder(pane, app, on) {
  const { recording, step } = app;
  const columns = recording.groups.flatMap((group) =>
    group.members.map((process) => column(recording, process, group.name, step)),
  );
  const rows = [...rowsOf(columns), ...nowhere(recording, columns, step)];
  const last = rows.reduce((most, row, number) => (row.cells.some((cell) => cell.fresh) ? number : most), -1);
  const end = Math.max(last + 6, ROWS);
  const from = Math.max(0, Math.min(end, rows.length) - ROWS);
  show(
    pane,
    verdict(app, rows, on),
    rows.length
      ? [
          from > 0 && h("p", { class: "quiet" }, `${plural(from, "earlier row")} above`),
          h(
            "div",
            { class: "scroll" },
            h(
              "table",
              { class: "order" },
              header(recording, columns),
              h(
                "tbody",
                {},
                rows.slice(from, from + ROWS).map((row) => orderRow(app, row, on)),
              ),
            ),
          ),
        ]
      : h("p", { class: "empty" }, "Nothing is multicast yet. Step on (→), or go to the first delivery (Shift and →)."),
  );
}

// -- verdict -----------------------------------------------------------------------------------------------------------

/** The checkers' word after this step; a violation with its witnesses. */
function verdict(app, rows, on) {
  const { recording, step } = app;
  const so_far = recording.violations.filter((found) => found.step <= step);
  const later = recording.violations.length - so_far.length;
  const jump = (found) =>
    h(
      "button",
      { class: "link", "data-key": `violation-${found.step}`, onclick: () => on.step(found.step) },
      `step ${found.step}`,
    );
  if (so_far.length) {
    return h(
      "div",
      { class: "verdict bad", role: "alert" },
      so_far.slice(0, 5).map((found) =>
        h(
          "div",
          {},
          h("b", {}, `✗ Violation of ${found.checker}: `),
          found.text,
          " (",
          jump(found),
          ")",
          found.messages.size + found.processes.size > 0 &&
            h(
              "div",
              { class: "witnesses" },
              "Witnesses: ",
              [...found.messages]
                .slice(0, 6)
                .map((name) => chip(recording, name, on.highlight, { "data-key": `witness-${name}` })),
              witnesses(found, rows).map((process) => h("span", { class: "witness" }, processName(process))),
            ),
        ),
      ),
    );
  }
  const text = step
    ? "✓ All checks hold so far: validity, integrity, agreement, one order."
    : "✓ Nothing has happened yet that could be wrong.";
  return h(
    "div",
    { class: "verdict good" },
    text,
    later > 0 && h("span", { class: "later" }, " ✗ A violation follows at ", jump(recording.violations[0]), "."),
  );
}

/** The processes that it names, and those whose deliveries of these messages do not agree. */
function witnesses(found, rows) {
  const wrong = rows
    .filter((row) => found.messages.has(row.message))
    .flatMap((row) => row.cells.filter((cell) => cell.wrong || cell.missing));
  return [...new Set([...found.processes, ...wrong.map((cell) => cell.process)])].sort((a, b) => a - b);
}

// -- table -------------------------------------------------------------------------------------------------------------

/** A process's deliveries: the last word about each multicast (an optimistic one gives way to the final one). */
function column(recording, process, group, step) {
  const cells = new Map();
  const finals = [];
  for (const delivery of recording.delivered(process, step)) {
    const { line, message } = delivery;
    if (cells.has(message) && line.replay) continue;
    const cell = { line, position: line.position, fresh: line.s === step, optimistic: line.stage === 1, wrong: "" };
    if (!cell.optimistic) {
      const before = finals.at(-1);
      if (before && later(before.line.at, line.at))
        cell.wrong = `delivered after ${before.line.message}, whose timestamp is higher`;
      finals.push(cell);
    }
    cells.set(message, cell);
  }
  return { process, group, cells, finals, recording };
}

function later(a, b) {
  return a && b && (a[0] - b[0] || a[1] - b[1]) > 0;
}

function rowsOf(columns) {
  const rows = new Map();
  for (const { cells } of columns) {
    for (const [message, cell] of cells) {
      const row = rows.get(message);
      if (!row || later(row.at, cell.line.at)) rows.set(message, { message, at: cell.line.at });
    }
  }
  const sorted = [...rows.values()].sort((a, b) => (later(a.at, b.at) ? 1 : later(b.at, a.at) ? -1 : 0));
  for (const row of sorted) row.cells = agreed(columns.map((one) => cellOf(one, row)));
  return sorted;
}

/** What is multicast and delivered nowhere yet. */
function nowhere(recording, columns, step) {
  const last = recording.lastLine(step);
  const open = [...recording.multicasts.values()].filter(
    (one) => one.line && one.index <= last && columns.every(({ cells }) => !cells.has(one.name)),
  );
  return open.map(({ name, groups }) => ({
    message: name,
    at: null,
    cells: columns.map(({ process, group }) => ({ process, mine: groups.includes(group) })),
  }));
}

/** All cells of a row have one timestamp, or all are wrong. */
function agreed(cells) {
  const stamps = new Set(cells.filter((cell) => cell.line && !cell.optimistic).map((cell) => value(cell.line.at)));
  if (stamps.size < 2) return cells;
  return cells.map((cell) =>
    cell.line ? { ...cell, wrong: `at ${value(cell.line.at)} here; the others have ${[...stamps].join(", ")}` } : cell,
  );
}

function cellOf({ process, group, cells, finals, recording }, row) {
  const cell = cells.get(row.message);
  if (cell) {
    return { ...cell, process };
  }
  const mine = recording.multicasts.get(row.message)?.groups.includes(group);
  const passed = mine && finals.some((one) => later(one.line.at, row.at) && !one.line.replay);
  return { process, mine, missing: passed };
}

function header(recording, columns) {
  const groups = recording.groups.map((group) =>
    h("th", { colspan: group.members.length, scope: "colgroup" }, `group ${group.name}`),
  );
  return h(
    "thead",
    {},
    h("tr", {}, h("th", { rowspan: 2, scope: "col" }, "at"), groups),
    h(
      "tr",
      {},
      columns.map(({ process }) => h("th", { scope: "col" }, processName(process))),
    ),
  );
}

function orderRow(app, row, on) {
  const chosen = row.message === app.highlight ? "chosen" : null;
  return h(
    "tr",
    { class: chosen },
    h(
      "th",
      { scope: "row" },
      row.at ? value(row.at) : chip(app.recording, row.message, on.highlight, { "data-key": `open-${row.message}` }),
    ),
    row.cells.map((cell) => orderCell(app, row, cell, on)),
  );
}

function orderCell(app, row, cell, on) {
  if (cell.missing)
    return h(
      "td",
      { class: "wrong", title: `${processName(cell.process)} delivered later ones and not ${row.message}` },
      `✗ no ${row.message}`,
    );
  if (!cell.line)
    return h(
      "td",
      { class: cell.mine ? "waiting" : "other", title: cell.mine ? "not delivered here yet" : "not for this group" },
      cell.mine ? "·" : "",
    );
  const classes = [cell.fresh ? "new" : "", cell.wrong ? "wrong" : ""].join(" ").trim();
  return h(
    "td",
    { class: classes || null, title: cell.wrong || null },
    chip(app.recording, row.message, on.highlight, {
      class: cell.optimistic ? "optimistic" : "",
      "data-key": `order-${cell.process}-${row.message}`,
      title: `${cell.optimistic ? "optimistically, " : ""}number ${cell.position} at ${processName(cell.process)}, step ${cell.line.s}`,
    }),
    h("sub", {}, String(cell.position)),
    cell.wrong && " ✗",
  );
}
