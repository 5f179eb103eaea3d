/** The name of a multicast in its colour. A click shows what belongs to it. */

import { h } from "./dom.js";
import { colourClass } from "./palette.js";

export function chip(recording, name, highlight, more = {}) {
  return h(
    "button",
    {
      ...more,
      class: `chip ${colourClass(recording, [name])} ${more.class ?? ""}`,
      "data-key": more["data-key"] ?? `chip-${name}`,
      title: more.title ?? `Show what belongs to ${name}`,
      onclick: () => highlight(name),
    },
    name,
    more.text ?? null,
  );
}
