// Who stands left of whom, so that few edges cross: rows are sorted by where their neighbours stand, down and up in turn,
// and the best order seen is kept. Where on a box an edge ends counts too, so that edges do not cross just above it.

import type { Layers, Segment } from "./layers";

const MORE_TRIES = 4; // sweeps without a better order before giving up
const MOST_SWEEPS = 24;
const MOST_ROUNDS = 8; // of exchanging neighbours

/** Sorts the rows of layers: once beginning at the bottom and, if edges still cross, once beginning at the top. */
export function orderRows(layers: Layers): void {
  if (layers.rows.every((row) => row.length < 2)) return;
  const order = new Order(layers);
  const upwards = bestOf(layers, order, false);
  const downwards = upwards.crossings ? bestOf(layers, order, true) : upwards;
  const best = downwards.crossings < upwards.crossings ? downwards : upwards;
  best.rows.forEach((row, r) => (layers.rows[r] = row));
}

function bestOf(layers: Layers, order: Order, isDownFirst: boolean): { rows: number[][]; crossings: number } {
  const copied = (): number[][] => layers.rows.map((row) => row.slice());
  order.begin();
  let best = { rows: copied(), crossings: order.crossings() };
  for (let sweep = 0, tries = 0; sweep < MOST_SWEEPS && tries < MORE_TRIES && best.crossings > 0; sweep++, tries++) {
    order.sweep((sweep % 2 === 0) === isDownFirst, sweep % 4 >= 2);
    order.exchange();
    const crossings = order.crossings();
    if (crossings >= best.crossings) continue;
    best = { rows: copied(), crossings };
    tries = -1;
  }
  return best;
}

class Order {
  private readonly places: Int32Array;
  private readonly rowOf: Int32Array;
  private readonly gaps: Segment[][]; // by the row above
  private readonly up: Segment[][]; // by node
  private readonly down: Segment[][];

  constructor(private readonly layers: Layers) {
    const { rows, segments, widths } = layers;
    this.places = new Int32Array(widths.length);
    this.rowOf = new Int32Array(widths.length);
    rows.forEach((row, r) => row.forEach((node) => (this.rowOf[node] = r)));
    this.gaps = rows.map((): Segment[] => []);
    [this.up, this.down] = [widths.map((): Segment[] => []), widths.map((): Segment[] => [])];
    for (const one of segments) {
      this.gaps[this.rowOf[one.above]!]!.push(one);
      this.down[one.above]!.push(one);
      this.up[one.below]!.push(one);
    }
  }

  /** An order to start from: what belongs to one branch stays together, branches in order of execution. */
  begin(): void {
    const { rows, widths } = this.layers;
    const sorted: number[][] = rows.map(() => []);
    const isSeen = new Uint8Array(widths.length);
    for (const start of rows.flat().sort((a, b) => this.rowOf[a]! - this.rowOf[b]! || a - b)) {
      const waiting = [start];
      while (waiting.length) {
        const node = waiting.pop()!;
        if (isSeen[node]) continue;
        isSeen[node] = 1;
        sorted[this.rowOf[node]!]!.push(node);
        for (const { below } of this.down[node]!.slice().reverse()) waiting.push(below);
      }
    }
    sorted.forEach((row, r) => this.put(r, row));
  }

  private put(r: number, row: number[]): void {
    this.layers.rows[r] = row;
    row.forEach((node, place) => (this.places[node] = place));
  }

  /** Where an end of a segment is in its row, in places. */
  private at(node: number, by: number): number {
    const width = this.layers.widths[node]!;
    return this.places[node]! + (width ? 0.8 * (by / width) : 0);
  }

  /** Sorts every row by where its neighbours in the row before it stand; `isTurned` puts equals the other way around. */
  sweep(isDown: boolean, isTurned: boolean): void {
    const { rows } = this.layers;
    for (let step = 1; step < rows.length; step++) {
      const r = isDown ? step : rows.length - 1 - step;
      if (rows[r]!.length < 2) continue;
      const sums = new Map<number, [number, number]>();
      for (const one of this.gaps[isDown ? r - 1 : r]!) {
        const node = isDown ? one.below : one.above;
        const at = isDown
          ? this.at(one.above, one.aboveBy) - this.lean(one.below, one.belowBy)
          : this.at(one.below, one.belowBy) - this.lean(one.above, one.aboveBy);
        const [sum, count] = sums.get(node) ?? [0, 0];
        sums.set(node, [sum + at, count + 1]);
      }
      this.put(r, this.sorted(rows[r]!, sums, isTurned));
    }
  }

  /** How far from the middle of a node an edge ends, in places: a small part, so that only equals are told apart by it. */
  private lean(node: number, by: number): number {
    const width = this.layers.widths[node]!;
    return width ? 0.01 * (by / width) : 0;
  }

  /** A row sorted by what its nodes want; those that want nothing keep their places. */
  private sorted(row: number[], sums: Map<number, [number, number]>, isTurned: boolean): number[] {
    const wanted = new Map([...sums].map(([node, [sum, count]]) => [node, sum / count]));
    const turn = isTurned ? -1 : 1;
    const free = row.filter((node) => wanted.has(node));
    free.sort((a, b) => wanted.get(a)! - wanted.get(b)! || turn * (this.places[a]! - this.places[b]!));
    let next = 0;
    return row.map((node) => (wanted.has(node) ? free[next++]! : node));
  }

  /** Exchanges neighbours wherever that makes fewer edges cross. */
  exchange(): void {
    const { rows } = this.layers;
    for (let isBetter = true, round = 0; isBetter && round < MOST_ROUNDS; round++) {
      isBetter = false;
      rows.forEach((row) => {
        for (let i = 1; i < row.length; i++) {
          const [one, other] = [row[i - 1]!, row[i]!];
          if (this.between(one, other) <= this.between(other, one)) continue;
          [row[i - 1], row[i]] = [other, one];
          [this.places[one], this.places[other]] = [i, i - 1];
          isBetter = true;
        }
      });
    }
  }

  /** How many edges of two neighbours cross if the first stands left of the second. */
  private between(left: number, right: number): number {
    let count = 0;
    for (const a of this.up[left]!) {
      for (const b of this.up[right]!) if (this.at(a.above, a.aboveBy) > this.at(b.above, b.aboveBy)) count++;
    }
    for (const a of this.down[left]!) {
      for (const b of this.down[right]!) if (this.at(a.below, a.belowBy) > this.at(b.below, b.belowBy)) count++;
    }
    return count;
  }

  crossings(): number {
    let count = 0;
    for (const gap of this.gaps) {
      const tops = gap.map((one) => this.at(one.above, one.aboveBy));
      const bottoms = gap.map((one) => this.at(one.below, one.belowBy));
      for (let i = 1; i < gap.length; i++) {
        for (let j = 0; j < i; j++) if ((tops[i]! - tops[j]!) * (bottoms[i]! - bottoms[j]!) < 0) count++;
      }
    }
    return count;
  }
}
