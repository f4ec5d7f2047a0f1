// Statistics of a series as lines.

import type { Theme } from "../../shared/color";
import * as format from "../../shared/format";
import { clamp } from "../../shared/scale";
import { HEALTHY, shareOf } from "../data/measures";
import type { Run, Series } from "../data/run";
import { type Pen, type Plot, drawCurve, drawDot, drawGaps, drawSteps, keep, middleOf, stretches } from "./frame";

export interface Chart {
  id: string;
  title: string;
  fields: string[];
  scale: "linear" | "log" | "part";
  hasBand?: boolean; // of the standard deviation around the mean
  mark?: number;
}

export const CHARTS: Chart[] = [
  { id: "values", title: "Mean ± std", fields: ["mean"], hasBand: true, scale: "linear" },
  { id: "range", title: "Min, mean, max", fields: ["min", "mean", "max"], scale: "linear" },
  { id: "norm", title: "Norm", fields: ["norm"], scale: "log" },
  { id: "gradient", title: "Gradient norm", fields: ["grad_norm"], scale: "log" },
  { id: "zeros", title: "Zeros", fields: ["zeros"], scale: "part" },
  { id: "update", title: "Update ratio", fields: ["update_ratio"], scale: "log", mark: HEALTHY },
  { id: "dead", title: "Dead units", fields: ["dead"], scale: "part" },
];

/** The charts that a series has values for. */
export function chartsOf(run: Run, series: Series): Chart[] {
  const steps = run.facts.steps.map((_, at) => at);
  return CHARTS.filter(({ fields }) => steps.some((at) => !Number.isNaN(shareOf(run, series, fields[0]!, at))));
}

export function linesRange(run: Run, series: Series, chart: Chart): [number, number] {
  if (chart.scale === "part") return [0, 1];
  const values: number[] = [];
  for (let at = 0; at < run.count; at++) {
    for (const field of chart.fields) values.push(run.value(series, field, at));
    const [mean, std] = [run.value(series, "mean", at), run.value(series, "std", at)];
    if (chart.hasBand) values.push(mean - std, mean + std);
  }
  const known = values.filter((value) => !Number.isNaN(value) && (chart.scale !== "log" || value > 0));
  if (!known.length) return chart.scale === "log" ? [0.1, 1] : [-1, 1];
  if (chart.mark) known.push(chart.mark / 2, chart.mark * 2);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  if (chart.scale === "log") {
    const least = Math.floor(Math.log10(low) + 1e-9);
    return [10 ** least, 10 ** Math.max(Math.ceil(Math.log10(high) - 1e-9), least + 1)];
  }
  const slack = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - slack, high + slack];
}

/** Where lines with numbers go. */
export function levelsOf(chart: Chart, low: number, high: number): number[] {
  if (chart.scale === "log") {
    const [first, last] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
    const every = Math.max(1, Math.ceil((last - first) / 8));
    return Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, i) => 10 ** (first + i * every));
  }
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough)!;
  const found: number[] = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++)
    found.push(i === 0 ? 0 : Number((i * step).toPrecision(6)));
  return found;
}

export function linesText(run: Run, series: Series, chart: Chart, at: number): string {
  if (!run.has(series, at)) return "not recorded";
  const text = (value: number): string =>
    Number.isNaN(value) ? "none" : chart.scale === "part" ? format.percent(value) : format.figure(value, 3);
  const values = chart.fields.map((field) => text(shareOf(run, series, field, at)));
  if (chart.hasBand) return `mean ${values[0]} ± ${text(run.value(series, "std", at))}`;
  const bad = run.nonfinite(series, at);
  const names = chart.fields.length > 1 ? chart.fields : [chart.title.toLowerCase()];
  const said = names.map((name, i) => `${name} ${values[i]}`).join(", ");
  return bad > 0 ? `${said}; ${format.count(bad)} not finite` : said;
}

export function drawLines(
  canvas: HTMLCanvasElement,
  run: Run,
  series: Series,
  chart: Chart,
  at: number,
  width: number,
  theme: Theme,
): Plot {
  const plot: Plot = { left: 64, top: 10, across: width - 72, tall: 226 };
  const { left, top, across, tall } = plot;
  const [low, high] = linesRange(run, series, chart);
  const y = (value: number): number => {
    const isLog = chart.scale === "log";
    const part = isLog ? Math.log(Math.max(value, low / 10) / low) / Math.log(high / low) : (value - low) / (high - low);
    return top + tall - clamp(part, -0.02, 1.02) * tall;
  };
  const x = (i: number): number => middleOf(i, left, across, run.count);
  const pen = keep(canvas, `${series.index} ${chart.id} ${width} ${theme.name}`, width, top + tall + 26, (still) => {
    drawLevels(still, chart, levelsOf(chart, low, high), y, plot, theme);
    drawGaps(still, run, series, plot, top + tall - 5, theme);
    if (chart.hasBand) drawBand(still, run, series, x, y, theme);
    for (const field of chart.fields) {
      const isMain = chart.fields.length === 1 || field === "mean";
      still.strokeStyle = still.fillStyle = isMain ? theme.accent : theme.faint;
      still.lineWidth = isMain ? 2 : 1.5;
      still.lineJoin = "round";
      still.setLineDash(isMain ? [] : [4, 3]);
      drawCurve(still, run.count, (i) => shareOf(run, series, field, i), x, y);
      still.setLineDash([]);
    }
    drawSteps(still, run, left, across, top + tall + 2, theme);
  });
  pen.fillStyle = theme.ink;
  pen.globalAlpha = 0.55;
  pen.fillRect(x(at) - 0.75, top, 1.5, tall);
  pen.globalAlpha = 1;
  for (const field of chart.fields) {
    const value = shareOf(run, series, field, at);
    if (!Number.isNaN(value)) drawDot(pen, x(at), y(value), theme);
  }
  return plot;
}

function drawLevels(pen: Pen, chart: Chart, levels: number[], y: (value: number) => number, plot: Plot, theme: Theme): void {
  const { left, across } = plot;
  const write = { part: format.percent, log: format.powerOfTen, linear: (value: number) => format.figure(value, 3) };
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const value of levels) {
    pen.fillStyle = theme.grid;
    pen.fillRect(left, Math.round(y(value)), across, 1);
    pen.fillStyle = theme.faint;
    pen.fillText(write[chart.scale](value), left - 8, y(value));
  }
  if (chart.mark) {
    pen.strokeStyle = pen.fillStyle = theme.accent;
    pen.setLineDash([5, 4]);
    pen.beginPath();
    pen.moveTo(left, y(chart.mark));
    pen.lineTo(left + across, y(chart.mark));
    pen.stroke();
    pen.setLineDash([]);
    pen.fillText("healthy, about 10⁻³", left + across - 4, y(chart.mark) - 8);
  }
  pen.textBaseline = "alphabetic";
}

function drawBand(pen: Pen, run: Run, series: Series, x: (at: number) => number, y: (v: number) => number, theme: Theme): void {
  const mean = (at: number): number => run.value(series, "mean", at);
  const std = (at: number): number => run.value(series, "std", at);
  pen.fillStyle = theme.accent;
  pen.globalAlpha = 0.18;
  stretches(
    run.count,
    (at) => !Number.isNaN(mean(at) + std(at)),
    (first, last) => {
      const reach = first === last ? 3 : 0; // a lone snapshot has a width of its own
      pen.beginPath();
      for (let at = first; at <= last; at++) pen.lineTo(x(at) - reach, y(mean(at) + std(at)));
      if (reach) for (const sign of [1, -1]) pen.lineTo(x(last) + reach, y(mean(last) + sign * std(last)));
      for (let at = last; at >= first; at--) pen.lineTo(x(at) - reach, y(mean(at) - std(at)));
      pen.fill();
    },
  );
  pen.globalAlpha = 1;
}
