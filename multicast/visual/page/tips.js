/** What stands in the little window beside the pointer. */

import { h } from "./dom.js";
import { duration, fields, list, processName, sentence, shortened, value } from "./words.js";

/** Of an arrow, or of the line with this index. */
export function tip(recording, arrow, index) {
  if (arrow) return ofArrow(recording, arrow);
  const line = recording.lines[index];
  return line && [h("b", {}, sentence(line)), h("p", {}, at(recording, line))];
}

function at(recording, line) {
  return `step ${line.s}, at ${duration(line.t ?? 0, recording.deltaUs)}`;
}

function ofArrow(recording, { leave, arrival, from, to }) {
  const about = leave.about?.length ? ` of ${shortened(list(leave.about), 60)}` : "";
  const title = `${leave.type}${about}: ${processName(from)} → ${processName(to)}`;
  const took =
    arrival && `under way for ${duration(arrival.t - leave.t, recording.deltaUs)}, arrives in step ${arrival.s}`;
  const inside = fields(arrival?.message)
    .slice(0, 8)
    .map(([name, data]) => [h("dt", {}, name), h("dd", {}, shortened(value(data), 70))]);
  return [
    h("b", {}, title),
    h("p", {}, `left in step ${leave.s}, at ${duration(leave.t, recording.deltaUs)}; ${took ?? "it has not arrived"}`),
    h("dl", {}, inside),
  ];
}
