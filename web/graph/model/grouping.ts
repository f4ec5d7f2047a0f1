// Puts boxes around what is drawn as one: runs of equal blocks, such as the twelve blocks of GPT-2, equal inputs or outputs,
// and the modules of a list. What is equal was decided in Python.
//
// The blocks of a run have the same form (the same tree of boxes and units), so what is shown for one stands for all: the
// unit at some place in one block and the unit at that place in another correspond.

import { type Box, type Unit, addGroup, childKey, isBox } from "./hierarchy";
import type { Chip, Payload, Port, Run } from "./payload";

/** Wraps the runs and ports of a payload. When rolled, the passes of a run are one block, which is not wrapped. */
export function wrapGroups(payload: Payload, units: Unit[], boxes: Box[], hasPlumbing: boolean): void {
  const byModule = new Map<number, number>([[-1, 0]]);
  boxes.forEach((box, b) => {
    if (box.kind === "module") byModule.set(box.modules[0]!, b);
  });
  for (const run of payload.runs.slice().reverse()) {
    const parent = byModule.get(run.module); // inner runs first, so that they are inside the blocks of outer ones
    if (parent !== undefined) wrapRun(run, parent, units, boxes);
  }
  for (const port of payload.ports) wrapPort(payload, port, units, boxes);
  if (!hasPlumbing) for (const chip of payload.chips) wrapChip(chip, units, boxes);
  for (let b = 0; b < boxes.length; b++) {
    if (boxes[b]!.kind === "root" || boxes[b]!.kind === "module") wrapLists(payload, b, units, boxes);
  }
}

function wrapRun(run: Run, parent: number, units: Unit[], boxes: Box[]): void {
  const { children } = boxes[parent]!;
  const first = (child: number): number => {
    let at = child;
    while (isBox(at)) at = boxes[~at]!.children[0]!;
    return units[at]!.members[0]!;
  };
  const blocks = run.starts.map((): number[] => []);
  let block = -1;
  for (const child of children) {
    const node = first(child);
    if (node < run.starts[0]! || node >= run.end) continue;
    while (block + 1 < run.starts.length && node >= run.starts[block + 1]!) block++;
    blocks[block]!.push(child);
  }
  const parts = blocks.filter((part) => part.length > 0);
  const place = children.indexOf(parts[0]?.[0] ?? NaN);
  const whole = parts.flat();
  const isInARow = whole.every((child, i) => children[place + i] === child);
  if (parts.length < 2 || !isInARow) return;
  const forms = parts.map((part) => part.map((child) => formOf(child, units, boxes)).join());
  if (forms.some((form) => form !== forms[0])) return;
  const made = addRun(parent, parts, units, boxes);
  children.splice(place, whole.length, ~made);
}

function addRun(parent: number, parts: number[][], units: Unit[], boxes: Box[]): number {
  const key = `run ${childKey(boxes, units, parts[0]![0]!)}`;
  const run = addGroup(boxes, units, { key, kind: "run", parent, children: [] });
  const blocks = parts.map((part) => {
    if (part.length === 1 && isBox(part[0]!)) {
      boxes[~part[0]!]!.parent = run;
      return part[0]!;
    }
    const name = `step ${childKey(boxes, units, part[0]!)}`;
    return ~addGroup(boxes, units, { key: name, kind: "step", parent: run, children: part });
  });
  boxes[run]!.children = blocks;
  boxes[run]!.blocks = blocks.map((block) => ~block);
  return run;
}

/** The tree of a box. Rolled, layers of blocks that are equal pass by pass may still have been put together differently. */
function formOf(child: number, units: Unit[], boxes: Box[]): string {
  if (!isBox(child)) return `${units[child]!.members.length}/${units[child]!.shell.length}`;
  const { kind, children, blocks } = boxes[~child]!;
  return `${kind}${blocks.length}(${children.map((one) => formOf(one, units, boxes)).join()})`;
}

function wrapPort(payload: Payload, port: Port, units: Unit[], boxes: Box[]): void {
  const wanted = new Set(port.nodes);
  const { children } = boxes[0]!;
  const inside = children.filter((child) => !isBox(child) && wanted.has(units[child]!.members[0]!));
  if (inside.length < 2 || inside.length === children.length) return;
  const { kind } = payload.nodes[port.nodes[0]!]!;
  const place = children.indexOf(inside[0]!);
  const key = `${kind}s ${port.name} ${units[inside[0]!]!.key}`;
  const made = addGroup(boxes, units, { key, kind: "ports", parent: 0, children: inside, title: port.name });
  boxes[0]!.children = children.map((child, i) => (i === place ? ~made : child)).filter((child) => !inside.includes(child));
}

/** Puts a box around plumbing, in each of the boxes that hold some of it. */
function wrapChip(chip: Chip, units: Unit[], boxes: Box[]): void {
  const wanted = new Set(chip.nodes);
  const isPart = (child: number): boolean =>
    isBox(child) ? boxes[~child]!.children.every(isPart) : wanted.has(units[child]!.members[0]!);
  for (let b = 0; b < boxes.length; b++) {
    const box = boxes[b]!;
    if (box.kind !== "root" && box.kind !== "module" && box.kind !== "step") continue;
    const inside = box.children.filter(isPart);
    if (!inside.length || inside.length === box.children.length) continue;
    const place = box.children.indexOf(inside[0]!);
    const key = `${chip.name} ${childKey(boxes, units, inside[0]!)}`;
    const made = addGroup(boxes, units, { key, kind: "chip", parent: b, children: inside, title: chip.name });
    box.children = box.children.map((child, i) => (i === place ? ~made : child)).filter((child) => !inside.includes(child));
  }
}

/** The list that a child is in: `down_blocks` of `down_blocks.0`, as seen from the module around it; null of other modules. */
function listOf(payload: Payload, child: number, outer: string, units: Unit[], boxes: Box[]): string | null {
  let at = child;
  if (isBox(at) && boxes[~at]!.kind === "chip") return null;
  while (isBox(at) && boxes[~at]!.kind !== "module") at = boxes[~at]!.children[0]!;
  const module = payload.modules[(isBox(at) ? boxes[~at]!.modules[0] : units[at]!.shell[0]) ?? -1];
  if (!module) return null;
  const parts = module.address.slice(outer ? outer.length + 1 : 0).split(".");
  return parts.length === 2 && /^\d+$/.test(parts[1]!) ? parts[0]! : null;
}

/** Modules of a list that follow one another, with the operations between them, are one box, as in the model's own code. */
function wrapLists(payload: Payload, b: number, units: Unit[], boxes: Box[]): void {
  const { children, modules } = boxes[b]!;
  const outer = payload.modules[modules[0] ?? -1]?.address ?? "";
  const names = children.map((child) => listOf(payload, child, outer, units, boxes));
  const isBare = children.map((child) =>
    isBox(child) ? boxes[~child]!.kind === "chip" : !units[child]!.shell.length && isOperation(payload, units[child]!),
  );
  for (let at = children.length - 1; at >= 0; at--) {
    const name = names[at];
    if (!name) continue;
    let first = at;
    for (let i = at - 1; i >= 0 && (names[i] === name || isBare[i]); i--) if (names[i] === name) first = i;
    const inside = children.slice(first, at + 1);
    if (inside.filter(isBox).length > 1 && inside.length < children.length) {
      const key = `list ${childKey(boxes, units, inside[0]!)}`;
      const title = outer ? `${outer}.${name}` : name;
      const made = addGroup(boxes, units, { key, kind: "list", parent: b, children: inside, title });
      children.splice(first, inside.length, ~made);
    }
    at = first;
  }
}

function isOperation(payload: Payload, unit: Unit): boolean {
  const { kind } = payload.nodes[unit.members[0]!]!;
  return kind !== "input" && kind !== "output";
}
