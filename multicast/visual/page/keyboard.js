/** Keys. They work wherever no text is being typed. */

export const KEYS = [
  ["Space", "play or pause"],
  ["→", "one step"],
  ["←", "one step back"],
  ["Shift →", "to the next delivery"],
  ["Shift ←", "to the delivery before"],
  ["Home", "to the beginning"],
  ["End", "to the end"],
  ["1 2 3 4", "processes, order, figures, act"],
  ["+ − 0", "zoom in, out, the whole run"],
  ["T", "time or steps from left to right"],
  ["F", "show what comes, or hide it"],
  ["H", "show housekeeping, or hide it"],
  ["V", "to the violation"],
  ["Esc", "drop the highlight"],
  ["?", "this help"],
];

/** on: the actions by name. */
export function listen(on) {
  const actions = {
    " ": on.play,
    ArrowRight: on.step,
    ArrowLeft: on.back,
    "Shift+ArrowRight": on.delivery,
    "Shift+ArrowLeft": on.deliveryBefore,
    Home: on.start,
    End: on.end,
    "+": () => on.zoom(1.5),
    "=": () => on.zoom(1.5),
    "-": () => on.zoom(1 / 1.5),
    0: on.fit,
    t: on.axis,
    f: on.future,
    h: on.housekeeping,
    v: on.violation,
    Escape: on.drop,
    "?": on.help,
    1: () => on.tab("processes"),
    2: () => on.tab("order"),
    3: () => on.tab("figures"),
    4: () => on.tab("act"),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.closest("input:not([type=range]):not([type=checkbox]), select, textarea");
    const pressing = event.key === " " && event.target.closest("button, input, [role=button]");
    if (typing || pressing) return;
    const name =
      event.shiftKey && event.key.startsWith("Arrow")
        ? `Shift+${event.key}`
        : event.key.length === 1
          ? event.key.toLowerCase()
          : event.key;
    if (!actions[name]) return;
    if (event.target.closest(".splitter") && event.key.startsWith("Arrow")) return;
    event.preventDefault();
    actions[name]();
  });
}
