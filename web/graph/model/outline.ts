// Which module holds which operation: one unit per operation, or (rolled) one per layer with one box per module.

import type { ModuleCall, OpNode, Payload } from "./payload";

interface OutlineUnit {
  key: string;
  members: number[]; // nodes of the payload, in order
  parent: number; // a box of the outline, or -1
}

interface OutlineBox {
  key: string;
  modules: number[]; // module calls of the payload, in order
  parent: number;
}

export interface Outline {
  units: OutlineUnit[]; // in order of first execution
  boxes: OutlineBox[];
}

/** What calls that are drawn as one box when rolled have in common. */
export const stepOf = (module: ModuleCall): string => module.step || module.address;

/** Every operation and every module call on its own. */
export function unrolledOutline(payload: Payload): Outline {
  return {
    units: unitsBy(payload, (node) => node.key).map((unit) => ({ ...unit, parent: payload.nodes[unit.members[0]!]!.module })),
    boxes: payload.modules.map((module, i) => ({ key: module.key, modules: [i], parent: module.parent })),
  };
}

/**
 * One unit per layer, however often it ran, and one box per module, inside what is around every one of its calls. A module
 * without parameters is a box for each step of the model that calls it.
 */
export function rolledOutline(payload: Payload): Outline {
  const { nodes, modules } = payload;
  const numbers = new Map<string, number>();
  const boxes: OutlineBox[] = [];
  const boxOf = modules.map((module, i) => {
    const key = stepOf(module);
    const known = numbers.get(key);
    if (known !== undefined) {
      boxes[known]!.modules.push(i);
      return known;
    }
    numbers.set(key, boxes.length);
    boxes.push({ key, modules: [i], parent: -1 });
    return boxes.length - 1;
  });
  const paths = modules.map(() => null as number[] | null);
  const pathTo = (module: number): number[] => {
    if (module < 0) return [];
    const outer = paths[module] ?? [...pathTo(modules[module]!.parent), boxOf[module]!];
    return (paths[module] = outer);
  };
  boxes.forEach((box, i) => {
    box.parent = innermostShared(box.modules.map((call) => pathTo(modules[call]!.parent).filter((other) => other !== i)));
  });
  const units = unitsBy(payload, (node) => node.label);
  for (const unit of units) unit.parent = innermostShared(unit.members.map((node) => pathTo(nodes[node]!.module)));
  return { units, boxes: withoutCycles(boxes) };
}

/** One unit for all nodes of the same name. All tensors of one call have the name of its first. */
function unitsBy({ nodes }: Payload, name: (node: OpNode) => string): OutlineUnit[] {
  const units = new Map<string, OutlineUnit>();
  nodes.forEach((node, i) => {
    const key = name(nodes[node.call] ?? node);
    const known = units.get(key);
    if (known) known.members.push(i);
    else units.set(key, { key, members: [i], parent: -1 });
  });
  return [...units.values()];
}

/** The innermost box of the first path that is on all of them; -1 when there is none. */
function innermostShared(paths: number[][]): number {
  const [first, ...others] = paths;
  if (!first) return -1;
  const distinct = [...new Set(others)].map((path) => new Set(path));
  for (let i = first.length - 1; i >= 0; i--) {
    if (distinct.every((path) => path.has(first[i]!))) return first[i]!;
  }
  return -1;
}

/** Modules that call one another in turn would each be inside the other: the earlier one stays outside. */
function withoutCycles(boxes: OutlineBox[]): OutlineBox[] {
  boxes.forEach((box, i) => {
    const seen = new Set([i]);
    for (let at = box.parent; at >= 0; at = boxes[at]!.parent) {
      if (seen.has(at)) {
        box.parent = -1;
        break;
      }
      seen.add(at);
    }
  });
  return boxes;
}
