/** Messages under way in a live world: an envelope at the lane it will arrive at; a click lets it arrive. */

import { LEFT } from "./layout.js";
import { colourClass } from "./palette.js";
import { processName } from "./words.js";

const HEIGHT = 19;
const GAP = 6;
const ROWS = 2;

/** Every link offers its head; how many wait behind it stands beside it. */
export function drawMail(diagram, x) {
  const { app, recording, lanes } = diagram;
  const letters = arranged(
    (app.links ?? []).filter((link) => link.queue.length && lanes.y.has(link.to)),
    diagram,
    x + 14,
  );
  const letter = diagram.mail
    .selectAll("g")
    .data(letters, (link) => `${link.from} ${link.to}`)
    .join((enter) => {
      const group = enter.append("g").attr("role", "button").attr("tabindex", 0);
      group.append("path").attr("class", "way");
      group
        .append("rect")
        .attr("class", "behind")
        .attr("height", HEIGHT)
        .attr("rx", 3)
        .attr("x", 3)
        .attr("y", -HEIGHT / 2 - 3);
      group
        .append("rect")
        .attr("class", "face")
        .attr("height", HEIGHT)
        .attr("rx", 3)
        .attr("y", -HEIGHT / 2);
      group.append("text").attr("x", 5).attr("y", 4);
      group.on("click", (event, link) => {
        event.preventDefault();
        if (!link.blocked) diagram.on.deliver(link.from, link.to);
      });
      group.on("keydown", (event, link) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        if (!link.blocked) diagram.on.deliver(link.from, link.to);
      });
      return group;
    });
  letter
    .attr(
      "class",
      (link) =>
        `letter ${colourClass(recording, link.head.about ?? [])}${link.blocked ? " blocked" : ""}${diagram.dim(link.head.about ?? [])}`,
    )
    .attr("transform", (link) => `translate(${link.left} ${link.y})`)
    .attr(
      "aria-label",
      (link) =>
        `${link.cut ? "The link is cut: " : link.blocked ? "It waits: " : "Let it arrive: "}${link.head.type} ${(link.head.about ?? []).join(" ")} from process ${link.from} to process ${link.to}`,
    );
  letter.select(".behind").attr("visibility", (link) => (link.queue.length > 1 ? "visible" : "hidden"));
  for (const part of [".behind", ".face"]) letter.select(part).attr("width", (link) => link.width);
  letter.select("text").text((link) => link.text);
  letter.select(".way").attr("d", (link) => {
    const leave = recording.arrows.find((arrow) => arrow.leave.n === link.head.n && arrow.to === link.to);
    if (!leave) return "";
    const from = diagram.x(diagram.axis.of(leave.leave)) - link.left;
    return `M${Math.max(from, LEFT - link.left)} ${lanes.y.get(link.from) - link.y}L0 0`;
  });
}

/** The letters of each lane from left to right, in two rows if there are many. */
function arranged(links, diagram, left) {
  const { lanes } = diagram;
  const found = [];
  for (const [to, letters] of d3.group(links, (link) => link.to)) {
    const rows = letters.length > ROWS && lanes.lane >= ROWS * (HEIGHT + GAP) ? ROWS : 1;
    const ends = new Array(rows).fill(left);
    letters.forEach((link, number) => {
      const row = number % rows;
      const blocked = link.cut || diagram.recording.status(to, diagram.app.step) !== "up";
      const text = letterText(link);
      const width = (diagram.letter + 1.2) * text.length + 10;
      found.push({
        ...link,
        blocked,
        head: link.queue[0],
        text,
        width,
        left: ends[row],
        y: lanes.y.get(to) + (row - (rows - 1) / 2) * (HEIGHT + GAP),
      });
      ends[row] += width + GAP;
    });
  }
  return found;
}

function letterText({ from, queue, cut }) {
  const head = queue[0];
  const name = head.about?.length ? head.about.join(" ") : head.type;
  const more = queue.length > 1 ? ` +${queue.length - 1}` : "";
  return `${cut ? "⊘ " : ""}${name.slice(0, 8)} ←${processName(from)}${more}`;
}
