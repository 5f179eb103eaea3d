/** The diagram as it stands on the page, as an SVG file for papers and slides. */

import { s } from "./dom.js";

const PROPERTIES = /var\((--[\w-]+)\)/g;

/** The text of the file. Its colours are those that the page has now. */
export function picture(svg, title) {
  const copy = svg.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("viewBox", `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`);
  for (const name of ["tabindex", "role"]) copy.querySelectorAll(`[${name}]`).forEach((element) => element.removeAttribute(name));
  copy.querySelectorAll(".hit").forEach((element) => element.remove());
  const paper = s("rect", { width: "100%", height: "100%", class: "paper" });
  copy.prepend(s("title", {}, title), s("style", {}, rules()), paper);
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

/** The rules about the diagram, with values for custom properties. */
function rules() {
  const style = getComputedStyle(document.documentElement);
  const all = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).flatMap(applied);
  return all.filter((rule) => rule.selectorText?.includes(".diagram"))
    .map((rule) => rule.cssText.replace(PROPERTIES, (use, name) => style.getPropertyValue(name).trim() || use)).join("\n");
}

/** What a rule for some screens contains, if it is for this one. */
function applied(rule) {
  if (!rule.media) return [rule];
  return matchMedia(rule.media.mediaText).matches ? [...rule.cssRules] : [];
}
