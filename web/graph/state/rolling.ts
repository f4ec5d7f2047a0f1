// Keeps the reader's place when the view is rolled or unrolled.

import { countVisible, openToDepth } from "./expansion";
import { type Hierarchy, isBox } from "../model/hierarchy";
import type { Selection, State } from "./state";

const TOO_MANY = 400; // boxes; rather start again than show so many at once

/** The keys to open in another hierarchy of the same payload, for the modules that are open in this one. */
export function carriedOpen(from: Hierarchy, to: Hierarchy, state: State): Set<string> {
  const modules = new Set<number>();
  from.boxes.forEach((box) => {
    if (!state.open.has(box.key)) return;
    const blocks = box.kind === "run" ? box.blocks.map((block) => from.boxes[block]!) : [box];
    for (const one of blocks) for (const module of one.modules) modules.add(module);
  });
  const open = new Set<string>();
  to.boxes.forEach((box) => {
    const blocks = box.kind === "run" ? box.blocks.map((block) => to.boxes[block]!) : [box];
    if (blocks.some((one) => one.modules.some((module) => modules.has(module)))) open.add(box.key);
  });
  const isMuch = countVisible(to, { open, shown: state.shown }, TOO_MANY + 1) > TOO_MANY;
  return isMuch ? openToDepth(to, 1).open : open;
}

/** The same place in another hierarchy of the same payload. */
export function carriedSelection(from: Hierarchy, to: Hierarchy, selection: Selection | null): Selection | null {
  if (!selection || selection.kind === "edge") return null;
  if (selection.kind === "unit") {
    const unit = from.units[from.unitByKey.get(selection.key) ?? -1];
    return unit ? { ...selection, key: to.units[to.unitOfNode[unit.members[0]!]!]!.key } : null;
  }
  const box = from.boxes[from.boxByKey.get(selection.key) ?? -1];
  const child = box?.modules.length ? to.childOfModule.get(box.modules[0]!) : undefined;
  if (child === undefined) return null;
  if (isBox(child)) return { ...selection, key: to.boxes[~child]!.key };
  return { kind: "unit", key: to.units[child]!.key, side: selection.side };
}

/** What a selection from a link means in a hierarchy, also when the link was made in the other view. */
export function resolved(hierarchy: Hierarchy, selection: Selection): Selection | null {
  const { payload, unitByKey, boxByKey, units, unitOfNode, boxes, childOfModule } = hierarchy;
  const { side } = selection;
  if (selection.kind === "edge") return selection;
  if (selection.kind === "unit") {
    if (unitByKey.has(selection.key)) return selection;
    const node = payload.nodes.findIndex((one) => one.key === selection.key || one.label === selection.key);
    return node < 0 ? null : { kind: "unit", key: units[unitOfNode[node]!]!.key, side };
  }
  if (boxByKey.has(selection.key) && selection.key) return selection;
  const module = payload.modules.findIndex((one) => one.key === selection.key || one.address === selection.key);
  const child = childOfModule.get(module);
  if (child === undefined) return null;
  return isBox(child) ? { kind: "box", key: boxes[~child]!.key, side } : { kind: "unit", key: units[child]!.key, side };
}
