// Rows of nodes with edges only from one row to the next: where an edge passes a row, it has a node of its own there.
//
// Rows are doubled, so that labels have rows of their own between those of the children.

import type { Task } from "./layout";

/** Nodes are numbers: children, ports in, ports out, and then the places where edges pass a row. */
export interface Layers {
  rows: number[][]; // from left to right
  widths: number[];
  isPassing: boolean[];
  isEnd: boolean[]; // a child that leads to nothing, such as an output
  segments: Segment[];
  through: number[][]; // by piece of a link: the nodes it passes, from the top
}

/** A part of an edge from one row to the next. */
export interface Segment {
  above: number;
  below: number;
  aboveBy: number; // where it leaves, from the middle of the node
  belowBy: number;
  span: number; // how many rows its edge spans
}

export const PORT_WIDTH = 18;
const LABEL_ROOM = 8;

/** What is laid out in a task, in the rows that were found for its children and ports. */
export function layersOf(task: Task, rowOf: number[]): Layers {
  const count = task.widths.length;
  const widths = rowOf.map((_, at) => (at < count ? task.widths[at]! : PORT_WIDTH));
  const isPassing = rowOf.map(() => false);
  const isEnd = rowOf.map((_, at) => at < count);
  for (const piece of task.pieces) if (!piece.isFeedback) isEnd[piece.from] = false;
  const rows = Array.from({ length: 2 * Math.max(-1, ...rowOf) + 1 }, (): number[] => []);
  rowOf.forEach((row, at) => rows[2 * row]!.push(at));
  const segments: Segment[] = [];
  const through = task.pieces.map((piece) => {
    if (piece.isFeedback) return [];
    const [first, last] = [2 * rowOf[piece.from]!, 2 * rowOf[piece.to]!];
    const label = (first + last) / 2;
    const passed: number[] = [];
    for (let row = first + 1; row < last; row++) {
      passed.push(widths.length);
      rows[row]!.push(widths.length);
      widths.push(piece.labelWidth && row === label ? piece.labelWidth + LABEL_ROOM : 0);
      isPassing.push(true);
      isEnd.push(false);
    }
    const way = [piece.from, ...passed, piece.to];
    for (let i = 1; i < way.length; i++) {
      const aboveBy = i === 1 && piece.fromX >= 0 ? piece.fromX - widths[piece.from]! / 2 : 0;
      const belowBy = i === way.length - 1 && piece.toX >= 0 ? piece.toX - widths[piece.to]! / 2 : 0;
      segments.push({ above: way[i - 1]!, below: way[i]!, aboveBy, belowBy, span: way.length - 1 });
    }
    return passed;
  });
  return { rows, widths, isPassing, isEnd, segments, through };
}
