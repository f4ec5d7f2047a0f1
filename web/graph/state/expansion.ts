// Which boxes to open for what the reader asks: a depth, everything below, a place deep inside.

import { type Hierarchy, isBox } from "../model/hierarchy";
import type { Openness } from "../layout/view";

export interface Opened {
  open: Set<string>;
  shown: Map<string, number | "all">;
}

export const DEEPEST = 12; // levels that are opened together

const STAYS_CLOSED = new Set(["ports", "chip"]);

/** Everything open down to a depth: 1 shows what the model calls. A run is as deep as its blocks; ports and chips stay closed. */
export function openToDepth(hierarchy: Hierarchy, depth: number): Opened {
  const opened: Opened = { open: new Set(), shown: new Map() };
  const visit = (b: number, left: number): void => {
    const box = hierarchy.boxes[b]!;
    if (box.kind !== "root") opened.open.add(box.key);
    const from = box.kind === "run" ? hierarchy.boxes[box.blocks[0]!]! : box;
    if (left <= 1) return;
    for (const child of from.children) if (isBox(child) && !STAYS_CLOSED.has(hierarchy.boxes[~child]!.kind)) visit(~child, left - 1);
  };
  visit(0, depth);
  return opened;
}

/** Everything below a box open, every block of every run on its own. */
export function openBelow(hierarchy: Hierarchy, b: number): Opened {
  const open = new Set(keysBelow(hierarchy, b));
  const runs = hierarchy.boxes.filter((box) => box.kind === "run" && open.has(box.key));
  return { open, shown: new Map(runs.map((run) => [run.key, "all"])) };
}

/** The keys of a box and of every box inside it. */
function keysBelow(hierarchy: Hierarchy, b: number): string[] {
  const box = hierarchy.boxes[b]!;
  const below = box.children.filter((child) => isBox(child) && hierarchy.boxes[~child]!.kind !== "chip");
  const inside = below.flatMap((child) => keysBelow(hierarchy, ~child));
  return box.kind === "root" ? inside : [box.key, ...inside];
}

/** What has to be open for a child (a unit, or the complement of a box) to be seen. Runs show the block it is in, or is. */
export function openTo(hierarchy: Hierarchy, child: number, openness: Openness): Opened {
  const { boxes, units } = hierarchy;
  const opened: Opened = { open: new Set(), shown: new Map() };
  const inside = new Set(isBox(child) ? [~child] : []);
  for (let at = isBox(child) ? boxes[~child]!.parent : units[child]!.parent; at > 0; at = boxes[at]!.parent) {
    const box = boxes[at]!;
    opened.open.add(box.key);
    const block = box.blocks.findIndex((b) => inside.has(b));
    if (block >= 0 && openness.shown.get(box.key) !== "all") opened.shown.set(box.key, block);
    inside.add(at);
  }
  return opened;
}

/** The keys to open in the block that a run will show, for those that are open in the block it shows now. */
export function carriedOver(hierarchy: Hierarchy, run: string, to: number, openness: Openness): string[] {
  const box = hierarchy.boxes[hierarchy.boxByKey.get(run) ?? 0]!;
  const from = openness.shown.get(run) ?? 0;
  if (from === "all" || box.kind !== "run" || !box.blocks[to]) return [];
  const before = keysBelow(hierarchy, box.blocks[from]!);
  const after = keysBelow(hierarchy, box.blocks[to]!);
  return after.filter((_, i) => openness.open.has(before[i]!));
}

/** How many boxes are seen, counted no further than a limit. */
export function countVisible(hierarchy: Hierarchy, openness: Openness, limit = Infinity): number {
  const { boxes } = hierarchy;
  let count = 0;
  const visit = (child: number): void => {
    if (count >= limit) return;
    const box = isBox(child) ? boxes[~child]! : null;
    if (!box || (box.kind !== "root" && !openness.open.has(box.key))) {
      count++;
      return;
    }
    const shown = openness.shown.get(box.key) ?? 0;
    const from = box.kind === "run" && shown !== "all" ? boxes[box.blocks[shown]!]! : box;
    from.children.forEach(visit);
  };
  visit(~0);
  return count;
}
