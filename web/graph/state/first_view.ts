// What is seen first: the modules that Python chose are open, with rows as far apart as the window has room for.

import type { Opened } from "./expansion";
import { fitting } from "../pane/camera";
import { ROW_GAP } from "../layout/layout";
import { draftScene } from "../layout/scene";
import { Solver } from "../layout/plan";
import { buildView } from "../layout/view";
import type { Rect } from "../drawing/picture";
import type { Faces } from "../drawing/look";
import type { Hierarchy } from "../model/hierarchy";

const SPANNED = 0.58; // of the height of the window
const WIDEST_SPACING = 120;

export interface FirstView extends Opened {
  depth: number; // of the deepest open box
  spacing: number; // between rows
}

/** The modules and lists of modules that the payload names are open. */
export function firstView(hierarchy: Hierarchy, faces: Faces, width: number, height: number, isAcross = false): FirstView {
  const opened = openedFirst(hierarchy);
  const size = (spacing: number): Rect => {
    const solver = new Solver(draftScene(buildView(hierarchy, opened), faces, { spacing, isAcross }).plan, new Map());
    solver.work(Infinity, () => 0);
    const root = solver.layouts.at(-1)!;
    return { x: 0, y: 0, w: root.width, h: root.height };
  };
  const depths = hierarchy.boxes.map((box) => (opened.open.has(box.key) ? depthOf(hierarchy, box.parent) + 2 : 1));
  return { ...opened, depth: Math.max(...depths), spacing: isAcross ? ROW_GAP : spacingFor(size, width, height) };
}

function openedFirst({ payload, boxes }: Hierarchy): Opened {
  const named = new Set(payload.first_view);
  const found = boxes.filter((box) => {
    const modules = box.kind === "run" ? boxes[box.blocks[0]!]!.modules : box.modules;
    const keys = box.kind === "list" ? [box.title] : modules.map((module) => payload.modules[module]!.key);
    return keys.some((key) => named.has(key));
  });
  return { open: new Set(found.map((box) => box.key)), shown: new Map() };
}

function depthOf(hierarchy: Hierarchy, b: number): number {
  return b <= 0 ? 0 : 1 + depthOf(hierarchy, hierarchy.boxes[b]!.parent);
}

/** Rows further apart where the window is narrow, so that the drawing still spans most of its height. */
function spacingFor(size: (spacing: number) => Rect, width: number, height: number): number {
  const [near, far] = [size(ROW_GAP), size(2 * ROW_GAP)];
  const missing = (SPANNED * height) / fitting(near, width, height).scale - near.h;
  if (missing <= 0 || far.h <= near.h) return ROW_GAP;
  return Math.min(WIDEST_SPACING, Math.round(ROW_GAP + (ROW_GAP * missing) / (far.h - near.h)));
}
