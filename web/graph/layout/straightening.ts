// Where in its row everything stands, once it is known who stands left of whom.
//
// What belongs together in one column (a chain of operations, a long edge on its way down) becomes a block that is moved as
// one, so that it stays straight. Blocks are packed from the left and from the right; the middle of both is a valid place,
// and from there each block moves towards what it is connected to, as far as its neighbours allow.

import type { Layers, Segment } from "./layers";

export const NODE_GAP = 26;
const EDGE_GAP = 14;
const ROUNDS = 12;

/** The middle of every node. */
export function straighten(layers: Layers): number[] {
  const aligned = alignedSegments(layers);
  const blocks = new Blocks(layers, aligned);
  blocks.pack();
  blocks.attract(layers.segments.filter((one) => !aligned.has(one)));
  return blocks.middles();
}

// Which segments are to be upright --------------------------------------------------------------------------------------

/** Chains first, then long edges, then whatever does not get in their way. Aligned segments never cross. */
function alignedSegments(layers: Layers): Set<Segment> {
  const { rows, isPassing, segments } = layers;
  const rowOf: number[] = [];
  const placeOf: number[] = [];
  rows.forEach((row, r) => row.forEach((node, place) => ([rowOf[node], placeOf[node]] = [r, place])));
  const [mainBelow, mainAbove] = mainNeighbours(layers, placeOf);
  const isMain = (one: Segment): boolean =>
    (isPassing[one.above]! || mainBelow.get(one.above) === one) && (isPassing[one.below]! || mainAbove.get(one.below) === one);
  const priority = (one: Segment): number => {
    if (one.span <= 2) return isMain(one) ? 3 : 0;
    return isPassing[one.above] && isPassing[one.below] ? 2 : 1;
  };
  const sorted = segments.slice().sort((a, b) => priority(b) - priority(a));
  const chosen = new Set<Segment>();
  const takenBelow = new Set<number>();
  const takenAbove = new Set<number>();
  const byGap = rows.map((): Segment[] => []);
  for (const one of sorted) {
    if (priority(one) === 0 || takenBelow.has(one.above) || takenAbove.has(one.below)) continue;
    const gap = byGap[rowOf[one.above]!]!;
    const crosses = (other: Segment): boolean =>
      (placeOf[one.above]! - placeOf[other.above]!) * (placeOf[one.below]! - placeOf[other.below]!) < 0;
    if (gap.some(crosses)) continue;
    gap.push(one);
    chosen.add(one);
    takenBelow.add(one.above);
    takenAbove.add(one.below);
  }
  return chosen;
}

/**
 * By node: its middle short edge down, and up. A node with an even number of edges has none and stands between the middle two.
 * Edges to ends (nodes that lead to nothing) count only where there are no others, so that outputs stand beside the model.
 */
function mainNeighbours(layers: Layers, placeOf: number[]): [Map<number, Segment>, Map<number, Segment>] {
  const { segments, isPassing, isEnd } = layers;
  const onward = new Map(segments.filter((one) => isPassing[one.above]).map((one) => [one.above, one]));
  const leadsOn = (one: Segment): boolean => {
    let at = one.below;
    while (isPassing[at]) at = onward.get(at)!.below;
    return !isEnd[at];
  };
  const [down, up] = [new Map<number, Segment[]>(), new Map<number, Segment[]>()];
  for (const one of segments) {
    if (one.span > 2) continue;
    down.set(one.above, [...(down.get(one.above) ?? []), one]);
    up.set(one.below, [...(up.get(one.below) ?? []), one]);
  }
  const middles = (map: Map<number, Segment[]>, end: "above" | "below"): Map<number, Segment> => {
    const found = new Map<number, Segment>();
    for (const [node, all] of map) {
      const onwards = end === "below" ? all.filter(leadsOn) : [];
      const list = onwards.length ? onwards : all;
      if (list.length % 2 === 0) continue;
      list.sort((a, b) => placeOf[a[end]]! - placeOf[b[end]]!);
      found.set(node, list[(list.length - 1) / 2]!);
    }
    return found;
  };
  return [middles(down, "below"), middles(up, "above")];
}

// Blocks ----------------------------------------------------------------------------------------------------------------

interface Bound {
  block: number;
  distance: number; // how far apart the two blocks have to be
}

class Blocks {
  private readonly blockOf: number[] = [];
  private readonly offset: number[] = []; // of a node from its block
  private readonly x: number[] = []; // of blocks
  private readonly left: Bound[][] = []; // what a block has to stay right of
  private readonly right: Bound[][] = [];
  private count = 0;

  constructor(
    private readonly layers: Layers,
    aligned: Set<Segment>,
  ) {
    const below = new Map([...aligned].map((one) => [one.above, one]));
    for (const row of layers.rows) {
      for (const node of row) {
        if (this.blockOf[node] === undefined) [this.blockOf[node], this.offset[node]] = [this.count++, 0];
        const next = below.get(node);
        if (!next) continue;
        this.blockOf[next.below] = this.blockOf[node]!;
        this.offset[next.below] = this.offset[node]! + next.aboveBy - next.belowBy;
      }
    }
    for (let b = 0; b < this.count; b++) [this.left[b], this.right[b]] = [[], []];
    for (const row of layers.rows) for (let i = 1; i < row.length; i++) this.keepApart(row[i - 1]!, row[i]!);
  }

  private keepApart(left: number, right: number): void {
    const { widths, isPassing } = this.layers;
    const gap = isPassing[left] || isPassing[right] ? EDGE_GAP : NODE_GAP;
    const distance = (widths[left]! + widths[right]!) / 2 + gap + this.offset[left]! - this.offset[right]!;
    const [one, other] = [this.blockOf[left]!, this.blockOf[right]!];
    this.left[other]!.push({ block: one, distance });
    this.right[one]!.push({ block: other, distance });
  }

  /** As far left as can be, as far right as can be, and the middle of both. */
  pack(): void {
    const order = this.fromLeft();
    const low: number[] = new Array<number>(this.count).fill(0);
    for (const b of order) for (const one of this.left[b]!) low[b] = Math.max(low[b]!, low[one.block]! + one.distance);
    const most = Math.max(0, ...low);
    const high: number[] = new Array<number>(this.count).fill(most);
    for (const b of order.reverse())
      for (const one of this.right[b]!) high[b] = Math.min(high[b]!, high[one.block]! - one.distance);
    for (let b = 0; b < this.count; b++) this.x[b] = (low[b]! + high[b]!) / 2;
  }

  /** Blocks in an order in which each comes after those left of it. */
  private fromLeft(): number[] {
    const waiting = this.left.map((bounds) => bounds.length);
    const order = waiting.flatMap((count, b) => (count === 0 ? [b] : []));
    for (let i = 0; i < order.length; i++) {
      for (const { block } of this.right[order[i]!]!) if (--waiting[block]! === 0) order.push(block);
    }
    return order;
  }

  /** Moves blocks towards the middle of what they are connected to by segments that are not upright. */
  attract(segments: Segment[]): void {
    const pulls = Array.from({ length: this.count }, (): { block: number; by: number; weight: number }[] => []);
    for (const one of segments) {
      const [above, below] = [this.blockOf[one.above]!, this.blockOf[one.below]!];
      const by = this.offset[one.above]! + one.aboveBy - this.offset[one.below]! - one.belowBy;
      const weight = one.span <= 2 ? 2 : 1;
      pulls[below]!.push({ block: above, by, weight });
      pulls[above]!.push({ block: below, by: -by, weight });
    }
    const order = this.fromLeft();
    for (let round = 0; round < ROUNDS; round++) {
      for (const b of round % 2 ? order : order.slice().reverse()) {
        if (!pulls[b]!.length) continue;
        const wanted = middleOf(
          pulls[b]!.flatMap((pull) => new Array<number>(pull.weight).fill(this.x[pull.block]! + pull.by)),
        );
        const low = Math.max(-Infinity, ...this.left[b]!.map((one) => this.x[one.block]! + one.distance));
        const high = Math.min(Infinity, ...this.right[b]!.map((one) => this.x[one.block]! - one.distance));
        this.x[b] = Math.max(low, Math.min(high, wanted));
      }
    }
  }

  middles(): number[] {
    return this.blockOf.map((block, node) => Math.round(this.x[block]! + this.offset[node]!));
  }
}

function middleOf(values: number[]): number {
  values.sort((a, b) => a - b);
  const half = values.length / 2;
  return Number.isInteger(half) ? (values[half - 1]! + values[half]!) / 2 : values[Math.floor(half)]!;
}
