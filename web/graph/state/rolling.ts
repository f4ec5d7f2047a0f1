// Keeps the reader's place when the view is rolled or unrolled.

import { countVisible, openToDepth } from "./expansion";
import { type Box, type Hierarchy, isBox } from "../model/hierarchy";
import { childOf, selectionOf } from "../model/model_index";
import type { Selection, State } from "./state";

const TOO_MANY = 400; // boxes; rather start again than show so many at once

/** The keys to open in another hierarchy of the same payload, for the modules that are open in this one. */
export function carriedOpen(from: Hierarchy, to: Hierarchy, state: State): Set<string> {
  const before = from.boxes.filter((box) => state.open.has(box.key));
  const modules = new Set(before.flatMap((box) => modulesOf(from, box)));
  const after = to.boxes.filter((box) => modulesOf(to, box).some((module) => modules.has(module)));
  const open = new Set(after.map((box) => box.key));
  const isMuch = countVisible(to, { open, shown: state.shown }, TOO_MANY + 1) > TOO_MANY;
  return isMuch ? openToDepth(to, 1).open : open;
}

/** The module calls of a box, or of the blocks of a run. */
function modulesOf({ boxes }: Hierarchy, box: Box): number[] {
  return [...box.modules, ...box.blocks.flatMap((block) => boxes[block]!.modules)];
}

/** The same place in another hierarchy of the same payload. */
export function carriedSelection(from: Hierarchy, to: Hierarchy, selection: Selection | null): Selection | null {
  const child = childOf(from, selection);
  if (!selection || child === null) return null;
  const there = isBox(child)
    ? to.childOfModule.get(from.boxes[~child]!.modules[0] ?? -1)
    : to.unitOfNode[from.units[child]!.members[0]!];
  return there === undefined ? null : selectionOf(to, there, selection.side);
}

/** What a selection from a link means in a hierarchy, also when the link was made in the other view. */
export function resolved(hierarchy: Hierarchy, selection: Selection): Selection | null {
  if (selection.kind === "edge" || childOf(hierarchy, selection) !== null) return selection;
  const { payload, unitOfNode, childOfModule } = hierarchy;
  const { kind, key, side } = selection;
  const child =
    kind === "unit"
      ? unitOfNode[payload.nodes.findIndex((node) => node.key === key || node.label === key)]
      : childOfModule.get(payload.modules.findIndex((module) => module.key === key || module.address === key));
  return child === undefined ? null : selectionOf(hierarchy, child, side);
}
