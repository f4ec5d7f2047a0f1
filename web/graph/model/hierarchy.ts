// What can be drawn: units (operations, or layers when rolled) inside boxes (modules, and groups made to keep them readable).
//
// A child of a box is a number: a unit as itself, a box as its complement (~box). Units have positions such that every box
// covers a range of them, so sums and counts over a box are differences of two prefix sums.

import { wrapGroups } from "./grouping";
import { type Outline, rolledOutline, unrolledOutline } from "./outline";
import type { ModuleCall, OpNode, Payload } from "./payload";

type BoxKind = "root" | "module" | "run" | "step" | "segment" | "list" | "ports" | "chip";

export interface Unit {
  key: string;
  members: number[]; // nodes of the payload
  parent: number; // a box
  shell: number[]; // module calls of the payload that hold this unit and nothing else that is drawn, innermost first
  isFolded: boolean; // plumbing that is not drawn
}

export interface Box {
  key: string;
  kind: BoxKind;
  modules: number[]; // the calls of a module it stands for; empty for other kinds
  parent: number;
  children: number[];
  folded: number[]; // units directly inside that are not drawn
  blocks: number[]; // of a run: its blocks, which are boxes
  low: number; // positions low <= p < high are inside
  high: number;
  title: string; // of a list: its address; of ports: the container they are in; of a chip: what it computes
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
  hasPlumbing: boolean; // plumbing is drawn
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

export function buildHierarchy(payload: Payload, rolled: boolean, hasPlumbing = true): Hierarchy {
  const outline = rolled ? rolledOutline(payload) : unrolledOutline(payload);
  const unitOfNode = new Int32Array(payload.nodes.length);
  outline.units.forEach((unit, u) => {
    for (const node of unit.members) unitOfNode[node] = u;
  });
  const units: Unit[] = outline.units.map(({ key, members }) => {
    const isFolded = !hasPlumbing && members.every((node) => payload.nodes[node]!.folded);
    return { key, members, parent: 0, shell: [], isFolded };
  });
  const all = wiresOf(payload, outline, unitOfNode);
  const wires = hasPlumbing ? all : wiresThrough(all, units);
  const boxes: Box[] = [];
  addGroup(boxes, units, { key: "", kind: "root", parent: -1, children: [] });
  const childOfModule = new Map<number, number>();
  nest(outline, units, boxes, childOfModule);
  wrapGroups(payload, units, boxes, hasPlumbing);
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
    hasPlumbing,
    units,
    boxes,
    order,
    position,
    wires,
    unitOfNode,
    childOfModule,
    boxByKey: new Map(boxes.map((box, b) => [box.key, b])),
    unitByKey: new Map(units.flatMap((unit, u) => keysOf(payload, unit, rolled).map((key) => [key, u] as const))),
  };
}

/** The names of a unit: of a call that made several tensors, those of all of them. */
function keysOf({ nodes }: Payload, unit: Unit, rolled: boolean): string[] {
  return [unit.key, ...unit.members.map((node) => (rolled ? nodes[node]!.label : nodes[node]!.key))];
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
    if (a === b && edge.from === edge.to - 1 && payload.nodes[edge.to]!.call >= 0) return; // within one call
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
  return joined(from, to, edges, count);
}

function joined(from: number[], to: number[], edges: number[][], count: number): Wires {
  const out = Array.from({ length: count }, (): number[] => []);
  const into = Array.from({ length: count }, (): number[] => []);
  from.forEach((unit, w) => out[unit]!.push(w));
  to.forEach((unit, w) => into[unit]!.push(w));
  return { from: Int32Array.from(from), to: Int32Array.from(to), edges, feedback: new Uint8Array(from.length), out, into };
}

/** The wires between units that are drawn, also through units that are not; these carry the edge with which the way begins. */
function wiresThrough(wires: Wires, units: Unit[]): Wires {
  const known = new Map<number, number>();
  const from: number[] = [];
  const to: number[] = [];
  const edges: number[][] = [];
  const add = (source: number, target: number, carried: number[]): void => {
    const pair = source * units.length + target;
    const wire = known.get(pair);
    if (wire !== undefined) {
      edges[wire] = [...new Set([...edges[wire]!, ...carried])];
      return;
    }
    known.set(pair, from.length);
    from.push(source);
    to.push(target);
    edges.push(carried);
  };
  wires.from.forEach((source, w) => {
    if (units[source]!.isFolded) return;
    const waiting = [wires.to[w]!];
    const seen = new Set(waiting);
    for (let at = waiting.pop(); at !== undefined; at = waiting.pop()) {
      if (!units[at]!.isFolded) {
        add(source, at, wires.edges[w]!);
        continue;
      }
      for (const next of wires.out[at]!.map((one) => wires.to[one]!)) if (!seen.has(next)) waiting.push(next);
      for (const next of waiting) seen.add(next);
    }
  });
  return joined(from, to, edges, units.length);
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
  const drawn = contents.map(() => 0); // how many units in a box are drawn, however deep
  units.forEach((unit, u) => {
    if (!unit.isFolded) for (let at = outline.units[u]!.parent; at >= 0; at = outline.boxes[at]!.parent) drawn[at]!++;
  });
  const place = (child: number, parent: number): number[] => {
    if (!isBox(child)) return [child];
    const { key, modules } = outline.boxes[~child]!;
    if (drawn[~child]! < 2) {
      const inside = contents[~child]!.flatMap((one) => place(one, parent));
      const only = inside.find((unit) => !units[unit]!.isFolded) ?? inside[0]!;
      units[only]!.shell.push(...modules);
      for (const module of modules) childOfModule.set(module, only);
      return inside;
    }
    const box = boxes.length;
    addGroup(boxes, units, { key, kind: "module", modules, parent, children: [] });
    for (const module of modules) childOfModule.set(module, ~box);
    fill(box, contents[~child]!.flatMap((one) => place(one, box)));
    return [~box];
  };
  const fill = (box: number, inside: number[]): void => {
    const isFolded = (child: number): boolean => !isBox(child) && units[child]!.isFolded;
    boxes[box]!.children = inside.filter((child) => !isFolded(child));
    boxes[box]!.folded = inside.filter(isFolded);
  };
  fill(0, top.flatMap((child) => place(child, 0)));
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
  boxes.push({ modules: [], blocks: [], folded: [], low: 0, high: 0, title: "", ...group });
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
    for (const child of inOrder(boxes, units, box)) {
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

/** All that is in a box, by execution: its children, and between them what is not drawn. */
function inOrder(boxes: Box[], units: Unit[], { children, folded }: Box): number[] {
  const first = (child: number): number => {
    let at = child;
    while (isBox(at)) at = boxes[~at]!.children[0]!;
    return units[at]!.members[0]!;
  };
  const left = folded.slice();
  const before = (child: number): number[] => {
    const count = left.findIndex((unit) => first(unit) > first(child));
    return left.splice(0, count < 0 ? left.length : count);
  };
  return [...children.flatMap((child) => [...before(child), child]), ...left];
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
