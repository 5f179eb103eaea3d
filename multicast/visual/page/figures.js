/** Figures of each multicast: messages beside the formula, latency beside the published one. */

import { h, s, show } from "./dom.js";
import { chip } from "./chip.js";
import { duration, number, processName } from "./words.js";

const ROWS = 60;
const BAR = 150;
const CLAIM = 11;

/** on: { highlight(name) } */
export function drawFigures(pane, app, on) {
  const { recording, step } = app;
  const last = recording.lastLine(step);
  const begun = [...recording.multicasts.values()].filter((one) => one.line && one.index <= last);
  const rows = begun.slice(-ROWS).map((one) => figures(recording, one, last));
  show(
    pane,
    claims(recording),
    rows.length
      ? [
          begun.length > ROWS && h("p", { class: "quiet" }, `${begun.length - ROWS} earlier ones are not shown`),
          h(
            "div",
            { class: "scroll" },
            h(
              "table",
              { class: "figures" },
              h(
                "thead",
                {},
                h(
                  "tr",
                  {},
                  ["", "from", "to", "messages / formula", "first delivery", "last delivery"].map((name) =>
                    h("th", { scope: "col" }, name),
                  ),
                ),
              ),
              h(
                "tbody",
                {},
                rows.map((row) => figureRow(app, row, on)),
              ),
            ),
          ),
          chart(recording, rows),
        ]
      : h("p", { class: "empty" }, "No multicast yet."),
  );
}

/** What the protocol's description says of a run without faults. */
function claims(recording) {
  const { header } = recording;
  const latency = Object.entries(header.latency_delta ?? {}).filter(([, amount]) => amount !== null);
  return h(
    "dl",
    { class: "claims" },
    header.messages_formula && [h("dt", {}, "messages per multicast"), h("dd", {}, header.messages_formula)],
    latency.map(([name, amount]) => [
      h("dt", {}, `published latency, ${name.replaceAll("_", " ")}`),
      h("dd", {}, typeof amount === "number" ? `${number(amount)}δ` : `${amount} (δ)`),
    ]),
    recording.deltaUs > 0 && [
      h("dt", {}, "one δ is"),
      h("dd", {}, `${number(recording.deltaUs / 1000)} ms${header.delta_us ? "" : " (the middle of all delays)"}`),
    ],
  );
}

function figures(recording, one, last) {
  const between = one.arrows.filter((arrow) => arrow.index <= last && !arrow.leave.housekeeping).length;
  const toSelf = one.toSelf.filter((index) => index <= last).length;
  const delivered = one.deliveries.filter(
    (delivery) => delivery.index <= last && !delivery.line.replay && delivery.line.stage !== 1,
  );
  const times = delivered.map((delivery) => delivery.line.t - one.line.t).sort((a, b) => a - b);
  const expected = recording.groups
    .filter((group) => one.groups.includes(group.name))
    .flatMap((group) => group.members).length;
  return {
    one,
    sent: between + toSelf,
    formula: recording.header.messages_expected?.[one.groups.length],
    times,
    delivered: delivered.length,
    expected,
  };
}

function figureRow(app, { one, sent, formula, times, delivered, expected }, on) {
  const { recording } = app;
  const done = delivered >= expected;
  return h(
    "tr",
    { class: one.name === app.highlight ? "chosen" : null },
    h("td", {}, chip(recording, one.name, on.highlight, { "data-key": `figure-${one.name}` })),
    h("td", {}, processName(one.process)),
    h("td", {}, one.groups.map((group) => `g${group}`).join(" ")),
    h(
      "td",
      { title: "those to oneself included; one that is about several multicasts counts for each" },
      String(sent),
      formula !== undefined && h("span", { class: "quiet" }, ` / ${number(formula)}`),
    ),
    h("td", {}, times.length ? duration(times[0], recording.deltaUs) : "–"),
    h("td", {}, done ? duration(times.at(-1), recording.deltaUs) : `${delivered} of ${expected}`),
  );
}

/** A bar from the first to the last delivery of each multicast, with the published latencies as lines. */
function chart(recording, rows) {
  const shown = rows.filter((row) => row.times.length).slice(-16);
  if (!shown.length || !recording.deltaUs) return null;
  const claimed = Object.entries(recording.header.latency_delta ?? {}).filter(
    ([, amount]) => typeof amount === "number",
  );
  const most = Math.max(
    ...shown.map((row) => row.times.at(-1) / recording.deltaUs),
    ...claimed.map(([, amount]) => amount),
    1,
  );
  const x = d3
    .scaleLinear()
    .domain([0, most])
    .nice()
    .range([0, BAR * 2]);
  const top = claimed.length * CLAIM + 6;
  const height = top + shown.length * 18 + 18;
  return h(
    "figure",
    {},
    h("figcaption", {}, "Latency in δ: from the first delivery to the last"),
    s(
      "svg",
      {
        class: "bars",
        viewBox: `0 0 ${BAR * 2 + 130} ${height}`,
        role: "img",
        "aria-label": "Latency of each multicast in δ",
      },
      x
        .ticks(6)
        .map((tick) =>
          s(
            "g",
            { transform: `translate(${40 + x(tick)} 0)`, class: "tick" },
            s("line", { y1: top, y2: height - 14 }),
            s("text", { y: height - 3 }, String(tick)),
          ),
        ),
      claimed.map(([name, amount], index) =>
        s(
          "g",
          { transform: `translate(${40 + x(amount)} 0)`, class: "claim" },
          s("line", { y1: CLAIM * index + 2, y2: height - 14 }),
          s("text", { x: 3, y: CLAIM * (index + 1) - 1 }, `${name.replaceAll("_", " ")} ${number(amount)}`),
        ),
      ),
      shown.map((row, index) => {
        const first = x(row.times[0] / recording.deltaUs);
        const last = x(row.times.at(-1) / recording.deltaUs);
        return s(
          "g",
          { transform: `translate(40 ${top + index * 18 + 9})`, class: `bar c${row.one.number % 7}` },
          s("text", { x: -6, y: 4, "text-anchor": "end" }, row.one.name),
          s("rect", { class: "whole", x: 0, y: -1, width: first, height: 2 }),
          s("rect", { x: first, y: -5, width: Math.max(3, last - first), height: 10, rx: 2 }),
        );
      }),
    ),
  );
}
