// Draws a frame on a canvas, as a plan of tiles.

import { paintPixels } from "../../shared/canvas";
import type { Plan, Subject } from "./layout";

const atlas = typeof document === "undefined" ? null : document.createElement("canvas");

export function drawFrame(
  canvas: HTMLCanvasElement,
  plan: Plan,
  subject: Subject,
  pixels: Uint32Array,
  unit: number,
  ink: string,
): void {
  const [width, height] = [Math.ceil(plan.width), Math.ceil(plan.height)];
  Object.assign(canvas, { width, height });
  Object.assign(canvas.style, { width: `${width / unit}px`, height: `${height / unit}px` });
  const pen = canvas.getContext("2d")!;
  const across = Math.max(1, Math.ceil(Math.sqrt(subject.count)));
  fillAtlas(subject, pixels, across);
  for (const tile of plan.tiles) {
    pen.imageSmoothingEnabled = tile.w < 3 * subject.width || tile.h < 3 * subject.height;
    pen.imageSmoothingQuality = "high";
    const x = (tile.index % across) * subject.width;
    const y = Math.floor(tile.index / across) * subject.height;
    pen.drawImage(atlas!, x, y, subject.width, subject.height, tile.x, tile.y, tile.w, tile.h);
  }
  pen.fillStyle = ink;
  pen.font = `${10.5 * unit}px system-ui, sans-serif`;
  for (const { x, y, text, align } of plan.texts) {
    pen.textAlign = align;
    pen.fillText(text, x, y);
  }
}

/** All tiles at their own size, in rows, so that no side gets too long for a canvas. */
function fillAtlas({ count, width, height }: Subject, pixels: Uint32Array, across: number): void {
  const line = width * Math.min(across, count);
  const target = new Uint32Array(line * height * Math.ceil(count / across));
  for (let tile = 0; tile < count; tile++) {
    const start = Math.floor(tile / across) * height * line + (tile % across) * width;
    for (let row = 0; row < height; row++) {
      const from = (tile * height + row) * width;
      target.set(pixels.subarray(from, from + width), start + row * line);
    }
  }
  paintPixels(atlas!, line, target);
}
