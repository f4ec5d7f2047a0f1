// Finds equal blocks that follow one another, such as the twelve blocks of GPT-2, and puts a box around them: a run.
//
// The blocks of a run have the same form (the same tree of boxes and units), so what is shown for one stands for all: the
// unit at some place in one block and the unit at that place in another correspond.

import { type Box, type Unit, type Wires, addGroup, childKey, isBox } from "./hierarchy";
import type { Payload } from "./payload";

const FEWEST = 3; // blocks
const LONGEST = 8; // children in one step of a repeated pattern
const MANY_UNITS = 24; // a pattern without a module is only folded when it is as long as this

interface Pattern {
  period: number;
  times: number;
}

/** Wraps runs of equal blocks, from the inside out. */
export function foldRuns(payload: Payload, units: Unit[], boxes: Box[], wires: Wires): void {
  const forms = new Forms(payload, units, boxes);
  const visit = (b: number): void => {
    for (const child of boxes[b]!.children) if (isBox(child)) visit(~child);
    foldChildren(b, forms, units, boxes, wires);
    forms.add(b);
  };
  visit(0);
}

function foldChildren(b: number, forms: Forms, units: Unit[], boxes: Box[], wires: Wires): void {
  const { children } = boxes[b]!;
  if (children.length < FEWEST) return;
  const tokens = children.map((child) => forms.of(child));
  const kept: number[] = [];
  for (let at = 0; at < children.length;) {
    const found = longestPattern(tokens, at, children);
    const times = found ? timesWiredAlike(found, at, children, boxes, wires) : 1;
    const part = children.slice(at, at + (found ? found.period * times : 1));
    if (found && times >= FEWEST) kept.push(~addRun(b, part, { ...found, times }, units, boxes, forms));
    else kept.push(...part);
    at += part.length;
  }
  if (kept.length < children.length) boxes[b]!.children = kept;
}

/** The pattern that covers most from here on; the shortest of those. */
function longestPattern(tokens: number[], at: number, children: number[]): Pattern | null {
  let best: Pattern | null = null;
  for (let period = 1; period <= LONGEST && at + FEWEST * period <= tokens.length; period++) {
    let end = at + period;
    while (end < tokens.length && tokens[end] === tokens[end - period] && tokens[end]! >= 0) end++;
    const times = Math.floor((end - at) / period);
    const holdsModule = children.slice(at, at + period).some(isBox);
    if (times < FEWEST || (!holdsModule && times * period < MANY_UNITS)) continue;
    if (!best || times * period > best.times * best.period) best = { period, times };
  }
  return best;
}

/** How many steps read from the same places: themselves, steps before them, or outside. Modules say so themselves. */
function timesWiredAlike(found: Pattern, at: number, children: number[], boxes: Box[], wires: Wires): number {
  if (found.period === 1 && isBox(children[at]!)) return found.times;
  const places = new Map<number, [number, number]>();
  const steps: number[][] = [];
  for (let step = 0; step < found.times; step++) {
    const start = at + step * found.period;
    const inside = children.slice(start, start + found.period).flatMap((child) => unitsIn(child, boxes));
    inside.forEach((unit, offset) => places.set(unit, [step, offset]));
    steps.push(inside);
  }
  const entries = (unit: number, step: number): string => {
    const sources = wires.into[unit]!.map((wire) => places.get(wires.from[wire]!));
    return sources.map((place) => (place ? `${step - place[0]} ${place[1]}` : "outside")).join();
  };
  const usual = steps[1]!.map((unit) => entries(unit, 1));
  const asFirst = (text: string): string => text.replace(/\b[1-9]\d* \d+/g, "outside"); // there is no step before the first
  if (steps[0]!.some((unit, i) => entries(unit, 0) !== asFirst(usual[i]!))) return 1;
  const unlike = steps.findIndex((inside, step) => step > 1 && inside.some((unit, i) => entries(unit, step) !== usual[i]));
  return unlike < 0 ? found.times : unlike;
}

function unitsIn(child: number, boxes: Box[]): number[] {
  return isBox(child) ? boxes[~child]!.children.flatMap((one) => unitsIn(one, boxes)) : [child];
}

function addRun(parent: number, children: number[], found: Pattern, units: Unit[], boxes: Box[], forms: Forms): number {
  const key = `run ${childKey(boxes, units, children[0]!)}`;
  const run = addGroup(boxes, units, { key, kind: "run", parent, children: [] });
  const blocks: number[] = [];
  for (let step = 0; step < found.times; step++) {
    const part = children.slice(step * found.period, (step + 1) * found.period);
    if (found.period === 1 && isBox(part[0]!)) {
      boxes[~part[0]!]!.parent = run;
      blocks.push(part[0]!);
      continue;
    }
    const name = `step ${childKey(boxes, units, part[0]!)}`;
    const block = addGroup(boxes, units, { key: name, kind: "step", parent: run, children: part });
    forms.add(block);
    blocks.push(~block);
  }
  boxes[run]!.children = blocks;
  boxes[run]!.blocks = blocks.map((block) => ~block);
  forms.add(run);
  return run;
}

/** Numbers for what a box or unit is, apart from where it stands: equal numbers, equal inside. -1 is like nothing else. */
class Forms {
  private readonly numbers = new Map<string, number>();
  private readonly ofBoxes: number[] = [];
  private readonly ofUnits: number[];

  constructor(
    private readonly payload: Payload,
    units: Unit[],
    private readonly boxes: Box[],
  ) {
    this.ofUnits = units.map((unit) => this.number(this.describeUnit(unit)));
  }

  of(child: number): number {
    return isBox(child) ? this.ofBoxes[~child]! : this.ofUnits[child]!;
  }

  add(b: number): void {
    const box = this.boxes[b]!;
    const calls = box.modules.map((module) => this.payload.modules[module]!);
    const inside = box.children.map((child) => this.of(child));
    const isUnlike = inside.includes(-1) || calls.some((call) => call.structure === "");
    const text = `${box.kind} ${calls.map((call) => `${call.class} ${call.structure}`).join()} (${inside.join()})`;
    this.ofBoxes[b] = isUnlike ? -1 : this.number(text);
  }

  private describeUnit(unit: Unit): string {
    const node = this.payload.nodes[unit.members[0]!]!;
    const classes = unit.shell.map((module) => this.payload.modules[module]!.class);
    const params = node.params.map((param) => param.shape.join("×"));
    return [node.kind, node.type, node.shape?.join("×"), node.dtype, unit.members.length, classes.join(), params.join()].join(
      "|",
    );
  }

  private number(text: string): number {
    const known = this.numbers.get(text);
    if (known !== undefined) return known;
    this.numbers.set(text, this.numbers.size);
    return this.numbers.size - 1;
  }
}
