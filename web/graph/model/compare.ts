// What differs between corresponding nodes of two models. Which nodes correspond was decided in Python.

import { type Hierarchy, isBox, unitsOf } from "./hierarchy";
import type { OpNode, Payload, Stats, Weight } from "./payload";
import * as format from "../../shared/format";

export type ChangeKind = "structure" | "parameters" | "values" | "time";

interface Change {
  kind: ChangeKind;
  name: string;
  left: string;
  right: string;
  amount: string; // by how much, in words; empty where that makes no sense
}

export interface Difference {
  left: number; // node of the first payload, or -1
  right: number;
  changes: Change[]; // empty when it is only in one of them
  cause: string; // what a comparison found to be different about it
}

export interface Comparison {
  toRight: Int32Array; // -1 where there is none
  toLeft: Int32Array;
  differences: Difference[]; // in order of execution
  counts: { left: number; right: number; structure: number; parameters: number; values: number; time: number };
}

interface Docs {
  docs: { payload: Payload }[];
}

/** What a side is called: as in the verdict, where there is one. */
export function sideName(guide: Docs, side: number): string {
  const names = guide.docs[0]!.payload.verdict ? ["a", "b"] : ["Left", "Right"];
  return names[side]!;
}

/** The title of a model; of two, with its side. */
export function titleOf(guide: Docs, side: number): string {
  const { title } = guide.docs[side]!.payload;
  return guide.docs.length > 1 ? `${sideName(guide, side)}: ${title}` : title;
}

export function onlyIn(guide: Docs, side: number): string {
  const name = sideName(guide, side);
  return guide.docs[0]!.payload.verdict ? `only in ${name}` : `only in the ${name.toLowerCase()} model`;
}

const SAME_VALUES = 1e-4; // of the spread of the values
const NOTABLE_TIME = 2; // times as long
const NOTABLE_SHARE = 0.01; // of the whole pass

export function compare(left: Payload, right: Payload): Comparison {
  const toRight = Int32Array.from(left.partners);
  const toLeft = new Int32Array(right.nodes.length).fill(-1);
  toRight.forEach((to, from) => {
    if (to >= 0) toLeft[to] = from;
  });
  const all = inOrder(left, right, toRight, toLeft);
  const differences = left.verdict ? ofTheirOwn(left, right, all) : all;
  const having = (kind: ChangeKind): number =>
    differences.filter((one) => one.changes.some((change) => change.kind === kind)).length;
  const counts = {
    left: differences.filter((one) => one.right < 0).length,
    right: differences.filter((one) => one.left < 0).length,
    structure: having("structure"),
    parameters: having("parameters"),
    values: differences.filter((one) => isOfValues(one)).length,
    time: having("time"),
  };
  return { toRight, toLeft, differences, counts };
}

/** Whether values differ, or an operation is wrong by itself. */
export function isOfValues({ left, right, changes, cause }: Difference): boolean {
  return left >= 0 && right >= 0 && (cause !== "" || changes.some((change) => change.kind === "values"));
}

/** What corresponds to a unit or box: the partner of its first operation, or the least box of that kind around all partners. */
export function counterpart(from: Hierarchy, to: Hierarchy, child: number, matched: Int32Array): number | null {
  const partners = unitsOf(from, child).map((unit) => matched[from.units[unit]!.members[0]!]!);
  const units = partners.filter((node) => node >= 0).map((node) => to.unitOfNode[node]!);
  if (!units.length) return null;
  if (!isBox(child)) return units[0]!;
  const places = units.map((unit) => to.position[unit]!).sort((a, b) => a - b);
  const [first, last] = [places[0]!, places.at(-1)!];
  const { kind } = from.boxes[~child]!;
  for (let at = to.units[units[0]!]!.parent; at > 0; at = to.boxes[at]!.parent) {
    const { low, high, kind: other } = to.boxes[at]!;
    if (other === kind && low <= first && last < high) return ~at;
  }
  return null;
}

/** With a verdict, different values count only where the operation has an error of its own: the others inherited theirs. */
function ofTheirOwn(left: Payload, right: Payload, all: Difference[]): Difference[] {
  const [ours, theirs] = [new Set(left.culprits), new Set(right.culprits)];
  return all.flatMap((one) => {
    if (one.left < 0 || one.right < 0) return [one];
    const changes = one.changes.filter((change) => change.kind !== "values");
    const error = right.nodes[one.right]!.metrics[0] ?? null;
    if (error !== null && (ours.has(one.left) || theirs.has(one.right)))
      changes.unshift({ kind: "values", name: "own error", left: "", right: "", amount: format.figure(error) });
    return changes.length || one.cause ? [{ ...one, changes }] : [];
  });
}

/** Differences in the order of the first model; a node that only the second has comes after the node it follows there. */
function inOrder(left: Payload, right: Payload, toRight: Int32Array, toLeft: Int32Array): Difference[] {
  const found: Difference[] = [];
  let next = 0;
  const addRight = (until: number): void => {
    for (; next < until; next++) if (toLeft[next]! < 0) found.push({ left: -1, right: next, changes: [], cause: right.nodes[next]!.cause });
  };
  left.nodes.forEach((node, i) => {
    const other = toRight[i]!;
    if (other < 0) {
      found.push({ left: i, right: -1, changes: [], cause: node.cause });
      return;
    }
    addRight(other);
    const changes = changesBetween(left, i, right, other);
    const cause = node.cause || right.nodes[other]!.cause;
    if (changes.length || cause) found.push({ left: i, right: other, changes, cause });
    next = Math.max(next, other + 1);
  });
  addRight(right.nodes.length);
  return found;
}

/** What differs between a node of one payload and one of another. */
export function changesBetween(one: Payload, at: number, other: Payload, otherAt: number): Change[] {
  const [left, right] = [one.nodes[at]!, other.nodes[otherAt]!];
  const changes: Change[] = [];
  const structure = (name: string, one: string, other: string, amount = ""): void => {
    if (one !== other) changes.push({ kind: "structure", name, left: one, right: other, amount });
  };
  structure("function", left.function || left.type, right.function || right.type);
  structure("shape", written(left.shape), written(right.shape), sizeRatio(left.shape, right.shape));
  structure("dtype", left.dtype ?? "–", right.dtype ?? "–");
  structure("device", left.device ?? "–", right.device ?? "–");
  structure("parameters", paramsOf(left), paramsOf(right));
  const hasAddress = left.arguments.includes(" at 0x"); // of a Python object, another one in every run
  if (!one.verdict && !hasAddress) structure("arguments", left.arguments, right.arguments); // a verdict names the cause
  structure("passes", String(left.num_passes), String(right.num_passes));
  changes.push(...parameterChanges(left, weightsOf(one), right, weightsOf(other)));
  changes.push(...valueChanges("activation", left.stats, right.stats));
  changes.push(...valueChanges("gradient", left.grad?.stats ?? null, right.grad?.stats ?? null));
  const [less, more] = [Math.min(left.seconds, right.seconds), Math.max(left.seconds, right.seconds)];
  const share = more / Math.max(one.facts.seconds, other.facts.seconds, 1e-12);
  if (less > 0 && more > NOTABLE_TIME * less && share > NOTABLE_SHARE) {
    const amount = `${(right.seconds / left.seconds).toFixed(right.seconds > left.seconds ? 1 : 2)} times`;
    changes.push({ kind: "time", name: "time", left: format.time(left.seconds), right: format.time(right.seconds), amount });
  }
  return changes;
}

type Weights = ReadonlyMap<string, Weight>;

const knownWeights = new WeakMap<Payload, Weights>();

/** The values of parameters and buffers, by name. */
export function weightsOf(payload: Payload): Weights {
  const known = knownWeights.get(payload) ?? new Map(payload.weights.map((weight) => [weight.name, weight]));
  knownWeights.set(payload, known);
  return known;
}

/** Which parameters and buffers of two nodes have other values, in the order they are used. */
function parameterChanges(left: OpNode, ours: Weights, right: OpNode, theirs: Weights): Change[] {
  const names = (node: OpNode): string[] => [...node.params.map((param) => param.name), ...node.buffers];
  const others = names(right);
  return names(left).flatMap((name, i) => {
    const [one, other] = [ours.get(name), theirs.get(others[i] ?? "")];
    if (!one?.values_id || !other?.values_id || one.values_id === other.values_id) return [];
    const said = ({ stats }: Weight): string => (stats ? meanAndStd(stats) : "other values");
    const norms = [one, other].map(({ stats }) => format.figure(stats?.norm ?? null));
    const amount = `norm ${norms.join(" and ")}`;
    return [{ kind: "parameters" as const, name, left: said(one), right: said(other), amount }];
  });
}

/** The mean of the absolute differences of lowest, highest, mean and deviation, where it is more than rounding. */
function valueChanges(name: string, left: Stats | null, right: Stats | null): Change[] {
  if (!left || !right) return [];
  const changes: Change[] = [];
  const pairs = (["min", "max", "mean", "std"] as const)
    .map((key) => [left[key], right[key]] as const)
    .filter((pair): pair is readonly [number, number] => pair[0] !== null && pair[1] !== null);
  const distance = pairs.reduce((sum, [one, other]) => sum + Math.abs(one - other), 0) / Math.max(1, pairs.length);
  const spread = Math.max(left.std ?? 0, right.std ?? 0, Math.abs(left.mean ?? 0) * 1e-3, 1e-30);
  if (distance > SAME_VALUES * spread) {
    const amount = `by ${format.figure(distance)} on average`;
    changes.push({ kind: "values", name: `${name} values`, left: meanAndStd(left), right: meanAndStd(right), amount });
  }
  const unusable = (stats: Stats): number => stats.nan + stats.inf;
  if (unusable(left) !== unusable(right)) {
    const [one, other] = [format.count(unusable(left)), format.count(unusable(right))];
    changes.push({ kind: "values", name: `${name}: NaN and infinite`, left: one, right: other, amount: "" });
  }
  return changes;
}

function meanAndStd({ mean, std }: Stats): string {
  return `${format.figure(mean)} ± ${format.figure(std)}`;
}

function written(shape: number[] | null): string {
  return shape === null ? "–" : format.shape(shape);
}

function sizeRatio(left: number[] | null, right: number[] | null): string {
  if (!left || !right) return "";
  const size = (shape: number[]): number => shape.reduce((product, one) => product * one, 1);
  const ratio = size(right) / size(left);
  return Number.isFinite(ratio) && ratio !== 1 ? `${Number(ratio.toPrecision(3))} times the size` : "";
}

function paramsOf(node: OpNode): string {
  return node.params.map((param) => `${format.shape(param.shape)}${param.trainable ? "" : " frozen"}`).join(", ") || "none";
}
