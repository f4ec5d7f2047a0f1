// What the reader prefers, remembered by the browser where it allows that.

import { isRecord } from "../../shared/filling";
import { asChoice, remember, remembered } from "../../shared/theme";
import { FACT_TITLES, type FactName } from "../drawing/look";
import type { State } from "./state";

const KEY = "torcheer-viewer";

export function loadChoices(): Partial<State> {
  const found = remembered(KEY);
  if (!isRecord(found)) return {};
  const { theme, facts } = found;
  const known = (fact: unknown): fact is FactName => typeof fact === "string" && fact in FACT_TITLES;
  return { theme: asChoice(theme), ...(Array.isArray(facts) ? { facts: new Set(facts.filter(known)) } : {}) };
}

let saved: Pick<State, "theme" | "facts"> | null = null;

export function saveChoices(state: State): void {
  if (saved?.theme === state.theme && saved.facts === state.facts) return;
  const isFirst = saved === null;
  saved = { theme: state.theme, facts: state.facts };
  if (!isFirst) remember(KEY, { theme: state.theme, facts: [...state.facts] }); // at first nothing was chosen yet
}
