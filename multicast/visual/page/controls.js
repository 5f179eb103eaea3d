/** Buttons for steps, the pace, and the time line with its scrubber. */

import { h, icon, s } from "./dom.js";
import { duration } from "./words.js";

/** Pace -> [kind, amount]: so many steps or δ a second. */
export const PACES = {
  "½ step/s": ["steps", 0.5],
  "1 step/s": ["steps", 1],
  "2 steps/s": ["steps", 2],
  "5 steps/s": ["steps", 5],
  "½ δ/s": ["delta", 0.5],
  "1 δ/s": ["delta", 1],
  "3 δ/s": ["delta", 3],
};
const LONGEST_MS = 3000;
const SHORTEST_MS = 40;

/** How long step k + 1 keeps waiting, in milliseconds. */
export function pause(recording, k, pace) {
  const [kind, amount] = PACES[pace];
  if (kind === "steps" || !recording.deltaUs) return 1000 / amount;
  const wait = k < recording.steps ? recording.timeOf(k + 1) - recording.timeOf(k) : recording.deltaUs / 2;
  return Math.min(LONGEST_MS, Math.max(SHORTEST_MS, (1000 * wait) / recording.deltaUs / amount));
}

export class Controls {
  /** on: { start, back, play, step, delivery, end, step(k), pace(name), axis(), future(), housekeeping(), zoom(factor), fit() } */
  constructor(container, on) {
    const button = (name, label, key, action) =>
      h(
        "button",
        { class: "control", "aria-label": label, title: `${label} (${key})`, onclick: action, id: `control-${name}` },
        icon(name),
      );
    this.play = button("play", "Play", "space", on.play);
    this.pace = h(
      "select",
      { "aria-label": "Pace", title: "Pace", onchange: (event) => on.pace(event.target.value) },
      Object.keys(PACES).map((name) => h("option", {}, name)),
    );
    this.where = h("output", { class: "where", "aria-live": "off" });
    this.scrubber = h("input", {
      type: "range",
      min: 0,
      step: 1,
      class: "scrubber",
      "aria-label": "Step",
      oninput: (event) => on.go(Number(event.target.value)),
    });
    this.strip = s("svg", { class: "strip", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.axis = h("button", { class: "toggle", onclick: on.axis, title: "Time or steps from left to right (T)" });
    this.future = h(
      "button",
      { class: "toggle", onclick: on.future, title: "Show faintly what comes later (F)" },
      "What comes",
    );
    this.housekeeping = h(
      "button",
      { class: "toggle", onclick: on.housekeeping, title: "Heartbeats and the like (H)" },
      "Housekeeping",
    );
    container.append(
      h(
        "div",
        { class: "buttons steps" },
        button("start", "To the beginning", "Home", on.start),
        button("back", "Step back", "←", on.back),
        this.play,
        button("step", "Step", "→", on.step),
        button("delivery", "To the next delivery", "Shift →", on.delivery),
        button("end", "To the end", "End", on.end),
        this.pace,
        this.where,
      ),
      h("div", { class: "line" }, this.strip, this.scrubber),
      h(
        "div",
        { class: "buttons views" },
        this.axis,
        this.future,
        this.housekeeping,
        h(
          "button",
          { class: "toggle", onclick: () => on.zoom(1 / 1.5), "aria-label": "Zoom out", title: "Zoom out (-)" },
          "−",
        ),
        h(
          "button",
          { class: "toggle", onclick: () => on.zoom(1.5), "aria-label": "Zoom in", title: "Zoom in (+)" },
          "+",
        ),
        h("button", { class: "toggle", onclick: on.fit, title: "The whole run (0)" }, "Fit"),
      ),
    );
    this.icons = { play: icon("play"), pause: icon("pause") };
  }

  draw(app, axisKind) {
    const { recording, step } = app;
    this.play.replaceChildren(this.icons[app.playing ? "pause" : "play"]);
    this.play.setAttribute("aria-label", app.playing ? "Pause" : "Play");
    this.pace.value = app.pace;
    this.scrubber.max = recording.steps;
    this.scrubber.value = step;
    const time = duration(recording.timeOf(step), recording.deltaUs);
    this.where.textContent = `step ${step} of ${recording.steps} · ${time}`;
    this.scrubber.setAttribute("aria-valuetext", `step ${step} of ${recording.steps}, at ${time}`);
    this.axis.textContent = axisKind === "time" ? "Axis: time" : "Axis: steps";
    for (const name of ["future", "housekeeping"]) this[name].setAttribute("aria-pressed", String(app.view[name]));
    for (const [name, off] of [
      ["start", !step],
      ["back", !step],
      ["step", !app.canGoOn],
      ["delivery", !app.canGoOn],
      ["end", !app.canGoOn],
    ]) {
      document.getElementById(`control-${name}`).toggleAttribute("disabled", off);
    }
    if (this.drawn !== recording) this.drawStrip(recording);
  }

  /** Deliveries, multicasts, crashes and violations over the whole run. */
  drawStrip(recording) {
    this.drawn = recording;
    const most = Math.max(1, recording.steps);
    this.strip.setAttribute("viewBox", `0 0 ${most} 10`);
    const at = { delivery: new Set(), submit: new Set(), crash: new Set() };
    for (const line of recording.lines) at[line.event]?.add(line.s);
    const marks = [
      ["delivery", 5, 9],
      ["submit", 0, 4],
      ["crash", 0, 10],
    ].map(([kind, top, end]) => [kind, [...at[kind]].map((step) => `M${step} ${top}V${end}`)]);
    marks.push(["violation", recording.violations.map((found) => `M${found.step} 0V10`)]);
    this.strip.replaceChildren(
      ...marks.map(([kind, parts]) =>
        s("path", { class: kind, d: parts.join(""), "vector-effect": "non-scaling-stroke" }),
      ),
    );
  }
}
