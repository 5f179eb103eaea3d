/** Borders between panes that can be dragged, or moved with arrow keys. */

import { h } from "./dom.js";

const KEY_STEP = 24;

/** A border that sets a custom property of the page (pixels). grows: 1 if dragging right or down makes it more. */
export function splitter(container, { property, label, horizontal, grows, least, most, first }) {
  let size = Number(stored(property)) || first;
  const set = (value) => {
    size = Math.max(least, Math.min(most(), value));
    document.documentElement.style.setProperty(property, `${size}px`);
    bar.setAttribute("aria-valuenow", Math.round(size));
    store(property, size);
  };
  const bar = h("div", {
    class: `splitter ${horizontal ? "horizontal" : "vertical"}`,
    role: "separator",
    tabindex: 0,
    "aria-label": label,
    "aria-orientation": horizontal ? "horizontal" : "vertical",
    "aria-valuemin": least,
    "aria-valuemax": Math.round(most()),
    onpointerdown: (event) => {
      bar.setPointerCapture(event.pointerId);
      const from = horizontal ? event.clientY : event.clientX;
      const before = size;
      bar.onpointermove = (move) => set(before + grows * ((horizontal ? move.clientY : move.clientX) - from));
      bar.onpointerup = () => (bar.onpointermove = null);
    },
    onkeydown: (event) => {
      const way = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      if (way) set(size + grows * way * KEY_STEP);
    },
  });
  container.append(bar);
  set(size);
}

/** Of this browser; where nothing can be kept, nothing is. */
export function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function store(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // A file opened from disk may not keep anything.
  }
}
