/** Where things stand in the space-time diagram: a lane per process, time (or steps) from left to right. */

import { countUpTo } from "./states.js";

export const LEFT = 114;
export const TOP = 30;
export const BOTTOM = 22;
const GROUP_GAP = 16;
const LANE_MIN = 30;
const LANE_MAX = 112;
const PIXELS_PER_DELTA = 64;
const PIXELS_PER_STEP = 22;
const STUB = 0.55;
const NAME = 34;

/** process -> y, and the bands of the groups; `height` is what it takes. */
export function lanes(recording, height) {
  const rows = recording.groups.map((group) => ({
    name: `group ${group.name}`,
    group: group.name,
    members: group.members,
  }));
  const inside = new Set(rows.flatMap((row) => row.members));
  const outside = recording.processes.filter((process) => !inside.has(process));
  if (outside.length) rows.push({ name: "outside", group: null, members: outside });
  const gaps = rows.length * GROUP_GAP;
  const free = (height - TOP - BOTTOM - gaps) / Math.max(1, recording.processes.length);
  const lane = Math.max(LANE_MIN, Math.min(LANE_MAX, free));
  const y = new Map();
  const bands = [];
  let next = TOP + GROUP_GAP / 2;
  for (const row of rows) {
    bands.push({ ...row, top: next, height: row.members.length * lane });
    row.members.forEach((process, number) => y.set(process, next + (number + 0.5) * lane));
    next += row.members.length * lane + GROUP_GAP;
  }
  return { y, bands, lane, height: next + BOTTOM };
}

/** Positions along one axis, "time" (in δ) or "steps", in pixels at zoom 1. */
export class Axis {
  constructor(recording, kind) {
    this.recording = recording;
    this.kind = kind;
    this.unitUs = recording.deltaUs || 1000;
    this.unit = kind === "steps" ? "step" : recording.deltaUs ? "δ" : "ms";
    this.pixels = kind === "steps" ? PIXELS_PER_STEP : PIXELS_PER_DELTA;
    this.starts = recording.arrows.map((arrow) => this.of(arrow.leave));
    let most = -Infinity;
    this.reach = recording.arrows.map((arrow) => (most = Math.max(most, this.arrowEnd(arrow))));
    this.total = this.of(recording.lines.findLast((line) => line.t !== undefined) ?? { t: 0, s: 0 });
  }

  /** Of a line, in pixels at zoom 1. */
  of(line) {
    return (this.kind === "steps" ? line.s : (line.t ?? 0) / this.unitUs) * this.pixels;
  }

  /** Of the playhead at step k. */
  ofStep(k) {
    const { recording } = this;
    if (this.kind === "steps") return k * this.pixels;
    const last = recording.lines[recording.lastLine(k)];
    return this.of(last?.t === undefined ? { t: recording.timeOf(k) } : last);
  }

  /** Where an arrow ends; one that has not arrived stops on its way. */
  arrowEnd(arrow) {
    if (arrow.arrival) return this.of(arrow.arrival);
    return this.of(arrow.leave) + STUB * (this.kind === "steps" ? 3 : 1) * this.pixels;
  }

  /** The arrows that touch [from, to]. */
  arrowsIn(from, to) {
    const first = countUpTo(this.reach, from - 1e-9);
    const last = countUpTo(this.starts, to);
    const found = [];
    for (let number = first; number < last; number++) {
      const arrow = this.recording.arrows[number];
      if (this.arrowEnd(arrow) >= from) found.push(arrow);
    }
    return found;
  }

  /** The indices of the lines in [from, to]: [first, one behind the last]. */
  linesIn(from, to) {
    const { lines } = this.recording;
    return [
      countUpTo(lines, from - 1e-9, (line) => this.ofOrBefore(line)),
      countUpTo(lines, to, (line) => this.ofOrBefore(line)),
    ];
  }

  /** The last line of a trace has no time. */
  ofOrBefore(line) {
    return line.t === undefined && this.kind === "time" ? this.total : this.of(line);
  }
}

/** Arrow -> the multicasts named beside it, at this zoom: of each lane the sends for which there is room beside the names
 *  of multicasts; several of one type at one instant share a text. */
export function labelledSends(recording, axis, zoom, letter, hidden) {
  const lasts = new Map();
  const named = namedPlaces(recording, axis, zoom);
  const labelled = new Map();
  recording.arrows.forEach((arrow, number) => {
    const last = lasts.get(arrow.from);
    if (arrow.leave === last?.leave || hidden(arrow)) return;
    const x = axis.starts[number] * zoom;
    const together = last?.x === x && last.type === arrow.leave.type;
    const names = together ? [...new Set([...last.names, ...arrow.about])] : arrow.about;
    const end = x + letter * sendText(arrow.leave.type, names).length + 10;
    if (!together && x < (last?.end ?? -Infinity)) return;
    if (named.get(arrow.from)?.some((place) => place > x + 2 && place - NAME < end)) return;
    const first = together ? last.first : arrow;
    labelled.set(first, names);
    lasts.set(arrow.from, { first, leave: arrow.leave, type: arrow.leave.type, names, x, end });
  });
  return labelled;
}

/** process -> where its multicasts have their names, which stand to the left of these places. */
function namedPlaces(recording, axis, zoom) {
  const places = new Map();
  for (const { line, process } of recording.multicasts.values()) {
    if (line) places.set(process, [...(places.get(process) ?? []), axis.of(line) * zoom]);
  }
  return places;
}

/** What stands beside sends of one type. */
export function sendText(type, names) {
  const what = names.length > 2 ? `${names[0]}…${names.at(-1)}` : names.join(" ");
  return what ? `${type} ${what}` : type;
}
