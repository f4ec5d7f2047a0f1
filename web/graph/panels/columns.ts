// The columns of the table of operations or modules.

import { firstCall, firstNode, isBox, startOf } from "../model/hierarchy";
import { type MetricName, ownMetrics } from "../model/measures";
import type { ModelIndex } from "../model/model_index";
import { stepOf } from "../model/outline";
import * as format from "../../shared/format";

export interface Column {
  name: string;
  width: number;
  text: (child: number) => string;
  value: (child: number) => number | string; // to sort by
  isNumber: boolean;
}

export const UNKNOWN = -Number.MAX_VALUE; // sorted below every figure

export function columnsOf(modelIndex: ModelIndex, what: "operations" | "modules"): Column[] {
  const { hierarchy, measures } = modelIndex;
  const { units, payload } = hierarchy;
  const metric = (name: string, of: MetricName, width: number, write: (value: number) => string): Column => {
    const value = (child: number): number => measures.of(of, child) ?? UNKNOWN;
    return numbers(name, width, value, (found) => (found && found !== UNKNOWN ? write(found) : ""));
  };
  const own =
    what === "operations"
      ? [
          words("operation", 190, (child) => units[child]!.key),
          words("type", 110, (child) => firstNode(hierarchy, child).type),
          words("module", 210, (child) => addressOf(modelIndex, child)),
          shapes((child) => firstNode(hierarchy, child).shape),
          words("dtype", 80, (child) => firstNode(hierarchy, child).dtype ?? ""),
        ]
      : [
          words("module", 210, (child) => addressOf(modelIndex, child)),
          words("class", 150, (child) => firstCall(hierarchy, ~child)!.class),
          shapes((child) => firstCall(hierarchy, ~child)!.output_shapes[0] ?? null),
          numbers("operations", 90, (child) => measures.operations(child), format.count),
        ];
  return [
    numbers("#", 64, (child) => startOf(hierarchy, child), (position) => format.count(position + 1)),
    ...own,
    metric("time", "time", 90, format.time),
    metric("memory", "memory", 90, format.bytes),
    metric("FLOPs", "flops", 80, format.human),
    metric("params", "params", 80, format.human),
    metric("norm", "norm", 80, format.figure),
    metric("zeros", "zeros", 70, format.percent),
    metric("grad norm", "gradient", 90, format.figure),
    metric("NaN, inf", "nonfinite", 80, format.human),
    ...ownMetrics(payload).map((one) => metric(one.title, one.name, 110, one.write)),
  ];
}

function numbers(name: string, width: number, value: (child: number) => number, write: (value: number) => string): Column {
  return { name, width, isNumber: true, value, text: (child) => write(value(child)) };
}

function words(name: string, width: number, text: (child: number) => string): Column {
  return { name, width, isNumber: false, text, value: text };
}

/** Shapes, sorted by how many values they hold. */
function shapes(shape: (child: number) => number[] | null): Column {
  return {
    ...words("shape", 130, (child) => (shape(child) ? format.shape(shape(child)) : "")),
    value: (child) => (shape(child) ?? []).reduce((product, size) => product * size, 1),
  };
}

function addressOf({ hierarchy }: ModelIndex, child: number): string {
  if (isBox(child)) {
    const call = firstCall(hierarchy, ~child)!;
    return hierarchy.rolled ? stepOf(call) : call.key;
  }
  const { exits, module } = firstNode(hierarchy, child);
  return hierarchy.payload.modules[exits[0] ?? module]?.address ?? "";
}
