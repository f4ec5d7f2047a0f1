// The map of all layers: what it shows is chosen from small maps, and a cell leads to its layer and step.

import { paintPixels, paintRamp, screenUnit } from "../../shared/canvas";
import { BOTH_SIGNS, NEVER_NEGATIVE, type Theme } from "../../shared/color";
import { byId, el, replace, write } from "../../shared/dom";
import * as format from "../../shared/format";
import { clamp } from "../../shared/scale";
import { type Pen, SHARE_PIXELS, columnAt, drawNow, drawSteps, hatch, keep, middleOf } from "../charts/frame";
import { type Grid, cellFor, cellText, legendTicks, levelOf } from "../data/measures";
import { SUMMARY } from "../data/run";
import type { Guide, Part } from "../guide";
import { PALETTE } from "../pictures/codes";
import { radio } from "./choices";
import { followPointer } from "./pointer";

export class Overview implements Part {
  private readonly canvas = byId<HTMLCanvasElement>("map");
  private readonly thumbs: HTMLCanvasElement[];
  private painted = ""; // the theme of the small maps
  private legendKey = "";
  private size = 0; // of a row
  private row = -1; // that was last shown

  constructor(
    private readonly guide: Guide,
    private readonly grids: Grid[],
  ) {
    this.thumbs = grids.map(() => el("canvas"));
    byId("measures").replaceChildren(
      ...grids.map(({ measure: { id, title, about } }, i) => {
        const input = radio("measure", id, (measure) => guide.choose({ measure }));
        return el("label", { title: about }, input, this.thumbs[i], el("span", { text: title }));
      }),
    );
    byId("map-labels").replaceChildren(
      ...guide.run.facts.layers.map((name, layer) => {
        const label = el("bdi", { text: format.shortened(name, 60) });
        const click = (): void => guide.choose({ layer });
        return el("button", { type: "button", title: format.clean(name), tabIndex: -1, on: { click } }, label);
      }),
    );
    this.listen();
  }

  private listen(): void {
    const { guide, canvas } = this;
    canvas.addEventListener("click", (event) => {
      guide.pause();
      this.open(this.cellUnder(event));
    });
    followPointer(guide, canvas, (event) => {
      const { layer, at } = this.cellUnder(event);
      const { measure, cells } = this.grid!;
      const said = `${measure.title.toLowerCase()}: ${cellText(measure, cells[layer]![at]!)}`;
      return `${guide.run.name(layer, 300)}\nstep ${guide.run.stepText(at)}\n${said}`;
    });
  }

  private get grid(): Grid | undefined {
    return this.grids.find((one) => one.measure.id === this.guide.state.measure);
  }

  draw(): void {
    const { grid } = this;
    byId("overview").hidden = !grid;
    if (!grid) return;
    const { run, state, theme } = this.guide;
    const { measure } = grid;
    if (this.painted !== theme.name) this.grids.forEach((one, i) => paintGrid(this.thumbs[i]!, one, 160, theme));
    this.painted = theme.name;
    byId("measures").querySelector<HTMLInputElement>(`[value="${measure.id}"]`)!.checked = true;
    write("measure-about", measure.about);
    this.drawCells(grid);
    this.drawLabels();
    this.drawLegend(grid);
    const all = `${measure.title} of ${run.facts.layers.length} layers over ${run.count} snapshots.`;
    const here = `${run.name(state.layer, 60)} at step ${run.stepText(state.at)}`;
    this.canvas.setAttribute("aria-label", `${all} ${here}: ${cellText(measure, grid.cells[state.layer]![state.at]!)}`);
  }

  private drawCells(grid: Grid): void {
    const { run, state, theme } = this.guide;
    const layers = run.facts.layers.length;
    const size = (this.size = clamp(Math.floor(260 / layers), 14, 44));
    const width = this.canvas.parentElement!.clientWidth;
    const pen = keep(this.canvas, `${grid.measure.id} ${width} ${theme.name}`, width, size * layers, (still) => {
      hatch(still, 0, 0, width, size * layers, theme);
      const small = el("canvas");
      paintGrid(small, grid, Math.round(width * screenUnit()), theme);
      still.imageSmoothingEnabled = false;
      still.drawImage(small, 0, 0, width, size * layers);
      still.fillStyle = theme.surface;
      for (let layer = 1; layer < layers; layer++) still.fillRect(0, layer * size - 0.5, width, 1);
    });
    drawNow(pen, state.at, { left: 0, top: state.layer * size, across: width, tall: size }, run.count, theme);
    const axis = byId<HTMLCanvasElement>("map-axis");
    const drawAxis = (still: Pen): void => drawSteps(still, run, 0, width, 5, theme);
    const x = middleOf(state.at, 0, width, run.count);
    drawArrow(keep(axis, `${width} ${theme.name}`, width, 26, drawAxis), x, theme.accent);
  }

  private drawLabels(): void {
    const { size } = this;
    const { layer: chosen } = this.guide.state;
    for (const [layer, label] of ([...byId("map-labels").children] as HTMLElement[]).entries()) {
      label.style.height = `${size}px`;
      label.style.fontSize = `${clamp(size - 3, 11, 13)}px`;
      label.setAttribute("aria-current", String(layer === chosen));
    }
    if (this.row !== chosen) {
      const box = byId("map-scroll"); // the rows scroll, never the page
      box.scrollTop = clamp(box.scrollTop, (chosen + 1) * size - box.clientHeight, chosen * size);
    }
    this.row = chosen;
  }

  private drawLegend(grid: Grid): void {
    const key = `${grid.measure.id} ${this.guide.theme.name}`;
    if (this.legendKey === key) return;
    this.legendKey = key;
    const flat = grid.cells.flat();
    const isCount = grid.measure.scale === "count";
    const swatch = (text: string, name = ""): HTMLElement => el("span", { class: "swatch" }, el("i", { class: name }), text);
    replace(
      byId("map-legend"),
      !isCount && rampElement(grid, this.guide.theme),
      (isCount || flat.some((one) => one.bad > 0)) && swatch("not finite"),
      flat.some((one) => one.value === null && !one.bad) && swatch("not recorded", "missing"),
    );
  }

  private cellUnder(event: MouseEvent): { layer: number; at: number } {
    const { run } = this.guide;
    const box = this.canvas.getBoundingClientRect();
    const layer = clamp(Math.floor((event.clientY - box.top) / this.size), 0, run.facts.layers.length - 1);
    return { layer, at: columnAt(event.clientX - box.left, 0, box.width, run.count) };
  }

  /** Shows what a cell is of: the kind of the measure, or the first kind that has values that are not finite. */
  open({ layer, at }: { layer: number; at: number }): void {
    const { run, state } = this.guide;
    const { kind } = this.grid!.measure;
    const bad = run.kindsOf(layer).find((one) => run.nonfinite(run.find(layer, one)!, at) > 0);
    const wanted = kind && !run.find(layer, kind) ? SUMMARY : kind;
    this.guide.choose({ layer, at, kind: wanted ?? bad ?? state.kind });
    const card = byId("picture-card");
    if (card.getBoundingClientRect().top > innerHeight - 80) card.scrollIntoView({ block: "start" });
  }
}

/** A picture of one pixel for each cell, `width` across at most. */
function paintGrid(canvas: HTMLCanvasElement, grid: Grid, width: number, theme: Theme): void {
  const columns = Math.min(grid.cells[0]!.length, Math.max(width, 1));
  const shares = SHARE_PIXELS[theme.name];
  const colors = { ratio: PALETTE.bothSigns, log: PALETTE.neverNegative, part: shares, count: shares }[grid.measure.scale];
  const pixels = new Uint32Array(columns * grid.cells.length);
  grid.cells.forEach((row, layer) => {
    for (let x = 0; x < columns; x++) {
      const shown = cellFor(row, x, columns);
      if (!shown) continue;
      const level = shown.value === null ? 0 : levelOf(grid, shown.value);
      pixels[layer * columns + x] = shown.bad > 0 ? PALETTE.nonfinite : colors[Math.round(level * (colors.length - 1))]!;
    }
  });
  paintPixels(canvas, columns, pixels);
}

function rampElement(grid: Grid, theme: Theme): HTMLElement {
  const ticks = legendTicks(grid).map(([value, text, isStrong]) => {
    const level = levelOf(grid, value);
    const end = level < 0.05 ? "first" : level > 0.95 ? "last" : "";
    const tick = el("span", { text, class: [end, isStrong ? "strong" : ""].join(" ").trim() });
    tick.style.left = `${100 * level}%`;
    return tick;
  });
  const ramps = { ratio: BOTH_SIGNS, log: NEVER_NEGATIVE, part: theme.shareRamp, count: theme.shareRamp };
  const ramp = paintRamp(el("canvas"), ramps[grid.measure.scale]);
  return el("div", { class: "ramp" }, ramp, el("div", { class: "ramp-ticks" }, ...ticks));
}

function drawArrow(pen: Pen, x: number, color: string): void {
  pen.fillStyle = color;
  pen.beginPath();
  pen.moveTo(x, 0);
  pen.lineTo(x + 5, 7);
  pen.lineTo(x - 5, 7);
  pen.fill();
}
