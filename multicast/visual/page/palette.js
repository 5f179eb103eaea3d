/** Colours by multicast and line styles by message type: classes that the style sheet knows. Never colour alone: a
 *  multicast is named on its arrows, a type has dashes and a head of its own. */

const COLOURS = 7;
const DASHES = ["", "7 3", "2 3", "10 3 2 3", "1 4", "5 2 1 2 1 2", "14 4", "3 6"];
const HEADS = ["M0 0L-9 4L-9 -4Z", "M0 0L-9 4M0 0L-9 -4", "M0 0L-5 4L-10 0L-5 -4Z"];

/** The class of everything that belongs to a multicast; one of several multicasts has the neutral one. */
export function colourClass(recording, names) {
  if (names.length !== 1) return "c-none";
  const known = recording.multicasts.get(names[0]);
  return known ? `c${known.number % COLOURS}` : "c-none";
}

/** How arrows of a message type are drawn: `dashes`, and the path of the `head`, which is filled or not. */
export function typeStyle(recording, type) {
  const number = recording.types.indexOf(type);
  if (number < 0) return { dashes: "1 3", head: HEADS[1], open: true };
  const head = Math.floor(number / DASHES.length + number) % HEADS.length;
  return { dashes: DASHES[number % DASHES.length], head: HEADS[head], open: head === 1 };
}
