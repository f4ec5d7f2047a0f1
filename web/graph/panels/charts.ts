// Small pictures in the panel: histograms, and previews of tensors with a scale.

import { paintPixels, paintRamp, sharpCanvas } from "../../shared/canvas";
import { BOTH_SIGNS, NEVER_NEGATIVE, packedPixel, rampPixels } from "../../shared/color";
import { el } from "../../shared/dom";
import * as format from "../../shared/format";
import { fromBase64 } from "../../shared/unpacking";
import { scaleEnds } from "./panel_parts";
import type { Histogram, Preview, Stats } from "../model/payload";

/** The histogram of a tensor, with where zero is and how many values are left out of it. */
export function histogram(stats: Stats, width: number): HTMLElement | null {
  const { histogram: found } = stats;
  if (!found || !found.counts.some((count) => count > 0)) return null;
  const height = 64;
  const most = Math.max(...found.counts);
  const summary = `Histogram of ${format.human(stats.count)} values from ${format.figure(found.low)} to ${format.figure(found.high)}`;
  const [canvas, context] = sharpCanvas(width, height, { role: "img", label: summary, class: "chart" });
  const styles = getComputedStyle(document.documentElement);
  const bar = width / found.counts.length;
  context.fillStyle = styles.getPropertyValue("--accent");
  found.counts.forEach((count, i) => {
    const tall = count ? Math.max(1.5, (count / most) * (height - 4)) : 0;
    context.fillRect(i * bar + 0.5, height - tall, Math.max(1, bar - 1), tall);
  });
  drawZero(context, found, width, height, styles.getPropertyValue("--faint"));
  return el("figure", {}, canvas, scaleEnds(format.figure(found.low), format.figure(found.high)));
}

function drawZero(context: CanvasRenderingContext2D, found: Histogram, width: number, height: number, color: string): void {
  if (!(found.low < 0 && found.high > 0)) return;
  const x = (width * -found.low) / (found.high - found.low);
  context.strokeStyle = color;
  context.setLineDash([3, 3]);
  context.beginPath();
  context.moveTo(x, 0);
  context.lineTo(x, height);
  context.stroke();
}

/** A preview as large as fits, with square pixels, and its scale of colours. */
export function preview(found: Preview, width: number): HTMLElement | null {
  const pixels = fromBase64(found.data);
  const { width: columns, height: rows, channels } = found;
  if (!columns || !rows || pixels.length < columns * rows * channels) return null;
  const ramp = found.diverging ? BOTH_SIGNS : NEVER_NEGATIVE;
  const table = rampPixels(ramp, 256);
  const colored = Uint32Array.from({ length: columns * rows }, (_, p) =>
    channels === 3 ? packedPixel(pixels[3 * p]!, pixels[3 * p + 1]!, pixels[3 * p + 2]!) : table[pixels[p]!]!,
  );
  const raw = el("canvas");
  paintPixels(raw, columns, colored);
  const [w, h] = fitted(columns, rows, width, found.kind === "vector" ? 28 : 260);
  const summary = `Preview: ${found.kind}, ${columns} by ${rows}${found.note ? `, ${found.note}` : ""}`;
  const [canvas, context] = sharpCanvas(w, h, { role: "img", label: summary, class: "preview" });
  context.imageSmoothingEnabled = w < columns;
  context.drawImage(raw, 0, 0, w, h);
  const caption = el("figcaption", { class: "note", text: [found.kind, found.note].filter(Boolean).join(" · ") });
  return el("figure", {}, canvas, channels === 3 ? null : scaleBar(found, ramp, width), caption);
}

function fitted(columns: number, rows: number, width: number, tallest: number): [number, number] {
  if (rows === 1) return [width, tallest];
  const factor = Math.min(width / columns, tallest / rows);
  const whole = factor > 1 ? Math.max(1, Math.floor(factor * 2) / 2) : factor;
  return [Math.max(1, Math.round(columns * whole)), Math.max(1, Math.round(rows * whole))];
}

function scaleBar(found: Preview, ramp: readonly string[], width: number): HTMLElement | null {
  if (found.low === null || found.high === null) return null;
  const canvas = paintRamp(el("canvas", { class: "scale", role: "img", label: "Scale of colours" }), ramp);
  Object.assign(canvas.style, { width: `${width}px`, height: "8px" });
  const middle = found.diverging ? ["0"] : [];
  return el("div", {}, canvas, scaleEnds(format.figure(found.low), ...middle, format.figure(found.high)));
}
