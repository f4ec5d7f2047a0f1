// Draws a frame on a canvas, as a plan of tiles.

import { paintPixels } from "../../shared/canvas";
import type { Frame, Series } from "../data/run";
import type { Guide } from "../guide";
import { pixelsOf } from "./codes";
import type { Plan, Subject } from "./layout";
import { limitsOf } from "./limits";

const atlas = document.createElement("canvas");

/** Draws the picture of a series; the codes it drew, or nothing as long as they are being unpacked. */
export function drawFrame(
  { run, state, theme, album }: Guide,
  canvas: HTMLCanvasElement,
  series: Series,
  frame: Frame,
  subject: Subject,
  plan: Plan,
  unit: number,
): Uint8Array | null {
  const codes = album.codes(frame);
  if (!codes) return null;
  const colorArea = subject.planes === 3 ? subject.width * subject.height : 0;
  const pixels = pixelsOf(codes, frame, limitsOf(run, series, frame, state.scale), run.facts.levels, colorArea);
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
    pen.drawImage(atlas, x, y, subject.width, subject.height, tile.x, tile.y, tile.w, tile.h);
  }
  pen.fillStyle = theme.faint;
  pen.font = `${10.5 * unit}px system-ui, sans-serif`;
  for (const { x, y, text, align } of plan.texts) {
    pen.textAlign = align;
    pen.fillText(text, x, y);
  }
  return codes;
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
  paintPixels(atlas, line, target);
}
