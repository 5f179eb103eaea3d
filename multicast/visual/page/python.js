/** Colours for a line of Python: enough to read it well. */

import { h } from "./dom.js";

const TOKENS =
  /(#.*$)|("""[^]*?(?:"""|$)|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\b(and|as|assert|break|class|continue|def|del|elif|else|except|False|finally|for|from|if|import|in|is|lambda|None|nonlocal|not|or|pass|raise|return|self|True|try|while|with|yield)\b|\b(\d+)\b/g;
const KINDS = [null, "comment", "string", "keyword", "literal"];

export function highlightPython(text) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(TOKENS)) {
    parts.push(
      text.slice(end, found.index),
      h("span", { class: `py-${KINDS[found.findIndex((part, number) => number && part)]}` }, found[0]),
    );
    end = found.index + found[0].length;
  }
  return [...parts, text.slice(end)];
}
