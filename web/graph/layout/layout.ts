// Lays out one box: its children in rows from top to bottom, ports on its borders, and a route for every piece of a link.
//
// First the rows (rows.ts), then who stands left of whom in a row (ordering.ts), then where exactly (straightening.ts), then
// coordinates. Between rows there are only edges, and in a row an edge runs straight down, so an edge never crosses a box.

import { PORT_WIDTH, layersOf } from "./layers";
import { orderRows } from "./ordering";
import { rowsOf } from "./rows";
import { straighten } from "./straightening";

/** What is to be laid out, as plain values that can be sent to a worker. */
export interface Task {
  widths: number[]; // of the children, in order of execution
  heights: number[];
  anchored: boolean[]; // stays at the top, though nothing leads to it
  ins: number; // ports on the top
  outs: number; // ports on the bottom
  pieces: TaskPiece[];
  header: number; // height of the title above the children
  minWidth: number;
  padding: number;
  spacing: number; // between rows, at least
  isAcross?: boolean; // rows are columns: the data goes from left to right
  side?: number; // left free at the left side
  minHeight?: number;
}

/** Ends are numbers: children, then ports in, then ports out. */
export interface TaskPiece {
  from: number;
  to: number;
  fromX: number; // from the left of the child; -1 for its middle
  toX: number;
  labelWidth: number; // 0 for no label
  labelHeight?: number; // of its row
  isFeedback: boolean;
}

export interface Route {
  points: number[]; // x, y, x, y, …; drawn straight where x stays, and as a curve with upright ends where it changes
  isLane: boolean; // feedback: straight lines with rounded corners instead
  isAcross?: boolean; // drawn as if x and y were exchanged
  labelX: number;
  labelY: number;
}

export interface Layout {
  width: number;
  height: number;
  x: number[]; // of the children: left and top, from the left and top of the box
  y: number[];
  ins: number[]; // of the ports: x
  outs: number[];
  routes: Route[]; // in the order of the pieces
}

export const ROW_GAP = 28;
const WIDEST_GAP = 110;
const LABEL_HEIGHT = 16;
const LANE_GAP = 14;
const TURN = 13; // how far below and above a row a feedback edge turns
const MOST_CENTRING = 160;

export function layoutBox(task: Task): Layout {
  return task.isAcross ? turned(layoutDown(turnedTask(task))) : layoutDown(task);
}

/** The same task with width and height exchanged. Its title is then at the left. */
function turnedTask(task: Task): Task {
  const pieces = task.pieces.map((piece) =>
    piece.labelWidth ? { ...piece, labelWidth: LABEL_HEIGHT, labelHeight: piece.labelWidth } : piece,
  );
  const { widths, heights, header, minWidth } = task;
  return { ...task, widths: heights, heights: widths, header: 0, side: header, minWidth: 0, minHeight: minWidth, pieces };
}

function turned(layout: Layout): Layout {
  const { width, height, x, y, ins, outs } = layout;
  const routes = layout.routes.map((route) => ({
    points: exchanged(route.points),
    isLane: route.isLane,
    isAcross: true,
    labelX: route.labelY,
    labelY: route.labelX,
  }));
  return { width: height, height: width, x: y, y: x, ins, outs, routes };
}

/** Points with x and y exchanged. */
export function exchanged(points: number[]): number[] {
  return points.map((_, i) => points[i ^ 1]!);
}

function layoutDown(task: Task): Layout {
  const rows = rowsOf(task);
  const placed = arrange(task, rows);
  return new Drawing(task, rows, placed).finished();
}

interface Placed {
  x: number[]; // middles, of children and ports
  through: number[][]; // by piece: x at every half row between its ends
}

/** Who stands where in a row. */
function arrange(task: Task, rows: number[]): Placed {
  const layers = layersOf(task, rows);
  orderRows(layers);
  const middles = straighten(layers);
  const x = middles.slice(0, rows.length);
  alignPorts(task, x);
  return { x, through: layers.through.map((nodes) => nodes.map((node) => middles[node]!)) };
}

/** A box with one way in and one way out has them one above the other, so that what is around it can stay straight. */
function alignPorts(task: Task, x: number[]): void {
  if (task.ins !== 1 || task.outs !== 1) return;
  const [into, out] = [task.widths.length, task.widths.length + 1];
  const isSingleIn = task.pieces.filter((piece) => piece.from === into).length === 1;
  const isSingleOut = task.pieces.filter((piece) => piece.to === out).length === 1;
  if (isSingleOut && !isSingleIn) x[into] = x[out]!;
  else x[out] = x[into]!;
}

/** Turns rows and middles into coordinates. */
class Drawing {
  private readonly count: number;
  private readonly tops: number[] = []; // of the double rows
  private readonly bottoms: number[] = [];
  private readonly left: number;
  private readonly width: number;
  private readonly height: number;
  private readonly lanes: number[];
  private readonly ends: Map<number, number>[]; // by child: x of the arrow of each piece that enters it

  constructor(
    private readonly task: Task,
    private readonly rows: number[],
    private readonly placed: Placed,
  ) {
    this.count = task.widths.length;
    this.ends = this.spreadEnds();
    const spans = this.extent();
    this.lanes = this.assignLanes();
    const laneWidth = this.lanes.length ? Math.max(...this.lanes) : 0;
    const content = spans.high - spans.low;
    const { before: free, after } = this.margins(spans, content + laneWidth);
    const before = free + (task.side ?? 0);
    this.left = Math.round(before - spans.low);
    this.width = 2 * Math.round((before + content + laneWidth + after) / 2); // even, so that middles are whole
    this.lanes = this.lanes.map((lane) => before + content + lane);
    this.height = Math.round(this.assignHeights());
  }

  finished(): Layout {
    const { task, count } = this;
    const portX = (first: number, ports: number): number[] =>
      Array.from({ length: ports }, (_, port) => this.middle(first + port));
    let lane = 0;
    return {
      width: this.width,
      height: this.height,
      x: task.widths.map((width, at) => Math.round(this.middle(at) - width / 2)),
      y: task.heights.map((_, at) => this.top(at)),
      ins: portX(count, task.ins),
      outs: portX(count + task.ins, task.outs),
      routes: task.pieces.map((piece, p) =>
        piece.isFeedback ? this.laneRoute(piece, this.lanes[lane++]!) : this.route(piece, p),
      ),
    };
  }

  private middle(at: number): number {
    return Math.round(this.placed.x[at]! + this.left);
  }

  private top(at: number): number {
    const row = 2 * this.rows[at]!;
    return Math.round((this.tops[row]! + this.bottoms[row]! - this.task.heights[at]!) / 2);
  }

  /** The lowest and highest x of anything but lanes. */
  private extent(): { low: number; high: number } {
    const { task, placed, count } = this;
    let [low, high] = [Infinity, -Infinity];
    const add = (x: number, half: number): void => {
      [low, high] = [Math.min(low, x - half), Math.max(high, x + half)];
    };
    placed.x.forEach((x, at) => add(x, (at < count ? task.widths[at]! : PORT_WIDTH) / 2));
    placed.through.forEach((xs, p) => xs.forEach((x) => add(x, task.pieces[p]!.labelWidth / 2 + 4)));
    return low <= high ? { low, high } : { low: 0, high: 0 };
  }

  /** What is left free at both sides: room for the title, and the only way in or out in the middle if that is cheap. */
  private margins(spans: { low: number; high: number }, content: number): { before: number; after: number } {
    const { task, count, placed } = this;
    const free = Math.max(2 * task.padding, task.minWidth - content);
    const ports = [...(task.ins === 1 ? [placed.x[count]!] : []), ...(task.outs === 1 ? [placed.x[count + task.ins]!] : [])];
    if (!ports.length) return { before: free / 2, after: free / 2 };
    const middle = ports.reduce((sum, x) => sum + x, 0) / ports.length - spans.low;
    const shift = content - 2 * middle; // what is missing on the left
    const added = Math.max(0, Math.abs(shift) - (free - 2 * task.padding));
    if (added > MOST_CENTRING) return { before: free / 2, after: free / 2 };
    const before = Math.max(task.padding, (free + added + shift) / 2);
    return { before, after: free + added - before };
  }

  /** Tops and bottoms of rows; a gap between rows grows with how far its edges go sideways. */
  private assignHeights(): number {
    const { task, rows, count } = this;
    const last = Math.max(0, ...rows) * 2;
    const heights = new Array<number>(last + 1).fill(0);
    const sideways = new Array<number>(last + 1).fill(0); // between a double row and the next but one
    task.heights.forEach((height, at) => (heights[2 * rows[at]!] = Math.max(heights[2 * rows[at]!]!, height)));
    task.pieces.forEach((piece, p) => {
      if (piece.isFeedback) return;
      const xs = this.xs(piece, p);
      const first = 2 * rows[piece.from]!;
      if (piece.labelWidth) {
        const labelRow = first + (xs.length - 1) / 2;
        heights[labelRow] = Math.max(heights[labelRow]!, piece.labelHeight ?? LABEL_HEIGHT);
      }
      for (let i = 2; i < xs.length; i += 2)
        sideways[first + i - 2] = Math.max(sideways[first + i - 2]!, Math.abs(xs[i]! - xs[i - 2]!));
    });
    let y = task.header + (task.ins ? 0 : task.padding);
    for (let row = 0; row <= last; row++) {
      this.tops[row] = y;
      y += heights[row]!;
      this.bottoms[row] = y;
      const gap = Math.max(task.spacing, Math.min(WIDEST_GAP, sideways[row - (row % 2)]! / 4));
      const isPortGap = (task.ins > 0 && row < 2) || (task.outs > 0 && row >= last - 2);
      if (row < last) y += (isPortGap ? Math.max(20, gap * 0.7) : gap) / 2;
    }
    const isDown = count > 0 && this.lanes.length > 0;
    return Math.max(task.minHeight ?? 0, y + (task.outs ? 0 : task.padding + (isDown ? TURN : 0)));
  }

  /** The x of a piece at every half row from its start to its end. */
  private xs(piece: TaskPiece, p: number): number[] {
    return [this.startX(piece), ...this.placed.through[p]!.map((x) => Math.round(x + this.left)), this.endX(piece, p)];
  }

  /** Where a piece begins and ends, from the top of the box. */
  private ys(piece: TaskPiece): [number, number] {
    const { task, count } = this;
    const start = piece.from < count ? this.top(piece.from) + task.heights[piece.from]! : task.header;
    return [start, piece.to < count ? this.top(piece.to) : this.height];
  }

  private startX(piece: TaskPiece): number {
    if (piece.fromX < 0 || piece.from >= this.count) return this.middle(piece.from);
    return Math.round(this.middle(piece.from) - this.task.widths[piece.from]! / 2 + piece.fromX);
  }

  private endX(piece: TaskPiece, p: number): number {
    if (piece.to >= this.count) return this.middle(piece.to);
    if (piece.toX >= 0) return Math.round(this.middle(piece.to) - this.task.widths[piece.to]! / 2 + piece.toX);
    return this.middle(piece.to) + (this.ends[piece.to]!.get(p) ?? 0);
  }

  /** Arrows that enter the same child side by side, in the order they come from; offsets from its middle. */
  private spreadEnds(): Map<number, number>[] {
    const { task, placed, count } = this;
    const entering = task.widths.map((): number[] => []);
    task.pieces.forEach((piece, p) => {
      if (!piece.isFeedback && piece.to < count && piece.toX < 0) entering[piece.to]!.push(p);
    });
    return entering.map((pieces, at) => {
      const origin = (p: number): number => placed.through[p]!.at(-1) ?? placed.x[task.pieces[p]!.from]!;
      pieces.sort((a, b) => origin(a) - origin(b));
      const step = Math.min(16, (task.widths[at]! - 30) / Math.max(1, pieces.length - 1));
      const isStraight = pieces.map((p) => Math.abs(origin(p) - placed.x[at]!) < 1);
      const centre = isStraight.includes(true) && pieces.length > 1 ? isStraight.indexOf(true) : (pieces.length - 1) / 2;
      return new Map(pieces.map((p, i) => [p, Math.round((i - centre) * step)]));
    });
  }

  private route(piece: TaskPiece, p: number): Route {
    const xs = this.xs(piece, p);
    const first = 2 * this.rows[piece.from]!;
    const points: number[] = [];
    const [startY, endY] = this.ys(piece);
    points.push(xs[0]!, startY, xs[0]!, Math.max(startY, this.bottoms[first]!));
    const label = piece.labelWidth ? (xs.length - 1) / 2 : -1;
    for (let i = 1; i < xs.length - 1; i++) {
      const row = first + i;
      if (row % 2 && i !== label) continue;
      points.push(xs[i]!, this.tops[row]!, xs[i]!, this.bottoms[row]!);
    }
    const end = xs.at(-1)!;
    points.push(end, Math.min(endY, this.tops[first + xs.length - 1]!), end, endY);
    const labelRow = first + label;
    return {
      points,
      isLane: false,
      labelX: label < 0 ? 0 : xs[label]!,
      labelY: label < 0 ? 0 : (this.tops[labelRow]! + this.bottoms[labelRow]!) / 2,
    };
  }

  /** Down from its start, to a lane at the right, up, and down into its end. */
  private laneRoute(piece: TaskPiece, lane: number): Route {
    const { rows } = this;
    const startX = piece.fromX < 0 ? this.middle(piece.from) + 12 : this.startX(piece);
    const endX = piece.toX < 0 ? this.middle(piece.to) + 12 : this.endX(piece, -1);
    const [startY, endY] = this.ys(piece);
    const low = this.bottoms[2 * rows[piece.from]!]! + TURN;
    const high = this.tops[2 * rows[piece.to]!]! - TURN;
    const x = lane - (piece.labelWidth ? piece.labelWidth / 2 + 3 : 0);
    return {
      points: [startX, startY, startX, low, x, low, x, high, endX, high, endX, endY],
      isLane: true,
      labelX: x,
      labelY: (low + high) / 2,
    };
  }

  /** The right side of the lane of each feedback piece, from the right side of the content; short ones inside. */
  private assignLanes(): number[] {
    const { task, rows } = this;
    const pieces = task.pieces.filter((piece) => piece.isFeedback);
    const spans = pieces.map((piece) => ({ from: rows[piece.to]!, to: rows[piece.from]! }));
    const length = (i: number): number => spans[i]!.to - spans[i]!.from;
    const lanes: { from: number; to: number }[][] = [];
    const widths: number[] = [];
    const laneOf: number[] = [];
    for (const i of spans.map((_, i) => i).sort((a, b) => length(a) - length(b))) {
      const own = spans[i]!;
      let lane = lanes.findIndex((taken) => taken.every((other) => own.to < other.from - 1 || own.from > other.to + 1));
      if (lane < 0) lane = lanes.push([]) - 1;
      lanes[lane]!.push(own);
      laneOf[i] = lane;
      widths[lane] = Math.max(widths[lane] ?? 0, LANE_GAP + (pieces[i]!.labelWidth ? pieces[i]!.labelWidth + 6 : 0));
    }
    return pieces.map((_, i) => widths.slice(0, laneOf[i]! + 1).reduce((sum, width) => sum + width, 0));
  }
}
