// A view with a place for everything in it: what the canvas draws and the pointer hits.

import { firstNode } from "../model/hierarchy";
import { type Layout, ROW_GAP } from "./layout";
import { type Face, type Faces, HEADER, PADDING, TEXT_FONT } from "../drawing/look";
import { type Places, emptyPlaces } from "../drawing/picture";
import type { PlanBox } from "./plan";
import type { View } from "./view";
import { type LocalGraph, localGraphs } from "./wiring";

export interface Scene extends Places {
  view: View;
  faces: Face[]; // by item
  locals: Map<number, LocalGraph>; // by open item
  layouts: Map<number, Layout>; // by open item
  isAcross: boolean; // from left to right
}

export interface Draft {
  view: View;
  faces: Face[];
  locals: Map<number, LocalGraph>;
  open: number[]; // the open items in the order of the plan
  plan: PlanBox[];
}

/** How rows are laid out. */
interface Arrangement {
  spacing: number; // between rows
  isAcross: boolean; // from left to right instead of from top to bottom
}

const DOWN: Arrangement = { spacing: ROW_GAP, isAcross: false };
const LOOP_ROOM = 30; // beside an item with an edge to itself
const LABEL_PADDING = 6;

/** Everything a view needs to be laid out. */
export function draftScene(view: View, faces: Faces, arrangement: Arrangement = DOWN): Draft {
  const locals = localGraphs(view);
  const drawn = view.items.map((item) => faces.of(view, item));
  const open: number[] = [];
  const places = new Map<number, number>();
  const plan: PlanBox[] = [];
  for (let i = view.items.length - 1; i >= 0; i--) {
    if (!view.items[i]!.isOpen) continue;
    places.set(i, plan.length);
    open.push(i);
    plan.push({ ...planBox(view, faces, drawn, locals.get(i)!, places), ...arrangement });
  }
  return { view, faces: drawn, locals, open, plan };
}

function planBox(
  view: View,
  faces: Faces,
  drawn: Face[],
  local: LocalGraph,
  places: Map<number, number>,
): Omit<PlanBox, keyof Arrangement> {
  const isRoot = local.item === 0;
  const leaf = (item: number): boolean => !view.items[item]!.isOpen;
  return {
    widths: local.children.map((item) => (leaf(item) ? drawn[item]!.width + loopRoom(view, faces, item) : 0)),
    heights: local.children.map((item) => (leaf(item) ? drawn[item]!.height : 0)),
    open: local.children.map((item) => places.get(item) ?? -1),
    anchored: local.children.map((item) => firstNode(view.hierarchy, view.items[item]!.child).kind === "input"),
    ins: local.ins,
    outs: local.outs,
    pieces: local.pieces.map((piece) => ({
      from: piece.from.at,
      to: piece.to.at,
      fromPort: piece.from.port,
      toPort: piece.to.port,
      labelWidth: piece.label ? Math.ceil(faces.width(piece.label, TEXT_FONT)) + LABEL_PADDING : 0,
      isFeedback: piece.isFeedback,
    })),
    header: isRoot ? 0 : HEADER,
    minWidth: isRoot ? 0 : drawn[local.item]!.width + runRoom(view, local.item),
    padding: isRoot ? 24 : PADDING,
  };
}

function loopRoom(view: View, faces: Faces, item: number): number {
  const { loop } = view.items[item]!;
  return loop === null ? 0 : 2 * (LOOP_ROOM + (loop ? Math.ceil(faces.width(loop, TEXT_FONT)) : 0));
}

/** Room for the buttons in the title of an open run. */
function runRoom(view: View, item: number): number {
  const { child, block } = view.items[item]!;
  if (view.hierarchy.boxes[~child]!.kind !== "run") return 0;
  return block >= 0 ? 88 : 48;
}

/** Gives every item its place, outer ones first. `layouts` are in the order of the plan. */
export function placeScene(draft: Draft, solved: Layout[]): Scene {
  const { view, faces, locals } = draft;
  const layouts = new Map(draft.open.map((item, i) => [item, solved[i]!]));
  const { x, y, w, h } = emptyPlaces(view.items.length);
  w[0] = layouts.get(0)!.width;
  h[0] = layouts.get(0)!.height;
  for (let i = solved.length - 1; i >= 0; i--) {
    const item = draft.open[i]!;
    const layout = solved[i]!;
    locals.get(item)!.children.forEach((child, at) => {
      const inner = layouts.get(child);
      ({ width: w[child], height: h[child] } = inner ?? faces[child]!);
      const room = inner ? 0 : draft.plan[i]!.widths[at]! - w[child]!; // for an edge to itself, at both sides
      x[child] = x[item]! + layout.x[at]! + room / 2;
      y[child] = y[item]! + layout.y[at]!;
    });
  }
  return { view, faces, locals, layouts, x, y, w, h, isAcross: draft.plan[0]!.isAcross };
}
