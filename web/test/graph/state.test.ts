import assert from "node:assert/strict";
import { test } from "node:test";
import { between, fitting, opening, showing, toPlane, zoomed } from "../../graph/pane/camera";
import { THEMES, categoryOf, luminance, rampColor, readableInk } from "../../shared/color";
import { share } from "../../shared/scale";
import * as format from "../../shared/format";
import { readHash, writeHash } from "../../graph/state/hash";
import { isKey } from "../../graph/controls/keyboard";
import { buildHierarchy } from "../../graph/model/hierarchy";
import { Measures } from "../../graph/model/measures";
import { carriedOpen, carriedSelection, resolved } from "../../graph/state/rolling";
import { INITIAL, type Selection, reduce } from "../../graph/state/state";
import { blocks, loop } from "./making";

const RELU: Selection = { kind: "unit", key: "relu_1:1", side: 0 };
const LINEAR: Selection = { kind: "unit", key: "linear_1:1", side: 0 };

test("opening and closing boxes leaves the old state as it was", () => {
  const opened = reduce(INITIAL, { type: "open", keys: ["a", "b"] });
  assert.deepEqual([...opened.open], ["a", "b"]);
  assert.equal(INITIAL.open.size, 0);
  assert.deepEqual([...reduce(opened, { type: "close", keys: ["a"] }).open], ["b"]);
});

test("an action that changes nothing gives back the same state", () => {
  const state = reduce(INITIAL, { type: "open", keys: ["a"] });
  assert.equal(reduce(state, { type: "open", keys: ["a"] }), state);
  assert.equal(reduce(state, { type: "close", keys: ["z"] }), state);
  assert.equal(reduce(state, { type: "query", query: "" }), state);
  assert.equal(reduce(state, { type: "select", selection: null }), state);
});

test("a path needs two ends: the first choice selects, the second makes the path, selecting again ends it", () => {
  const first = reduce(INITIAL, { type: "path", to: RELU });
  assert.deepEqual([first.selection, first.other], [RELU, null]);
  const second = reduce(first, { type: "path", to: LINEAR });
  assert.deepEqual([second.selection, second.other], [RELU, LINEAR]);
  assert.equal(reduce(second, { type: "select", selection: RELU }).other, null);
});

test("a highlight goes with the selection it belongs to", () => {
  const traced = reduce(reduce(INITIAL, { type: "select", selection: RELU }), { type: "trace", trace: "ancestors" });
  assert.equal(traced.trace, "ancestors");
  assert.equal(reduce(traced, { type: "trace", trace: "ancestors" }).trace, "none");
  assert.equal(reduce(traced, { type: "select", selection: null }).trace, "none");
});

test("a new search begins before its first result", () => {
  const state = reduce(reduce(INITIAL, { type: "query", query: "a" }), { type: "match", match: 4 });
  assert.equal(reduce(state, { type: "query", query: "ab" }).match, -1);
});

test("a selection survives the way through the address", () => {
  const chosen: Selection[] = [
    { kind: "unit", key: "relu_1_2:1", side: 0 },
    { kind: "box", key: "a b/ç&=#:1", side: 1 },
    { kind: "edge", from: "n:a:1", to: "m:b:1\nm:c:1", side: 0 },
  ];
  for (const one of chosen) assert.deepEqual(readHash(`#${writeHash(one)}`), one);
  assert.equal(readHash("#"), null);
  assert.equal(readHash("#something"), null);
  assert.deepEqual(readHash("#node=100%"), { kind: "unit", key: "100%", side: 0 });
});

test("rolling and unrolling keep the place of the reader", () => {
  const payload = loop(4);
  const [flat, rolled] = [buildHierarchy(payload, false), buildHierarchy(payload, true)];
  assert.deepEqual(carriedSelection(flat, rolled, { kind: "unit", key: "add_1_2:3", side: 0 }), {
    kind: "unit",
    key: "add_1_2",
    side: 0,
  });
  assert.deepEqual(carriedSelection(rolled, flat, { kind: "unit", key: "add_1_2", side: 0 }), {
    kind: "unit",
    key: "add_1_2:1",
    side: 0,
  });
  assert.deepEqual(resolved(rolled, { kind: "unit", key: "mul_1_3:2", side: 0 }), { kind: "unit", key: "mul_1_3", side: 0 });
  assert.deepEqual(resolved(flat, { kind: "box", key: "fc", side: 0 }), { kind: "unit", key: "linear_1_1:1", side: 0 });
  assert.equal(resolved(flat, { kind: "unit", key: "nothing", side: 0 }), null);
  const stack = blocks(6);
  const [one, other] = [buildHierarchy(stack, false), buildHierarchy(stack, true)];
  assert.deepEqual([...carriedOpen(one, other, { ...INITIAL, open: new Set(["run h.0:1"]) })].includes("run h.0"), true);
});

test("keys are told apart by case and by what is held with them", () => {
  const key = (
    name: string,
    held: Partial<Record<"ctrlKey" | "metaKey" | "shiftKey" | "altKey", boolean>> = {},
  ): Parameters<typeof isKey>[0] => ({
    key: name,
    ctrlKey: false,
    metaKey: false,
    shiftKey: false,
    altKey: false,
    ...held,
  });
  assert.ok(isKey(key("n"), "n") && !isKey(key("n"), "N"));
  assert.ok(isKey(key("N", { shiftKey: true }), "N"));
  assert.ok(
    isKey(key("f", { ctrlKey: true }), "Ctrl-F") && isKey(key("f", { metaKey: true }), "Ctrl-F") && !isKey(key("f"), "Ctrl-F"),
  );
  assert.ok(
    isKey(key("ArrowUp", { shiftKey: true }), "Shift-↑") &&
      !isKey(key("ArrowUp"), "Shift-↑") &&
      !isKey(key("ArrowUp", { shiftKey: true }), "↑"),
  );
  assert.ok(isKey(key("-"), "-") && isKey(key("?", { shiftKey: true }), "?") && isKey(key("Escape"), "Esc"));
});

test("a point of the screen stays where it is while zooming", () => {
  const camera = { scale: 0.5, x: 30, y: -20 };
  const [before, after] = [toPlane(camera, 200, 100), toPlane(zoomed(camera, 3, 200, 100), 200, 100)];
  assert.ok(Math.abs(before[0] - after[0]) < 1e-9 && Math.abs(before[1] - after[1]) < 1e-9);
});

test("fitting shows everything, and enlarges what is small; the first look is never too small to read", () => {
  const tall = { x: 0, y: 0, w: 300, h: 30000 };
  const whole = fitting(tall, 1000, 800);
  assert.ok(tall.h * whole.scale <= 800 && whole.y >= 0);
  assert.equal(fitting({ x: 0, y: 0, w: 100, h: 600 }, 1000, 800).scale, 1);
  const small = { x: 0, y: 0, w: 200, h: 240 };
  assert.ok(small.h * fitting(small, 1000, 800).scale >= 400, "half of the height");
  assert.ok(opening(tall, 1000, 800).scale > 0.6);
  const shown = showing(whole, { x: 0, y: 15000, w: 100, h: 60 }, 1000, 800);
  assert.ok(shown.scale > 0.6 && Math.abs((15000 + 30) * shown.scale + shown.y - 400) < 1);
});

test("a camera on its way ends where it should", () => {
  const [one, other] = [
    { scale: 1, x: 0, y: 0 },
    { scale: 0.25, x: 40, y: -10 },
  ];
  assert.deepEqual(between(one, other, 0), one);
  assert.deepEqual(between(one, other, 1), other);
});

test("figures of a closed box are sums over what is inside, and parameters count once", () => {
  const hierarchy = buildHierarchy(blocks(12), false);
  const measures = new Measures(hierarchy);
  const run = ~hierarchy.boxByKey.get("run h.0:1")!;
  assert.ok(Math.abs(measures.of("time", run)! - 12 * 0.013) < 1e-12);
  assert.equal(measures.of("params", run), 12 * 16);
  assert.equal(measures.operations(run), 36);
  assert.equal(measures.of("norm", run), null);
  const loops = buildHierarchy(loop(4), true);
  assert.equal(new Measures(loops).of("params", loops.unitByKey.get("linear_1_1")!), 16);
});

test("numbers are written short and right", () => {
  assert.deepEqual([512, 75_008, 61_100_840, 2.5e12].map(format.human), ["512", "75.0K", "61.1M", "2.5T"]);
  assert.deepEqual([0, 1023, 1024, 3 * 1024 ** 2].map(format.bytes), ["0 B", "1023 B", "1.0 KB", "3.0 MB"]);
  assert.deepEqual([0, 8.4e-7, 1.234e-5, 0.00456, 1.2].map(format.time), ["0 s", "840 ns", "12.3 µs", "4.56 ms", "1.20 s"]);
  assert.deepEqual(
    [0, -3, 0.12345, 1.5e-7, null].map((one) => format.figure(one)),
    ["0", "−3", "0.1235", "1.5e−7", "–"],
  );
  assert.equal(format.passes([3, 1, 2, 7]), "1–3,7");
  assert.deepEqual([format.shape([1, -1, 4]), format.shape([]), format.shape(null)], ["1×?×4", "scalar", "shapes differ"]);
  assert.equal(format.shortened("abcdefghij", 5), "abc…ij".slice(0, 2) + "…" + "ij");
});

test("words can be read on every colour of both themes", () => {
  const contrast = (one: string, other: string): number => {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (light! + 0.05) / (dark! + 0.05);
  };
  for (const theme of Object.values(THEMES)) {
    for (const look of Object.values(theme.categories))
      assert.ok(contrast(theme.ink, look.fill) > 6 && contrast(theme.faint, look.fill) > 4.5);
    for (const fill of [theme.box, theme.inside, theme.insideOdd, theme.header, theme.headerOdd])
      assert.ok(contrast(theme.faint, fill) > 4.5);
    for (let i = 0; i <= 20; i++) {
      const fill = rampColor(theme.costRamp, i / 20);
      assert.ok(contrast(readableInk(fill), fill) > 4, `${theme.name} ${fill}`);
    }
  }
});

test("a place on a scale lies between 0 and 1, straight or logarithmic", () => {
  assert.deepEqual([share(5, 0, 10, false), share(-1, 0, 10, false), share(99, 0, 10, false)], [0.5, 0, 1]);
  assert.ok(Math.abs(share(10, 1, 100, true) - 0.5) < 1e-9);
  assert.deepEqual([share(0, 0, 100, true), share(7, 7, 7, false)], [0, 1]);
});

test("a node has the category that the payload gives it, and is arithmetic where that is unknown", () => {
  const kind = (category: string): string => categoryOf({ category } as never);
  assert.deepEqual([kind("layer"), kind("input"), kind("from a later version")], ["layer", "input", "arithmetic"]);
});
