/** What was inside each process at each line: the lines' merge patches (RFC 7396), with snapshots in between. */

const BETWEEN_SNAPSHOTS = 32;
const RECENT = 8;

/** The patched value. What the patch does not name is shared with `before`, which stays as it is. */
export function applyPatch(before, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const after = before !== null && typeof before === "object" && !Array.isArray(before) ? { ...before } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete after[key];
    else after[key] = applyPatch(after[key], value);
  }
  return after;
}

/** The number of items of an ascending array that are at most `value`. */
export function countUpTo(sorted, value, key = (item) => item) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(sorted[middle]) <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The states of one process. */
class History {
  constructor() {
    this.changes = [];
    this.snapshots = [];
    this.now = {};
    this.recent = new Map();
  }

  add(index, patch, fresh) {
    this.now = applyPatch(fresh ? {} : this.now, patch);
    this.changes.push({ index, patch, fresh });
    if (this.changes.length % BETWEEN_SNAPSHOTS === 0) this.snapshots.push(this.now);
  }

  at(index) {
    const count = countUpTo(this.changes, index, (change) => change.index);
    if (!this.recent.has(count)) {
      if (this.recent.size >= RECENT) this.recent.clear();
      this.recent.set(count, this.build(count));
    }
    return this.recent.get(count);
  }

  /** After so many changes. */
  build(count) {
    const whole = Math.floor(count / BETWEEN_SNAPSHOTS);
    let state = whole ? this.snapshots[whole - 1] : {};
    for (const change of this.changes.slice(whole * BETWEEN_SNAPSHOTS, count)) {
      state = applyPatch(change.fresh ? {} : state, change.patch);
    }
    return state;
  }
}

/** The states of all processes of a run. */
export class States {
  constructor(lines) {
    this.histories = new Map();
    lines.forEach((line, index) => {
      if (line.event === "life") this.history(line.process).add(index, {}, true);
      if (line.changed) this.history(line.process).add(index, line.changed, false);
    });
  }

  history(process) {
    if (!this.histories.has(process)) this.histories.set(process, new History());
    return this.histories.get(process);
  }

  /** Of one process after the line with this index (its place in the array of lines). */
  at(process, index) {
    return this.history(process).at(index);
  }
}
