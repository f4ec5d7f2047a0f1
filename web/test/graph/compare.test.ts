import assert from "node:assert/strict";
import { test } from "node:test";
import { compare, longestCommon } from "../../graph/model/compare";
import type { Payload } from "../../graph/model/payload";
import { addModule, addNode, blocks, draft, finish } from "./making";

/** A chain of single-operation modules of these types. */
function sequence(types: string[], more: Record<number, Record<string, unknown>> = {}): Payload {
  const made = draft();
  const outer = addModule(made, "net", "Sequential");
  let last = addNode(made, "input", [], -1, { kind: "input", label: "input_1" });
  types.forEach((type, i) => {
    const module = addModule(made, `net.${i}`, type, outer);
    last = addNode(made, type, [last], module, { exits: [module], ...more[i] });
  });
  return finish(made);
}

test("a model is the same as itself", () => {
  const { differences, toRight } = compare(blocks(3), blocks(3));
  assert.deepEqual(differences, []);
  assert.ok(toRight.every((to, from) => to === from));
});

test("an operation that was put in is only in one model, and what follows still corresponds", () => {
  const [left, right] = [sequence(["linear", "relu", "linear"]), sequence(["linear", "relu", "layernorm", "linear"])];
  const { differences, toRight, counts } = compare(left, right);
  assert.deepEqual(differences, [{ left: -1, right: 3, changes: [] }]);
  assert.deepEqual(Array.from(toRight), [0, 1, 2, 4]);
  assert.deepEqual(counts, { left: 0, right: 1, structure: 0, parameters: 0, values: 0, time: 0 });
});

test("an operation in the place of another is a change of function", () => {
  const { differences } = compare(sequence(["linear", "relu", "linear"]), sequence(["linear", "gelu", "linear"]));
  assert.equal(differences.length, 1);
  assert.deepEqual([differences[0]!.left, differences[0]!.right], [2, 2]);
  assert.deepEqual(
    differences[0]!.changes.map(({ name, left, right }) => [name, left, right]),
    [["function", "relu", "gelu"]],
  );
});

test("a module that only one model has is only in that one, with everything inside", () => {
  const { counts, differences } = compare(blocks(2), blocks(3));
  assert.deepEqual([counts.left, counts.right], [0, 3]);
  assert.deepEqual(
    differences.filter((one) => one.right >= 0 && one.left < 0).map((one) => one.right),
    [7, 8, 9],
  );
});

test("shapes, dtypes and parameters that differ are named, with by how much", () => {
  const left = sequence(["linear"], {
    0: { shape: [1, 1000], params: [{ name: "w", dtype: "float32", shape: [1000, 4], numel: 4000 }] },
  });
  const right = sequence(["linear"], {
    0: { shape: [1, 10], dtype: "float16", params: [{ name: "w", dtype: "float32", shape: [10, 4], numel: 40 }] },
  });
  const [only] = compare(left, right).differences;
  assert.deepEqual(
    only!.changes.map((change) => [change.name, change.left, change.right, change.amount]),
    [
      ["shape", "1×1000", "1×10", "0.01 times the size"],
      ["dtype", "float32", "float16", ""],
      ["parameters", "1000×4", "10×4", ""],
    ],
  );
});

test("values that differ are told by the mean difference of their statistics, rounding is not", () => {
  const stats = (mean: number): Record<string, unknown> => ({ stats: { count: 4, min: -1, max: 1, mean, std: 0.5, norm: 1 } });
  const [left, right] = [sequence(["relu"], { 0: stats(0) }), sequence(["relu"], { 0: stats(0.4) })];
  const [only] = compare(left, right).differences;
  assert.deepEqual(
    only!.changes.map((change) => [change.kind, change.amount]),
    [["values", "by 0.1 on average"]],
  );
  assert.deepEqual(compare(left, sequence(["relu"], { 0: stats(1e-6) })).differences, []);
});

test("NaN where there was none is a difference", () => {
  const stats = (nan: number): Record<string, unknown> => ({ stats: { count: 4, min: 0, max: 1, mean: 0, std: 1, nan } });
  const { counts } = compare(sequence(["relu"], { 0: stats(0) }), sequence(["relu"], { 0: stats(2) }));
  assert.equal(counts.values, 1);
});

test("time counts only where it is notable", () => {
  const slow = sequence(["relu", "relu"], { 0: { seconds: 0.3 }, 1: { seconds: 1e-6 } });
  const fast = sequence(["relu", "relu"], { 0: { seconds: 0.1 }, 1: { seconds: 1e-5 } });
  const { differences, counts } = compare(slow, fast);
  assert.equal(counts.time, 1);
  assert.deepEqual(
    differences.map((one) => one.left),
    [1],
  );
});

test("parameters with other values are named", () => {
  const withWeight = (id: string): Payload => {
    const made = blocks(2);
    made.weights = ["h.0.w", "h.1.w"].map((name) => ({ name, values_id: name === "h.1.w" ? id : "same", stats: null, preview: null }));
    return made;
  };
  const { differences, counts } = compare(withWeight("one"), withWeight("other"));
  assert.deepEqual([counts.parameters, differences.length], [1, 1]);
  assert.deepEqual([differences[0]!.left, differences[0]!.changes[0]!.name], [4, "h.1.w"]);
});

test("the longest common sequence is as long as it can be", () => {
  const pairs = longestCommon([..."abcxdef"], [..."abydezf"]);
  assert.deepEqual(pairs.map(([i]) => "abcxdef"[i]).join(""), "abdef");
  assert.ok(pairs.every(([i, j]) => "abcxdef"[i] === "abydezf"[j]));
});
