/** The dialog that sets up a new world: protocol, options, processes, clocks and delays. */

import { h, icon, show } from "./dom.js";
import { processName, shortened } from "./words.js";

const FIRST_SENDER = 100;
const US_PER_MS = 1000;

export class SetupDialog {
  /** start(setup): a promise; a Problem's sentence is shown here, and the dialog stays. */
  constructor(start) {
    this.start = start;
    this.body = h("div", { class: "body" });
    this.problem = h("p", { class: "problem", role: "alert" });
    this.dialog = h(
      "dialog",
      { class: "setup", "aria-label": "New world" },
      h(
        "form",
        { method: "dialog", onsubmit: (event) => this.submit(event) },
        h(
          "header",
          {},
          h("h2", {}, "New world"),
          h(
            "button",
            { type: "button", class: "control", "aria-label": "Close", onclick: () => this.dialog.close() },
            icon("close"),
          ),
        ),
        this.body,
        this.problem,
        h(
          "footer",
          {},
          h("button", { type: "button", onclick: () => this.dialog.close() }, "Cancel"),
          h("button", { class: "primary", id: "setup-start" }, "Start"),
        ),
      ),
    );
    document.body.append(this.dialog);
  }

  open(catalogue, setup) {
    this.catalogue = catalogue;
    this.setup = structuredClone({
      options: {},
      senders: [],
      clock_offsets_us: {},
      clock: null,
      seed: 0,
      bug: null,
      delays: { kind: "fixed", us: 1000 },
      ...(setup ?? catalogue.setup),
    });
    this.arranged = false;
    this.problem.textContent = "";
    this.draw();
    this.dialog.showModal();
  }

  async submit(event) {
    event.preventDefault();
    try {
      await this.start(this.setup);
      this.dialog.close();
    } catch (problem) {
      this.problem.textContent = problem.message;
    }
  }

  change(changes) {
    Object.assign(this.setup, changes);
    this.problem.textContent = "";
    this.draw();
  }

  get protocol() {
    return this.catalogue.protocols.find((one) => one.name === this.setup.protocol) ?? this.catalogue.protocols[0];
  }

  draw() {
    show(
      this.body,
      this.drawProtocol(),
      this.drawProcesses(),
      this.drawClocks(),
      this.drawDelays(),
      this.drawOptions(),
    );
  }

  // -- protocol --------------------------------------------------------------------------------------------------------

  drawProtocol() {
    const names = this.catalogue.protocols.map((one) =>
      h("option", { value: one.name, selected: one.name === this.setup.protocol }, one.name),
    );
    const { title, paper, doc, genuine, fault_tolerant: tolerant } = this.protocol;
    const facts = [
      genuine === undefined ? null : genuine ? "genuine" : "not genuine",
      tolerant === undefined ? null : tolerant ? "survives crashes" : "does not survive crashes",
    ].filter(Boolean);
    return h(
      "fieldset",
      {},
      h("legend", {}, "Protocol"),
      h(
        "select",
        {
          "aria-label": "Protocol",
          "data-key": "protocol",
          onchange: (event) => this.chooseProtocol(event.target.value),
        },
        names,
      ),
      h("p", {}, title, facts.length > 0 && h("span", { class: "quiet" }, ` (${facts.join(", ")})`)),
      paper && h("p", { class: "quiet" }, paper),
      doc && h("details", {}, h("summary", {}, "How it works"), h("pre", { class: "doc" }, doc)),
    );
  }

  /** With the processes that suit it, unless some were added or removed here. */
  chooseProtocol(name) {
    const fitting = this.catalogue.protocols.find((one) => one.name === name).setup;
    this.change({
      protocol: name,
      options: {},
      bug: null,
      ...(this.arranged ? {} : { groups: structuredClone(fitting.groups), senders: [], clock_offsets_us: {} }),
    });
  }

  // -- processes -------------------------------------------------------------------------------------------------------

  drawProcesses() {
    const { groups, senders } = this.setup;
    const full = this.all().length >= (this.catalogue.limits?.processes_max ?? 24);
    const rows = Object.entries(groups).map(([name, members]) =>
      this.row(`group ${name}`, name, members, full, (after) =>
        this.arrange({ groups: after.length ? { ...groups, [name]: after } : without(groups, name) }),
      ),
    );
    const add = h(
      "button",
      {
        type: "button",
        "data-key": "add-group",
        disabled: full,
        onclick: () =>
          this.arrange({ groups: { ...groups, [next(Object.keys(groups).map(Number), 0)]: [this.unused(0)] } }),
      },
      "+ group",
    );
    return h(
      "fieldset",
      {},
      h("legend", {}, "Processes"),
      rows,
      this.row("outside senders", "senders", senders, full, (after) => this.arrange({ senders: after }), FIRST_SENDER),
      add,
      h(
        "p",
        { class: "quiet" },
        "The first process of a group leads it at first. A sender from outside is in no group.",
      ),
    );
  }

  arrange(changes) {
    this.arranged = true;
    this.change(changes);
  }

  row(title, key, members, full, change, from = 0) {
    const chips = members.map((process) =>
      h(
        "span",
        { class: "member" },
        processName(process),
        h(
          "button",
          {
            type: "button",
            class: "remove",
            "aria-label": `Remove process ${process}`,
            "data-key": `remove-${process}`,
            onclick: () => change(members.filter((one) => one !== process)),
          },
          icon("close"),
        ),
      ),
    );
    return h(
      "div",
      { class: "row" },
      h("span", { class: "label" }, title),
      chips,
      h(
        "button",
        {
          type: "button",
          "data-key": `add-${key}`,
          "aria-label": `Add a process to ${title}`,
          disabled: full,
          onclick: () => change([...members, this.unused(from)]),
        },
        "+",
      ),
    );
  }

  all() {
    return [...Object.values(this.setup.groups).flat(), ...this.setup.senders];
  }

  unused(from) {
    return next(this.all(), from);
  }

  // -- clocks and delays -----------------------------------------------------------------------------------------------

  drawClocks() {
    const { clock, clock_offsets_us: offsets } = this.setup;
    const choice = [
      [null, "as in the options"],
      ["logical", "logical"],
      ["hybrid", "hybrid"],
    ].map(([value, text]) => this.radio("clock", text, clock === value, () => this.change({ clock: value })));
    const inputs = this.all().map((process) =>
      this.number(`${processName(process)} ahead by`, (offsets[process] ?? 0) / US_PER_MS, "ms", -1e6, (ms) => {
        if (ms) offsets[process] = Math.round(ms * US_PER_MS);
        else delete offsets[process];
      }),
    );
    return h(
      "fieldset",
      {},
      h("legend", {}, "Clocks"),
      h("div", { class: "row" }, choice),
      clock === "hybrid" &&
        h(
          "details",
          { open: Object.keys(offsets).length > 0 },
          h("summary", {}, "Offsets of wall clocks"),
          h("div", { class: "grid" }, inputs),
        ),
    );
  }

  drawDelays() {
    const { delays } = this.setup;
    const kinds = {
      fixed: ["all alike", { kind: "fixed", us: delays.us ?? 1000 }],
      drawn: ["drawn", { kind: "drawn", low_us: delays.us ?? 1000, high_us: 2 * (delays.us ?? 1000) }],
      links: ["per link", { kind: "links", us: delays.us ?? 1000, links: [] }],
    };
    const choice = Object.entries(kinds).map(([kind, [text, fresh]]) =>
      this.radio("delays", text, delays.kind === kind, () => this.change({ delays: fresh })),
    );
    const ms = (label, name) =>
      this.number(
        label,
        delays[name] / US_PER_MS,
        "ms",
        0,
        (amount) => (delays[name] = Math.round(amount * US_PER_MS)),
      );
    const inside =
      delays.kind === "drawn"
        ? [
            ms("at least", "low_us"),
            ms("at most", "high_us"),
            this.number("seed", this.setup.seed, "", 0, (seed) => (this.setup.seed = seed)),
          ]
        : [ms("a message takes", "us")];
    const disk = this.number(
      "a disk takes",
      (this.setup.fsync_us ?? 0) / US_PER_MS,
      "ms to sync",
      0,
      (amount) => (this.setup.fsync_us = Math.round(amount * US_PER_MS)),
    );
    return h(
      "fieldset",
      {},
      h("legend", {}, "Delays"),
      h("div", { class: "row" }, choice),
      h("div", { class: "grid" }, inside, disk),
      delays.kind === "links" && this.drawLinks(delays),
    );
  }

  drawLinks(delays) {
    const processes = this.all();
    const choose = (row, place) =>
      h(
        "select",
        { "aria-label": place ? "to" : "from", onchange: (event) => (row[place] = Number(event.target.value)) },
        processes.map((one) => h("option", { value: one, selected: one === row[place] }, processName(one))),
      );
    const rows = delays.links.map((row, number) =>
      h(
        "div",
        { class: "row" },
        choose(row, 0),
        "→",
        choose(row, 1),
        this.number("takes", row[2] / US_PER_MS, "ms", 0, (ms) => (row[2] = Math.round(ms * US_PER_MS))),
        h(
          "button",
          {
            type: "button",
            class: "remove",
            "aria-label": "Remove this link",
            onclick: () =>
              this.change({ delays: { ...delays, links: delays.links.filter((_, other) => other !== number) } }),
          },
          icon("close"),
        ),
      ),
    );
    return [
      rows,
      h(
        "button",
        {
          type: "button",
          "data-key": "add-link",
          onclick: () =>
            this.change({
              delays: { ...delays, links: [...delays.links, [processes[0], processes.at(-1), 2 * delays.us]] },
            }),
        },
        "+ link",
      ),
    ];
  }

  // -- options ---------------------------------------------------------------------------------------------------------

  drawOptions() {
    const own = this.protocol.options.filter((option) => option.own !== false);
    const common = this.protocol.options.filter((option) => option.own === false);
    const set = Object.keys(this.setup.options);
    const part = (title, options) =>
      options.length > 0 &&
      h(
        "details",
        { open: options.some((option) => set.includes(option.name)) || title === "Options of this protocol" },
        h("summary", {}, `${title} (${options.length})`),
        options.map((option) => this.option(option)),
      );
    return h(
      "fieldset",
      {},
      h("legend", {}, "Options"),
      part("Options of this protocol", own),
      part("Options of all protocols", common),
    );
  }

  option(option) {
    const { name, type, doc } = option;
    const now = this.setup.options[name] ?? option.default;
    const put = (value) => {
      if (value === option.default) delete this.setup.options[name];
      else this.setup.options[name] = value;
    };
    const common = { "data-key": `option-${name}`, "aria-label": name };
    let input;
    if (type === "bool")
      input = h("input", {
        ...common,
        type: "checkbox",
        checked: now === true,
        onchange: (event) => put(event.target.checked),
      });
    else if (type === "choice")
      input = h(
        "select",
        { ...common, onchange: (event) => put(option.choices.find((one) => String(one) === event.target.value)) },
        option.choices.map((one) => h("option", { selected: one === now }, String(one))),
      );
    else if (type === "int" || type === "float")
      input = h("input", {
        ...common,
        type: "number",
        step: type === "int" ? 1 : "any",
        min: option.min,
        max: option.max,
        value: now,
        onchange: (event) => put(event.target.value === "" ? option.default : Number(event.target.value)),
      });
    else
      input = h("input", { ...common, type: "text", value: now ?? "", onchange: (event) => put(event.target.value) });
    return h(
      "label",
      { class: "option" },
      h("span", { class: "name" }, name),
      input,
      h("span", { class: "quiet", title: doc }, shortened(doc ?? "", 220)),
    );
  }

  // -- inputs ----------------------------------------------------------------------------------------------------------

  radio(group, text, checked, choose) {
    return h(
      "label",
      { class: "check" },
      h("input", { type: "radio", name: group, checked, "data-key": `${group}-${text}`, onchange: choose }),
      text,
    );
  }

  number(label, value, unit, min, change) {
    return h(
      "label",
      { class: "number" },
      label,
      h("input", { type: "number", step: "any", min, value, onchange: (event) => change(Number(event.target.value)) }),
      unit,
    );
  }
}

function next(used, from) {
  let number = from;
  while (used.includes(number)) number++;
  return number;
}

function without(object, key) {
  const { [key]: _, ...rest } = object;
  return rest;
}
