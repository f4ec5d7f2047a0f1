// Shared by all charts. Each has one column for each snapshot, so that the same place across is the same moment everywhere.

import { sharpCanvas, sizeCanvas } from "../../shared/canvas";
import { type Theme, THEMES, rampPixels } from "../../shared/color";
import { clamp } from "../../shared/scale";
import type { Run, Series } from "../data/run";

export type Pen = CanvasRenderingContext2D;

/** Where the columns of a chart lie. */
export interface Plot {
  left: number;
  top: number;
  across: number;
  tall: number;
}

const FONT = "11px system-ui, sans-serif";

/** The colours of shares, 0 to 1, as pixels. */
export const SHARE_PIXELS = {
  light: rampPixels(THEMES.light.shareRamp, 64),
  dark: rampPixels(THEMES.dark.shareRamp, 64),
};

/** A drawing that stays the same while only the current step moves is made once for each key. */
const kept = new WeakMap<HTMLCanvasElement, { key: string; still: HTMLCanvasElement }>();

export function keep(canvas: HTMLCanvasElement, key: string, width: number, height: number, draw: (still: Pen) => void): Pen {
  let found = kept.get(canvas);
  if (found?.key !== key) {
    const [still, pen] = sharpCanvas(width, height);
    pen.font = FONT;
    draw(pen);
    kept.set(canvas, (found = { key, still }));
  }
  const pen = sizeCanvas(canvas, width, height);
  pen.font = FONT;
  pen.drawImage(found.still, 0, 0, width, height);
  return pen;
}

export function columnAt(x: number, left: number, width: number, total: number): number {
  return clamp(Math.floor(((x - left) / width) * total), 0, total - 1);
}

export function middleOf(at: number, left: number, width: number, total: number): number {
  return left + ((at + 0.5) / total) * width;
}

export function drawSteps(pen: Pen, run: Run, left: number, width: number, y: number, theme: Theme): void {
  const labels = run.facts.steps.map((_, at) => run.stepText(at));
  const widest = Math.max(...labels.map((text) => text.length)) * 7 + 18;
  const every = Math.max(1, Math.ceil(run.count / Math.max(1, Math.floor(width / widest))));
  pen.fillStyle = theme.faint;
  pen.textBaseline = "top";
  pen.textAlign = "left";
  for (let at = 0; at < run.count; at += every) {
    const x = middleOf(at, left, width, run.count);
    pen.fillRect(x - 0.5, y, 1, 4);
    const half = pen.measureText(labels[at]!).width / 2;
    pen.fillText(labels[at]!, clamp(x - half, left, left + width - 2 * half), y + 6);
  }
  pen.textBaseline = "alphabetic";
}

/** A frame around the column of the current snapshot. */
export function drawNow(pen: Pen, at: number, { left, top, across, tall }: Plot, total: number, theme: Theme): void {
  const x = middleOf(at, left, across, total);
  const wide = Math.max(across / total, 2);
  for (const [color, size] of [
    [theme.surface, 2],
    [theme.ink, 1],
  ] as const) {
    const line = 1.75 * size;
    pen.strokeStyle = pen.fillStyle = color;
    pen.lineWidth = line;
    if (wide > 6) pen.strokeRect(x - wide / 2 + line / 2, top + line / 2, wide - line, tall - line);
    else pen.fillRect(x - size, top, 2 * size, tall);
  }
}

/** Snapshots that a series is not in are hatched; those with values that are not finite have a bar at `y`. */
export function drawGaps(pen: Pen, run: Run, series: Series, plot: Plot, y: number, theme: Theme): void {
  const wide = plot.across / run.count;
  for (let at = 0; at < run.count; at++) {
    const x = plot.left + at * wide;
    if (!run.has(series, at)) hatch(pen, x, plot.top, wide, plot.tall, theme);
    else if (run.nonfinite(series, at) > 0) {
      pen.fillStyle = theme.nonfinite;
      pen.fillRect(x, y, Math.max(wide, 1), 5);
    }
  }
}

export function hatch(pen: Pen, x: number, y: number, width: number, height: number, theme: Theme): void {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  pen.strokeStyle = theme.hatch;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let at = x - height; at < x + width; at += 6) {
    pen.moveTo(at, y + height);
    pen.lineTo(at + height, y);
  }
  pen.stroke();
  pen.restore();
}

/** Where a curve is now. */
export function drawDot(pen: Pen, x: number, y: number, theme: Theme): void {
  pen.beginPath();
  pen.arc(x, y, 4, 0, 2 * Math.PI);
  pen.fillStyle = theme.accent;
  pen.strokeStyle = theme.surface;
  pen.lineWidth = 2;
  pen.fill();
  pen.stroke();
}

/** Calls `draw` for each run of snapshots that are next to each other and known. */
export function stretches(count: number, isKnown: (at: number) => boolean, draw: (first: number, last: number) => void): void {
  let start = -1;
  for (let at = 0; at <= count; at++) {
    const isIn = at < count && isKnown(at);
    if (isIn && start < 0) start = at;
    if (isIn || start < 0) continue;
    draw(start, at - 1);
    start = -1;
  }
}

/** A line through the known values; a value without known neighbours is a square. */
export function drawCurve(
  pen: Pen,
  count: number,
  valueAt: (at: number) => number,
  x: (at: number) => number,
  y: (value: number) => number,
): void {
  const half = pen.lineWidth;
  stretches(
    count,
    (at) => !Number.isNaN(valueAt(at)),
    (first, last) => {
      if (first === last) {
        pen.fillRect(x(first) - half, y(valueAt(first)) - half, 2 * half, 2 * half);
        return;
      }
      pen.beginPath();
      for (let at = first; at <= last; at++) pen.lineTo(x(at), y(valueAt(at)));
      pen.stroke();
    },
  );
}
