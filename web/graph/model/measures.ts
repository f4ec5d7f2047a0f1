// What can be measured on a unit or a box: the figure that colours it and that the table sorts by.

import { type Hierarchy, isBox, startOf, unitsOf } from "./hierarchy";
import type { OpNode, Payload } from "./payload";
import * as format from "../../shared/format";

type OwnMetric = `own ${number}`; // one of the payload's `metrics`
export type MetricName =
  "type" | "time" | "memory" | "flops" | "params" | "norm" | "zeros" | "gradient" | "nonfinite" | OwnMetric;

export interface Metric {
  name: MetricName;
  title: string;
  rule: string; // how the figure of a closed box comes about
  write: (value: number) => string;
}

const METRICS: Metric[] = [
  { name: "type", title: "Type", rule: "", write: String },
  { name: "time", title: "Time", rule: "sum of what is inside", write: format.time },
  { name: "memory", title: "Memory", rule: "sum of the tensors made inside", write: format.bytes },
  { name: "flops", title: "FLOPs", rule: "sum of what is inside", write: format.flops },
  { name: "params", title: "Parameters", rule: "each parameter once", write: format.human },
  { name: "norm", title: "Activation norm", rule: "largest inside", write: format.figure },
  { name: "zeros", title: "Zeros", rule: "share of all values inside", write: format.percent },
  { name: "gradient", title: "Gradient norm", rule: "largest inside", write: format.figure },
  { name: "nonfinite", title: "NaN and infinite", rule: "values inside", write: format.human },
];

/** The figures that the reader defined, by the names they were given. */
export function ownMetrics(payload: Payload): (Metric & { name: OwnMetric })[] {
  return payload.metrics.map((title, i) => ({ name: `own ${i}`, title, rule: "largest inside", write: format.figure }));
}

/** Everything that boxes can be coloured by. */
export function metricsOf(payloads: Payload[]): Metric[] {
  const own = payloads.map(ownMetrics).sort((a, b) => b.length - a.length)[0] ?? [];
  return [...METRICS, ...own];
}

type Reading = (node: OpNode) => number | null;

const SUMMED: Partial<Record<MetricName, Reading>> = {
  time: (node) => node.seconds || null, // 0: nothing was called, or it ran where it could not be timed
  memory: (node) => node.bytes,
  flops: (node) => node.flops,
  nonfinite: (node) => (node.stats ? node.stats.nan + node.stats.inf : null),
};

const LARGEST: Partial<Record<MetricName, Reading>> = {
  norm: (node) => node.stats?.norm ?? null,
  gradient: (node) => node.grad?.stats?.norm ?? null,
};

/** What reads one of the figures that the reader defined. */
export function ownReading(metric: MetricName): Reading {
  const at = Number(metric.replace("own ", ""));
  return (node) => node.metrics[at] ?? null;
}

/** Figures of one hierarchy, worked out on first use. */
export class Measures {
  private readonly sums = new Map<string, Prefix>();
  private readonly kept = new Map<string, number | null>();

  constructor(private readonly hierarchy: Hierarchy) {}

  /** The figure of a child (a unit, or the complement of a box); null where nothing is known. */
  of(metric: MetricName, child: number): number | null {
    if (metric === "zeros") return this.zeros(child);
    const summed = SUMMED[metric];
    if (summed) return this.sum(metric, summed, child);
    const key = `${metric} ${child}`;
    const known = this.kept.get(key);
    if (known !== undefined) return known;
    const found = metric === "params" ? this.params(child) : this.largest(LARGEST[metric] ?? ownReading(metric), child);
    this.kept.set(key, found);
    return found;
  }

  /** How many operations a child stands for. */
  operations(child: number): number {
    return this.sum("operations", () => 1, child) ?? 0;
  }

  private sum(name: string, reading: Reading, child: number): number | null {
    const prefix = this.sums.get(name) ?? new Prefix(this.hierarchy, reading);
    this.sums.set(name, prefix);
    return prefix.over(child);
  }

  private zeros(child: number): number | null {
    const zeros = this.sum("zeros", (node) => node.stats?.zeros ?? null, child);
    const counted = this.sum("counted", (node) => node.stats?.count ?? null, child);
    return zeros === null || !counted ? null : zeros / counted;
  }

  private params(child: number): number {
    const sizes = new Map<string, number>();
    for (const node of this.nodesOf(child)) for (const param of node.params) sizes.set(param.name, param.numel);
    return [...sizes.values()].reduce((sum, size) => sum + size, 0);
  }

  private largest(reading: Reading, child: number): number | null {
    let found: number | null = null;
    for (const node of this.nodesOf(child)) {
      const value = reading(node);
      if (value !== null && (found === null || value > found)) found = value;
    }
    return found;
  }

  private *nodesOf(child: number): Generator<OpNode> {
    const { units, payload } = this.hierarchy;
    for (const unit of unitsOf(this.hierarchy, child)) for (const node of units[unit]!.members) yield payload.nodes[node]!;
  }
}

/** Sums of a figure over ranges of positions, and how many of the values are known. */
class Prefix {
  private readonly values: Float64Array;
  private readonly known: Int32Array;

  constructor(
    private readonly hierarchy: Hierarchy,
    reading: Reading,
  ) {
    const { units, order, payload } = hierarchy;
    this.values = new Float64Array(units.length + 1);
    this.known = new Int32Array(units.length + 1);
    order.forEach((unit, p) => {
      const found = units[unit]!.members.flatMap((node) => reading(payload.nodes[node]!) ?? []);
      this.values[p + 1] = found.reduce((sum, value) => sum + value, this.values[p]!);
      this.known[p + 1] = this.known[p]! + found.length;
    });
  }

  over(child: number): number | null {
    const low = startOf(this.hierarchy, child);
    const high = isBox(child) ? this.hierarchy.boxes[~child]!.high : low + 1;
    if (this.known[high] === this.known[low]) return null;
    return Math.max(0, this.values[high]! - this.values[low]!); // rounding may leave less than nothing
  }
}
