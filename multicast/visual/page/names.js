/** What stands at the left of the lanes. */

import { processName } from "./words.js";

/** The processes at the left, which can be chosen, and their groups. */
export function drawNames(diagram) {
  const { app, recording } = diagram;
  const band = diagram.names
    .selectAll("text.group")
    .data(diagram.lanes.bands)
    .join("text")
    .attr("class", "group")
    .attr("transform", (row) => `translate(14,${row.top + row.height / 2}) rotate(-90)`);
  band.text((row) => (row.height >= 60 ? row.name : (row.group ?? "out")));
  const name = diagram.names
    .selectAll("g.name")
    .data(recording.processes, (process) => process)
    .join((enter) => {
      const group = enter.append("g").attr("role", "button").attr("tabindex", 0);
      group.append("rect").attr("rx", 5).attr("width", 84).attr("height", 24).attr("x", 24).attr("y", -12);
      group.append("text").attr("class", "process").attr("x", 32).attr("y", 4);
      group.append("text").attr("class", "role").attr("x", 102).attr("y", 3.5);
      group.on("click", (event, process) => diagram.on.process(process, event.currentTarget));
      group.on("keydown", (event, process) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        diagram.on.process(process, event.currentTarget);
      });
      return group;
    });
  name
    .attr("transform", (process) => `translate(0,${diagram.lanes.y.get(process)})`)
    .attr(
      "class",
      (process) => `name ${recording.status(process, app.step)}${process === app.process ? " chosen" : ""}`,
    )
    .attr("aria-label", (process) => `process ${process}, ${roleOf(diagram, process)}`);
  name.select(".process").text(processName);
  name.select(".role").text((process) => (process < 100 ? shortRole(roleOf(diagram, process)) : ""));
}

function roleOf(diagram, process) {
  const status = diagram.recording.status(process, diagram.app.step);
  return status === "up" ? (diagram.recording.state(process, diagram.app.step).role ?? "") : status;
}

/** What fits beside a process's name. */
function shortRole(role) {
  return role.length > 8 ? `${role.slice(0, 7)}.` : role;
}
