import assert from "node:assert/strict";
import { test } from "node:test";
import { NO_MARKS, type Marks } from "../../graph/drawing/picture";
import { addDifferences } from "../../graph/drawing/marks";
import { buildHierarchy } from "../../graph/model/hierarchy";
import { buildView } from "../../graph/layout/view";
import { type Comparison, compare as compared } from "../../graph/model/compare";
import type { Payload } from "../../graph/model/payload";
import { addModule, addNode, blocks, draft, finish } from "./making";

/** Compares two payloads whose nodes are partners in order, or as said. */
function compare(left: Payload, right: Payload, partners?: number[]): Comparison {
  return compared({ ...left, partners: partners ?? left.nodes.map((_, i) => (i < right.nodes.length ? i : -1)) }, right);
}

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

test("a node without a partner is only in one model, in the order of execution", () => {
  const [left, right] = [sequence(["linear", "relu", "linear"]), sequence(["linear", "relu", "layernorm", "linear"])];
  right.nodes[3]!.cause = "runs in b and not in a";
  const { differences, toRight, toLeft, counts } = compare(left, right, [0, 1, 2, 4]);
  assert.deepEqual(differences, [{ left: -1, right: 3, changes: [], cause: "runs in b and not in a" }]);
  assert.deepEqual([Array.from(toRight), Array.from(toLeft)], [[0, 1, 2, 4], [0, 1, 2, -1, 3]]);
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

test("other arguments are a change, but not those that name an object, or that a verdict has explained", () => {
  const called = (text: string, verdict = ""): Payload => Object.assign(sequence(["norm"], { 0: { arguments: text } }), { verdict });
  const [only] = compare(called("(·, eps=1e-05)"), called("(·, eps=0.01)")).differences;
  assert.deepEqual([only!.changes[0]!.name, only!.changes[0]!.right], ["arguments", "(·, eps=0.01)"]);
  assert.deepEqual(compare(called("(·, <Mask at 0x7f01>)"), called("(·, <Mask at 0x7f02>)")).differences, []);
  assert.deepEqual(compare(called("(·, eps=1e-05)", "different"), called("(·, eps=0.01)", "different")).differences, []);
});

test("with a verdict the cause of a culprit is told, with its own error where that is known", () => {
  const side = (error: number | null): Payload => {
    const made = sequence(["norm", "relu"]);
    made.verdict = "different: norm differs";
    made.nodes[1] = { ...made.nodes[1]!, cause: "eps is 1e-05 in a and 0.01 in b", metrics: [error] };
    return { ...made, culprits: [1] };
  };
  for (const [error, amounts] of [
    [0.25, ["0.25"]],
    [null, []],
  ] as const) {
    const { differences, counts } = compare(side(error), side(error));
    assert.equal(counts.values, 1);
    assert.equal(differences[0]!.cause, "eps is 1e-05 in a and 0.01 in b");
    assert.deepEqual(
      differences[0]!.changes.map((change) => change.amount),
      amounts,
    );
  }
});

test("differences in blocks that a stack does not show are told on the stack, with their block", () => {
  const [left, right] = [blocks(3), blocks(3)];
  right.nodes[5]!.dtype = "float16"; // the relu of the second block
  const hierarchy = buildHierarchy(left, false);
  const run = hierarchy.boxes.find((box) => box.kind === "run")!;
  const marked = (open: string[], shown: number): [string[], string[]] => {
    const view = buildView(hierarchy, { open: new Set(open), shown: new Map([[run.key, shown]]) });
    const marks: Marks = { ...NO_MARKS };
    addDifferences(view, compare(left, right), 0, marks);
    const named = (said: string[]): string[] => said.flatMap((text, i) => (text ? [`${view.items[i]!.key} ${text}`] : []));
    return [named(marks.differences!), named(marks.hiddenDifferences!)];
  };
  assert.deepEqual(marked([], 0), [[], [`m:${run.key} ≠ 1 in h.1`]]);
  assert.deepEqual(marked([run.key], 0), [[], [`m:${run.key} ≠ 1 in h.1`]]);
  assert.deepEqual(marked([run.key], 1), [["n:relu_5:1 changed"], []]);
  right.nodes[8]!.dtype = "float16"; // and of the third
  assert.deepEqual(marked([run.key], 1), [["n:relu_5:1 changed"], [`m:${run.key} ≠ 1 in h.2`]]);
  assert.deepEqual(marked([run.key], 0), [[], [`m:${run.key} ≠ 2 in 2 blocks`]]);
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
