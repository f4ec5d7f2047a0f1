import assert from "node:assert/strict";
import { test } from "node:test";
import { attentionInside, limitsOf, mapsOf, positionsAt, valueOf, wordsAt } from "../../graph/model/attention";
import type { Attention } from "../../graph/model/payload";
import { addModule, addNode, draft, finish } from "./making";

function attention(more: Partial<Attention> = {}): Attention {
  const data = Buffer.from([255, 0, 128, 128, 0, 255, 64, 191]).toString("base64");
  return { heads: 2, shown: 2, queries: 2, keys: 2, width: 2, height: 2, data, high: 1, samples: 1, ...more };
}

test("every head has its own map", () => {
  assert.deepEqual(mapsOf(attention())!.map((map) => [...map]), [
    [255, 0, 128, 128],
    [0, 255, 64, 191],
  ]);
});

test("data that does not fit its sizes shows nothing", () => {
  assert.equal(mapsOf(attention({ shown: 3 })), null);
  assert.equal(mapsOf(attention({ width: 0 })), null);
  assert.equal(mapsOf(attention({ shown: 0 })), null);
});

test("codes stand for values by their square", () => {
  const found = attention({ high: 0.5 });
  assert.deepEqual([0, 127.5, 255].map((code) => valueOf(found, code)), [0, 0.125, 0.5]);
});

test("pixels cover all positions, each once", () => {
  for (const [size, count] of [[7, 7], [10, 4], [1000, 48]] as const) {
    const covered = Array.from({ length: count }, (_, at) => positionsAt(at, size, count));
    assert.equal(covered[0]![0], 0);
    assert.equal(covered.at(-1)![1], size - 1);
    covered.slice(1).forEach(([first], at) => assert.equal(first, covered[at]![1] + 1));
  }
});

test("words say which queries look at which keys, and how much", () => {
  assert.equal(wordsAt(attention(), 1, 0, 1, 255), "head 1: query 0 looks at key 1 with 1");
  const large = attention({ queries: 8, keys: 6 });
  assert.equal(wordsAt(large, 0, 1, 0, 128), "head 0: queries 4–7 look at keys 0–2 with 0.252");
  assert.equal(limitsOf(attention()), "");
  assert.equal(
    limitsOf(attention({ heads: 12, samples: 4, queries: 8, keys: 6 })),
    "2 of 12 heads, the first of 4 samples, 8×6 in 2×2 pixels: a row is a mean, a column a sum",
  );
});

test("a module shows the only attention inside it", () => {
  const made = draft();
  const outer = addModule(made, "layer", "Layer", -1, { first: 0, end: 3 });
  const one = addModule(made, "layer.attn", "Attention", outer, { first: 0, end: 2 });
  addNode(made, "linear", [], one);
  addNode(made, "softmax", [0], one, { attention: attention() });
  addNode(made, "softmax", [1], outer, { attention: attention() });
  const payload = finish(made);
  assert.equal(attentionInside(payload, one)?.heads, 2);
  assert.equal(attentionInside(payload, outer), null);
});
