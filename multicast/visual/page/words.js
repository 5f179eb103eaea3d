/** Values and steps in words. */

const LONGEST = 160;

/** p0, p1, ...: how a process is called where there is little room. */
export function processName(process) {
  return `p${process}`;
}

export function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

export function ordinal(number) {
  const tens = number % 100;
  const ending = tens > 10 && tens < 14 ? "th" : (["th", "st", "nd", "rd"][number % 10] ?? "th");
  return `${number}${ending}`;
}

let epochUs = Infinity;
const CLOCK_RANGE_US = 1e12;

/** Wall clocks are shown from here on as microseconds since this instant. */
export function readClocksFrom(instantUs) {
  epochUs = instantUs ?? Infinity;
}

function ofNumber(data) {
  const since = data - epochUs;
  if (Math.abs(since) > CLOCK_RANGE_US) return String(data);
  return `${since < 0 ? "−" : "+"}${Math.abs(since)}µs`;
}

/** [5, 0] -> (5, 0); other values in JSON without what only a parser needs. */
export function value(data) {
  if (data === undefined || data === null) return "–";
  if (typeof data === "boolean") return data ? "yes" : "no";
  if (typeof data === "string") return data.replace(/\b\d{15,}\b/g, (digits) => ofNumber(Number(digits)));
  if (typeof data === "number") return ofNumber(data);
  if (Array.isArray(data)) {
    if (data.length === 2 && data.every((item) => typeof item === "number"))
      return `(${data.map(ofNumber).join(", ")})`;
    return data.length ? `[${data.map(value).join(", ")}]` : "none";
  }
  const items = Object.entries(data).map(([key, item]) => `${key}: ${value(item)}`);
  return items.length ? items.join(", ") : "none";
}

export function shortened(text, most = LONGEST) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

export function list(items) {
  return items.length < 2 ? String(items[0] ?? "nobody") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`;
}

/** Microseconds: in δ if its length is known, else in milliseconds. */
export function duration(us, deltaUs) {
  if (deltaUs) return `${number(us / deltaUs)}δ`;
  return `${number(us / 1000)} ms`;
}

export function number(amount) {
  return String(Math.round(amount * 100) / 100);
}

/** The fields of a message that a process received, without what the sentence says already. */
export function fields(message) {
  return Object.entries(message ?? {}).filter(([key]) => key !== "type");
}

/** The multicasts that a message is about: those whose names stand in its fields. */
export function about(message) {
  return [...new Set(JSON.stringify(message ?? {}).match(/"m\d+"/g) ?? [])].map((name) => JSON.parse(name));
}

const SENTENCES = {
  life: (line) =>
    line.life > 1
      ? `Process ${line.process} starts again (life ${line.life})${line.lost ? ", with an empty disk" : ""}.`
      : `Process ${line.process} starts.`,
  start: (line) => `Process ${line.process} reads its journal and begins.`,
  crash: (line) => `Process ${line.process} crashes.`,
  pause: (line) => `Process ${line.process} is paused: it does nothing until it is resumed.`,
  resume: (line) => `Process ${line.process} goes on.`,
  flush: (line) => `What process ${line.process} wrote is on its disk; messages that waited for that may leave.`,
  cut: (line) => `The link from process ${line.from} to process ${line.to} is cut.`,
  mend: (line) => `The link from process ${line.from} to process ${line.to} works again.`,
  heal: () => "No faults any more: from here on everything has to finish.",
  fault: (line) => {
    const who = line.processes?.length ? ` at ${list(line.processes.map(processName))}` : "";
    return `A fault ${line.begins ? "begins" : "ends"}: ${String(line.kind ?? "unknown").replaceAll("_", " ")}${who}.`;
  },
  submit: (line) => {
    const groups = (line.groups ?? []).map(String);
    return `Process ${line.process} multicasts ${line.message} to group${groups.length === 1 ? "" : "s"} ${list(groups)}.`;
  },
  arrival: (line) => {
    const names = about(line.message);
    const what = `${line.message.type}${names.length ? ` of ${shortened(list(names), 60)}` : ""}`;
    if (line.from === line.process) return `Process ${line.process} handles its own ${what}.`;
    return `Process ${line.process} receives ${what} from process ${line.from}.`;
  },
  timer: (line) => `A timer of process ${line.process} expires.`,
  "batch end": (line) => `Process ${line.process} has handled everything that came together.`,
  reset: (line) => `Process ${line.process} sees a new connection to process ${line.peer}.`,
  install: (line) =>
    `Process ${line.process} takes over ${line.message} at position ${line.position} from another journal.`,
  stable: (line) => `At process ${line.process} everything up to position ${line.position} is applied for good.`,
  leave: (line) => `${line.type} leaves process ${line.process} for ${list(line.to.map(processName))}.`,
  delivery: (line) =>
    `Process ${line.process} delivers ${line.message} as its ${ordinal(line.position)}, at ${value(line.at)}` +
    `${line.stage === 1 ? " (optimistically)" : ""}${line.replay ? " (again, from its journal)" : ""}.`,
  violation: (line) => `Violation of ${line.checker}: ${line.text}`,
  waiting: (line) => `${line.type} from process ${line.from} waits at process ${line.process}, which is paused.`,
  wait: (line) => `Time passes: ${number(line.us / 1000)} ms.`,
  quiet: (line) => `Nothing changes at process ${line.process}.`,
  end: () => "The run ends.",
};

/** One line as a sentence. */
export function sentence(line) {
  if (line.text && line.event !== "violation") return line.text;
  return (
    SENTENCES[line.event]?.(line) ?? `${line.event}${line.process === undefined ? "" : ` at process ${line.process}`}.`
  );
}

/** A whole step: its first line, which is its cause; a start with nothing before it says where one is. */
export function stepSentence(lines, step) {
  if (step === 0) return "All processes have started. Nothing has been multicast yet.";
  return lines.length ? sentence(lines[0]) : "Nothing is recorded for this step.";
}

/** What a line changed inside a process: [path, before, after]. */
export function changes(before, patch, path = []) {
  const found = [];
  for (const [key, after] of Object.entries(patch)) {
    const old = before?.[key];
    if (after !== null && typeof after === "object" && !Array.isArray(after)) {
      found.push(...changes(old, after, [...path, key]));
    } else found.push([[...path, key], old, after]);
  }
  return found;
}
