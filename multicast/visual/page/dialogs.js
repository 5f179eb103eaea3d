/** The dialogs that open a trace or a failing run, and the help. */

import { h, icon } from "./dom.js";
import { KEYS } from "./keyboard.js";

function dialog(title, ...body) {
  const element = h(
    "dialog",
    { "aria-label": title },
    h(
      "header",
      {},
      h("h2", {}, title),
      h("button", { class: "control", "aria-label": "Close", onclick: () => element.close() }, icon("close")),
    ),
    body,
  );
  document.body.append(element);
  return element;
}

/** open(content): a promise; content is what `open` asks the server for. */
export function openDialog(open) {
  const problem = h("p", { class: "problem", role: "alert" });
  const attempt = async (content) => {
    problem.textContent = "";
    try {
      await open(content);
      element.close();
    } catch (found) {
      problem.textContent = found.message;
    }
  };
  const file = h("input", {
    type: "file",
    id: "trace-file",
    "aria-label": "Trace file",
    accept: ".jsonl,.json,.txt",
    onchange: async () => file.files.length && attempt({ trace: await file.files[0].text() }),
  });
  const field = (name, attributes) => h("label", { class: "number" }, name, h("input", { name, ...attributes }));
  const protocol = h("select", { name: "protocol" });
  const run = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        const given = Object.fromEntries([...new FormData(run)].filter(([, text]) => text !== ""));
        attempt({ run: given });
      },
    },
    h(
      "div",
      { class: "grid" },
      h("label", { class: "number" }, "protocol", protocol),
      field("seed", { type: "number", min: 0, value: 0, required: true }),
      h(
        "label",
        { class: "number" },
        "profile",
        h(
          "select",
          { name: "profile" },
          h("option", { value: "" }, "as usual"),
          h("option", {}, "faults"),
          h("option", {}, "calm"),
        ),
      ),
      h(
        "label",
        { class: "number" },
        "size",
        h(
          "select",
          { name: "size" },
          h("option", { value: "" }, "drawn"),
          h("option", {}, "small"),
          h("option", {}, "large"),
        ),
      ),
      ...["groups", "replicas", "messages"].map((name) =>
        field(name, { type: "number", min: 1, placeholder: "drawn" }),
      ),
      field("bug", { placeholder: "name of a planted bug" }),
    ),
    h("p", {}, h("button", { class: "primary" }, "Replay")),
  );
  const element = dialog(
    "Open a run",
    problem,
    h(
      "section",
      {},
      h("h3", {}, "A trace file"),
      h(
        "p",
        {},
        "Written by ",
        h("code", {}, "python -m multicast.simulation trace --protocol white_box --seed 7 --out run.jsonl"),
        ".",
      ),
      file,
    ),
    h(
      "section",
      {},
      h("h3", {}, "A seed of the simulator"),
      h("p", {}, "The run is replayed; if a checker objects, it is shown at the violation."),
      run,
    ),
  );
  return (catalogue) => {
    protocol.replaceChildren(...(catalogue?.protocols ?? []).map((one) => h("option", {}, one.name)));
    problem.textContent = "";
    file.value = "";
    element.showModal();
  };
}

export function helpDialog() {
  const sign = (name, text) => [h("dt", {}, name), h("dd", {}, text)];
  const element = dialog(
    "Help",
    h(
      "p",
      {},
      "Time runs from left to right, every line is a process, every arrow a message; its colour and name say which multicast it belongs to, its dashes and head of which type it is. What is bright has happened by the step that is shown.",
    ),
    h("h3", {}, "Signs"),
    h(
      "dl",
      { class: "keys" },
      sign("○ m1", "m1 is multicast here"),
      sign("▼ m1", "m1 is delivered here"),
      sign("★ ◇", "begins to lead, and leads no more (while it leads, its line is thick)"),
      sign("✕ ▷", "crashes, starts again"),
      sign("‖", "is paused"),
      sign("▪", "what it wrote is on its disk"),
      sign("! in a ring", "a checker found a violation here"),
      sign("dashed ✕", "a message that never arrived"),
    ),
    h("h3", {}, "With the mouse"),
    h(
      "p",
      {},
      "Click on an arrow or a sign: that step. On a process: what can be done there. On an envelope (live worlds): let it arrive. Wheel: zoom (with Ctrl where the lanes do not fit). Drag: pan.",
    ),
    h("h3", {}, "Keys"),
    h(
      "dl",
      { class: "keys" },
      KEYS.map(([key, text]) => sign(key, text)),
    ),
  );
  return () => element.showModal();
}
