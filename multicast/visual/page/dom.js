/** Small helpers for the document. Nothing here knows about runs. */

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: attributes (functions listen to events, false and null are left out), then children. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Put children into an element, and the focus back on the control that had it (same `data-key`). */
export function show(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  element.replaceChildren(...children.flat(Infinity).filter((child) => child));
  if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

const ICONS = {
  start: "M4 3h2v10H4zM13 3v10L6.5 8z",
  back: "M11 3v10L4 8z",
  play: "M5 2.5v11l8-5.5z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  step: "M5 3v10l7-5z",
  delivery: "M3 3v10l6-5zM12.5 4.2 15 8l-2.5 3.8L10 8z",
  end: "M3 3v10l6.5-5zM10 3h2v10h-2z",
  close: "M4 3 3 4l4 4-4 4 1 1 4-4 4 4 1-1-4-4 4-4-1-1-4 4z",
  theme: "M8 2a6 6 0 1 0 0 12zM8 1a7 7 0 1 1 0 14A7 7 0 0 1 8 1z",
  list: "M2 3h12v2H2zM2 7h12v2H2zM2 11h12v2H2z",
  letter: "M1.5 3.5h13v9h-13zM1.5 3.5 8 9l6.5-5.5",
};

/** A picture for a button; the button carries the label. */
export function icon(name) {
  return s("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, s("path", { d: ICONS[name] }));
}

/** Give the browser a file to save. */
export function save(name, type, text) {
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
