/** Messages under way in a live world: an envelope at the lane it will arrive at; a click lets it arrive. */

import { LEFT } from "./layout.js";
import { colourClass } from "./palette.js";
import { processName } from "./words.js";

const WIDTH = 62;
const HEIGHT = 20;

/** Every link offers its head; how many wait behind it stands beside it. */
export function drawMail(diagram, x) {
  const { app, recording, lanes } = diagram;
  const inQueue = new Map();
  const letters = (app.links ?? []).filter((link) => link.queue.length && lanes.y.has(link.to)).map((link) => {
    const place = inQueue.get(link.to) ?? 0;
    inQueue.set(link.to, place + 1);
    return { ...link, head: link.queue[0], left: x + 14 + place * (WIDTH + 8), y: lanes.y.get(link.to) };
  });
  const letter = diagram.mail.selectAll("g").data(letters, (link) => `${link.from} ${link.to}`).join((enter) => {
    const group = enter.append("g").attr("role", "button").attr("tabindex", 0);
    group.append("path").attr("class", "way");
    group.append("rect").attr("class", "behind").attr("width", WIDTH).attr("height", HEIGHT).attr("rx", 3).attr("x", 3).attr("y", -HEIGHT / 2 - 3);
    group.append("rect").attr("class", "face").attr("width", WIDTH).attr("height", HEIGHT).attr("rx", 3).attr("y", -HEIGHT / 2);
    group.append("text").attr("x", 5).attr("y", 4);
    group.on("click", (event, link) => {
      event.preventDefault();
      if (!link.cut) diagram.on.deliver(link.from, link.to);
    });
    group.on("keydown", (event, link) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      if (!link.cut) diagram.on.deliver(link.from, link.to);
    });
    return group;
  });
  letter.attr("class", (link) => `letter ${colourClass(recording, link.head.about ?? [])}${link.cut ? " cut" : ""}${diagram.dim(link.head.about ?? [])}`)
    .attr("transform", (link) => `translate(${link.left} ${link.y})`)
    .attr("aria-label", (link) => `${link.cut ? "The link is cut: " : "Let it arrive: "}${link.head.type} ${(link.head.about ?? []).join(" ")} from process ${link.from} to process ${link.to}`);
  letter.select(".behind").attr("visibility", (link) => (link.queue.length > 1 ? "visible" : "hidden"));
  letter.select("text").text((link) => letterText(link));
  letter.select(".way").attr("d", (link) => {
    const leave = recording.arrows.find((arrow) => arrow.leave.n === link.head.n && arrow.to === link.to);
    if (!leave) return "";
    const from = diagram.x(diagram.axis.of(leave.leave)) - link.left;
    return `M${Math.max(from, LEFT - link.left)} ${lanes.y.get(link.from) - link.y}L0 0`;
  });
}

function letterText({ head, from, queue, cut }) {
  const name = head.about?.length ? head.about.join(" ") : head.type;
  const more = queue.length > 1 ? ` +${queue.length - 1}` : "";
  return `${cut ? "⊘ " : ""}${name.slice(0, 6)} ←${processName(from)}${more}`.slice(0, 14);
}
