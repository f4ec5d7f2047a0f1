// Canvases that are sharp on any screen, and pictures made of pixels.

import { rampPixels } from "./color";
import { type Options, el } from "./dom";

/** Pixels of the screen for one of the page. */
export function screenUnit(): number {
  return Math.min(window.devicePixelRatio || 1, 3);
}

/** Gives a canvas a size in pixels of the page, and clears it. */
export function sizeCanvas(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const unit = screenUnit();
  Object.assign(canvas, { width: Math.round(width * unit), height: Math.round(height * unit) });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d")!;
  context.setTransform(unit, 0, 0, unit, 0, 0);
  return context;
}

/** A canvas of a size in pixels of the page, with its context. */
export function sharpCanvas(
  width: number,
  height: number,
  options: Options = {},
): [HTMLCanvasElement, CanvasRenderingContext2D] {
  const canvas = el("canvas", options);
  return [canvas, sizeCanvas(canvas, width, height)];
}

/** Makes a canvas show pixels, one to one, row by row. */
export function paintPixels(canvas: HTMLCanvasElement, width: number, pixels: Uint32Array): void {
  Object.assign(canvas, { width, height: pixels.length / width });
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(canvas.width, canvas.height);
  new Uint32Array(image.data.buffer).set(pixels);
  context.putImageData(image, 0, 0);
}

/** Makes a canvas a bar of the colours of a ramp; CSS gives it its size. */
export function paintRamp(canvas: HTMLCanvasElement, ramp: readonly string[]): HTMLCanvasElement {
  paintPixels(canvas, 256, rampPixels(ramp, 256));
  return canvas;
}
