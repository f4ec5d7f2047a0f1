// The histograms of a series: a column for each snapshot, a row for each bin, and the current step as bars beside.

import { paintPixels, screenUnit } from "../../shared/canvas";
import type { Theme } from "../../shared/color";
import { el } from "../../shared/dom";
import * as format from "../../shared/format";
import { clamp } from "../../shared/scale";
import type { Run, Series } from "../data/run";
import { type Pen, type Plot, SHARE_PIXELS, drawGaps, drawNow, drawSteps, keep } from "./frame";

/** The bins that any snapshot fills, with one to spare, and the largest part in one of them; that of zero is often larger. */
export interface Filled {
  first: number;
  last: number;
  most: number;
}

export interface HistogramPlot extends Plot {
  side: number; // room for the bars
  filled: Filled | null; // null where no value is finite
}

export function plotHistogram(run: Run, series: Series, width: number): HistogramPlot {
  const side = width < 460 ? 54 : 110;
  return { left: 56, top: 12, side, across: width - 56 - side - 12, tall: 236, filled: filledBins(run, series) };
}

const known = new WeakMap<Series, Filled | null>();

export function filledBins(run: Run, series: Series): Filled | null {
  const found = known.get(series);
  if (found !== undefined) return found;
  let [first, last, most] = [run.bins, -1, 0];
  const zero = run.facts.edges.length / 2;
  for (let bin = 0; bin < run.bins; bin++) {
    for (let at = 0; at < run.count; at++) {
      const part = run.part(series, bin, at);
      if (!part) continue;
      [first, last] = [Math.min(first, bin), bin];
      if (bin !== zero) most = Math.max(most, part);
    }
  }
  const made = last < 0 ? null : { first: Math.max(0, first - 1), last: Math.min(run.bins - 1, last + 1), most: most || 1 };
  known.set(series, made);
  return made;
}

/** The bin at some height of a plot. */
export function binAt({ top, tall, filled }: HistogramPlot, y: number): number | null {
  if (!filled) return null;
  const bins = filled.last - filled.first + 1;
  return clamp(filled.last - Math.floor(((y - top) / tall) * bins), filled.first, filled.last);
}

export function binText(run: Run, bin: number): string {
  const { edges } = run.facts;
  const edge = (at: number): string => format.figure(edges[at]!, 3);
  if (bin === 0) return `below ${edge(0)}`;
  if (bin === edges.length / 2) return `nearer to 0 than ${edge(bin)}`;
  if (bin === edges.length) return `from ${edge(bin - 1)} on`;
  return `${edge(bin - 1)} … ${edge(bin)}`;
}

export function histogramCaption(run: Run, series: Series, at: number): string {
  const filled = filledBins(run, series);
  if (!filled) return "No value is finite at any step.";
  if (!run.has(series, at)) return "Not recorded at this step.";
  const bins = Array.from({ length: run.bins }, (_, bin) => bin);
  const parts = bins.map((bin) => run.part(series, bin, at));
  const most = Math.max(...parts);
  if (!most) return `Step ${run.stepText(at)}: no value is finite.`;
  const full = `Bars show step ${run.stepText(at)}: about ${format.percent(most)} of the values are in the fullest bin,`;
  const how = "Bins are logarithmic on both sides of zero; the stronger the colour, the more values.";
  return `${full} ${binText(run, parts.indexOf(most))}. ${how}`;
}

export function histogramTip(run: Run, series: Series, plot: HistogramPlot, at: number, y: number): string {
  if (!run.has(series, at)) return "not recorded";
  const bad = run.nonfinite(series, at);
  const bin = binAt(plot, y);
  const part = bin === null ? 0 : run.part(series, bin, at);
  const share = part ? `about ${format.percent(part)} of the values` : "no value";
  const text = bin === null ? "no value is finite" : `${binText(run, bin)}: ${share}`;
  return bad > 0 ? `${text}\n${format.count(bad)} not finite` : text;
}

export function drawHistogram(
  canvas: HTMLCanvasElement,
  run: Run,
  series: Series,
  at: number,
  width: number,
  theme: Theme,
): HistogramPlot {
  const plot = plotHistogram(run, series, width);
  const { left, top, across, tall, filled } = plot;
  const pen = keep(canvas, `${series.index} ${width} ${theme.name}`, width, tall + top + 26, (still) => {
    still.fillStyle = theme.shareRamp[0]!;
    still.fillRect(left, top, across, tall);
    drawGaps(still, run, series, plot, top - 8, theme);
    if (filled) {
      paintBins(still, run, series, filled, plot, theme);
      drawBinTicks(still, run.facts.edges, filled, plot, theme);
    }
    drawSteps(still, run, left, across, top + tall + 2, theme);
  });
  if (filled && run.has(series, at)) drawBars(pen, run, series, at, filled, plot, theme);
  drawNow(pen, at, plot, run.count, theme);
  return plot;
}

/** The upper end of a bin's row, and how tall a row is. */
function rowOf(bin: number, { first, last }: Filled, { top, tall }: Plot): [number, number] {
  const size = tall / (last - first + 1);
  return [top + (last - bin) * size, size];
}

function paintBins(pen: Pen, run: Run, series: Series, filled: Filled, { left, top, across, tall }: Plot, theme: Theme): void {
  const bins = filled.last - filled.first + 1;
  const colors = SHARE_PIXELS[theme.name];
  const pixels = Uint32Array.from({ length: bins * run.count }, (_, i) => {
    const part = run.part(series, filled.last - Math.floor(i / run.count), i % run.count);
    if (!part) return 0;
    return colors[Math.round((0.1 + 0.9 * Math.sqrt(Math.min(part / filled.most, 1))) * (colors.length - 1))]!;
  });
  const small = el("canvas");
  paintPixels(small, run.count, pixels);
  pen.imageSmoothingEnabled = run.count > across * screenUnit();
  pen.drawImage(small, left, top, across, tall);
}

function drawBars(pen: Pen, run: Run, series: Series, at: number, filled: Filled, plot: HistogramPlot, theme: Theme): void {
  const start = plot.left + plot.across + 12;
  const most = plot.side - 4;
  pen.fillStyle = theme.grid;
  pen.fillRect(start, plot.top, 1, plot.tall);
  pen.fillStyle = theme.accent;
  for (let bin = filled.first; bin <= filled.last; bin++) {
    const part = run.part(series, bin, at);
    const [y, size] = rowOf(bin, filled, plot);
    if (part) pen.fillRect(start + 1, y + 0.5, clamp((part / filled.most) * most, 1, most), Math.max(size - 1, 0.75));
  }
}

/** Powers of ten, the larger first, as far as they do not touch. */
function drawBinTicks(pen: Pen, edges: number[], filled: Filled, plot: Plot, theme: Theme): void {
  const half = edges.length / 2;
  const place = (value: number): number | null => {
    const [middle, size] = rowOf(half, filled, plot);
    if (value === 0) return middle + size / 2;
    const magnitude = Math.abs(value);
    const i = edges.findIndex((edge) => edge > magnitude);
    if (i <= half) return null;
    const bin = i + Math.log(magnitude / edges[i - 1]!) / Math.log(edges[i]! / edges[i - 1]!);
    return rowOf(value > 0 ? bin - 1 : edges.length - bin, filled, plot)[0];
  };
  const values = [0];
  for (let power = 4; power >= -8; power--) values.push(10 ** power, -(10 ** power));
  const taken: number[] = [];
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  pen.fillStyle = theme.faint;
  for (const value of values) {
    const y = place(value);
    if (y === null || y < plot.top - 1 || y > plot.top + plot.tall + 1) continue;
    if (taken.some((one) => Math.abs(one - y) < 17)) continue;
    taken.push(y);
    pen.fillRect(plot.left - 5, y - 0.5, 4, 1);
    pen.fillText(value === 0 ? "0" : format.powerOfTen(value), plot.left - 8, y);
  }
  pen.textBaseline = "alphabetic";
}
