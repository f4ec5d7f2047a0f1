// What a picture is made of: a scene, its colours, and what is marked in it.

import type { Theme } from "../../shared/color";
import type { Coloring, Palette } from "./coloring";
import type { Scene } from "../layout/scene";

export interface Rect {
  x: number;
  y: number;
  w: number;
  h: number;
}

/** Left, top, width and height of every item. */
export interface Places {
  x: Float64Array;
  y: Float64Array;
  w: Float64Array;
  h: Float64Array;
}

export function emptyPlaces(count: number): Places {
  return { x: new Float64Array(count), y: new Float64Array(count), w: new Float64Array(count), h: new Float64Array(count) };
}

export function rectOf({ x, y, w, h }: Places, item: number): Rect {
  return { x: x[item]!, y: y[item]!, w: w[item]!, h: h[item]! };
}

/** How an item differs from its counterpart in the other model. */
export type Mark = "" | "left" | "right" | "changed";

export interface Marks {
  selected: number; // items; -1 for none
  other: number;
  hovered: number;
  focusedMatch: number;
  links: ReadonlyMap<number, "in" | "out" | "on">; // to be drawn in colour
  bright: Uint8Array | null; // by item: what stays when the rest is dimmed
  matches: Int32Array | null; // by item: how many results are there or inside
  differences: Mark[] | null;
  hiddenDifferences: string[] | null; // by item: how many differences are inside, and where, in words
}

export const NO_MARKS: Marks = {
  selected: -1,
  other: -1,
  hovered: -1,
  focusedMatch: -1,
  links: new Map(),
  bright: null,
  matches: null,
  differences: null,
  hiddenDifferences: null,
};

export interface Picture {
  scene: Scene;
  theme: Theme;
  coloring: Coloring;
  palette: Palette;
  marks: Marks;
}

/** Where items are while they move; how far they have come (0 to 1), and what was not there before. */
export interface Motion extends Places {
  progress: number;
  isNew: Uint8Array;
  isRearranged: (item: number) => boolean; // whether the inside of an open item changes
}
