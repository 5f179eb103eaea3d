/** Dark and light: what the system says, until somebody chooses. */

import { store, stored } from "./panes.js";

export function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}

export function startTheme() {
  setTheme(stored("theme"));
}

export function switchTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const next = (document.documentElement.dataset.theme ?? system) === "dark" ? "light" : "dark";
  setTheme(next);
  store("theme", next);
}
