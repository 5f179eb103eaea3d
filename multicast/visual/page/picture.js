/** The diagram as it stands on the page, as an SVG file for papers and slides: every element has its colours and lines
 *  as attributes, which all programs that read SVG understand. */

import { s } from "./dom.js";

const PROPERTIES = ["fill", "stroke", "stroke-width", "stroke-linejoin", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "paint-order", "visibility"];
const INITIAL = { stroke: "none", "stroke-linejoin": "miter", "stroke-dasharray": "none", opacity: "1", "text-anchor": "start", "paint-order": "normal", visibility: "visible" };

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
  const names = copy.tagName === "g" || copy.tagName === "svg" ? ["opacity"] : PROPERTIES;
  const style = getComputedStyle(element);
  for (const name of names) {
    const value = style.getPropertyValue(name);
    if (value && value !== INITIAL[name]) copy.setAttribute(name, value);
  }
  for (const name of ["tabindex", "role", "aria-label", "data-line"]) copy.removeAttribute(name);
  const children = [...element.childNodes].filter((child) => !child.classList?.contains("hit") && (!child.style || getComputedStyle(child).display !== "none"));
  copy.append(...children.map((child) => (child.nodeType === Node.ELEMENT_NODE ? plain(child) : child.cloneNode())));
  return copy;
}
