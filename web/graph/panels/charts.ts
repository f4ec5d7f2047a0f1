// Small pictures in the panel: histograms, and previews of tensors with a scale.

import { el, sharpCanvas } from "../../shared/dom";
import * as format from "../../shared/format";
import { type Histogram, type Preview, type Stats, fromBase64 } from "../model/payload";

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
  const ends = el(
    "div",
    { class: "scale-ends" },
    el("span", { text: format.figure(found.low) }),
    el("span", { text: format.figure(found.high) }),
  );
  return el("figure", { class: "histogram" }, canvas, ends);
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

type Rgb = [number, number, number];

// Told apart in grey as well: dark for little, light for much; and blue below, red above, white for zero.
const SEQUENTIAL: Rgb[] = [
  [13, 8, 60],
  [74, 20, 116],
  [150, 40, 110],
  [214, 78, 72],
  [248, 149, 42],
  [252, 253, 191],
];
const DIVERGING: Rgb[] = [
  [8, 48, 107],
  [66, 146, 198],
  [247, 247, 247],
  [227, 105, 60],
  [127, 24, 8],
];

function colorAt(scale: Rgb[], share: number): Rgb {
  const at = Math.min(1, Math.max(0, share)) * (scale.length - 1);
  const low = Math.min(scale.length - 2, Math.floor(at));
  return scale[low]!.map((part, i) => Math.round(part + (scale[low + 1]![i]! - part) * (at - low))) as Rgb;
}

/** A preview as large as fits, with square pixels, and its scale of colours. */
export function preview(found: Preview, width: number): HTMLElement | null {
  const pixels = fromBase64(found.data);
  const { width: columns, height: rows, channels } = found;
  if (!columns || !rows || pixels.length < columns * rows * channels) return null;
  const image = new ImageData(columns, rows);
  const scale = found.diverging ? DIVERGING : SEQUENTIAL;
  const table = Array.from({ length: 256 }, (_, i) => colorAt(scale, i / 255));
  for (let p = 0; p < columns * rows; p++) {
    const color = channels === 3 ? [pixels[3 * p]!, pixels[3 * p + 1]!, pixels[3 * p + 2]!] : table[pixels[p]!]!;
    image.data.set([color[0]!, color[1]!, color[2]!, 255], 4 * p);
  }
  const raw = el("canvas");
  raw.width = columns;
  raw.height = rows;
  raw.getContext("2d")!.putImageData(image, 0, 0);
  const [w, h] = fitted(columns, rows, width, found.kind === "vector" ? 28 : 260);
  const summary = `Preview: ${found.kind}, ${columns} by ${rows}${found.note ? `, ${found.note}` : ""}`;
  const [canvas, context] = sharpCanvas(w, h, { role: "img", label: summary, class: "preview" });
  context.imageSmoothingEnabled = w < columns;
  context.drawImage(raw, 0, 0, w, h);
  const caption = el("figcaption", { class: "note", text: [found.kind, found.note].filter(Boolean).join(" · ") });
  return el("figure", {}, canvas, channels === 3 ? null : scaleBar(found, scale, width), caption);
}

function fitted(columns: number, rows: number, width: number, tallest: number): [number, number] {
  if (rows === 1) return [width, tallest];
  const factor = Math.min(width / columns, tallest / rows);
  const whole = factor > 1 ? Math.max(1, Math.floor(factor * 2) / 2) : factor;
  return [Math.max(1, Math.round(columns * whole)), Math.max(1, Math.round(rows * whole))];
}

function scaleBar(found: Preview, scale: Rgb[], width: number): HTMLElement | null {
  if (found.low === null || found.high === null) return null;
  const [canvas, context] = sharpCanvas(width, 8, { class: "scale", role: "img", label: "Scale of colours" });
  for (let x = 0; x < width; x++) {
    context.fillStyle = `rgb(${colorAt(scale, x / (width - 1)).join()})`;
    context.fillRect(x, 0, 1, 8);
  }
  const middle = found.diverging ? el("span", { text: "0" }) : null;
  const ends = el(
    "div",
    { class: "scale-ends" },
    el("span", { text: format.figure(found.low) }),
    middle,
    el("span", { text: format.figure(found.high) }),
  );
  return el("div", {}, canvas, ends);
}
