/** The space-time diagram: only what is in the window is drawn. */

import { h, s } from "./dom.js";
import { drawArrows } from "./arrows.js";
import { Axis, BOTTOM, LEFT, TOP, lanes } from "./layout.js";
import { drawMarks, laneSegments } from "./marks.js";
import { drawMail } from "./mail.js";
import { drawNames } from "./names.js";
import { tip } from "./tips.js";

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
    drawArrows(this);
    drawMarks(this);
    this.drawNow();
    drawNames(this);
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
