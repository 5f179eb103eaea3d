/** The list of scenarios: a paragraph each; the one that is open says what to look at, and in the end what was learned. */

import { h, show } from "./dom.js";

/** on: { scenario(id) } */
export function drawScenarios(pane, app, on) {
  const { scenarios = [] } = app.catalogue ?? {};
  const items = scenarios.map((scenario) => {
    const current = scenario.id === app.scenario;
    const opener = h(
      "button",
      {
        class: "scenario",
        "data-key": `scenario-${scenario.id}`,
        "aria-current": current ? "true" : null,
        onclick: () => on.scenario(scenario.id),
      },
      h("span", { class: "number", "aria-hidden": "true" }, place(scenario, scenarios)),
      h("span", {}, scenario.title),
    );
    const rest = current
      ? [
          h("p", {}, scenario.text),
          part("Look at", scenario.watch),
          app.step >= app.recording.steps && part("What you should have understood", scenario.learned),
        ]
      : [h("p", { class: "short" }, scenario.text)];
    return h("li", { class: current ? "current" : null }, opener, rest);
  });
  const shown = pane.dataset.scenario;
  show(
    pane,
    h("h2", {}, "Scenarios"),
    items.length
      ? h("ol", { class: "scenarios" }, items)
      : h("p", { class: "empty" }, "This server has no scenarios. Choose “New world” to set one up."),
  );
  pane.dataset.scenario = app.scenario ?? "";
  if (shown !== pane.dataset.scenario) pane.querySelector(".current")?.scrollIntoView({ block: "nearest" });
}

/** 3, or 3a, 3b, ... where several belong to a chapter. */
function place({ id, chapter }, scenarios) {
  const parts = scenarios.filter((other) => other.chapter === chapter);
  const number = parts.findIndex((other) => other.id === id);
  return `${chapter ?? scenarios.findIndex((other) => other.id === id) + 1}${chapter && parts.length > 1 ? "abcdefgh"[number] : ""}`;
}

function part(title, text) {
  return text && h("section", { class: "note" }, h("h4", {}, title), h("p", {}, text));
}
