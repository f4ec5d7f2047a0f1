import assert from "node:assert/strict";
import { test } from "node:test";
import type { Form } from "../../shared/generated/report_format";
import { BOTH_SIGNS, NONFINITE, packedPixel, pixelOf } from "../../shared/color";
import type { Frame } from "../../report/data/run";
import { codeText, pixelsOf } from "../../report/pictures/codes";
import { placeAt, placeText, planOf, subjectOf, ticks } from "../../report/pictures/layout";
import { limitsOf, scaleWords } from "../../report/pictures/limits";
import { numberRows, pictureCaption, whyNone } from "../../report/pictures/words";
import { form, runOf } from "./making";

const frameOf = (kept: number[], more: Partial<Frame> = {}): Frame => {
  return { at: 0, low: -1, high: 1, isClipped: false, number: 0, chunk: { block: 0, kept, frames: [] }, ...more };
};
const formOf = (more: Record<string, unknown>): Form => form(more) as unknown as Form;
const ROOM = { width: 600, height: 400, unit: 1, isSmall: false };

test("codes have the colours of their values, and what is not finite has one of its own", () => {
  const codes = Uint8Array.from([0, 126, 252, 253, 254, 255]);
  const [low, zero, high, ...others] = pixelsOf(codes, frameOf([6]), [-1, 1], 252);
  assert.deepEqual([low, zero, high], [BOTH_SIGNS[0]!, BOTH_SIGNS[4]!, BOTH_SIGNS[8]!].map(pixelOf));
  assert.ok(others.every((pixel) => pixel === pixelOf(NONFINITE)));
  const three = pixelsOf(Uint8Array.from([0, 252, 126, 252, 252, 255]), frameOf([1, 3, 1, 2]), [-1, 1], 252, 2);
  assert.deepEqual([...three], [packedPixel(0, 128, 255), pixelOf(NONFINITE)]);
});

test("a code is said as its value; what may lie beyond the range says so", () => {
  const texts = (frame: Frame): string[] => [0, 63, 252, 253, 254, 255].map((code) => codeText(code, frame, 252));
  assert.deepEqual(texts(frameOf([1])), ["−1", "−0.5", "1", "−∞", "+∞", "NaN"]);
  assert.deepEqual(texts(frameOf([1], { isClipped: true })).slice(0, 3), ["≤ −1", "−0.5", "≥ 1"]);
});

test("feature maps, filters, colour filters and matrices are laid out as what they are", () => {
  const maps = subjectOf(formOf({ layout: "maps", rows: [2, 5] }), frameOf([2, 8, 9]), 1);
  assert.deepEqual([maps.shape, maps.count, maps.height, maps.width], ["tiles", 2, 8, 9]);
  const filters = subjectOf(formOf({ layout: "filters", rows: [0, 1], columns: null }), frameOf([2, 3, 5, 5]), 1);
  assert.deepEqual([filters.shape, filters.count, filters.columns], ["grid", 6, [0, 1, 2]]);
  const color = subjectOf(formOf({ layout: "filters", rows: [0, 1], color: true }), frameOf([2, 3, 5, 5]), 1);
  assert.deepEqual([color.shape, color.count, color.planes], ["tiles", 2, 3]);
  const points = subjectOf(formOf({ layout: "filters", rows: [0, 1], columns: null }), frameOf([2, 3, 1, 1]), 1);
  assert.deepEqual([points.shape, points.height, points.width], ["matrix", 2, 3]);
  const thinned = subjectOf(formOf({ rows: [0, 1, 2, 3], columns: [0, 1, 2] }), frameOf([2, 2]), 2);
  assert.deepEqual(
    [thinned.rows, thinned.columns],
    [
      [0, 2],
      [0, 2],
    ],
  );
});

test("tiles fit their room, do not overlap, and a point leads to the value under it", () => {
  for (const shape of ["maps", "filters"]) {
    const kept = shape === "maps" ? [6, 8, 8] : [6, 4, 3, 3];
    const rows = [0, 1, 2, 3, 4, 5];
    const subject = subjectOf(formOf({ layout: shape, rows, columns: null }), frameOf(kept), 1);
    const plan = planOf(subject, ROOM);
    assert.ok(plan.width <= ROOM.width && plan.height <= ROOM.height);
    assert.equal(plan.tiles.length, subject.count);
    for (const tile of plan.tiles) {
      const place = placeAt(plan, subject, tile.x + tile.w - 1, tile.y + 1)!;
      assert.deepEqual([place.tile.index, place.row, place.column], [tile.index, 0, subject.width - 1]);
    }
  }
  assert.deepEqual(ticks(10, 5, 14), [0, 5]);
});

test("the value under a point is said with the words for its rows and columns", () => {
  const codes = Uint8Array.from([0, 126, 252, 63, 189, 126]);
  const frame = frameOf([2, 3]);
  const own = formOf({ rows: [4, 7], columns: [1, 3, 5] });
  const subject = subjectOf(own, frame, 1);
  const plan = planOf(subject, ROOM);
  const place = { tile: plan.tiles[0]!, row: 1, column: 1 };
  assert.equal(placeText(place, { plan, subject, form: own, codes, frame, unit: 1 }, 1, 252), "unit 7, input 3\n0.5");
});

test("the scale of a step keeps zero in the middle where the run has both signs", () => {
  const steps = [{ low: -0.1, high: 0.3 }];
  const run = runOf([
    { layer: "a", kind: "weight", steps },
    { layer: "b", kind: "weight", steps: [{ low: 0.1, high: 0.3 }], more: { limits: [0, 1] } },
  ]);
  const near = (limits: readonly number[]): number[] => limits.map((one) => Number(one.toFixed(6)));
  assert.deepEqual(near(limitsOf(run, run.series[0]!, frameOf([1]), "frame")), [-0.3, 0.3]);
  assert.deepEqual(near(limitsOf(run, run.series[1]!, frameOf([1]), "frame")), [0.1, 0.3]);
  assert.deepEqual(limitsOf(run, run.series[0]!, frameOf([1]), null), [-1, 1]);
  assert.equal(scaleWords(["weight", "grad"], null), "scale of the run, of gradients: of this step");
  assert.equal(scaleWords(["weight", "grad"], "run"), "scale of the run");
});

test("a caption says what of the tensor is shown, and when the picture is of another step", () => {
  const run = runOf([
    { layer: "fc", kind: "weight", steps: [{}, {}], more: { forms: [form({ source: "fc.weight", note: "noted" })] } },
  ]);
  const frame = frameOf([2, 3]);
  const subject = subjectOf(run.form(run.series[0]!, 0), frame, 1);
  const caption = pictureCaption(run, run.series[0]!, 1, frame, subject, planOf(subject, ROOM));
  assert.equal(
    caption,
    "Picture of step 0, the nearest in this file. Shows 2 of 8 units, 3 of 4 inputs · tensor of 8 × 4, float32 · noted",
  );
});

test("the numbers of a step, and why there is no picture", () => {
  const run = runOf([
    { layer: "a", kind: "activation", steps: [{ mean: 1, zeros: 1, count: 4, dead: 2, units: 8, nan: 1 }, null] },
    { layer: "b", kind: "summary", steps: [{ count: 1234, norm: 2 }, {}] },
  ]);
  const [activation, summary] = run.series;
  const rows = new Map(numberRows(run, activation!, 0).map(([name, ...said]) => [name, said]));
  assert.deepEqual(
    ["mean", "std", "zeros", "dead units", "NaN"].map((name) => rows.get(name)),
    [["1"], ["none"], ["25 %"], ["2 of 8"], ["1", "bad"]],
  );
  assert.deepEqual(numberRows(run, activation!, 1), [["this step", "not recorded"]]);
  assert.deepEqual(numberRows(run, summary!, 0)[0], ["parameters", "1,234"]);
  assert.match(whyNone(run, summary!, 0, null), /name it in layers=/);
  assert.match(whyNone(run, activation!, 1, frameOf([1])), /was not recorded at step 10/);
  assert.match(whyNone(run, activation!, 0, null), /could not be read/);
  assert.equal(whyNone(run, activation!, 0, frameOf([1])), "");
});
