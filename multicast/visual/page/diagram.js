/** The space-time diagram: only what is in the window is drawn. */

import { h, s } from "./dom.js";
import { Axis, BOTTOM, LEFT, TOP, labelledSends, lanes, sendText } from "./layout.js";
import { drawMarks, laneSegments } from "./marks.js";
import { drawMail } from "./mail.js";
import { colourClass, typeStyle } from "./palette.js";
import { tip } from "./tips.js";
import { processName } from "./words.js";

const SINGLE_ARROWS_MAX = 900;
const PAD = 40;
const FOLLOW_AT = 0.66;
const MAIL_WIDTH = 280;
const LARGE = 1800;
const FIRST_ZOOM_MAX = 2;
const WHOLE_ZOOM_MAX = 1.8;
const WHOLE_WIDTH = 900;
const WHOLE_LANE = 62;

export class Diagram {
  /** on: { step(k), process(p, element), deliver(from, to) } */
  constructor(container, on) {
    this.on = on;
    this.following = true;
    this.transform = d3.zoomIdentity;
    this.svg = s("svg", { class: "diagram", role: "group", "aria-label": "Space-time diagram" });
    this.tip = h("div", { class: "tip", role: "status", hidden: true });
    container.append(this.svg, this.tip);
    this.build();
    new ResizeObserver(() => requestAnimationFrame(() => this.app && this.draw(this.app))).observe(container);
    this.container = container;
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.svg.addEventListener("click", (event) => this.click(event));
  }

  build() {
    const root = d3.select(this.svg);
    root.append("defs").append("clipPath").attr("id", "plot-window").append("rect");
    this.bands = root.append("g").attr("class", "bands");
    this.plot = root.append("g").attr("clip-path", "url(#plot-window)");
    this.veil = this.plot.append("rect").attr("class", "veil");
    for (const layer of ["ticks", "faults", "lanelines"]) this[layer] = this.plot.append("g").attr("class", layer);
    this.moving = this.plot.append("g");
    for (const layer of ["merged", "arrows", "texts", "small", "marks"])
      this[layer] = this.moving.append("g").attr("class", layer);
    this.now = this.plot.append("g").attr("class", "now");
    this.now.append("line").attr("class", "playhead");
    this.mail = this.plot.append("g").attr("class", "mail");
    this.cursor = this.plot.append("g").attr("class", "cursor");
    this.names = root.append("g").attr("class", "names");
    this.zoom = d3
      .zoom()
      .scaleExtent([0.001, 16])
      .extent(() => [
        [0, 0],
        [this.width, this.height],
      ])
      .filter((event) => this.zooms(event))
      .on("zoom", (event) => this.zoomed(event));
    root.call(this.zoom).on("dblclick.zoom", null);
  }

  // -- view ------------------------------------------------------------------------------------------------------------

  zoomed(event) {
    this.transform = event.transform;
    if (!event.sourceEvent) return;
    this.following = false;
    if (!this.asked) this.asked = requestAnimationFrame(() => this.draw(this.app));
  }

  /** Dragging pans. The wheel zooms; where there are more lanes than fit it scrolls, and zooms with Ctrl. */
  zooms(event) {
    if (event.type !== "wheel") return !event.button && !event.ctrlKey;
    return event.ctrlKey || this.height <= this.container.clientHeight;
  }

  /** Zoom by a factor around the playhead. */
  scaleBy(factor) {
    this.zoomTo(this.transform.k * factor);
  }

  /** The whole run in the window. */
  fit() {
    this.zoomTo((this.width - LEFT - 2 * PAD) / Math.max(this.axis.total, 1));
  }

  zoomTo(k) {
    const [low, high] = this.zoom.scaleExtent();
    this.place(Math.max(low, Math.min(high, k)));
    this.draw(this.app);
  }

  /** A short run has all the room there is. */
  firstZoom() {
    const room = this.width - LEFT - 2 * PAD - (this.app.live ? MAIL_WIDTH / 2 : 0);
    return this.axis.total ? Math.max(1, Math.min(FIRST_ZOOM_MAX, room / this.axis.total)) : 1;
  }

  /** The place of the playhead in the window depends on the step and the zoom alone, so stepping back shows the same. */
  place(k) {
    const room = this.width - LEFT;
    const free = this.app.live ? room - MAIL_WIDTH / 2 : room;
    const all = this.axis.total * k + 2 * PAD <= free + 1;
    const at = this.app.live ? Math.max(0.4 * room, room - MAIL_WIDTH) : FOLLOW_AT * room;
    const x = all ? PAD : Math.min(PAD, at - this.axis.ofStep(this.app.step) * k);
    this.following = true;
    d3.select(this.svg).call(this.zoom.transform, d3.zoomIdentity.translate(x, 0).scale(k));
  }

  /** What `take` makes of the diagram while all of the run is drawn, as large as it needs and without a playhead. */
  whole(take) {
    const { app, transform, following } = this;
    const k = Math.min(WHOLE_ZOOM_MAX, WHOLE_WIDTH / Math.max(1, this.axis.total));
    this.size = { width: LEFT + 2 * PAD + this.axis.total * k, height: WHOLE_LANE * app.recording.processes.length };
    this.svg.classList.add("whole");
    this.following = false;
    this.transform = d3.zoomIdentity.translate(PAD, 0).scale(k);
    this.draw(
      Object.create(app, {
        step: { value: app.recording.steps },
        links: { value: null },
        live: { value: false },
        process: { value: null },
      }),
    );
    const taken = take();
    this.svg.classList.remove("whole");
    this.size = null;
    Object.assign(this, { transform, following, step: app.step });
    this.draw(app);
    return taken;
  }

  /** Of a position at zoom 1, in the window. */
  x(position) {
    return LEFT + this.transform.x + this.within(position);
  }

  /** The same within what moves as a whole when the window does. */
  within(position) {
    return Math.round(10 * this.transform.k * position) / 10;
  }

  // -- drawing ---------------------------------------------------------------------------------------------------------

  draw(app) {
    cancelAnimationFrame(this.asked);
    this.asked = null;
    const { recording } = app;
    this.app = app;
    this.letter = innerWidth >= LARGE ? 7.6 : 6.2;
    this.width = this.size?.width ?? (this.container.clientWidth || 800);
    if (this.recording?.header !== recording.header) {
      this.transform = d3.zoomIdentity;
      this.following = this.fresh = true;
    }
    const kind = app.view.axis;
    if (this.recording !== recording || this.axis?.kind !== kind) {
      if (this.axis && this.axis.kind !== kind) this.following = true;
      this.axis = new Axis(recording, kind);
      this.labels = null;
    }
    this.recording = recording;
    const height = this.size?.height ?? (this.container.clientHeight || 400);
    this.lanes = lanes(recording, height);
    this.height = Math.max(this.lanes.height, this.size ? 0 : height);
    if (this.fresh) this.transform = d3.zoomIdentity.scale(this.firstZoom());
    this.fresh = false;
    const x = this.x(this.axis.ofStep(app.step));
    if (this.following || (!this.size && app.step !== this.step && (x < LEFT + 8 || x > this.width - 60)))
      this.place(this.transform.k);
    this.step = app.step;
    this.moving.attr("transform", `translate(${LEFT + this.transform.x} 0)`);
    this.shape = `${this.transform.k} ${this.height} ${kind}`;
    this.frame();
    this.drawArrows();
    drawMarks(this);
    this.drawNow();
    this.drawNames();
  }

  frame() {
    d3.select(this.svg).attr("width", this.width).attr("height", this.height);
    d3.select(this.svg)
      .select("#plot-window rect")
      .attr("x", LEFT)
      .attr("y", 0)
      .attr("width", Math.max(0, this.width - LEFT))
      .attr("height", this.height);
    this.bands
      .selectAll("rect")
      .data(this.lanes.bands)
      .join("rect")
      .attr("x", 0)
      .attr("width", this.width)
      .attr("y", (band) => band.top)
      .attr("height", (band) => band.height)
      .attr("class", (band, number) => `band ${number % 2 ? "odd" : ""}`);
    this.drawTicks();
    this.lanelines
      .selectAll("line")
      .data(laneSegments(this))
      .join("line")
      .attr("class", (segment) => `lane ${segment.status}${segment.leads ? " leads" : ""}`)
      .attr("x1", (segment) => segment.x1)
      .attr("x2", (segment) => segment.x2)
      .attr("y1", (segment) => segment.y)
      .attr("y2", (segment) => segment.y);
  }

  drawTicks() {
    const { axis, transform } = this;
    const scale = d3
      .scaleLinear()
      .domain([-transform.x, this.width - LEFT - transform.x].map((x) => x / transform.k / axis.pixels))
      .range([LEFT, this.width]);
    const ticks = scale.ticks(Math.max(2, (this.width - LEFT) / 90)).filter((tick) => tick >= 0);
    const tick = this.ticks
      .selectAll("g")
      .data(ticks)
      .join((enter) => {
        const group = enter.append("g").attr("class", "tick");
        group.append("line");
        group.append("text");
        return group;
      });
    tick.attr("transform", (at) => `translate(${scale(at)},0)`);
    tick
      .select("line")
      .attr("y1", TOP - 6)
      .attr("y2", this.height - BOTTOM);
    tick
      .select("text")
      .attr("y", TOP - 12)
      .text((at) => (axis.kind === "steps" ? `step ${at}` : `${at}${axis.unit === "δ" ? "δ" : " ms"}`));
  }

  hidden(arrow) {
    const { view } = this.app;
    return (arrow.quiet && !view.housekeeping) || view.hiddenTypes.has(arrow.leave.type);
  }

  dim(names) {
    const { highlight } = this.app;
    return highlight && !names.includes(highlight) ? " dim" : "";
  }

  drawArrows() {
    const { axis, transform, recording } = this;
    const from = (-transform.x - 20) / transform.k;
    const to = (this.width - LEFT - transform.x + 20) / transform.k;
    const { step, links } = this.app;
    this.waiting = new Set((links ?? []).flatMap((link) => link.queue.map((letter) => `${letter.n} ${link.to}`)));
    const visible = axis
      .arrowsIn(from, to)
      .filter((arrow) => !this.hidden(arrow) && this.lanes.y.has(arrow.to) && this.isDrawn(arrow, step));
    const many = visible.length > SINGLE_ARROWS_MAX;
    this.drawMerged(many ? visible : []);
    const single = many ? visible.filter((arrow) => this.arrived(arrow)) : visible;
    this.arrows
      .selectAll("g.arrow")
      .data(single, (arrow) => arrow.key)
      .join((enter) => {
        const group = enter.append("g");
        group.append("path").attr("class", "hit");
        group.append("path").attr("class", "shaft");
        group.append("path").attr("class", "head");
        return group;
      })
      .each((arrow, number, nodes) => this.drawArrow(nodes[number], arrow));
    const key = `${transform.k} ${this.app.view.housekeeping} ${[...this.app.view.hiddenTypes]}`;
    if (this.labels?.key !== key) {
      this.labels = {
        key,
        of: labelledSends(recording, axis, transform.k, this.letter, (arrow) => this.hidden(arrow)),
      };
    }
    this.texts
      .selectAll("text")
      .data(many ? [] : visible.filter((arrow) => this.labels.of.has(arrow)))
      .join("text")
      .attr(
        "class",
        (arrow) => `send ${this.when(arrow)} ${colourClass(recording, arrow.about)}${this.dim(arrow.about)}`,
      )
      .attr("x", (arrow) => this.within(axis.of(arrow.leave)) + 4)
      .attr("y", (arrow) => this.lanes.y.get(arrow.from) - 6)
      .text(sendText);
  }

  /** What comes later may be hidden; what is under way in a live world is drawn with its letter. */
  isDrawn(arrow, step) {
    if (arrow.leave.s > step) return this.app.view.future;
    return arrow.arrival || !this.app.live || !(this.waiting.has(`${arrow.leave.n} ${arrow.to}`) || !this.app.links);
  }

  /** done, under way, or later, as of this step. */
  when(arrow) {
    const { step } = this.app;
    if (arrow.leave.s > step) return "later";
    return arrow.arrival && arrow.arrival.s > step ? "underway" : "done";
  }

  /** Its arrival is in this step. */
  arrived(arrow) {
    return arrow.arrival && arrow.arrival.s === this.app.step && !this.size;
  }

  /** Its shape is drawn anew only if that has changed; most steps change classes alone. */
  drawArrow(node, arrow) {
    const when = this.when(arrow);
    const classes = ["arrow", when, colourClass(this.recording, arrow.about)];
    if (this.arrived(arrow)) classes.push("current");
    if (!arrow.arrival) classes.push("lost");
    if (arrow.quiet) classes.push("housekeeping");
    const name = classes.join(" ") + this.dim(arrow.about);
    if (node.__name !== name) node.setAttribute("class", (node.__name = name));
    const cut = when === "underway" && !this.app.view.future;
    const shape = cut || !arrow.arrival ? `${this.shape} ${this.app.step}` : this.shape;
    if (node.__arrow === arrow && node.__shape === shape) return;
    node.__arrow = arrow;
    node.__shape = shape;
    this.shapeArrow(node, arrow, cut);
  }

  /** cut: it stops at the playhead. */
  shapeArrow(node, arrow, cut) {
    const {
      axis,
      lanes: { y },
    } = this;
    const x1 = this.within(axis.of(arrow.leave));
    const y1 = y.get(arrow.from);
    const end = this.within(axis.arrowEnd(arrow));
    const x2 = cut ? Math.max(x1, Math.min(end, this.within(axis.ofStep(this.app.step)))) : end;
    const part = cut ? Math.min(0.85, end > x1 ? (x2 - x1) / (end - x1) : 0.85) : arrow.arrival ? 1 : 0.45;
    const y2 = y1 + part * (y.get(arrow.to) - y1);
    const style = typeStyle(this.recording, arrow.leave.type);
    const line = `M${x1} ${y1}L${x2} ${y2}`;
    const turn = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI;
    const [hit, shaft, head] = node.children;
    hit.setAttribute("d", line);
    shaft.setAttribute("d", line);
    shaft.setAttribute("stroke-dasharray", style.dashes || "none");
    const unknown = this.app.live && arrow.leave.s > this.app.step;
    head.setAttribute(
      "d",
      cut || (unknown && !arrow.arrival) ? "" : arrow.arrival ? style.head : "M-4 -4L4 4M-4 4L4 -4",
    );
    head.setAttribute("class", `head${style.open || !arrow.arrival ? " open" : ""}`);
    head.setAttribute("transform", `translate(${x2} ${y2}) rotate(${turn})`);
  }

  /** One path per colour, where single arrows could not be told apart anyway. */
  drawMerged(arrows) {
    const paths = d3.groups(arrows, (arrow) => colourClass(this.recording, arrow.about) + this.dim(arrow.about));
    this.merged
      .selectAll("path")
      .data(paths)
      .join("path")
      .attr("class", ([name]) => `merged ${name}`)
      .attr("d", ([, members]) =>
        members
          .map((arrow) => {
            const x1 = this.within(this.axis.of(arrow.leave)).toFixed(1);
            const x2 = this.within(this.axis.arrowEnd(arrow)).toFixed(1);
            return `M${x1} ${this.lanes.y.get(arrow.from)}L${x2} ${this.lanes.y.get(arrow.to)}`;
          })
          .join(""),
      );
  }

  drawNow() {
    const x = this.x(this.axis.ofStep(this.app.step)) + 5;
    this.veil
      .attr("x", x)
      .attr("y", TOP - 6)
      .attr("width", Math.max(0, this.width - x))
      .attr("height", this.height - TOP - BOTTOM + 6);
    this.now
      .select("line")
      .attr("x1", x)
      .attr("x2", x)
      .attr("y1", TOP - 6)
      .attr("y2", this.height - BOTTOM);
    const places = [...new Set(this.recording.linesOf(this.app.step).map((line) => line.process))].filter((process) =>
      this.lanes.y.has(process),
    );
    this.cursor
      .selectAll("circle")
      .data(this.app.step ? places : [])
      .join("circle")
      .attr("r", 9)
      .attr("cx", x - 5)
      .attr("cy", (process) => this.lanes.y.get(process));
    drawMail(this, x);
  }

  drawNames() {
    const { app, recording } = this;
    const band = this.names
      .selectAll("text.group")
      .data(this.lanes.bands)
      .join("text")
      .attr("class", "group")
      .attr("transform", (row) => `translate(14,${row.top + row.height / 2}) rotate(-90)`);
    band.text((row) => (row.height >= 60 ? row.name : (row.group ?? "out")));
    const name = this.names
      .selectAll("g.name")
      .data(recording.processes, (process) => process)
      .join((enter) => {
        const group = enter.append("g").attr("role", "button").attr("tabindex", 0);
        group.append("rect").attr("rx", 5).attr("width", 84).attr("height", 24).attr("x", 24).attr("y", -12);
        group.append("text").attr("class", "process").attr("x", 32).attr("y", 4);
        group.append("text").attr("class", "role").attr("x", 102).attr("y", 3.5);
        group.on("click", (event, process) => this.on.process(process, event.currentTarget));
        group.on("keydown", (event, process) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          event.stopPropagation();
          this.on.process(process, event.currentTarget);
        });
        return group;
      });
    name
      .attr("transform", (process) => `translate(0,${this.lanes.y.get(process)})`)
      .attr(
        "class",
        (process) => `name ${recording.status(process, app.step)}${process === app.process ? " chosen" : ""}`,
      )
      .attr("aria-label", (process) => `process ${process}, ${this.roleOf(process)}`);
    name.select(".process").text(processName);
    name.select(".role").text((process) => (process < 100 ? shortRole(this.roleOf(process)) : ""));
  }

  roleOf(process) {
    const status = this.recording.status(process, this.app.step);
    return status === "up" ? (this.recording.state(process, this.app.step).role ?? "") : status;
  }

  // -- pointing --------------------------------------------------------------------------------------------------------

  point(event) {
    const target = event.target.closest?.(".arrow, [data-line]");
    const text = target && tip(this.recording, target.__arrow ?? null, target.dataset?.line);
    this.tip.hidden = !text;
    if (!text) return;
    this.tip.replaceChildren(...text);
    const box = this.container.getBoundingClientRect();
    const left = event.clientX - box.left;
    const top = event.clientY - box.top;
    this.tip.style.left = `${Math.min(left + 14, box.width - 300)}px`;
    this.tip.style.top = `${top > box.height / 2 ? top - this.tip.offsetHeight - 12 : top + 16}px`;
  }

  click(event) {
    const target = event.target.closest?.(".arrow, [data-line]");
    if (!target || event.defaultPrevented) return;
    const line = target.__arrow
      ? (target.__arrow.arrival ?? target.__arrow.leave)
      : this.recording.lines[target.dataset.line];
    this.on.step(line.s);
  }
}

/** What fits beside a process's name. */
function shortRole(role) {
  return role.length > 8 ? `${role.slice(0, 7)}.` : role;
}
