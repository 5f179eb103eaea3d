/** The diagram as it stands on the page, as an SVG file for papers and slides: every element has its colours and lines
 *  as attributes, which all programs that read SVG understand. */

import { s } from "./dom.js";

const LINES = ["fill", "stroke", "stroke-width", "stroke-linejoin", "stroke-dasharray", "opacity", "visibility"];
const LETTERS = ["font-family", "font-size", "font-weight", "text-anchor", "paint-order"];
const PROPERTIES = { g: ["opacity"], svg: [], text: [...LINES, ...LETTERS] };
const INITIAL = {
  stroke: "none",
  "stroke-linejoin": "miter",
  "stroke-dasharray": "none",
  opacity: "1",
  "text-anchor": "start",
  "paint-order": "normal",
  visibility: "visible",
};

/** The text of the file. */
export function picture(svg, title) {
  const copy = plain(svg);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("viewBox", `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`);
  const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim();
  copy.prepend(s("title", {}, title), s("rect", { width: "100%", height: "100%", fill: paper }));
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

/** A copy without what only the page needs. */
function plain(element) {
  const copy = element.cloneNode(false);
  const style = getComputedStyle(element);
  for (const name of PROPERTIES[copy.tagName] ?? LINES) {
    const value = style.getPropertyValue(name);
    const idle = name.startsWith("stroke-") && style.stroke === "none";
    if (value && value !== INITIAL[name] && !idle) copy.setAttribute(name, value);
  }
  for (const name of ["class", "tabindex", "role", "aria-label", "data-line"]) copy.removeAttribute(name);
  const children = [...element.childNodes].filter(
    (child) => !child.classList?.contains("hit") && (!child.style || getComputedStyle(child).display !== "none"),
  );
  copy.append(...children.map((child) => (child.nodeType === Node.ELEMENT_NODE ? plain(child) : child.cloneNode())));
  return copy;
}
