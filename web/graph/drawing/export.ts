// Saves the picture as SVG or PNG, by a link that holds the file itself.

import { el } from "../../shared/dom";
import { type Picture, type Rect, rectOf } from "./picture";
import { drawScene } from "./draw";
import { CanvasPainter, SvgPainter } from "./paint";

export type Format = "svg" | "png";
type Suffix = Format | "csv";

const MARGIN = 24;
const LARGEST_SIDE = 16_000; // pixels a canvas can have
const LARGEST_AREA = 120_000_000;

/** A picture, or a part of it, as SVG. */
export function toSvg(picture: Picture, area: Rect, title: string): string {
  const painter = new SvgPainter();
  painter.box(area.x, area.y, area.w, area.h, 0, picture.theme.page, null);
  drawScene(painter, picture, area, 1, null);
  return painter.document(area.x, area.y, area.w, area.h, title);
}

/** A picture, or a part of it, as a PNG of twice its size, or as large as a canvas can be. */
export async function toPng(picture: Picture, area: Rect): Promise<Blob> {
  const scale = Math.min(2, LARGEST_SIDE / area.w, LARGEST_SIDE / area.h, Math.sqrt(LARGEST_AREA / (area.w * area.h)));
  const canvas = el("canvas");
  canvas.width = Math.max(1, Math.round(area.w * scale));
  canvas.height = Math.max(1, Math.round(area.h * scale));
  const context = canvas.getContext("2d")!;
  context.fillStyle = picture.theme.page;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.scale(scale, scale);
  context.translate(-area.x, -area.y);
  drawScene(new CanvasPainter(context), picture, area, scale, null);
  return new Promise((resolve, reject) => {
    canvas.toBlob(
      (blob) => (blob ? resolve(blob) : reject(new Error("The picture is too large for a PNG; try SVG."))),
      "image/png",
    );
  });
}

/** The whole graph, as far as it is open. */
export function wholeArea({ scene }: Picture): Rect {
  const { x, y, w, h } = rectOf(scene, 0);
  return { x: x - MARGIN, y: y - MARGIN, w: w + 2 * MARGIN, h: h + 2 * MARGIN };
}

export function fileName(title: string, format: Suffix): string {
  return `${title.replace(/[^\p{L}\p{N}._-]+/gu, "_").slice(0, 80) || "model"}.${format}`;
}

export function download(blob: Blob, name: string): void {
  const address = URL.createObjectURL(blob);
  const link = el("a");
  link.href = address;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
