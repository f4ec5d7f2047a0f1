// What the map of all layers can show: a number for each layer and snapshot, and where it lies on a scale.

import * as format from "../../shared/format";
import { clamp } from "../../shared/scale";
import { type Run, SUMMARY, type Series } from "./run";

export const HEALTHY = 1e-3; // of a weight's norm, at a training step

export interface Measure {
  id: string;
  title: string;
  kind: string | null; // what a click leads to; null for all kinds together
  field: string;
  summary: string; // the same in a layer's summary; empty where it is not there
  scale: "log" | "ratio" | "part" | "count";
  about: string;
}

const LOG = "on a logarithmic scale.";
const UPDATES = "How far a training step moved each layer's parameters, as a part of their norm. About 10⁻³ is healthy.";
const DEAD = "Units that were never above zero over several snapshots, as a part of all units.";

export const MEASURES: Measure[] = [
  measure(
    "grad",
    "Gradient norm",
    "grad",
    "norm",
    "log",
    `Norm of the gradients of each layer's parameters, ${LOG}`,
    "grad_norm",
  ),
  measure("update", "Update ratio", "weight", "update_ratio", "ratio", UPDATES, "update_ratio"),
  measure("dead", "Dead units", "activation", "dead", "part", DEAD, "dead"),
  measure("nonfinite", "Not finite", null, "", "count", "Values that are NaN or infinite, in any kind of a layer."),
  measure("layer_grad", "Output gradient norm", "layer_grad", "norm", "log", `Norm of the gradient of each output, ${LOG}`),
  measure("zeros", "Zero activations", "activation", "zeros", "part", "The part of each activation that is exactly zero."),
  measure("zeros-weight", "Zero weights", "weight", "zeros", "part", "The part of each weight that is exactly zero."),
  measure("weight-norm", "Weight norm", "weight", "norm", "log", `Norm of each layer's parameters, ${LOG}`, "norm"),
  measure("weight-std", "Weight spread", "weight", "std", "log", `Standard deviation of each weight, ${LOG}`),
  measure("activation-norm", "Activation norm", "activation", "norm", "log", `Norm of each activation, ${LOG}`),
  measure("activation-std", "Activation spread", "activation", "std", "log", `Standard deviation of each activation, ${LOG}`),
  measure("layer-std", "Output spread", "layer", "std", "log", `Standard deviation of each output, ${LOG}`),
];

function measure(
  id: string,
  title: string,
  kind: string | null,
  field: string,
  scale: Measure["scale"],
  about: string,
  summary = "",
): Measure {
  return { id, title, kind, field, summary, scale, about };
}

/** The value of a measure for a layer at a snapshot, null where it is missing, and how many values are not finite. */
export interface Cell {
  value: number | null;
  bad: number;
}

export interface Grid {
  measure: Measure;
  cells: Cell[][]; // by layer and snapshot
  low: number; // powers of ten
  high: number;
  isLow: boolean; // values lie below
  isHigh: boolean;
}

/** The measures that have values, with all their cells. */
export function gridsOf(run: Run): Grid[] {
  return MEASURES.map((measure) => gridOf(run, measure)).filter(({ measure, cells }) => {
    const known = cells.flat().filter((one) => one.value !== null);
    return measure.id === "zeros-weight" ? known.some((one) => one.value! > 0) : known.length > 0;
  });
}

export function gridOf(run: Run, measure: Measure): Grid {
  const cells = run.facts.layers.map((_, layer) =>
    Array.from({ length: run.count }, (_, at) => cellOf(run, measure, layer, at)),
  );
  const known = cells.flat().flatMap((one) => (one.value === null ? [] : [one.value]));
  return { measure, cells, ...decadesOf(known) };
}

function cellOf(run: Run, measure: Measure, layer: number, at: number): Cell {
  if (measure.kind === null) return allKinds(run, layer, at);
  const summary = measure.summary ? run.find(layer, SUMMARY) : undefined;
  const series = summary ?? run.find(layer, measure.kind);
  if (!series || !run.has(series, at)) return { value: null, bad: 0 };
  const value = shareOf(run, series, summary ? measure.summary : measure.field, at);
  const bad = summary ? badInSummary(run, measure, summary, at) : run.nonfinite(series, at);
  return { value: Number.isFinite(value) ? value : null, bad };
}

/** How many values are not finite of the tensors that a number of a summary is of: the parameters, or their gradients. */
function badInSummary(run: Run, measure: Measure, summary: Series, at: number): number {
  if (measure.kind === "weight") return run.value(summary, "nan", at);
  if (measure.kind === "grad") return run.value(summary, "grad_nonfinite", at) || 0;
  const own = run.find(summary.layer, measure.kind!);
  return own && run.has(own, at) ? run.nonfinite(own, at) : 0;
}

/** A number of a series; zeros and dead units as a part of all. */
export function shareOf(run: Run, series: Series, field: string, at: number): number {
  const value = run.value(series, field, at);
  const whole = { zeros: "count", dead: "units" }[field];
  return whole ? value / run.value(series, whole, at) : value;
}

function allKinds(run: Run, layer: number, at: number): Cell {
  const there = run
    .kindsOf(layer)
    .map((kind) => run.find(layer, kind)!)
    .filter((series) => run.has(series, at));
  const bad = there.reduce((sum, series) => sum + run.nonfinite(series, at), 0);
  return { value: there.length ? bad : null, bad };
}

export function cellText(measure: Measure, { value, bad }: Cell): string {
  const told = bad ? `${format.count(bad)} not finite` : "";
  if (value === null) return told || "not recorded";
  if (measure.scale === "count") return told || "all finite";
  const text = measure.scale === "part" ? format.percent(value) : format.figure(value, 3);
  return told ? `${text} without those ${told}` : text;
}

/** The powers of ten that most values lie between. A few far beyond, as in a run that explodes, do not stretch the scale. */
export function decadesOf(values: number[]): Pick<Grid, "low" | "high" | "isLow" | "isHigh"> {
  const powers = values
    .filter((value) => value > 0)
    .map(Math.log10)
    .sort((a, b) => a - b);
  if (!powers.length) return { low: -1, high: 0, isLow: false, isHigh: false };
  const at = (part: number): number => powers[Math.round(part * (powers.length - 1))]!;
  const [least, most] = [at(0), at(1)];
  const high = Math.ceil((most > at(0.9) + 2 ? at(0.9) : most) - 1e-6);
  const low = Math.min(Math.max(Math.floor((least < at(0.02) - 2 ? at(0.02) : least) + 1e-6), high - 12), high - 1);
  return { low, high, isLow: least < low - 1e-6, isHigh: most > high + 1e-6 };
}

/** Where a value lies on the scale of its measure, 0 to 1. */
export function levelOf({ measure, low, high }: Grid, value: number): number {
  if (measure.scale === "part") return clamp(value, 0, 1);
  if (measure.scale === "count" || value <= 0) return 0;
  if (measure.scale === "ratio") return clamp((Math.log10(value / HEALTHY) + 3) / 6, 0, 1);
  return clamp((Math.log10(value) - low) / (high - low), 0, 1);
}

/** What is written under the scale: values, texts, and whether one is meant to be seen first. */
export function legendTicks({ measure, low, high, isLow, isHigh }: Grid): [number, string, boolean][] {
  if (measure.scale === "part") return [0, 0.25, 0.5, 0.75, 1].map((value) => [value, format.percent(value), false]);
  if (measure.scale === "ratio")
    return [
      [1e-6, "≤ 1e−6", false],
      [HEALTHY, "healthy 1e−3", true],
      [1, "≥ 1", false],
    ];
  const every = Math.max(1, Math.ceil((high - low) / 5));
  const found: [number, string, boolean][] = [];
  for (let power = high; power >= low; power -= every) {
    const sign = power === high && isHigh ? "≥ " : power === low && isLow ? "≤ " : "";
    found.unshift([10 ** power, sign + format.powerOfTen(10 ** power), false]);
  }
  return found;
}

/** The cell that a column of a picture shows, where there are fewer columns than snapshots: values that are not finite first. */
export function cellFor(row: Cell[], column: number, columns: number): Cell | undefined {
  const first = Math.floor((column * row.length) / columns);
  const among = row.slice(first, Math.max(Math.floor(((column + 1) * row.length) / columns), first + 1));
  return among.find((one) => one.bad > 0) ?? among.findLast((one) => one.value !== null);
}
