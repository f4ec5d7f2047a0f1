// Which row each child and port of a box is in, from the order of execution.

import type { Task, TaskPiece } from "./layout";
import { NODE_GAP } from "./straightening";

const WIDE_ROW = 480; // pixels
const ALONE_IN_A_ROW = 3;

/**
 * A child stands as high as the children that lead to it allow, or just above the next child where no input leads to it.
 * Children without edges (a hub feeds them) stand below all others, a few in a row: a single row would be too wide.
 */
export function rowsOf(task: Task): number[] {
  const count = task.widths.length;
  const total = count + task.ins + task.outs;
  const start = task.ins > 0 ? 1 : 0;
  const rows = new Array<number>(total).fill(start);
  const isFed = task.anchored.slice();
  const forward = task.pieces.filter((piece) => !piece.isFeedback);
  const into = byEnd(forward, total, (piece) => piece.to);
  const out = byEnd(forward, total, (piece) => piece.from);
  for (let at = 0; at < count; at++) {
    for (const { from } of into[at]!) {
      const isPort = from >= count;
      rows[at] = Math.max(rows[at]!, isPort ? start : rows[from]! + 1);
      if (isPort || isFed[from]) isFed[at] = true;
    }
  }
  for (let at = count - 1; at >= 0; at--) {
    if (isFed[at]) continue;
    const below = out[at]!.filter((piece) => piece.to < count).map((piece) => rows[piece.to]!);
    if (below.length) rows[at] = Math.max(rows[at]!, Math.min(...below) - 1);
  }
  const isAlone = (at: number): boolean => !into[at]!.length && !out[at]!.length && !task.anchored[at];
  const children = rows.slice(0, count);
  const joined = children.filter((_, at) => !isAlone(at));
  const alone = children.flatMap((_, at) => (isAlone(at) ? [at] : []));
  if (joined.length) alone.forEach((at, i) => (rows[at] = Math.max(...joined) + 1 + Math.floor(i / ALONE_IN_A_ROW)));
  lowerEnds(task, rows, out);
  const last = Math.max(start - 1, ...rows.slice(0, count));
  for (let port = 0; port < task.ins; port++) rows[count + port] = 0;
  for (let port = 0; port < task.outs; port++) rows[count + task.ins + port] = last + 1;
  return rows;
}

/** Moves children that lead to nothing, such as outputs, from wide rows to the next, so that a model fits a narrow window. */
function lowerEnds(task: Task, rows: number[], out: TaskPiece[][]): void {
  const count = task.widths.length;
  for (let row = 0; row <= Math.max(-1, ...rows.slice(0, count)); row++) {
    const there = rows.slice(0, count).flatMap((one, at) => (one === row ? [at] : []));
    const ends = there.filter((at) => !out[at]!.length && !task.anchored[at]);
    let width = there.reduce((sum, at) => sum + task.widths[at]! + NODE_GAP, 0);
    for (let left = there.length; width > WIDE_ROW && left > 1 && ends.length; left--) {
      const at = ends.pop()!;
      rows[at] = row + 1;
      width -= task.widths[at]! + NODE_GAP;
    }
  }
}

function byEnd(pieces: TaskPiece[], total: number, end: (piece: TaskPiece) => number): TaskPiece[][] {
  const found = Array.from({ length: total }, (): TaskPiece[] => []);
  for (const piece of pieces) found[end(piece)]!.push(piece);
  return found;
}
