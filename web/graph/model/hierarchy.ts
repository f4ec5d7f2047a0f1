// What can be drawn: units (operations, or layers when rolled) inside boxes (modules, and groups made to keep them readable).
//
// A child of a box is a number: a unit as itself, a box as its complement (~box). Units have positions such that every box
// covers a range of them, so sums and counts over a box are differences of two prefix sums.

import { wrapGroups } from "./grouping";
import { type Outline, rolledOutline, unrolledOutline } from "./outline";
import type { ModuleCall, OpNode, Payload } from "./payload";

type BoxKind = "root" | "module" | "run" | "step" | "segment" | "list" | "ports";

export interface Unit {
  key: string;
  members: number[]; // nodes of the payload
  parent: number; // a box
  shell: number[]; // module calls of the payload that hold this unit and nothing else, innermost first
}

export interface Box {
  key: string;
  kind: BoxKind;
  modules: number[]; // the calls of a module it stands for; empty for other kinds
  parent: number;
  children: number[];
  blocks: number[]; // of a run: its blocks, which are boxes
  low: number; // positions low <= p < high are inside
  high: number;
  title: string; // of a list: its address; of ports: the container they are in
}

/** Everything that flows from one unit to another. */
export interface Wires {
  from: Int32Array;
  to: Int32Array;
  edges: number[][]; // edges of the payload
  feedback: Uint8Array; // against the order, or from a unit to itself
  out: number[][]; // by unit: wires
  into: number[][];
}

export interface Hierarchy {
  payload: Payload;
  rolled: boolean;
  units: Unit[];
  boxes: Box[]; // the root first
  order: Int32Array; // position to unit
  position: Int32Array; // unit to position
  wires: Wires;
  unitOfNode: Int32Array;
  childOfModule: Map<number, number>; // a module of the payload to what is drawn for it
  boxByKey: Map<string, number>;
  unitByKey: Map<string, number>;
}

const CROWDED = 96; // children; more are divided into segments
const SEGMENT = 40;
const CROWDED_MODEL = 32; // the same of the model itself, which cannot be closed
const MODEL_SEGMENT = 12;

export const isBox = (child: number): boolean => child < 0;

export function buildHierarchy(payload: Payload, rolled: boolean): Hierarchy {
  const outline = rolled ? rolledOutline(payload) : unrolledOutline(payload);
  const unitOfNode = new Int32Array(payload.nodes.length);
  outline.units.forEach((unit, u) => {
    for (const node of unit.members) unitOfNode[node] = u;
  });
  const wires = wiresOf(payload, outline, unitOfNode);
  const units: Unit[] = outline.units.map((unit) => ({ key: unit.key, members: unit.members, parent: 0, shell: [] }));
  const boxes: Box[] = [];
  addGroup(boxes, units, { key: "", kind: "root", parent: -1, children: [] });
  const childOfModule = new Map<number, number>();
  nest(outline, units, boxes, childOfModule);
  wrapGroups(payload, units, boxes);
  divide(boxes, units);
  const order = new Int32Array(units.length);
  const position = new Int32Array(units.length);
  settle(boxes, units, order, position);
  wires.from.forEach((from, w) => {
    wires.feedback[w] = position[from]! >= position[wires.to[w]!]! ? 1 : 0;
  });
  return {
    payload,
    rolled,
    units,
    boxes,
    order,
    position,
    wires,
    unitOfNode,
    childOfModule,
    boxByKey: new Map(boxes.map((box, b) => [box.key, b])),
    unitByKey: new Map(units.map((unit, u) => [unit.key, u])),
  };
}

/** Joins the edges between the same two units. Gradients travel the same wires backwards and have none of their own. */
function wiresOf(payload: Payload, outline: Outline, unitOfNode: Int32Array): Wires {
  const count = outline.units.length;
  const known = new Map<number, number>();
  const from: number[] = [];
  const to: number[] = [];
  const edges: number[][] = [];
  payload.edges.forEach((edge, e) => {
    if (edge.gradient && edge.from > edge.to) return;
    const a = unitOfNode[edge.from]!;
    const b = unitOfNode[edge.to]!;
    const wire = known.get(a * count + b);
    if (wire !== undefined) {
      edges[wire]!.push(e);
      return;
    }
    known.set(a * count + b, from.length);
    from.push(a);
    to.push(b);
    edges.push([e]);
  });
  const out: number[][] = outline.units.map(() => []);
  const into: number[][] = outline.units.map(() => []);
  from.forEach((unit, w) => out[unit]!.push(w));
  to.forEach((unit, w) => into[unit]!.push(w));
  return { from: Int32Array.from(from), to: Int32Array.from(to), edges, feedback: new Uint8Array(from.length), out, into };
}

/** Puts units into boxes in order of first execution. A module that holds one unit and nothing else is not drawn around it. */
function nest(outline: Outline, units: Unit[], boxes: Box[], childOfModule: Map<number, number>): void {
  const contents = outline.boxes.map((): number[] => []); // units as themselves, outline boxes as complements
  const top: number[] = [];
  const attached = new Uint8Array(outline.boxes.length);
  outline.units.forEach((unit, u) => {
    let child = u;
    let parent = unit.parent;
    for (;;) {
      (parent < 0 ? top : contents[parent]!).push(child);
      if (parent < 0 || attached[parent]) break;
      attached[parent] = 1;
      child = ~parent;
      parent = outline.boxes[parent]!.parent;
    }
  });
  const place = (child: number, parent: number): number => {
    if (!isBox(child)) return child;
    const only = loneUnit(contents, ~child);
    if (only >= 0) {
      for (let at = child; isBox(at); at = contents[~at]![0]!) {
        const { modules } = outline.boxes[~at]!;
        units[only]!.shell.unshift(...modules);
        for (const module of modules) childOfModule.set(module, only);
      }
      return only;
    }
    const { key, modules } = outline.boxes[~child]!;
    const box = boxes.length;
    addGroup(boxes, units, { key, kind: "module", modules, parent, children: [] });
    for (const module of modules) childOfModule.set(module, ~box);
    boxes[box]!.children = contents[~child]!.map((one) => place(one, box));
    return ~box;
  };
  boxes[0]!.children = top.map((child) => place(child, 0));
}

/** The one unit in a box that holds nothing else, however deep; -1 when there is more. */
function loneUnit(contents: number[][], box: number): number {
  const inside = contents[box]!;
  if (inside.length !== 1) return -1;
  return isBox(inside[0]!) ? loneUnit(contents, ~inside[0]!) : inside[0]!;
}

/** Groups the children of crowded boxes, so that no layout is ever large. */
function divide(boxes: Box[], units: Unit[]): void {
  for (let b = 0; b < boxes.length; b++) {
    const box = boxes[b]!;
    const [most, segment] = b === 0 ? [CROWDED_MODEL, MODEL_SEGMENT] : [CROWDED, SEGMENT];
    while (box.children.length > most) {
      const count = Math.ceil(box.children.length / segment);
      const size = Math.ceil(box.children.length / count);
      const grouped: number[] = [];
      for (let at = 0; at < box.children.length; at += size) {
        const children = box.children.slice(at, at + size);
        const key = `segment ${childKey(boxes, units, children[0]!)} ${childKey(boxes, units, children.at(-1)!)}`;
        grouped.push(~addGroup(boxes, units, { key, kind: "segment", parent: b, children }));
      }
      box.children = grouped;
    }
  }
}

export function childKey(boxes: Box[], units: Unit[], child: number): string {
  return isBox(child) ? boxes[~child]!.key : units[child]!.key;
}

/** Makes a box around children that have had another parent. */
export function addGroup(
  boxes: Box[],
  units: Unit[],
  group: Pick<Box, "key" | "kind" | "parent" | "children"> & Partial<Box>,
): number {
  const made = boxes.length;
  boxes.push({ modules: [], blocks: [], low: 0, high: 0, title: "", ...group });
  for (const child of group.children) {
    if (isBox(child)) boxes[~child]!.parent = made;
    else units[child]!.parent = made;
  }
  return made;
}

/** Gives units their positions, and boxes the range of what is inside. */
function settle(boxes: Box[], units: Unit[], order: Int32Array, position: Int32Array): void {
  let next = 0;
  const visit = (b: number): void => {
    const box = boxes[b]!;
    box.low = next;
    for (const child of box.children) {
      if (isBox(child)) visit(~child);
      else {
        units[child]!.parent = b;
        order[next] = child;
        position[child] = next++;
      }
    }
    box.high = next;
  };
  visit(0);
}

/** The units that a child stands for, in order. */
export function unitsOf({ boxes, order }: Hierarchy, child: number): number[] {
  if (!isBox(child)) return [child];
  const { low, high } = boxes[~child]!;
  return Array.from(order.subarray(low, high));
}

/** The position at which a child begins. */
export function startOf({ boxes, position }: Hierarchy, child: number): number {
  return isBox(child) ? boxes[~child]!.low : position[child]!;
}

/** The first node of a unit, or of the first unit in a box. */
export function firstNode(hierarchy: Hierarchy, child: number): OpNode {
  const { payload, units, order } = hierarchy;
  return payload.nodes[units[order[startOf(hierarchy, child)]!]!.members[0]!]!;
}

/** The first module call that a box stands for, or that the first block of a run does. */
export function firstCall({ payload, boxes }: Hierarchy, b: number): ModuleCall | undefined {
  const { modules, blocks } = boxes[b]!;
  return payload.modules[modules[0] ?? boxes[blocks[0] ?? -1]?.modules[0] ?? -1];
}
