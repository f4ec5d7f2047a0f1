// The charts of the chosen layer and kind.

import { byId, write } from "../../shared/dom";
import { type Plot, columnAt } from "../charts/frame";
import { type HistogramPlot, drawHistogram, histogramCaption, histogramTip } from "../charts/histogram";
import { CHARTS, type Chart, chartsOf, drawLines, linesText } from "../charts/lines";
import { SUMMARY } from "../data/run";
import type { Guide, Part } from "../guide";
import { choices } from "./choices";
import { followPointer } from "./pointer";

export class Charts implements Part {
  private readonly histogram = byId<HTMLCanvasElement>("histogram");
  private readonly lines = byId<HTMLCanvasElement>("lines");
  private histogramPlot: HistogramPlot | null = null;
  private linesPlot: Plot | null = null;
  private chart: Chart = CHARTS[0]!;

  constructor(private readonly guide: Guide) {
    const { run } = guide;
    const histogramText = (at: number, y: number): string => histogramTip(run, guide.series, this.histogramPlot!, at, y);
    this.listen(this.histogram, () => this.histogramPlot, histogramText);
    this.listen(
      this.lines,
      () => this.linesPlot,
      (at) => linesText(run, guide.series, this.chart, at),
    );
  }

  private listen(canvas: HTMLCanvasElement, plotOf: () => Plot | null, text: (at: number, y: number) => string): void {
    const { guide } = this;
    const under = (event: MouseEvent): { at: number; y: number } => {
      const box = canvas.getBoundingClientRect();
      const { left, across } = plotOf()!;
      return { at: columnAt(event.clientX - box.left, left, across, guide.run.count), y: event.clientY - box.top };
    };
    canvas.addEventListener("click", (event) => {
      guide.pause();
      guide.choose({ at: under(event).at });
    });
    followPointer(guide, canvas, (event) => {
      const { at, y } = under(event);
      return `step ${guide.run.stepText(at)}\n${text(at, y)}`;
    });
  }

  draw(): void {
    const { guide } = this;
    const { run, state, series } = guide;
    const name = `${run.name(state.layer, 32)} · ${run.words(series)}`;
    for (const id of ["histogram-of", "lines-of"]) write(id, name, run.title(state.layer));
    const charts = chartsOf(run, series);
    this.chart = charts.find((one) => one.id === state.chart) ?? charts[0] ?? CHARTS[0]!;
    const options = charts.map((one): [string, string, string] => [one.id, one.title, ""]);
    choices("charts", options, this.chart.id, (chart) => guide.choose({ chart }));
    byId("histogram-card").hidden = series.kind === SUMMARY;
    if (series.kind !== SUMMARY) this.drawHistogram(name);
    this.drawLines(name);
  }

  private drawHistogram(name: string): void {
    const { run, state, series, theme } = this.guide;
    const width = this.histogram.parentElement!.clientWidth || 400;
    this.histogramPlot = drawHistogram(this.histogram, run, series, state.at, width, theme);
    const caption = histogramCaption(run, series, state.at);
    write("histogram-about", caption);
    this.histogram.setAttribute("aria-label", `Histogram over time of ${name}. ${caption}`);
  }

  private drawLines(name: string): void {
    const { run, state, series, theme } = this.guide;
    const { chart } = this;
    const width = this.lines.parentElement!.clientWidth;
    this.linesPlot = drawLines(this.lines, run, series, chart, state.at, width, theme);
    const caption = `Step ${run.stepText(state.at)}: ${linesText(run, series, chart, state.at)}`;
    write("lines-about", caption);
    this.lines.setAttribute("aria-label", `${chart.title} over time of ${name}. ${caption}`);
  }
}
