import assert from "node:assert/strict";
import { test } from "node:test";
import { columnAt, stretches } from "../../report/charts/frame";
import { binAt, binText, filledBins, histogramCaption, plotHistogram } from "../../report/charts/histogram";
import { CHARTS, chartsOf, levelsOf, linesRange, linesText } from "../../report/charts/lines";
import { MEASURES, cellFor, cellText, decadesOf, gridOf, gridsOf, legendTicks, levelOf } from "../../report/data/measures";
import { curveScale, firstMetric, placeOnSlider } from "../../report/parts/time";
import { runOf } from "./making";

const chart = (id: string) => CHARTS.find((one) => one.id === id)!;
const measure = (id: string) => MEASURES.find((one) => one.id === id)!;

test("a histogram shows the bins that any step fills, with one to spare on each side", () => {
  const bins = [
    [0, 0, 0, 255, 100, 0, 0],
    [0, 0, 50, 0, 0, 0, 0],
  ];
  const run = runOf([{ layer: "a", kind: "weight", steps: [{}, {}], bins }]);
  const [series] = run.series;
  const filled = filledBins(run, series!)!;
  assert.deepEqual([filled.first, filled.last], [1, 5]);
  assert.equal(filled.most, run.part(series!, 4, 0)); // zero, which often has most values, does not count
  const plot = plotHistogram(run, series!, 600);
  assert.deepEqual([binAt(plot, plot.top), binAt(plot, plot.top + plot.tall / 2), binAt(plot, 1e4)], [5, 3, 1]);
  assert.match(histogramCaption(run, series!, 0), /^Bars show step 0: about 100 % .* nearer to 0 than 0\.1\./);
  assert.deepEqual(
    [0, 2, 3, 5, 6].map((bin) => binText(run, bin)),
    ["below −10", "−1 … −0.1", "nearer to 0 than 0.1", "1 … 10", "from 10 on"],
  );
});

test("a histogram without a finite value says so", () => {
  const run = runOf([{ layer: "a", kind: "weight", steps: [{}, null] }]);
  assert.equal(filledBins(run, run.series[0]!), null);
  assert.equal(histogramCaption(run, run.series[0]!, 0), "No value is finite at any step.");
});

test("a logarithmic axis goes over whole powers of ten, and one with a mark shows it", () => {
  const run = runOf([
    {
      layer: "a",
      kind: "weight",
      steps: [
        { norm: 0.03, update_ratio: 0.5 },
        { norm: 4, update_ratio: 0 },
      ],
    },
  ]);
  const [series] = run.series;
  const [low, high] = linesRange(run, series!, chart("norm"));
  assert.deepEqual([low, high].map(Math.log10).map(Math.round), [-2, 1]);
  assert.deepEqual(levelsOf(chart("norm"), low, high).map(Math.log10).map(Math.round), [-2, -1, 0, 1]);
  assert.ok(linesRange(run, series!, chart("update"))[0] < 1e-3);
  assert.deepEqual(linesRange(run, series!, chart("gradient")), [0.1, 1]);
});

test("a linear axis has round numbers and room for the band around the mean", () => {
  const run = runOf([
    {
      layer: "a",
      kind: "weight",
      steps: [
        { mean: 1, std: 2 },
        { mean: 2, std: 1 },
      ],
    },
  ]);
  const [low, high] = linesRange(run, run.series[0]!, chart("values"));
  assert.ok(low < -1 && low > -2 && high > 3 && high < 4);
  assert.deepEqual(levelsOf(chart("values"), low, high), [-1, 0, 1, 2, 3]);
});

test("a series has the charts it has numbers for, and says its numbers in words", () => {
  const steps = [{ mean: 0.5, std: 0.25, zeros: 1, count: 4, norm: 2, nan: 3 }, null];
  const run = runOf([{ layer: "a", kind: "weight", steps }]);
  const [series] = run.series;
  assert.deepEqual(
    chartsOf(run, series!).map((one) => one.id),
    ["values", "norm", "zeros"],
  );
  assert.equal(linesText(run, series!, chart("values"), 0), "mean 0.5 ± 0.25");
  assert.equal(linesText(run, series!, chart("zeros"), 0), "zeros 25 %; 3 not finite");
  assert.equal(linesText(run, series!, chart("zeros"), 1), "not recorded");
});

test("a few values far beyond do not stretch the scale of a map", () => {
  const usual = Array.from({ length: 100 }, (_, i) => 1 + i / 100);
  assert.deepEqual(decadesOf(usual), { low: 0, high: 1, isLow: false, isHigh: false });
  const wild = decadesOf([...usual, 1e30, 1e-30]);
  assert.deepEqual([wild.high, wild.isHigh, wild.isLow], [1, true, true]);
  assert.deepEqual(decadesOf([]), { low: -1, high: 0, isLow: false, isHigh: false });
});

test("the healthy update ratio is in the middle of its scale", () => {
  const run = runOf([{ layer: "a", kind: "weight", steps: [{ update_ratio: 1e-3 }] }]);
  const grid = gridOf(run, measure("update"));
  assert.deepEqual(
    [1e-9, 1e-6, 1e-3, 1, 7].map((value) => levelOf(grid, value)),
    [0, 0, 0.5, 1, 1],
  );
  assert.deepEqual(
    legendTicks(grid).map(([, text]) => text),
    ["≤ 1e−6", "healthy 1e−3", "≥ 1"],
  );
});

test("a map is of a layer's summary where it has one, and only measures with values have maps", () => {
  const run = runOf([
    { layer: "a", kind: "grad", steps: [{ norm: 5 }, null] },
    { layer: "a", kind: "summary", steps: [{ grad_norm: 7, grad_nonfinite: 2 }, {}] },
    { layer: "b", kind: "grad", steps: [{ norm: 3 }, null] },
  ]);
  const { cells } = gridOf(run, measure("grad"));
  assert.deepEqual(
    cells.map((row) => row.map((one) => one.value)),
    [
      [7, null],
      [3, null],
    ],
  );
  assert.deepEqual(
    gridsOf(run).map((grid) => grid.measure.id),
    ["grad", "nonfinite"],
  );
  assert.equal(cellText(measure("grad"), cells[0]![0]!), "7 without those 2 not finite");
  assert.equal(cellText(measure("nonfinite"), { value: 0, bad: 0 }), "all finite");
});

test("a value that is not finite marks the maps of its own tensor only", () => {
  const steps = [{ norm: 1, grad_norm: 2, update_ratio: 1e-3, dead: 0, units: 4, nan: 1, grad_nonfinite: 0 }];
  const run = runOf([
    { layer: "a", kind: "summary", steps },
    { layer: "a", kind: "activation", steps: [{ norm: 3, dead: 0, units: 4 }] },
  ]);
  const marked = (ids: string[]) => ids.filter((id) => gridOf(run, measure(id)).cells[0]![0]!.bad > 0);
  assert.deepEqual(marked(["grad", "update", "dead", "weight-norm", "activation-norm"]), ["update", "weight-norm"]);
  assert.equal(gridOf(run, measure("nonfinite")).cells[0]![0]!.value, 1);
});

test("where several snapshots share a column, what is not finite is seen", () => {
  const row = [
    { value: 1, bad: 0 },
    { value: 2, bad: 5 },
    { value: 3, bad: 0 },
    { value: null, bad: 0 },
  ];
  assert.equal(cellFor(row, 0, 2), row[1]);
  assert.equal(cellFor(row, 1, 2), row[2]);
  assert.equal(cellFor(row, 3, 8), row[1]);
});

test("the slider and the curve over it have the same places", () => {
  assert.deepEqual(
    [0, 5, 10].map((at) => placeOnSlider(at, 11, 116)),
    [8, 58, 108],
  );
  assert.equal(placeOnSlider(0, 1, 100), 8);
  assert.deepEqual(
    [-5, 0, 49, 99, 500].map((x) => columnAt(x, 0, 100, 4)),
    [0, 0, 1, 3, 3],
  );
});

test("a metric that falls far is drawn on a logarithmic scale, and a loss is shown first", () => {
  const loss = curveScale([100, null, 10, 1]);
  assert.deepEqual([loss.isLog, loss.range], [true, "1 to 100, logarithmic"]);
  assert.deepEqual([1, 10, 100].map(loss.share), [0, 0.5, 1]);
  const accuracy = curveScale([0, 0.5]);
  assert.deepEqual([accuracy.isLog, accuracy.share(0.25)], [false, 0.5]);
  assert.equal(curveScale([null]).range, "no finite value");
  assert.equal(firstMetric(["accuracy", "train_Loss"]), "train_Loss");
});

test("a line is drawn through neighbours that are known", () => {
  const found: [number, number][] = [];
  stretches(
    6,
    (at) => ![2, 4].includes(at),
    (first, last) => found.push([first, last]),
  );
  assert.deepEqual(found, [
    [0, 1],
    [3, 3],
    [5, 5],
  ]);
});
