import assert from "node:assert/strict";
import { test } from "node:test";
import { findingsOf } from "../../report/data/findings";
import { aboutRun, notesOf } from "../../report/data/notes";
import { runOf } from "./making";

const texts = (run: Parameters<typeof findingsOf>[0]): string[] => findingsOf(run).map((one) => one.text);

test("nothing stands out in a run where nothing does", () => {
  const [only] = findingsOf(runOf([{ layer: "a", kind: "weight", steps: [{ update_ratio: 1e-3 }, { update_ratio: 2e-3 }] }]));
  assert.equal(only!.tone, "fine");
  assert.equal(only!.series, undefined);
});

test("the first step with values that are not finite is named, with the kind, the layer and how many others", () => {
  const run = runOf([
    { layer: "a", kind: "weight", steps: [{}, {}, { nan: 1 }] },
    { layer: "b", kind: "activation", steps: [{}, { inf: 2 }, {}] },
    { layer: "c", kind: "summary", steps: [{}, { nan: 3 }, {}] },
  ]);
  const [found] = findingsOf(run);
  assert.equal(found!.text, "Values are not finite from step 10 on: activation of b and 1 other");
  assert.deepEqual([found!.tone, found!.series!.layer, found!.at], ["bad", 1, 1]);
});

test("the layer with most dead units is named when half are dead in the end", () => {
  const layer = (name: string, dead: number) => ({
    layer: name,
    kind: "activation",
    steps: [
      { dead: 9, units: 10 },
      { dead, units: 10 },
    ],
  });
  assert.deepEqual(texts(runOf([layer("a", 5), layer("b", 8), layer("c", 2)])), [
    "80 % of the units of b are dead in the end, and half or more in 1 other layer",
  ]);
  assert.match(texts(runOf([layer("a", 4)]))[0]!, /Nothing stands out/);
});

test("gradients are compared at the last step where all are finite, by the summaries where there are any", () => {
  const layer = (name: string, ...norms: number[]) => ({
    layer: name,
    kind: "summary",
    steps: norms.map((grad_norm) => ({ grad_norm, grad_nonfinite: Number.isFinite(grad_norm) ? 0 : 1 })),
  });
  const run = runOf([layer("first", 1e-6, 2e-6, 1), layer("last", 1, 4, Infinity)]);
  assert.ok(texts(run).includes("The gradient of first is 2e6 times smaller than that of last at step 10"));
  const zero = runOf([layer("first", 0), layer("last", 1)]);
  assert.ok(texts(zero).includes("The gradient of first is zero, unlike that of last at step 0"));
  assert.match(texts(runOf([layer("first", 1e-3), layer("last", 1)]))[0]!, /Nothing stands out/);
});

test("updates are judged by their median over the run", () => {
  const layer = (name: string, ...ratios: number[]) => ({
    layer: name,
    kind: "weight",
    steps: ratios.map((update_ratio) => ({ update_ratio })),
  });
  const run = runOf([layer("still", 0, 0, 1), layer("fine", 1e-3, 0, 1e-3), layer("wild", 0.5, 0.5, 1e-3)]);
  assert.deepEqual(texts(run), [
    "Updates of still are tiny: nothing of the weight at a step, where about 0.001 is healthy",
    "Updates of wild are huge: 0.5 of the weight at a step, where about 0.001 is healthy",
  ]);
});

test("what many snapshots say is said once, and what the file leaves out is named", () => {
  const steps = Array.from({ length: 5 }, () => ({}));
  const notes = [
    [0, ["again", "once"]],
    [3, ["again"]],
  ];
  const run = runOf([{ layer: "a", kind: "weight", steps }], {
    notes,
    pictures: [0, 4],
    stride: 2,
    snapshots: 9,
    unreadable: [1],
  });
  const { title, sentences } = notesOf(run);
  assert.equal(title, "pictures of 2 of 5 snapshots, 2 notes");
  assert.deepEqual(sentences, [
    "This file shows 5 of the 9 snapshots, evenly over the run.",
    "To stay below 1.0 MB, this file has pictures of steps 0, 40 only. Numbers and histograms are of every step.",
    "To stay below 1.0 MB, pictures show every 2nd pixel, filter, and row and column of a matrix.",
    "The pictures of these steps could not be read: 10.",
    "2 snapshots, steps 0 – 30: again",
    "Step 0: once",
  ]);
  assert.equal(aboutRun(run), "9 snapshots  ·  steps 0 – 40  ·  1 layer with pictures (weight)  ·  2.0 KB on disk");
});
