// The columns of the table.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Doc } from "../../graph/model/model_index";
import { UNKNOWN, columnsOf } from "../../graph/panels/columns";
import { addModule, addNode, draft, finish } from "./making";

function indexOf(metrics: (number | null)[]): ReturnType<Doc["modelIndex"]> {
  const made = draft();
  const module = addModule(made, "body", "Body");
  metrics.forEach((value, i) => addNode(made, "op", i ? [i - 1] : [], module, { metrics: [value], label: `op_${i}` }));
  const payload = { ...finish(made), metrics: ["mine"] };
  return new Doc(payload, 0, () => 0).modelIndex({ rolled: false, hasPlumbing: true });
}

test("figures that the reader defined may be negative, and unknown ones are sorted below them", () => {
  const column = columnsOf(indexOf([-1, null, -5, 2]), "operations").find((one) => one.name === "mine")!;
  assert.deepEqual([0, 1, 2, 3].map(column.text), ["−1", "", "−5", "2"]);
  assert.deepEqual([0, 1, 2, 3].map(column.value), [-1, UNKNOWN, -5, 2]);
  const sorted = [0, 1, 2, 3].sort((a, b) => Number(column.value(a)) - Number(column.value(b)));
  assert.deepEqual(sorted, [1, 2, 0, 3]);
});

test("operations and modules have columns of their own, around those of the figures", () => {
  const index = indexOf([1, 2]);
  const names = (what: "operations" | "modules"): string[] => columnsOf(index, what).map((column) => column.name);
  assert.deepEqual(names("operations").slice(0, 6), ["#", "operation", "type", "module", "shape", "dtype"]);
  assert.deepEqual(names("modules").slice(0, 5), ["#", "module", "class", "shape", "operations"]);
  assert.deepEqual(names("operations").slice(6), names("modules").slice(5));
});
