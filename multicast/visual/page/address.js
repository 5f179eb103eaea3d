/** The address of what is shown: the server's fragment, and the step behind it. */

/** [fragment without #, step or null]. */
export function readAddress() {
  const text = location.hash.replace(/^#/, "");
  const found = text.match(/^(.*?)(?:&at=(\d+))?$/);
  return [found[1], found[2] === undefined ? null : Number(found[2])];
}

/** Show it in the address line. A new run is a new entry of the history, a new step is not. */
export function writeAddress(fragment, step, isNew) {
  if (!fragment) return;
  const hash = `#${fragment}&at=${step}`;
  if (hash === location.hash) return;
  if (isNew) history.pushState(null, "", hash);
  else history.replaceState(null, "", hash);
}
