// The order of work for a whole view: one task per open box, inner ones first, since a box is as large as what is inside.

import { type Layout, type Task, type TaskPiece, layoutBox } from "./layout";

/** An open box before the sizes of its open children are known. */
export interface PlanBox {
  widths: number[]; // 0 for open children
  heights: number[];
  open: number[]; // by child: its place in the plan when it is open, or -1
  anchored: boolean[];
  ins: number;
  outs: number;
  pieces: PlanPiece[];
  header: number;
  minWidth: number;
  padding: number;
  spacing: number;
  isAcross: boolean;
}

export interface PlanPiece {
  from: number;
  to: number;
  fromPort: number; // of an open child; -1 for others
  toPort: number;
  labelWidth: number;
  isFeedback: boolean;
}

export type Cache = Map<string, Layout>;

/** Lays out the boxes of a plan one after another; can be interrupted. */
export class Solver {
  readonly layouts: Layout[] = [];
  readonly keys: string[] = [];

  constructor(
    private readonly plan: PlanBox[],
    private readonly cache: Cache,
  ) {}

  get isDone(): boolean {
    return this.layouts.length === this.plan.length;
  }

  /** Works until done or until a moment has passed, but not without getting on; returns whether it is done. */
  work(until: number, now: () => number): boolean {
    let made = 0;
    while (!this.isDone) {
      const task = this.task(this.plan[this.layouts.length]!);
      const key = signature(task);
      let layout = this.cache.get(key);
      if (!layout) {
        if (made++ > 0 && now() > until) return false;
        layout = layoutBox(task);
        this.cache.set(key, layout);
      }
      this.keys.push(key);
      this.layouts.push(layout);
      this.untangle(layout);
    }
    return true;
  }

  /** Mirrors open children of the box that was laid out last where that makes fewer edges cross, and lays it out again. */
  private untangle(layout: Layout): void {
    const at = this.layouts.length - 1;
    const box = this.plan[at]!;
    if (box.isAcross) return;
    const tangled = box.open.filter((inner, child) => inner >= 0 && isBetterMirrored(box, layout, child, this.layouts[inner]!));
    if (!tangled.length) return;
    for (const inner of tangled) this.mirror(inner);
    const task = this.task(box);
    const key = signature(task);
    const again = this.cache.get(key) ?? layoutBox(task);
    this.cache.set(key, again);
    this.keys[at] = key;
    this.layouts[at] = again;
  }

  private mirror(at: number): void {
    const widths = this.plan[at]!.open.map((inner, child) =>
      inner < 0 ? this.plan[at]!.widths[child]! : this.layouts[inner]!.width,
    );
    this.layouts[at] = mirrored(this.layouts[at]!, widths);
    for (const inner of this.plan[at]!.open) if (inner >= 0) this.mirror(inner);
  }

  private task(box: PlanBox): Task {
    const inner = box.open.map((at) => (at < 0 ? null : this.layouts[at]!));
    const pieces = box.pieces.map((piece): TaskPiece => {
      const { from, to, labelWidth, isFeedback } = piece;
      const fromX = piece.fromPort < 0 ? -1 : inner[from]!.outs[piece.fromPort]!;
      const toX = piece.toPort < 0 ? -1 : inner[to]!.ins[piece.toPort]!;
      return { from, to, fromX, toX, labelWidth, isFeedback };
    });
    return {
      widths: box.widths.map((width, at) => inner[at]?.width ?? width),
      heights: box.heights.map((height, at) => inner[at]?.height ?? height),
      anchored: box.anchored,
      ins: box.ins,
      outs: box.outs,
      pieces,
      header: box.header,
      minWidth: box.minWidth,
      padding: box.padding,
      spacing: box.spacing,
      isAcross: box.isAcross,
    };
  }
}

/** Whether fewer of the edges at the ports of an open child would cross if it were turned around. */
function isBetterMirrored(box: PlanBox, layout: Layout, child: number, inner: Layout): boolean {
  const ends: [number, number, number][] = []; // side, where the edge comes from or goes to, its port
  box.pieces.forEach((piece, p) => {
    const { points } = layout.routes[p]!;
    if (piece.isFeedback) return;
    if (piece.to === child && piece.toPort >= 0) ends.push([0, points.at(-8)!, inner.ins[piece.toPort]!]);
    if (piece.from === child && piece.fromPort >= 0) ends.push([1, points[4]!, inner.outs[piece.fromPort]!]);
  });
  let crossings = 0;
  ends.forEach((one, i) => {
    for (const other of ends.slice(i + 1)) {
      if (one[0] === other[0]) crossings += Math.sign((one[1] - other[1]) * (other[2] - one[2]));
    }
  });
  return crossings > 0;
}

const knownMirrored = new WeakMap<Layout, Layout>();

/** A layout with left and right exchanged. */
export function mirrored(layout: Layout, widths: number[]): Layout {
  const known = knownMirrored.get(layout);
  if (known) return known;
  const turned = (x: number): number => layout.width - x;
  const made: Layout = {
    width: layout.width,
    height: layout.height,
    x: layout.x.map((x, child) => turned(x) - widths[child]!),
    y: layout.y,
    ins: layout.ins.map(turned),
    outs: layout.outs.map(turned),
    routes: layout.routes.map((route) => ({
      ...route,
      points: route.points.map((value, i) => (i % 2 ? value : turned(value))),
      labelX: turned(route.labelX),
    })),
  };
  knownMirrored.set(layout, made);
  knownMirrored.set(made, layout);
  return made;
}

/** Equal tasks have equal signatures, so equal blocks are laid out once. */
export function signature(task: Task): string {
  const pieces = task.pieces.map((p) => `${p.from} ${p.to} ${p.fromX} ${p.toX} ${p.labelWidth} ${p.isFeedback ? 1 : 0}`);
  const anchored = task.anchored.map((one) => (one ? 1 : 0));
  const parts = [task.widths, task.heights, anchored, pieces].map((list) => list.join());
  const { ins, outs, header, minWidth, padding, spacing, isAcross } = task;
  return `${parts.join("|")}|${[ins, outs, header, minWidth, padding, spacing, isAcross ? 1 : 0].join()}`;
}
