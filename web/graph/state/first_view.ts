// What is seen first: the whole model, with its modules open as deep as fits the window at a size that can be read.

import { DEEPEST, type Opened, countVisible, openToDepth } from "./expansion";
import { READABLE, fitting } from "../pane/camera";
import { ROW_GAP } from "../layout/layout";
import { draftScene } from "../layout/scene";
import { Solver } from "../layout/plan";
import { buildView } from "../layout/view";
import type { Rect } from "../drawing/picture";
import type { Faces } from "../drawing/look";
import type { Hierarchy } from "../model/hierarchy";

const MOST = 120; // boxes that are laid out to see whether they fit
const SPANNED = 0.58; // of the height of the window
const WIDEST_SPACING = 120;

export interface FirstView extends Opened {
  depth: number;
  spacing: number; // between rows
}

/** The deepest view that fits a window; what the model itself calls, if none does. */
export function firstView(hierarchy: Hierarchy, faces: Faces, width: number, height: number, isAcross = false): FirstView {
  const size = (opened: Opened, spacing = ROW_GAP): Rect => {
    const solver = new Solver(draftScene(buildView(hierarchy, opened), faces, { spacing, isAcross }).plan, new Map());
    solver.work(Infinity, () => 0);
    const root = solver.layouts.at(-1)!;
    return { x: 0, y: 0, w: root.width, h: root.height };
  };
  let found = { depth: 1, ...openToDepth(hierarchy, 1) };
  for (let depth = 2; depth <= DEEPEST; depth++) {
    const opened = openToDepth(hierarchy, depth);
    if (opened.open.size === found.open.size || countVisible(hierarchy, opened, MOST + 1) > MOST) break;
    if (fitting(size(opened), width, height).scale < READABLE) break;
    found = { depth, ...opened };
  }
  const isLarge = countVisible(hierarchy, found, MOST + 1) > MOST;
  return { ...found, spacing: isLarge || isAcross ? ROW_GAP : spacingFor((spacing) => size(found, spacing), width, height) };
}

/** Rows further apart where the window is narrow, so that the drawing still spans most of its height. */
function spacingFor(size: (spacing: number) => Rect, width: number, height: number): number {
  const [near, far] = [size(ROW_GAP), size(2 * ROW_GAP)];
  const missing = (SPANNED * height) / fitting(near, width, height).scale - near.h;
  if (missing <= 0 || far.h <= near.h) return ROW_GAP;
  return Math.min(WIDEST_SPACING, Math.round(ROW_GAP + (ROW_GAP * missing) / (far.h - near.h)));
}
