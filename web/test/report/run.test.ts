import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";
import { nearestFrame, readRun } from "../../report/data/run";
import { Album } from "../../report/pictures/album";
import { factsOf, planesOf, runOf } from "./making";

const packed = (bytes: Uint8Array): string => deflateSync(bytes).toString("base64");

test("a page is read from its elements: statistics by field and snapshot, histograms as parts of all values", async () => {
  const draft = { layer: "fc", kind: "weight", steps: [null, null] };
  const numbers = Array.from({ length: 32 }, (_, i) => (i === 0 ? NaN : i === 1 ? 0 : i / 4)); // "form", then "count", …
  const texts: Record<string, string> = {
    facts: JSON.stringify(factsOf([draft])),
    statistics: packed(planesOf(numbers)),
    histograms: packed(Uint8Array.from({ length: 14 }, (_, i) => [0, 1, 128, 255][i] ?? 0)),
  };
  const run = await readRun((id) => texts[id]!);
  const [series] = run.series;
  assert.deepEqual([run.has(series!, 0), run.has(series!, 1)], [false, true]);
  assert.deepEqual([run.value(series!, "count", 0), run.value(series!, "mean", 1)], [0.5, 1.25]);
  assert.equal(run.part(series!, 0, 0), 0);
  assert.ok(Math.abs(run.part(series!, 0, 1) / 1e-9 - 1) < 1e-9);
  assert.ok(Math.abs(run.part(series!, 1, 0) / 10 ** -4.5 - 1) < 1e-9);
  assert.equal(run.part(series!, 1, 1), 1);
});

test("data that are not a report are refused with the reason", async () => {
  const read = (change: Record<string, unknown>): Promise<unknown> =>
    readRun(() => JSON.stringify({ ...factsOf([{ layer: "a", kind: "weight", steps: [null] }]), ...change }));
  await assert.rejects(read({ steps: undefined }), /"steps" is missing/);
  await assert.rejects(read({ series: [{ layer: 0 }] }), /series\[0\]: "kind" is missing/);
  await assert.rejects(read({ metrics: [] }), /metrics: expected an object/);
});

test("a layer has the kinds that were recorded of it, in the order of all kinds", () => {
  const run = runOf([
    { layer: "a", kind: "summary", steps: [{}] },
    { layer: "a", kind: "weight", steps: [{}] },
    { layer: "b", kind: "summary", steps: [{}] },
  ]);
  assert.deepEqual([run.kindsOf(0), run.picturedKinds(0), run.picturedKinds(1)], [["weight", "summary"], ["weight"], []]);
  assert.deepEqual(run.allPictured, ["weight"]);
  assert.equal(run.find(1, "weight"), undefined);
});

test("the picture of a step is its own or the nearest one, with the range that its flags say", () => {
  const chunks = [
    { block: 0, kept: [2, 2], frames: [[0, 2, 1]] },
    { block: 1, kept: [2, 2], frames: [[4, 3, 2]] },
  ];
  const run = runOf([{ layer: "a", kind: "weight", steps: Array.from({ length: 6 }, () => ({})), more: { chunks } }]);
  const [series] = run.series;
  assert.deepEqual(
    [0, 1, 3, 5].map((at) => nearestFrame(series!, at)!.at),
    [0, 0, 4, 4],
  );
  const [first, last] = series!.frames;
  assert.deepEqual([first!.low, first!.high, first!.isClipped], [-2, 2, false]);
  assert.deepEqual([last!.low, last!.high, last!.isClipped], [0, 3, true]);
});

test("pictures are unpacked when they are first wanted, each as what it adds to the one before", async () => {
  const chunks = [
    {
      block: 7,
      kept: [1, 2],
      frames: [
        [0, 1, 0],
        [1, 1, 0],
        [2, 1, 0],
      ],
    },
  ];
  const run = runOf([{ layer: "a", kind: "weight", steps: [{}, {}, {}], more: { chunks } }]);
  const asked: string[] = [];
  const text = packed(Uint8Array.from([10, 20, 5, 0, 250, 255]));
  await new Promise<void>((resolve) => {
    const album = new Album(
      (id) => (asked.push(id), text),
      () => {
        const codes = run.series[0]!.frames.map((frame) => [...album.codes(frame)!]);
        assert.deepEqual(codes, [
          [10, 20],
          [15, 20],
          [9, 19],
        ]); // modulo 256
        resolve();
      },
    );
    assert.equal(album.codes(run.series[0]!.frames[0]!), null);
    assert.equal(album.codes(run.series[0]!.frames[1]!), null);
  });
  assert.deepEqual(asked, ["pictures-7"]);
});
