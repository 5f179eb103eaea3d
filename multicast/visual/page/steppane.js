/** The step in words, in the paper and in the code. */

import { h, show } from "./dom.js";
import { highlightPython } from "./python.js";
import { changes, fields, list, plural, processName, sentence, shortened, stepSentence, value } from "./words.js";

const SHOWN = 12;

/** The words: what happened, which handler ran, what it did, the lines of the paper. */
export function drawWords(pane, app) {
  const { recording, step } = app;
  const lines = recording.linesOf(step);
  const main = lines[0];
  const violations = recording.violations.filter((found) => found.step === step);
  show(
    pane,
    h("p", { class: "sentence", "aria-live": "polite" }, stepSentence(lines, step)),
    violations.map((found) =>
      h("p", { class: "violation" }, h("b", {}, `Violation of ${found.checker}. `), found.text),
    ),
    step > 0 && main?.message?.type && received(main),
    step > 0 && effects(recording, lines, step),
    step > 0 && paper(handlersOf(recording, lines)[0]),
  );
}

function received(line) {
  const shown = fields(line.message).slice(0, SHOWN);
  return (
    shown.length > 0 &&
    h(
      "dl",
      { class: "fields" },
      shown.map(([name, data]) => h("div", {}, h("dt", {}, name), h("dd", {}, shortened(value(data))))),
    )
  );
}

function effects(recording, lines, step) {
  const found = lines
    .slice(1)
    .filter((line) => line.event === "delivery")
    .map((line) => [sentence(line), "delivers"]);
  if (lines[0]?.event === "delivery") found.length = 0;
  for (const line of lines) {
    for (const send of line.sends ?? []) {
      const names = value(
        fields(send)
          .filter(([key]) => ["message", "id"].includes(key))
          .map(([, data]) => data)[0] ?? "",
      );
      const wait = send.durable ? ", once what it wrote is on its disk" : "";
      found.push([
        `sends ${send.type}${names && names !== "–" ? ` of ${shortened(names, 40)}` : ""} to ${list(send.to.map(processName))}${wait}`,
        "sends",
      ]);
    }
    if (line.refused) found.push([`refuses: ${line.refused}`, "problem"]);
    if (line.raised) found.push([`fails: ${line.raised}`, "problem"]);
  }
  const written = lines.reduce((sum, line) => sum + (line.puts?.length ?? 0) + (line.deletes?.length ?? 0), 0);
  if (written) found.push([`writes ${plural(written, "record")} to its journal`, "writes"]);
  const differences = lines.filter((line) => line.changed).flatMap((line) => changedIn(recording, line, step));
  return (
    found.length + differences.length > 0 &&
    h(
      "ul",
      { class: "effects" },
      found.slice(0, SHOWN).map(([text, kind]) => h("li", { class: kind }, text)),
      differences.slice(0, SHOWN).map((text) => h("li", { class: "changes" }, text)),
      differences.length > SHOWN && h("li", { class: "quiet" }, `… and ${differences.length - SHOWN} more changes`),
    )
  );
}

function changedIn(recording, line, step) {
  const before = step > 0 ? recording.state(line.process, step - 1) : {};
  return changes(before, line.changed)
    .filter(([path]) => !["blocked_by", "why"].includes(path.at(-1)))
    .map(([path, old, now]) => {
      const name = path[0] === "messages" ? path.slice(1).join(" ") : path.join(" ");
      if (now === null) return `${name}: gone`;
      return old === undefined
        ? `${name}: ${shortened(value(now), 60)}`
        : `${name}: ${shortened(value(old), 60)} → ${shortened(value(now), 60)}`;
    });
}

function paper(handler) {
  if (!handler || !(handler.paper || handler.steps?.length || handler.doc)) return null;
  return h(
    "section",
    { class: "paper" },
    h("h4", {}, handler.paper || "What the handler does"),
    handler.steps?.length
      ? h(
          "ol",
          {},
          handler.steps.map((text) => h("li", {}, text)),
        )
      : h("p", {}, (handler.doc ?? "").split("\n\n")[0]),
  );
}

/** Of the lines of a step, each once, the cause first. */
function handlersOf(recording, lines) {
  const keys = lines.map((line) => (line.event === "arrival" ? `arrival:${line.message?.type}` : line.event));
  return [...new Set(keys)]
    .map((key) => recording.handlers[key] ?? recording.handlers[key.split(":")[0]])
    .filter(Boolean);
}

/** The code that ran, with the place where it stands. */
export function drawCode(pane, app) {
  const handlers = app.step ? handlersOf(app.recording, app.recording.linesOf(app.step)) : [];
  const key = `${Boolean(app.step)} ${handlers.map((handler) => `${handler.file}:${handler.line}`)}`;
  if (pane.dataset.shown === key && pane.childElementCount) return;
  pane.dataset.shown = key;
  pane.scrollTop = 0;
  show(
    pane,
    handlers.length
      ? handlers.map((handler) => [
          h(
            "p",
            { class: "place" },
            h("b", {}, handler.name),
            h("span", { class: "quiet" }, ` ${handler.file}:${handler.line}`),
          ),
          h(
            "pre",
            { class: "code", tabindex: 0, "aria-label": `Source of ${handler.name}` },
            (handler.source ?? "")
              .trimEnd()
              .split("\n")
              .map((text, number) =>
                h(
                  "span",
                  { class: "line" },
                  h("span", { class: "number" }, String(handler.line + number)),
                  h("code", {}, highlightPython(text), "\n"),
                ),
              ),
          ),
        ])
      : h(
          "p",
          { class: "empty" },
          app.step ? "No handler of the protocol ran in this step." : "The code that runs stands here, step by step.",
        ),
  );
}
