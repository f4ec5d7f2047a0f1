// What the reader prefers, remembered by the browser where it allows that.

import { FACT_TITLES, type FactName } from "../drawing/look";
import type { State, ThemeChoice } from "./state";

const KEY = "torcheer-viewer";

export function loadChoices(): Partial<State> {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    if (typeof found !== "object" || found === null) return {};
    const { theme, facts } = found as { theme?: unknown; facts?: unknown };
    const choices: Partial<State> = {};
    if (theme === "light" || theme === "dark") choices.theme = theme;
    if (Array.isArray(facts))
      choices.facts = new Set(facts.filter((fact): fact is FactName => typeof fact === "string" && fact in FACT_TITLES));
    return choices;
  } catch {
    return {}; // a frame without storage, or something else under the key
  }
}

let saved: { theme: ThemeChoice; facts: State["facts"] } | null = null;

export function saveChoices(state: State): void {
  if (saved?.theme === state.theme && saved.facts === state.facts) return;
  const isFirst = saved === null;
  saved = { theme: state.theme, facts: state.facts };
  if (isFirst) return; // nothing was chosen yet
  try {
    localStorage.setItem(KEY, JSON.stringify({ theme: state.theme, facts: [...state.facts] }));
  } catch {
    // a frame without storage
  }
}
