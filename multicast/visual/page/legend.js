/** Multicasts and message types of the run: a click on a multicast shows what belongs to it, one on a type hides it. */

import { h, s, show } from "./dom.js";
import { chip } from "./chip.js";
import { typeStyle } from "./palette.js";

const CHIPS = 14;

/** on: { highlight(name), type(name), view(name) } */
export function drawLegend(pane, app, on) {
  const { recording, view } = app;
  const all = [...recording.multicasts.values()].filter((one) => one.line);
  const last = recording.lastLine(app.step);
  const begun = all.filter((one) => one.index <= last).length;
  const from = Math.max(0, Math.min(begun + 2, all.length) - CHIPS);
  const chips = all.slice(from, from + CHIPS).map(({ name, groups, process }) =>
    chip(recording, name, on.highlight, {
      "data-key": `legend-${name}`,
      "aria-pressed": String(app.highlight === name),
      title: `${name}: from process ${process} to group ${groups.join(", ")}`,
      class: app.highlight === name ? "pressed" : "",
    }),
  );
  const types = recording.types.map((type) =>
    h(
      "button",
      {
        class: "type",
        "data-key": `type-${type}`,
        "aria-pressed": String(!view.hiddenTypes.has(type)),
        title: `Show or hide ${type}`,
        onclick: () => on.type(type),
      },
      sample(recording, type),
      type,
    ),
  );
  show(
    pane,
    h("span", { class: "chips" }, chips.length ? chips : h("span", { class: "quiet" }, "no multicast yet")),
    h("span", { class: "types" }, types),
  );
}

function sample(recording, type) {
  const style = typeStyle(recording, type);
  return s(
    "svg",
    { viewBox: "0 0 34 12", class: "sample", "aria-hidden": "true" },
    s("path", { d: "M1 6H32", class: "shaft", "stroke-dasharray": style.dashes || "none" }),
    s("path", { d: style.head, class: `head${style.open ? " open" : ""}`, transform: "translate(33 6)" }),
  );
}
