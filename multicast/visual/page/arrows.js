/** Messages in the space-time diagram. */

import { LEFT, labelledSends, sendText } from "./layout.js";
import { colourClass, typeStyle } from "./palette.js";

const SINGLE_ARROWS_MAX = 900;

/** The arrows that touch the window, and what is written beside them. */
export function drawArrows(diagram) {
  const { axis, transform, recording } = diagram;
  const from = (-transform.x - 20) / transform.k;
  const to = (diagram.width - LEFT - transform.x + 20) / transform.k;
  const { step, links } = diagram.app;
  diagram.waiting = new Set((links ?? []).flatMap((link) => link.queue.map((letter) => `${letter.n} ${link.to}`)));
  const visible = axis
    .arrowsIn(from, to)
    .filter((arrow) => !diagram.hidden(arrow) && diagram.lanes.y.has(arrow.to) && isDrawn(diagram, arrow, step));
  const many = visible.length > SINGLE_ARROWS_MAX;
  drawMerged(diagram, many ? visible : []);
  const single = many ? visible.filter((arrow) => arrived(diagram, arrow)) : visible;
  diagram.arrows
    .selectAll("g.arrow")
    .data(single, (arrow) => arrow.key)
    .join((enter) => {
      const group = enter.append("g");
      group.append("path").attr("class", "hit");
      group.append("path").attr("class", "shaft");
      group.append("path").attr("class", "head");
      return group;
    })
    .each((arrow, number, nodes) => drawArrow(diagram, nodes[number], arrow));
  const key = `${transform.k} ${diagram.app.view.housekeeping} ${[...diagram.app.view.hiddenTypes]}`;
  if (diagram.labels?.key !== key) {
    const of = labelledSends(recording, axis, transform.k, diagram.letter, (arrow) => diagram.hidden(arrow));
    diagram.labels = { key, of };
  }
  const named = (arrow) => diagram.labels.of.get(arrow);
  diagram.texts
    .selectAll("text")
    .data(many ? [] : visible.filter((arrow) => diagram.labels.of.has(arrow)))
    .join("text")
    .attr(
      "class",
      (arrow) => `send ${progress(diagram, arrow)} ${colourClass(recording, named(arrow))}${diagram.dim(named(arrow))}`,
    )
    .attr("x", (arrow) => diagram.within(axis.of(arrow.leave)) + 4)
    .attr("y", (arrow) => diagram.lanes.y.get(arrow.from) - 6)
    .text((arrow) => sendText(arrow.leave.type, named(arrow)));
}

/** What comes later may be hidden; what is under way in a live world is drawn with its letter. */
function isDrawn(diagram, arrow, step) {
  if (arrow.leave.s > step) return diagram.app.view.future;
  return (
    arrow.arrival || !diagram.app.live || !(diagram.waiting.has(`${arrow.leave.n} ${arrow.to}`) || !diagram.app.links)
  );
}

/** done, under way, or later, as of this step. */
function progress(diagram, arrow) {
  const { step } = diagram.app;
  if (arrow.leave.s > step) return "later";
  return arrow.arrival && arrow.arrival.s > step ? "underway" : "done";
}

/** Its arrival is in this step. */
function arrived(diagram, arrow) {
  return arrow.arrival && arrow.arrival.s === diagram.app.step && !diagram.size;
}

/** Its shape is drawn anew only if that has changed; most steps change classes alone. */
function drawArrow(diagram, node, arrow) {
  const when = progress(diagram, arrow);
  const classes = ["arrow", when, colourClass(diagram.recording, arrow.about)];
  if (arrived(diagram, arrow)) classes.push("current");
  if (!arrow.arrival) classes.push("lost");
  if (arrow.quiet) classes.push("housekeeping");
  const name = classes.join(" ") + diagram.dim(arrow.about);
  if (node.__name !== name) node.setAttribute("class", (node.__name = name));
  const cut = when === "underway" && !diagram.app.view.future;
  const shape = cut || !arrow.arrival ? `${diagram.shape} ${diagram.app.step}` : diagram.shape;
  if (node.__arrow === arrow && node.__shape === shape) return;
  node.__arrow = arrow;
  node.__shape = shape;
  shapeArrow(diagram, node, arrow, cut);
}

/** cut: it stops at the playhead. */
function shapeArrow(diagram, node, arrow, cut) {
  const {
    axis,
    lanes: { y },
  } = diagram;
  const x1 = diagram.within(axis.of(arrow.leave));
  const y1 = y.get(arrow.from);
  const end = diagram.within(axis.arrowEnd(arrow));
  const x2 = cut ? Math.max(x1, Math.min(end, diagram.within(axis.ofStep(diagram.app.step)))) : end;
  const part = cut ? Math.min(0.85, end > x1 ? (x2 - x1) / (end - x1) : 0.85) : arrow.arrival ? 1 : 0.45;
  const y2 = y1 + part * (y.get(arrow.to) - y1);
  const style = typeStyle(diagram.recording, arrow.leave.type);
  const line = `M${x1} ${y1}L${x2} ${y2}`;
  const turn = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI;
  const [hit, shaft, head] = node.children;
  hit.setAttribute("d", line);
  shaft.setAttribute("d", line);
  shaft.setAttribute("stroke-dasharray", style.dashes || "none");
  const unknown = diagram.app.live && arrow.leave.s > diagram.app.step;
  head.setAttribute("d", cut || (unknown && !arrow.arrival) ? "" : arrow.arrival ? style.head : "M-4 -4L4 4M-4 4L4 -4");
  head.setAttribute("class", `head${style.open || !arrow.arrival ? " open" : ""}`);
  head.setAttribute("transform", `translate(${x2} ${y2}) rotate(${turn})`);
}

/** One path per colour, where single arrows could not be told apart anyway. */
function drawMerged(diagram, arrows) {
  const paths = d3.groups(arrows, (arrow) => colourClass(diagram.recording, arrow.about) + diagram.dim(arrow.about));
  diagram.merged
    .selectAll("path")
    .data(paths)
    .join("path")
    .attr("class", ([name]) => `merged ${name}`)
    .attr("d", ([, members]) =>
      members
        .map((arrow) => {
          const x1 = diagram.within(diagram.axis.of(arrow.leave)).toFixed(1);
          const x2 = diagram.within(diagram.axis.arrowEnd(arrow)).toFixed(1);
          return `M${x1} ${diagram.lanes.y.get(arrow.from)}L${x2} ${diagram.lanes.y.get(arrow.to)}`;
        })
        .join(""),
    );
}
