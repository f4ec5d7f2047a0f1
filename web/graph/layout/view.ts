// What is seen: the hierarchy with some boxes open. Pure: the same hierarchy and openness give the same view.

import { type Hierarchy, isBox } from "../model/hierarchy";
import { passes, shape } from "../../shared/format";

/** Which boxes are open, and for an open run which of its blocks stands for all. */
export interface Openness {
  open: ReadonlySet<string>;
  shown: ReadonlyMap<string, number | "all">;
}

/** A reference drawn at a consumer in place of a long edge. */
interface Reference {
  from: number; // item
  link: number;
}

export interface Item {
  key: string;
  child: number; // of the hierarchy: a unit, or the complement of a box
  parent: number; // item; -1 for the root
  depth: number;
  isOpen: boolean;
  block: number; // of an open run: the block shown; -1 otherwise
  children: number[]; // items
  references: Reference[];
  feeds: number; // how many items a hub feeds; 0 for others
  loop: string | null; // what is written on its edge to itself, when it has one
}

/** Everything that flows from one item to another. */
interface Link {
  from: number;
  to: number;
  wires: number[];
  isFeedback: boolean;
  isCut: boolean; // drawn as a reference
  label: string;
}

export interface View {
  hierarchy: Hierarchy;
  items: Item[]; // outer ones first; the root is 0
  links: Link[];
  itemOfUnit: Int32Array;
  itemByKey: Map<string, number>;
}

const FEEDS_MANY = 8;

const unitItemKey = (key: string): string => `n:${key}`;
export const boxItemKey = (key: string): string => `m:${key}`;

/** What is seen; with `hasShapes` the edges say what travels them. */
export function buildView(hierarchy: Hierarchy, openness: Openness, hasShapes = false): View {
  const view: View = {
    hierarchy,
    items: [],
    links: [],
    itemOfUnit: new Int32Array(hierarchy.units.length),
    itemByKey: new Map(),
  };
  const strangers = new Int32Array(hierarchy.units.length).fill(-1);
  addItems(view, openness, strangers);
  joinItems(view, strangers, hasShapes);
  cutHubs(view);
  return view;
}

/** Makes the items. `strangers` has, for every unit of a block that is not shown, the outermost run that hides it. */
function addItems(view: View, openness: Openness, strangers: Int32Array): void {
  const { hierarchy, items, itemOfUnit } = view;
  const { boxes, units, order } = hierarchy;
  const add = (child: number, parent: number): number => {
    const key = isBox(child) ? boxItemKey(boxes[~child]!.key) : unitItemKey(units[child]!.key);
    const depth = parent < 0 ? 0 : items[parent]!.depth + 1;
    const made = { key, child, parent, depth, isOpen: false, block: -1, children: [], references: [], feeds: 0, loop: null };
    items.push(made);
    view.itemByKey.set(key, items.length - 1);
    return items.length - 1;
  };
  const visit = (child: number, parent: number): number => {
    const at = add(child, parent);
    if (!isBox(child)) {
      itemOfUnit[child] = at;
      return at;
    }
    const item = items[at]!;
    const box = boxes[~child]!;
    if (box.kind !== "root" && !openness.open.has(box.key)) {
      for (let p = box.low; p < box.high; p++) itemOfUnit[order[p]!] = at;
      return at;
    }
    item.isOpen = true;
    for (const unit of box.folded) itemOfUnit[unit] = at;
    const shown = openness.shown.get(box.key) ?? 0;
    if (box.kind !== "run" || shown === "all") {
      item.children = box.children.map((one) => visit(one, at));
      return at;
    }
    item.block = Math.min(shown, box.blocks.length - 1);
    const block = boxes[box.blocks[item.block]!]!;
    for (const unit of block.folded) itemOfUnit[unit] = at;
    item.children = block.children.map((one) => visit(one, at));
    for (const other of box.blocks) {
      if (boxes[other] === block) continue;
      for (let p = boxes[other]!.low; p < boxes[other]!.high; p++) {
        itemOfUnit[order[p]!] = itemOfUnit[order[p - boxes[other]!.low + block.low]!]!;
        strangers[order[p]!] = ~child;
      }
    }
    return at;
  };
  visit(~0, -1);
}

/** The item that shows a unit: itself, a closed box around it, or the open run of which another block is shown. */
export function itemHolding({ hierarchy, items, itemOfUnit }: View, unit: number): number {
  const { boxes, position } = hierarchy;
  const holds = (child: number): boolean => {
    if (!isBox(child)) return child === unit;
    const { low, high } = boxes[~child]!;
    return position[unit]! >= low && position[unit]! < high;
  };
  let at = itemOfUnit[unit]!;
  while (!holds(items[at]!.child)) at = items[at]!.parent;
  return at;
}

/** Joins wires between the same two items into links. Wires from one block of a run to another are left out. */
function joinItems(view: View, strangers: Int32Array, hasShapes: boolean): void {
  const { hierarchy, items, links, itemOfUnit } = view;
  const { wires, boxes, position } = hierarchy;
  const known = new Map<number, Link>();
  const isInside = (unit: number, run: number): boolean =>
    run >= 0 && position[unit]! >= boxes[run]!.low && position[unit]! < boxes[run]!.high;
  for (let w = 0; w < wires.from.length; w++) {
    const source = wires.from[w]!;
    const target = wires.to[w]!;
    if (isInside(target, strangers[source]!) || isInside(source, strangers[target]!)) continue;
    const from = itemOfUnit[source]!;
    const to = itemOfUnit[target]!;
    const isFeedback = wires.feedback[w] === 1;
    if (from === to) {
      if (isFeedback && isRepeated(hierarchy, items[from]!)) items[from]!.loop = passNote(hierarchy, w);
      continue;
    }
    const pair = from * items.length + to;
    const link = known.get(pair);
    if (link) {
      link.wires.push(w);
      link.isFeedback &&= isFeedback;
      continue;
    }
    const made = { from, to, wires: [w], isFeedback, isCut: false, label: "" };
    known.set(pair, made);
    links.push(made);
  }
  for (const link of links) {
    const notes = [linkLabel(hierarchy, link), hasShapes ? linkShape(hierarchy, link) : ""];
    link.label = notes.filter(Boolean).join(" · ");
  }
}

/** Whether an item stands for something that ran more than once. */
function isRepeated(hierarchy: Hierarchy, item: Item): boolean {
  if (!isBox(item.child)) return true;
  return hierarchy.boxes[~item.child]!.modules.length > 1;
}

function linkLabel(hierarchy: Hierarchy, link: Link): string {
  const sources = new Set(link.wires.map((wire) => hierarchy.wires.from[wire]));
  if (sources.size > 1) return `${sources.size} tensors`;
  return hierarchy.rolled && link.wires.length === 1 ? passNote(hierarchy, link.wires[0]!) : "";
}

/** The shape of what travels a link, where all of it has one. */
function linkShape(hierarchy: Hierarchy, link: Link): string {
  const edges = link.wires.flatMap((wire) => hierarchy.wires.edges[wire]!);
  const shapes = new Set(edges.map((edge) => hierarchy.payload.edges[edge]!.shape).map((one) => (one ? shape(one) : "")));
  return shapes.size === 1 ? [...shapes][0]! : "";
}

/** The passes that travel a wire; nothing when each pass of one end leads to the same pass of the other. */
function passNote(hierarchy: Hierarchy, wire: number): string {
  const { payload, units, wires } = hierarchy;
  const sources = units[wires.from[wire]!]!.members.length;
  const targets = units[wires.to[wire]!]!.members.length;
  if (sources === 1 && targets === 1) return "";
  const pairs = wires.edges[wire]!.map((edge) => {
    const { from, to } = payload.edges[edge]!;
    return [payload.nodes[from]!.pass, payload.nodes[to]!.pass] as const;
  });
  const leaving = pairs.map(([from]) => from);
  const arriving = pairs.map(([, to]) => to);
  const isSame = pairs.every(([from, to]) => from === to);
  if (sources === targets && isSame && new Set(leaving).size === sources) return "";
  if (targets === 1) return `pass ${passes(leaving)}`;
  const isStep = pairs.every(([from, to]) => to - from === 1);
  if (sources === 1 || isStep || isSame) return `pass ${passes(arriving)}`;
  return `pass ${passes(leaving)} → ${passes(arriving)}`;
}

/** Cuts the links of items that feed very many others; the first consumer keeps its link, so that a hub is not alone. */
function cutHubs(view: View): void {
  const { items, links } = view;
  const leaving = items.map((): number[] => []);
  links.forEach((link, l) => {
    if (!link.isFeedback) leaving[link.from]!.push(l);
  });
  leaving.forEach((found, from) => {
    if (found.length <= FEEDS_MANY) return;
    found.sort((a, b) => links[a]!.to - links[b]!.to);
    items[from]!.feeds = found.length;
    for (const link of found.slice(1)) {
      links[link]!.isCut = true;
      items[links[link]!.to]!.references.push({ from, link });
    }
  });
}
