// What is drawn over a picture: what is selected, found, traced or different.

import type { Comparison } from "../model/compare";
import { shortAddress } from "./look";
import { type Mark, type Marks, NO_MARKS } from "./picture";
import { isBox, unitsOf } from "../model/hierarchy";
import { type ModelIndex, childOf, itemOf } from "../model/model_index";
import { prefixCounts } from "../model/search";
import type { Selection, State } from "../state/state";
import * as format from "../../shared/format";
import { itemsShowing, linksBetween, pathBetween, reached } from "../model/trace";
import { type View, itemHolding } from "../layout/view";

type Links = Map<number, "in" | "out" | "on">; // the colours of links

/** The marks of one side. `selection` is what is selected there: what the reader chose, or its counterpart. */
export function marksOf(view: View, modelIndex: ModelIndex, state: State, selection: Selection | null, side: number): Marks {
  const { hierarchy } = modelIndex;
  const child = childOf(hierarchy, selection);
  const other = state.other?.side === side ? childOf(hierarchy, state.other) : null;
  const marks: Marks = { ...NO_MARKS };
  if (child !== null) marks.selected = itemOf(view, child);
  if (other !== null) marks.other = itemOf(view, other);
  const links: Links = new Map();
  if (child !== null && other !== null) {
    const path = pathBetween(hierarchy, child, other);
    marks.bright = itemsShowing(view, path.units);
    for (const link of linksBetween(view, path.units)) links.set(link, "on");
  } else if (child !== null && state.trace !== "none") {
    traceLinks(view, state, child, marks, links);
  } else if (child !== null) {
    neighbourLinks(view, child, marks.selected, links);
  } else if (selection?.kind === "edge") {
    for (const link of linksOfEdge(view, selection)) links.set(link, "on");
  }
  marks.links = links;
  if (state.query) addMatches(view, modelIndex, state, marks);
  return marks;
}

/** The links from ancestors of a child, to its descendants, or both, as the state says. */
function traceLinks(view: View, state: State, child: number, marks: Marks, links: Links): void {
  const { hierarchy } = view;
  const units = unitsOf(hierarchy, child);
  const all = new Uint8Array(hierarchy.units.length);
  for (const direction of ["ancestors", "descendants"] as const) {
    if (state.trace !== direction && state.trace !== "both") continue;
    const found = reached(hierarchy, units, direction);
    found.forEach((is, unit) => (all[unit]! |= is));
    for (const link of linksBetween(view, found)) links.set(link, direction === "ancestors" ? "in" : "out");
  }
  marks.bright = itemsShowing(view, all);
}

/** The links to and from the selected item; of an open box, the links across its border. */
function neighbourLinks(view: View, child: number, item: number, links: Links): void {
  const { boxes, position, wires } = view.hierarchy;
  if (!view.items[item]!.isOpen) {
    view.links.forEach((link, l) => {
      if (link.to === item) links.set(l, "in");
      else if (link.from === item) links.set(l, "out");
    });
    return;
  }
  if (!isBox(child)) return;
  const { low, high } = boxes[~child]!;
  const isInside = (unit: number): boolean => position[unit]! >= low && position[unit]! < high;
  view.links.forEach((link, l) => {
    const [from, to] = [isInside(wires.from[link.wires[0]!]!), isInside(wires.to[link.wires[0]!]!)];
    if (to && !from) links.set(l, "in");
    else if (from && !to) links.set(l, "out");
  });
}

export function linksOfEdge(view: View, selection: Selection): number[] {
  if (selection.kind !== "edge") return [];
  const from = view.itemByKey.get(selection.from);
  const targets = new Set(selection.to.split("\n").map((key) => view.itemByKey.get(key)));
  return view.links.flatMap((link, l) => (link.from === from && targets.has(link.to) ? [l] : []));
}

function addMatches(view: View, modelIndex: ModelIndex, state: State, marks: Marks): void {
  const { hierarchy, search } = modelIndex;
  const found = search.find(state.query);
  const counts = prefixCounts(hierarchy, found);
  const isFound = new Set(found.children);
  marks.matches = Int32Array.from(view.items, (item) => {
    if (!isBox(item.child)) return isFound.has(item.child) ? 1 : 0;
    if (item.isOpen) return 0;
    const { low, high } = hierarchy.boxes[~item.child]!;
    return counts[high]! - counts[low]!;
  });
  const focused = found.children[state.match];
  if (focused !== undefined) marks.focusedMatch = itemOf(view, focused);
}

/** Adds what differs from the other model: on the operation itself, or on the box or the stack of blocks that hides it. */
export function addDifferences(view: View, comparison: Comparison, side: number, marks: Marks): void {
  const { hierarchy, items } = view;
  const hidden = items.map((): number[] => []);
  marks.differences = items.map((): Mark => "");
  for (const one of comparison.differences) {
    const node = side === 0 ? one.left : one.right;
    if (node < 0) continue;
    const isOnly = one.left < 0 || one.right < 0;
    if (!isOnly && !one.cause && one.changes.every((change) => change.kind === "time")) continue;
    const unit = hierarchy.unitOfNode[node]!;
    const item = itemHolding(view, unit);
    if (isBox(items[item]!.child)) hidden[item]!.push(unit);
    else marks.differences[item] = isOnly ? (side === 0 ? "left" : "right") : "changed";
  }
  marks.hiddenDifferences = hidden.map((units, item) => (units.length ? hiddenText(view, item, units) : ""));
}

/** How many differences a box hides; of a stack of equal blocks, also in which block. */
function hiddenText({ hierarchy, items }: View, item: number, units: number[]): string {
  const { boxes, position, payload } = hierarchy;
  const count = `≠ ${format.count(units.length)}`;
  const { kind, blocks } = boxes[~items[item]!.child]!;
  if (kind !== "run") return count;
  const found = new Set(units.map((unit) => blocks.findIndex((block) => position[unit]! < boxes[block]!.high)));
  if (found.size > 1) return `${count} in ${found.size} blocks`;
  const [block] = found;
  const address = payload.modules[boxes[blocks[block!]!]!.modules[0] ?? -1]?.address;
  if (address === undefined) return `${count} in step ${block! + 1}`;
  return `${count} in ${shortAddress(address, address.split(".").slice(0, -1).join("."))}`;
}
