/** A run, live or recorded, made ready to be shown: steps, arrows, multicasts, deliveries, lives and violations.
 *  A recording never changes; one that grew is a new one. */

import { States, countUpTo } from "./states.js";
import { about, readClocksFrom, value } from "./words.js";

export class Recording {
  constructor({ header, lines, handlers = {}, steps, violations = [], complete = true }) {
    Object.assign(this, { header, lines, handlers, steps, complete });
    const outside = new Set((header.senders ?? []).map(String));
    readClocksFrom(header.epoch_us);
    this.groups = Object.entries(header.groups ?? {})
      .filter(([name]) => !outside.has(name))
      .map(([name, members]) => ({ name, members }));
    this.processes = this.findProcesses();
    this.states = new States(lines);
    this.firstLines = firstLines(lines, steps);
    this.multicasts = new Map();
    this.names = new Map();
    this.deliveries = new Map(this.processes.map((process) => [process, []]));
    this.arrows = [];
    this.underWay = new Map();
    this.lives = new Map(this.processes.map((process) => [process, []]));
    this.events = [];
    this.types = [];
    this.violations = [];
    lines.forEach((line, index) => this.read(line, index));
    this.addViolationsOfTheEnd(violations);
    this.findTypes();
    this.deltaUs = header.delta_us || middleDelay(this.arrows);
  }

  /** What this recording becomes when what follows step `from - 1` is replaced. */
  grown({ from, lines, steps, violations = [], handlers = {} }) {
    const kept = this.lines.filter((line) => line.s < from);
    return new Recording({
      header: this.header,
      lines: [...kept, ...lines],
      steps,
      violations,
      complete: false,
      handlers: { ...this.handlers, ...handlers },
    });
  }

  /** Of all groups in order, then the others that appear: senders from outside, and processes that join. */
  findProcesses() {
    const found = new Set([...this.groups.flatMap((group) => group.members), ...(this.header.senders ?? [])]);
    for (const line of this.lines) if (line.process !== undefined) found.add(line.process);
    return [...found];
  }

  groupOf(process) {
    return this.groups.find((group) => group.members.includes(process))?.name ?? null;
  }

  // -- reading ---------------------------------------------------------------------------------------------------------

  read(line, index) {
    const { event, process } = line;
    if (event === "submit") this.multicastOf(line.message, line, index);
    else if (event === "leave") this.readLeave(line, index);
    else if (event === "arrival") this.readArrival(line, index);
    else if (event === "delivery") this.readDelivery(line, index);
    else if (event === "violation") this.violations.push(this.violation(line, index));
    if (["life", "crash", "pause", "resume", "flush", "reset"].includes(event))
      this.events.push({ kind: event, line, index });
    if (["life", "crash", "pause", "resume"].includes(event)) this.lives.get(process)?.push({ index, event });
    if (["fault", "heal", "cut", "mend"].includes(event)) this.events.push({ kind: event, line, index });
    if (line.changed?.role !== undefined) this.readRole(line, index);
  }

  multicastOf(name, line, index) {
    let known = this.multicasts.get(name);
    if (!known) {
      known = { name, number: this.multicasts.size, groups: [], line: null, deliveries: [], arrows: [], toSelf: [] };
      this.multicasts.set(name, known);
    }
    if (line && !known.line && line.groups) {
      Object.assign(known, { line, index, process: line.process, groups: line.groups.map(String) });
      if (line.id) this.names.set(line.id, name);
    }
    return known;
  }

  readLeave(line, index) {
    for (const to of line.to) {
      const arrow = {
        leave: line,
        arrival: null,
        index,
        from: line.process,
        to,
        about: line.about ?? [],
        key: `${line.n} ${to}`,
      };
      this.arrows.push(arrow);
      for (const name of arrow.about) this.multicastOf(name).arrows.push(arrow);
      this.underWay.set(arrow.key, arrow);
    }
  }

  readArrival(line, index) {
    if (line.from === line.process) for (const name of about(line.message)) this.multicastOf(name).toSelf.push(index);
    if (line.of === undefined) return;
    const arrow = this.underWay.get(`${line.of} ${line.process}`);
    if (arrow && !arrow.arrival) Object.assign(arrow, { arrival: line, arrivalIndex: index });
  }

  /** Quiet messages are not drawn unless asked for: housekeeping, and those of other layers whose arrival no line tells,
   *  or which only greet at the start. */
  findTypes() {
    for (const arrow of this.arrows) {
      arrow.quiet = Boolean(
        arrow.leave.housekeeping || (arrow.leave.channel && (!arrow.arrival || arrow.leave.s === 0)),
      );
      if (!arrow.quiet && !this.types.includes(arrow.leave.type)) this.types.push(arrow.leave.type);
    }
  }

  readDelivery(line, index) {
    const delivery = { line, index, process: line.process, message: line.message };
    this.deliveries.get(line.process).push(delivery);
    this.multicastOf(line.message).deliveries.push(delivery);
  }

  readRole(line, index) {
    const leads = /leader|coordinator|sequencer/.test(line.changed.role);
    const led = (this.leading ??= new Map()).get(line.process) ?? false;
    if (leads !== led) this.events.push({ kind: leads ? "leads" : "follows", line, index });
    this.leading.set(line.process, leads);
  }

  violation({ checker, text, s, n, witnesses }, index) {
    const shown = text
      .replace(/[0-9a-f]{32}/g, (id) => this.names.get(id) ?? `…${id.slice(-4)}`)
      .replace(
        /\b(at|after|timestamp) ([0-9a-f]+)-([0-9a-f]+)\b/g,
        (_, word, time, other) => `${word} ${value([parseInt(time, 16), parseInt(other, 16)])}`,
      );
    const messages = new Set(shown.match(/\bm\d+\b/g) ?? []);
    const processes = new Set([...shown.matchAll(/\bprocess (\d+)/g)].map((found) => Number(found[1])));
    for (const { process, message } of witnesses ?? []) {
      if (process !== undefined) processes.add(process);
      if (message !== undefined) messages.add(message);
    }
    const before = this.lines[index - 1];
    const place = before?.s === s ? before?.process : undefined;
    return { checker, text: shown, original: text, step: s ?? this.steps, n, messages, processes, place };
  }

  addViolationsOfTheEnd(violations) {
    for (const found of violations) {
      if (this.violations.some((known) => known.checker === found.checker && known.original === found.text)) continue;
      this.violations.push(this.violation({ ...found, s: found.s ?? this.steps }, this.lines.length));
    }
  }

  // -- at a step -------------------------------------------------------------------------------------------------------

  /** Index of the last line of step k. */
  lastLine(k) {
    return (k >= this.steps ? this.lines.length : this.firstLines[k + 1]) - 1;
  }

  linesOf(k) {
    return this.lines.slice(this.firstLines[k], this.lastLine(k) + 1);
  }

  state(process, k) {
    return this.states.at(process, this.lastLine(k));
  }

  /** up, down, paused, or absent (not started yet). */
  status(process, k) {
    if (!this.lives.get(process)?.length) return "up";
    const events = this.lives.get(process);
    const last = events[countUpTo(events, this.lastLine(k), (event) => event.index) - 1];
    if (!last) return "absent";
    return { life: "up", crash: "down", pause: "paused", resume: "up" }[last.event];
  }

  /** What a process has delivered by step k, in its order. A later life may deliver again from its journal. */
  delivered(process, k) {
    const all = this.deliveries.get(process) ?? [];
    return all.slice(
      0,
      countUpTo(all, this.lastLine(k), (delivery) => delivery.index),
    );
  }

  /** The time of step k, in microseconds from the beginning. */
  timeOf(k) {
    return this.lines[Math.max(0, this.firstLines[k] ?? 0)]?.t ?? 0;
  }

  /** The next step with a delivery, or a violation, after step k; null if there is none. */
  nextDelivery(k) {
    const found = this.lines.slice(this.lastLine(k) + 1).find((line) => line.event === "delivery" && !line.replay);
    return found ? found.s : null;
  }

  previousDelivery(k) {
    for (let index = this.firstLines[k] - 1; index >= 0; index--) {
      if (this.lines[index].event === "delivery" && !this.lines[index].replay) return this.lines[index].s;
    }
    return null;
  }
}

/** step -> index of its first line; lines of a step stand together. */
function firstLines(lines, steps) {
  const first = new Array(steps + 2).fill(lines.length);
  for (let index = lines.length - 1; index >= 0; index--) first[lines[index].s ?? 0] = index;
  for (let step = steps; step >= 0; step--) first[step] = Math.min(first[step], first[step + 1]);
  return first;
}

/** Half of the messages took longer: what one δ is where delays are not fixed. */
function middleDelay(arrows) {
  const delays = arrows.filter((a) => a.arrival && !a.leave.housekeeping).map((a) => a.arrival.t - a.leave.t);
  delays.sort((a, b) => a - b);
  return delays[delays.length >> 1] || 0;
}
