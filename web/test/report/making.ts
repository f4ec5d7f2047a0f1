// Makes runs for the tests from a few words.

import { filled } from "../../shared/filling";
import { PARTS, type Report } from "../../shared/generated/report_format";
import { Run } from "../../report/data/run";

export const FIELDS = [
  ...["form", "count", "mean", "std", "min", "max", "norm", "zeros", "nan", "inf", "low", "high"],
  ...["update_ratio", "dead", "units", "grad_norm", "grad_nonfinite"],
];
export const EDGES = [-10, -1, -0.1, 0.1, 1, 10]; // seven bins, with zero in the middle one

export interface Draft {
  layer: string;
  kind: string;
  steps: (Record<string, number> | null)[]; // the fields of each snapshot; null where it is not recorded
  bins?: number[][]; // by snapshot: the code of each bin
  more?: Record<string, unknown>; // of the series
}

/** Numbers as the page gets them: the first bytes of all of them, then the second, third and fourth. */
export function planesOf(numbers: number[]): Uint8Array {
  const view = new DataView(new ArrayBuffer(4 * numbers.length));
  numbers.forEach((value, i) => view.setFloat32(4 * i, value, true));
  const planes = [0, 1, 2, 3].flatMap((plane) => numbers.map((_, i) => view.getUint8(4 * i + plane)));
  return Uint8Array.from(planes);
}

export function form(more: Record<string, unknown> = {}): Record<string, unknown> {
  const plain = { source: "", shape: [8, 4], dtype: "float32", layout: "matrix", rows: [0, 1], columns: [0, 1, 2], note: "" };
  return { ...plain, axes: ["unit", "input"], totals: [8, 4], color: false, ...more };
}

export function factsOf(series: Draft[], more: Record<string, unknown> = {}): Record<string, unknown> {
  const count = series[0]?.steps.length ?? 0;
  const layers = [...new Set(series.map((one) => one.layer))];
  const steps = Array.from({ length: count }, (_, at) => 10 * at);
  return {
    ...{ title: "Net", model: "Net", bytes: 2048, max_bytes: 1 << 20, snapshots: count, steps, times: steps, notes: [] },
    ...{ metrics: {}, layers, watched: layers.length, fields: FIELDS, edges: EDGES, least_fraction: 1e-9, levels: 252 },
    ...{ kinds: { weight: "weight", activation: "activation", grad: "gradient of the weight", summary: "summary" } },
    ...{ pictures: steps.map((_, at) => at), stride: 1, unreadable: [], dead: 0.25, findings: [] },
    series: series.map((one) => {
      const own = { layer: layers.indexOf(one.layer), kind: one.kind, limits: [-1, 1], forms: [form()], chunks: [] };
      return { ...own, ...one.more };
    }),
    ...more,
  };
}

export function runOf(series: Draft[], more: Record<string, unknown> = {}): Run {
  const numbers = series.flatMap((one) =>
    FIELDS.flatMap((field) =>
      one.steps.map((step) => {
        if (!step) return NaN;
        return step[field] ?? (field === "form" || field === "nan" || field === "inf" ? 0 : NaN);
      }),
    ),
  );
  const codes = series.flatMap((one) =>
    Array.from({ length: EDGES.length + 1 }, (_, bin) => one.steps.map((_, at) => one.bins?.[at]?.[bin] ?? 0)).flat(),
  );
  const facts = filled<Report>(PARTS, "Report", factsOf(series, more));
  return new Run(facts, planesOf(numbers), Uint8Array.from(codes));
}
