/** What stands on the lanes: multicasts, deliveries, crashes, changes of leader, writes to disk, faults, violations. */

import { BOTTOM, LEFT } from "./layout.js";
import { colourClass } from "./palette.js";

const SMALL_MAX = 2500;
const TEXT = 8;
const SYMBOLS = {
  crash: "M-5 -5L5 5M-5 5L5 -5",
  life: "M-4 -6L6 0L-4 6Z",
  leads: "M0 -8L2.2 -2.6L8 -2.4L3.4 1.2L5 6.8L0 3.6L-5 6.8L-3.4 1.2L-8 -2.4L-2.2 -2.6Z",
  follows: "M0 -6L6 0L0 6L-6 0Z",
  pause: "M-4 -6H-1V6H-4ZM1 -6H4V6H1Z",
  resume: "M-4 -6L6 0L-4 6Z",
};
/** Signs of which there are many: drawn as one path of each kind. */
const SMALL = {
  arrival: "a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0 -5 0",
  flush: "m-1 4h7v7h-7z",
  reset: "m-1 0a4 4 0 1 1 4 4",
};

/** The pieces of each lane in the window: up, down, paused or absent, and whether the process leads. */
export function laneSegments(diagram) {
  const { recording, lanes, width } = diagram;
  const found = [];
  for (const process of recording.processes) {
    const y = lanes.y.get(process);
    const pieces = lanePieces(recording).get(process);
    pieces.forEach((piece, number) => {
      const x1 = piece.line ? diagram.x(diagram.axis.of(piece.line)) : LEFT;
      if (piece.line?.s > diagram.app.step && !diagram.app.view.future) return;
      const next = pieces[number + 1];
      const x2 = next ? diagram.x(diagram.axis.of(next.line)) : width;
      if (x2 >= LEFT && x1 <= width && x2 > x1) {
        found.push({ status: piece.status, leads: piece.leads, y, x1: Math.max(x1, LEFT), x2: Math.min(x2, width) });
      }
    });
  }
  return found;
}

const pieces = new WeakMap();

function lanePieces(recording) {
  if (pieces.has(recording)) return pieces.get(recording);
  const found = new Map(recording.processes.map((process) => [process, [{ line: null, status: "up", leads: false }]]));
  const status = { life: "up", resume: "up", crash: "down", pause: "paused" };
  for (const { kind, line } of recording.events) {
    const lane = found.get(line.process);
    if (!lane || !(kind in status || kind === "leads" || kind === "follows")) continue;
    const last = lane.at(-1);
    const leads = kind === "leads" || (last.leads && kind !== "follows" && kind !== "crash");
    lane.push({ line, status: status[kind] ?? last.status, leads });
  }
  pieces.set(recording, found);
  return found;
}

/** All marks in the window. */
export function drawMarks(diagram) {
  const { recording, axis, transform, width } = diagram;
  const [first, last] = axis.linesIn(
    (-transform.x - 40) / transform.k,
    (width - LEFT - transform.x + 40) / transform.k,
  );
  const visible = visibleMarks(diagram, first, last);
  diagram.marks
    .selectAll("g.mark")
    .data(visible, (mark) => `${mark.kind} ${mark.index}`)
    .join((enter) => {
      const group = enter.append("g");
      group.append("path");
      group.append("text");
      return group;
    })
    .attr(
      "class",
      (mark) =>
        `mark ${mark.kind} ${later(diagram, mark) ? "later" : ""} ${mark.colour ?? ""}${mark.names ? diagram.dim(mark.names) : ""}`,
    )
    .attr("data-line", (mark) => mark.index)
    .attr("transform", (mark) => `translate(${mark.x} ${mark.y})`)
    .each((mark, number, nodes) => {
      const node = nodes[number];
      const shape = `${mark.path} ${mark.text} ${mark.textX} ${mark.textY}`;
      if (node.__shape === shape) return;
      node.__shape = shape;
      const [path, text] = node.children;
      path.setAttribute("d", mark.path);
      text.textContent = mark.text ?? "";
      text.setAttribute("x", mark.textX ?? 0);
      text.setAttribute("y", mark.textY ?? 0);
    });
  drawSmall(diagram, first, last);
  drawFaults(diagram);
}

function drawSmall(diagram, first, last) {
  const { recording, lanes, app } = diagram;
  const paths = new Map();
  for (let index = first; index < last && last - first < SMALL_MAX; index++) {
    const line = recording.lines[index];
    const y = lanes.y.get(line.process);
    if (!SMALL[line.event] || y === undefined || (line.s > app.step && !app.view.future)) continue;
    const name = `${line.event} ${line.s > app.step ? "later" : ""}`;
    if (!paths.has(name)) paths.set(name, []);
    paths.get(name).push(`M${(diagram.within(diagram.axis.of(line)) - 2.5).toFixed(1)} ${y}${SMALL[line.event]}`);
  }
  diagram.small
    .selectAll("path")
    .data(paths)
    .join("path")
    .attr("class", ([name]) => `small ${name}`)
    .attr("d", ([, parts]) => parts.join(""));
}

function later(diagram, mark) {
  return (mark.step ?? diagram.recording.lines[mark.index].s) > diagram.app.step;
}

function visibleMarks(diagram, first, last) {
  const { recording, lanes } = diagram;
  const marks = [];
  const taken = new Map();
  for (let index = first; index < last; index++) {
    const line = recording.lines[index];
    const y = lanes.y.get(line.process);
    if (y === undefined) continue;
    const x = diagram.within(diagram.axis.of(line));
    if (line.event === "delivery") marks.push(delivery(recording, line, index, x, y, taken));
    else if (line.event === "submit") marks.push(multicast(recording, line, index, x, y));
  }
  for (const { kind, line, index } of recording.events) {
    if (
      index < first ||
      index >= last ||
      !SYMBOLS[kind] ||
      (kind === "life" && line.life === 1) ||
      (kind === "leads" && line.s === 0)
    )
      continue;
    marks.push({
      kind,
      index,
      x: diagram.within(diagram.axis.of(line)),
      y: lanes.y.get(line.process),
      path: SYMBOLS[kind],
    });
  }
  for (const found of recording.violations) marks.push(...violation(diagram, found));
  return diagram.app.view.future ? marks : marks.filter((mark) => !later(diagram, mark));
}

/** A triangle under the lane with the name beside it, or one row lower, or none if there is no room. */
function delivery(recording, line, index, x, y, taken) {
  const rows = taken.get(line.process) ?? [-Infinity, -Infinity];
  taken.set(line.process, rows);
  const row = rows.findIndex((end) => end <= x + 8);
  if (row >= 0) rows[row] = x + 8 + TEXT * line.message.length + 3;
  return {
    kind: line.stage === 1 ? "delivery optimistic" : line.replay ? "delivery replay" : "delivery",
    index,
    x,
    y,
    names: [line.message],
    colour: colourClass(recording, [line.message]),
    path: "M-6 2H6L0 12Z",
    text: row < 0 ? "" : line.message,
    textX: 8,
    textY: row > 0 ? 24 : 12,
  };
}

function multicast(recording, line, index, x, y) {
  return {
    kind: "submit",
    index,
    x,
    y,
    names: [line.message],
    colour: colourClass(recording, [line.message]),
    path: "M-5.5 0A5.5 5.5 0 1 0 5.5 0A5.5 5.5 0 1 0 -5.5 0Z",
    text: line.message,
    textX: -7,
    textY: -10,
  };
}

function violation(diagram, found) {
  const { recording, lanes, axis } = diagram;
  const x = diagram.within(axis.ofStep(found.step));
  const named = found.processes.size ? [...found.processes] : [found.place];
  const places = named.filter((process) => lanes.y.has(process));
  return (places.length ? places : recording.processes.slice(0, 1)).map((process) => ({
    kind: "violation",
    step: found.step,
    index: Math.max(0, recording.lastLine(found.step)),
    x,
    y: lanes.y.get(process),
    path: "M-13 0A13 13 0 1 0 13 0A13 13 0 1 0 -13 0Z",
    text: "!",
    textX: 0,
    textY: -16,
  }));
}

/** Bars along the foot of the diagram. */
function drawFaults(diagram) {
  const { recording, axis, height, width } = diagram;
  const bars = recording.events
    .filter(({ kind, line }) => (kind === "fault" && line.begins) || kind === "heal")
    .map(({ kind, line, index }) => ({
      kind,
      index,
      x: diagram.x(axis.of(line)),
      text: kind === "heal" ? "healed" : String(line.kind ?? "fault").replaceAll("_", " "),
      width:
        kind === "fault" && axis.kind === "time"
          ? Math.max(3, ((line.lasts_us ?? 0) / axis.unitUs) * axis.pixels * diagram.transform.k)
          : 3,
    }))
    .filter((bar) => bar.x + bar.width >= LEFT && bar.x <= width);
  const bar = diagram.faults
    .selectAll("g")
    .data(bars)
    .join((enter) => {
      const group = enter.append("g");
      group.append("rect").attr("height", 13).attr("rx", 2);
      group.append("text").attr("x", 5).attr("y", 10);
      return group;
    });
  bar
    .attr("class", (fault) => `fault ${fault.kind}`)
    .attr("data-line", (fault) => fault.index)
    .attr("transform", (fault) => `translate(${fault.x} ${height - BOTTOM + 5})`);
  bar
    .select("rect")
    .attr("width", (fault) => fault.width)
    .attr("y", 0);
  let end = -Infinity;
  bar.select("text").text((fault) => {
    if (fault.x < end) return "";
    end = fault.x + 5.5 * fault.text.length + 8;
    return fault.text;
  });
}
