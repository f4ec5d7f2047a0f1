// What the reader has done: one plain value, changed only by `reduce`.

import type { FactName } from "../drawing/look";
import { ROW_GAP } from "../layout/layout";
import type { MetricName } from "../model/measures";
import type { ThemeChoice } from "../../shared/theme";

/** Something of the graph, by its key; `side` says which of two compared models. Edges are between items of a view. */
export type Selection =
  { kind: "unit" | "box"; key: string; side: number } | { kind: "edge"; from: string; to: string; side: number };
type Trace = "none" | "ancestors" | "descendants" | "both";
export type Part = "tree" | "panel" | "table" | "help" | "differences";

export interface State {
  rolled: boolean;
  hasPlumbing: boolean; // shape functions, masks and the like are drawn
  open: ReadonlySet<string>;
  shown: ReadonlyMap<string, number | "all">;
  selection: Selection | null;
  other: Selection | null; // the second end of a path
  trace: Trace;
  query: string;
  match: number; // which of the results; -1 for none yet
  metric: MetricName;
  scale: "auto" | "linear" | "log";
  facts: ReadonlySet<FactName>;
  spacing: number; // between rows
  isAcross: boolean; // from left to right
  theme: ThemeChoice;
  parts: ReadonlySet<Part>; // what is open beside the graph
}

export type Action =
  | { type: "open"; keys: Iterable<string>; shown?: ReadonlyMap<string, number | "all"> }
  | { type: "close"; keys: Iterable<string> }
  | { type: "openness"; open: ReadonlySet<string>; shown: ReadonlyMap<string, number | "all">; spacing?: number }
  | { type: "show"; run: string; block: number | "all" }
  | { type: "roll"; rolled: boolean; hasPlumbing: boolean; open: ReadonlySet<string>; selection: Selection | null }
  | { type: "select"; selection: Selection | null }
  | { type: "path"; to: Selection }
  | { type: "trace"; trace: Trace }
  | { type: "query"; query: string }
  | { type: "match"; match: number }
  | { type: "metric"; metric: MetricName }
  | { type: "scale"; scale: State["scale"] }
  | { type: "fact"; fact: FactName; isShown: boolean }
  | { type: "across"; isAcross: boolean }
  | { type: "theme"; theme: ThemeChoice }
  | { type: "part"; part: Part; isOpen: boolean };

export const SHOW_DETAILS: Action = { type: "part", part: "panel", isOpen: true };
export const HIDE_DETAILS: Action = { type: "part", part: "panel", isOpen: false };

export const INITIAL: State = {
  rolled: false,
  hasPlumbing: false,
  open: new Set(),
  shown: new Map(),
  selection: null,
  other: null,
  trace: "none",
  query: "",
  match: -1,
  metric: "type",
  scale: "auto",
  facts: new Set<FactName>(["name", "shape", "params"]),
  spacing: ROW_GAP,
  isAcross: false,
  theme: "auto",
  parts: new Set<Part>(["tree"]),
};

/** The state after an action. Returns the same object when nothing changes. */
export function reduce(state: State, action: Action): State {
  switch (action.type) {
    case "open":
      return opened(state, action.keys, action.shown);
    case "close": {
      const open = new Set(state.open);
      let isChanged = false;
      for (const key of action.keys) isChanged = open.delete(key) || isChanged;
      return isChanged ? { ...state, open } : state;
    }
    case "openness":
      return { ...state, open: action.open, shown: action.shown, spacing: action.spacing ?? state.spacing };
    case "show":
      if (state.shown.get(action.run) === action.block) return state;
      return { ...state, shown: new Map(state.shown).set(action.run, action.block) };
    case "roll":
      if (state.rolled === action.rolled && state.hasPlumbing === action.hasPlumbing) return state;
      const { rolled, hasPlumbing, open, selection } = action;
      return { ...state, rolled, hasPlumbing, open, selection, other: null };
    case "select":
      if (isSame(state.selection, action.selection) && !state.other) return state;
      return { ...state, selection: action.selection, other: null, trace: action.selection ? state.trace : "none" };
    case "path":
      return canEnd(action.to, state.selection)
        ? { ...state, other: action.to, trace: "none" }
        : { ...state, selection: action.to, other: null };
    case "trace":
      return { ...state, trace: state.trace === action.trace ? "none" : action.trace, other: null };
    case "query":
      return state.query === action.query ? state : { ...state, query: action.query, match: -1 };
    case "match":
      return { ...state, match: action.match };
    case "metric":
      return { ...state, metric: action.metric, scale: "auto" };
    case "scale":
      return { ...state, scale: action.scale };
    case "fact":
      return { ...state, facts: changed(state.facts, action.fact, action.isShown) };
    case "across":
      return state.isAcross === action.isAcross ? state : { ...state, isAcross: action.isAcross };
    case "theme":
      return { ...state, theme: action.theme };
    case "part":
      if (state.parts.has(action.part) === action.isOpen) return state;
      return { ...state, parts: changed(state.parts, action.part, action.isOpen) };
  }
}

/** What is traced when ancestors or descendants are switched on or off. */
export function toggledTrace(now: Trace, wanted: "ancestors" | "descendants"): Trace {
  const other = wanted === "ancestors" ? "descendants" : "ancestors";
  if (now === "both") return other;
  return now === wanted ? "none" : now === other ? "both" : wanted;
}

/** What is written on boxes: what was chosen, and the figure they are coloured by. */
export function factsShown(state: State): ReadonlySet<FactName> {
  if (state.metric === "type" || state.facts.has(state.metric)) return state.facts;
  return new Set([...state.facts, state.metric]);
}

export function isSame(one: Selection | null, other: Selection | null): boolean {
  if (one === null || other === null) return one === other;
  if (one.side !== other.side) return false;
  if (one.kind === "edge" || other.kind === "edge") {
    return one.kind === "edge" && other.kind === "edge" && one.from === other.from && one.to === other.to;
  }
  return one.kind === other.kind && one.key === other.key;
}

/** Whether a path can lead from one selection to another. */
function canEnd(to: Selection, from: Selection | null): boolean {
  return from !== null && from.kind !== "edge" && from.side === to.side && !isSame(from, to);
}

function opened(state: State, keys: Iterable<string>, shown?: ReadonlyMap<string, number | "all">): State {
  const open = new Set(state.open);
  for (const key of keys) open.add(key);
  const now = new Map([...state.shown, ...(shown ?? [])]);
  const isChanged = open.size !== state.open.size || [...now].some(([key, block]) => state.shown.get(key) !== block);
  return isChanged ? { ...state, open, shown: now } : state;
}

function changed<T>(set: ReadonlySet<T>, value: T, isIn: boolean): ReadonlySet<T> {
  const next = new Set(set);
  if (isIn) next.add(value);
  else next.delete(value);
  return next;
}
