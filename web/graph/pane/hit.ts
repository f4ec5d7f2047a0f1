// What is under the pointer.

import { type Control, runControls } from "./controls";
import { rectOf } from "../drawing/picture";
import { CHIP_HEIGHT, HEADER, LINE } from "../drawing/look";
import type { Scene } from "../layout/scene";
import { sampled } from "../drawing/shapes";
import { clamp } from "../../shared/scale";

export type Hit =
  | { kind: "item"; item: number; isHeader: boolean }
  | { kind: "control"; item: number; control: Control["name"] }
  | { kind: "chip"; item: number; from: number }
  | { kind: "edge"; links: number[] };

/** What lies at a point of the plane; `reach` is how far from an edge it still counts. */
export function hitAt(scene: Scene, x: number, y: number, reach: number): Hit | null {
  let at = 0;
  for (;;) {
    const inner = scene.view.items[at]!.children.find((child) => holds(scene, child, x, y));
    if (inner === undefined) break;
    at = inner;
    if (!scene.view.items[at]!.isOpen) return chipAt(scene, at, x, y) ?? { kind: "item", item: at, isHeader: false };
  }
  const control = runControls(scene, at, scene.x[at]!, scene.y[at]!, scene.w[at]!).find(
    (one) => x >= one.x && x <= one.x + one.w && y >= one.y - 3 && y <= one.y + one.h + 3,
  );
  if (control) return { kind: "control", item: at, control: control.name };
  if (at > 0 && y < scene.y[at]! + HEADER) return { kind: "item", item: at, isHeader: true };
  const edge = edgeAt(scene, at, x - scene.x[at]!, y - scene.y[at]!, reach);
  if (edge) return edge;
  return at > 0 ? { kind: "item", item: at, isHeader: false } : null;
}

function holds(scene: Scene, item: number, x: number, y: number): boolean {
  const { x: left, y: top, w, h } = rectOf(scene, item);
  return x >= left && y >= top && x <= left + w && y <= top + h;
}

function chipAt(scene: Scene, item: number, x: number, y: number): Hit | null {
  const face = scene.faces[item]!;
  const first = scene.y[item]! + 34 + face.lines.length * LINE - 6;
  const which = Math.floor((y - first) / (CHIP_HEIGHT + 3));
  const chip = face.chips[which];
  if (!chip || y < first || x > scene.x[item]! + 22 + chip.width) return null;
  return { kind: "chip", item, from: chip.from };
}

function edgeAt(scene: Scene, box: number, x: number, y: number, reach: number): Hit | null {
  const local = scene.locals.get(box)!;
  const layout = scene.layouts.get(box)!;
  let best = reach;
  let links: number[] | null = null;
  layout.routes.forEach((route, p) => {
    const distance = distanceTo(sampled(route), x, y, best);
    if (distance < best) [best, links] = [distance, local.pieces[p]!.links];
  });
  return links && { kind: "edge", links };
}

/** How far a point is from a line of points; gives up early where it is further than a limit. */
function distanceTo(points: number[], x: number, y: number, limit: number): number {
  let best = Infinity;
  for (let i = 2; i < points.length; i += 2) {
    const [x1, y1, x2, y2] = [points[i - 2]!, points[i - 1]!, points[i]!, points[i + 1]!];
    if (y < Math.min(y1, y2) - limit || y > Math.max(y1, y2) + limit) continue;
    const length = (x2 - x1) ** 2 + (y2 - y1) ** 2;
    const along = length ? clamp(((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / length, 0, 1) : 0;
    best = Math.min(best, Math.hypot(x - x1 - along * (x2 - x1), y - y1 - along * (y2 - y1)));
  }
  return best;
}
