// The order of work for a whole view: one task per open box, inner ones first, since a box is as large as its contents.

import { type Layout, type Task, type TaskPiece, layoutBox } from "./layout";

/** An open box before the sizes of its open children are known. */
export interface PlanBox extends Omit<Task, "pieces" | "side" | "minHeight"> {
  open: number[]; // by child: its place in the plan when it is open, with 0 as its width and height; or -1
  pieces: PlanPiece[];
  isAcross: boolean;
}

interface PlanPiece extends Omit<TaskPiece, "fromX" | "toX" | "labelHeight"> {
  fromPort: number; // of an open child; -1 for others
  toPort: number;
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

  /** Lays out at least one box, and goes on until done or until a moment has passed; returns whether it is done. */
  work(until: number, now: () => number): boolean {
    let made = 0;
    while (this.layouts.length < this.plan.length) {
      const at = this.layouts.length;
      const task = this.task(this.plan[at]!);
      const key = signature(task);
      if (!this.cache.has(key) && made++ > 0 && now() > until) return false;
      this.solve(at, task, key);
      this.untangle(at);
    }
    return true;
  }

  private solve(at: number, task: Task, key: string): void {
    const layout = this.cache.get(key) ?? layoutBox(task);
    this.cache.set(key, layout);
    this.keys[at] = key;
    this.layouts[at] = layout;
  }

  /** Mirrors open children of a box where that makes fewer edges cross, and lays the box out again. */
  private untangle(at: number): void {
    const box = this.plan[at]!;
    if (box.isAcross) return;
    const layout = this.layouts[at]!;
    const tangled = box.open.filter((inner, child) => inner >= 0 && isBetterMirrored(box, layout, child, this.layouts[inner]!));
    for (const inner of tangled) this.mirror(inner);
    if (!tangled.length) return;
    const task = this.task(box);
    this.solve(at, task, signature(task));
  }

  private mirror(at: number): void {
    const box = this.plan[at]!;
    this.layouts[at] = mirrored(this.layouts[at]!, this.task(box).widths);
    for (const inner of box.open) if (inner >= 0) this.mirror(inner);
  }

  private task({ open, pieces, ...box }: PlanBox): Task {
    const inner = open.map((at) => (at < 0 ? null : this.layouts[at]!));
    return {
      ...box,
      widths: box.widths.map((width, at) => inner[at]?.width ?? width),
      heights: box.heights.map((height, at) => inner[at]?.height ?? height),
      pieces: pieces.map(({ fromPort, toPort, ...piece }) => {
        const fromX = fromPort < 0 ? -1 : inner[piece.from]!.outs[fromPort]!;
        const toX = toPort < 0 ? -1 : inner[piece.to]!.ins[toPort]!;
        return { ...piece, fromX, toX };
      }),
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
    ...layout,
    x: layout.x.map((x, child) => turned(x) - widths[child]!),
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
function signature(task: Task): string {
  const pieces = task.pieces.map((p) => `${p.from} ${p.to} ${p.fromX} ${p.toX} ${p.labelWidth} ${p.isFeedback ? 1 : 0}`);
  const anchored = task.anchored.map((one) => (one ? 1 : 0));
  const parts = [task.widths, task.heights, anchored, pieces].map((list) => list.join());
  const { ins, outs, header, minWidth, padding, spacing, isAcross } = task;
  return `${parts.join("|")}|${[ins, outs, header, minWidth, padding, spacing, isAcross ? 1 : 0].join()}`;
}
