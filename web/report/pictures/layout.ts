// Where the tiles of a picture lie, in pixels of the screen, and what is at a point.

import type { Form } from "../../shared/generated/report_format";
import type { Frame } from "../data/run";
import { codeText } from "./codes";

/** What a frame shows: how many tiles, of which size, with which numbers. */
export interface Subject {
  shape: "tiles" | "grid" | "matrix"; // tiles one after the other, filters by input channels, or one tile of rows and columns
  count: number;
  height: number;
  width: number;
  rows: number[];
  columns: number[];
  planes: number; // 3 where they are red, green and blue
}

export interface Room {
  width: number;
  height: number;
  unit: number; // pixels of the screen for one of the page
  isSmall: boolean;
}

export interface Tile {
  x: number;
  y: number;
  w: number;
  h: number;
  index: number;
  row: number;
  column: number | null;
}

interface Label {
  x: number;
  y: number;
  text: string;
  align: CanvasTextAlign;
}

export interface Plan {
  tiles: Tile[];
  texts: Label[];
  width: number;
  height: number;
  isTurned: boolean; // filters go across
}

export interface Place {
  tile: Tile;
  row: number;
  column: number;
}

export function subjectOf(form: Form, frame: Frame, stride: number): Subject {
  const every = (numbers: number[]): number[] => numbers.filter((_, at) => at % stride === 0);
  const upTo = (length: number): number[] => Array.from({ length }, (_, at) => at);
  const [first = 1, second = 1, third = 1, fourth = 1] = frame.chunk.kept;
  if (form.layout === "maps")
    return { shape: "tiles", count: first, height: second, width: third, rows: form.rows, columns: [], planes: 1 };
  const rows = every(form.rows);
  if (form.layout === "matrix" || (third === 1 && fourth === 1 && !form.color)) {
    const all = form.columns ?? upTo(second * stride);
    const columns = form.layout === "matrix" ? every(all) : all;
    return { shape: "matrix", count: 1, height: first, width: second, rows, columns, planes: 1 };
  }
  const tiles = { count: first, height: third, width: fourth, rows, columns: [] };
  if (form.color) return { ...tiles, shape: "tiles", planes: 3 };
  if (second === 1) return { ...tiles, shape: "tiles", planes: 1 };
  return { ...tiles, shape: "grid", count: first * second, columns: form.columns ?? upTo(second), planes: 1 };
}

export function planOf(subject: Subject, room: Room): Plan {
  if (subject.shape === "matrix") return planMatrix(subject, room);
  return subject.shape === "grid" ? planGrid(subject, room) : planTiles(subject, room);
}

/** Height and width of a tile before it is scaled; a line is drawn as a band. */
function drawnSize({ height, width }: Subject): [number, number] {
  return [height === 1 ? Math.max(1, width / 8) : height, width === 1 ? Math.max(1, height / 8) : width];
}

/** Large pixels are all of one size; small ones may differ, so that tiles are not much smaller than there is room for. */
function whole(scale: number): number {
  return scale >= 3 ? Math.floor(scale) : scale;
}

function planTiles(subject: Subject, { width, height, unit, isSmall }: Room): Plan {
  const gap = (isSmall ? 1 : 6) * unit;
  const [tileHeight, tileWidth] = drawnSize(subject);
  const most = (isSmall ? 112 : 200) * unit;
  const strip = isSmall ? 0 : 15 * unit;
  const root = Math.ceil(Math.sqrt(subject.count));
  let best = { across: root, scale: 0, empty: 0 };
  for (let across = 1; across <= subject.count; across++) {
    const down = Math.ceil(subject.count / across);
    const scale = whole(
      Math.min(
        (width - gap * (across - 1)) / (across * tileWidth),
        (height - gap * (down - 1) - strip * down) / (down * tileHeight),
        most / Math.max(tileWidth, tileHeight),
      ),
    );
    const empty = across * down - subject.count;
    if (scale > best.scale || (scale > 0 && scale === best.scale && empty < best.empty)) best = { across, scale, empty };
  }
  if (!best.scale) best.scale = width / (tileWidth * root * 2);
  const [w, h] = [tileWidth * best.scale, tileHeight * best.scale];
  const isNumbered = !isSmall && w >= 20 * unit;
  const lead = isNumbered ? strip : 0;
  const plan: Plan = { tiles: [], texts: [], width: 0, height: 0, isTurned: false };
  for (let i = 0; i < subject.count; i++) {
    const x = Math.round((i % best.across) * (w + gap));
    const y = Math.round(Math.floor(i / best.across) * (h + gap + lead) + lead);
    const row = subject.rows[i]!;
    plan.tiles.push({ x, y, w, h, index: i, row, column: null });
    if (isNumbered) plan.texts.push({ x, y: y - 3 * unit, text: String(row), align: "left" });
    plan.width = Math.max(plan.width, x + w);
    plan.height = Math.max(plan.height, y + h);
  }
  return plan;
}

/** Filters one way, input channels the other, whichever leaves larger tiles. */
function planGrid(subject: Subject, { width, height, unit, isSmall }: Room): Plan {
  const gap = (isSmall ? 1 : 2) * unit;
  const [left, top] = isSmall ? [0, 0] : [30 * unit, 16 * unit];
  const [tileHeight, tileWidth] = drawnSize(subject);
  const [filters, inputs] = [subject.rows.length, subject.columns.length];
  const scaleFor = (across: number, down: number): number =>
    Math.min(
      (width - left - gap * (across - 1)) / (across * tileWidth),
      (height - top - gap * (down - 1)) / (down * tileHeight),
      (48 * unit) / Math.max(tileWidth, tileHeight),
    );
  const isTurned = whole(scaleFor(filters, inputs)) > whole(scaleFor(inputs, filters));
  const [across, down] = isTurned ? [filters, inputs] : [inputs, filters];
  const scale = whole(Math.max(scaleFor(across, down), 0.05));
  const [w, h] = [tileWidth * scale, tileHeight * scale];
  const tiles = Array.from({ length: subject.count }, (_, index) => {
    const [filter, input] = [Math.floor(index / inputs), index % inputs];
    const x = Math.round(left + (isTurned ? filter : input) * (w + gap));
    const y = Math.round(top + (isTurned ? input : filter) * (h + gap));
    return { x, y, w, h, index, row: subject.rows[filter]!, column: subject.columns[input]! };
  });
  const [xs, ys] = isTurned ? [subject.rows, subject.columns] : [subject.columns, subject.rows];
  const texts = isSmall
    ? []
    : [...above(xs, left, top, w + gap, w / 2, 24, unit), ...beside(ys, left, top, h + gap, h / 2, unit)];
  return { tiles, texts, isTurned, width: left + across * (w + gap) - gap, height: top + down * (h + gap) - gap };
}

function planMatrix(subject: Subject, { width, height, unit, isSmall }: Room): Plan {
  const [left, top] = isSmall ? [0, 0] : [36 * unit, 16 * unit];
  const { height: rows, width: columns } = subject;
  const largest = 30 * unit;
  let across = whole(Math.min((width - left) / columns, largest));
  let down = Math.min(across, (height - top) / rows);
  const least = (isSmall ? 48 : 140) * unit;
  if (rows * down < least) down = Math.min(least / rows, largest);
  if (columns * across < least) across = Math.min(least / columns, largest, (width - left) / columns);
  [across, down] = [whole(across), whole(down)];
  const [w, h] = [columns * across, rows * down];
  const tiles = [{ x: left, y: top, w, h, index: 0, row: 0, column: null }];
  const texts = isSmall
    ? []
    : [
        ...above(subject.columns.slice(0, columns), left, top, across, across / 2, 34, unit),
        ...beside(subject.rows.slice(0, rows), left, top, down, down / 2, unit),
      ];
  return { tiles, texts, isTurned: false, width: left + w, height: top + h };
}

/** Numbers over columns that are `size` apart, and beside rows. */
function above(
  numbers: number[],
  left: number,
  top: number,
  size: number,
  middle: number,
  least: number,
  unit: number,
): Label[] {
  return ticks(numbers.length, size, least * unit).map((at) => {
    return { x: left + at * size + middle, y: top - 4 * unit, text: String(numbers[at]), align: "center" };
  });
}

function beside(numbers: number[], left: number, top: number, size: number, middle: number, unit: number): Label[] {
  return ticks(numbers.length, size, 14 * unit).map((at) => {
    return { x: left - 6 * unit, y: top + at * size + middle + 3.5 * unit, text: String(numbers[at]), align: "right" };
  });
}

/** Which of so many places get a number, so that the numbers do not touch. */
export function ticks(length: number, size: number, least: number): number[] {
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
  const step = steps.find((one) => one * size >= least) ?? length;
  return Array.from({ length: Math.ceil(length / step) }, (_, at) => at * step);
}

export function placeAt(plan: Plan, subject: Subject, x: number, y: number): Place | null {
  const tile = plan.tiles.find((one) => x >= one.x && y >= one.y && x < one.x + one.w && y < one.y + one.h);
  if (!tile) return null;
  return {
    tile,
    row: Math.floor(((y - tile.y) / tile.h) * subject.height),
    column: Math.floor(((x - tile.x) / tile.w) * subject.width),
  };
}

/** What a picture shows, to know what is under the pointer. */
export interface Shown {
  plan: Plan;
  subject: Subject;
  form: Form;
  codes: Uint8Array;
  frame: Frame;
  unit: number;
}

export function placeText({ tile, row, column }: Place, shown: Shown, stride: number, levels: number): string {
  const { subject, form, codes, frame } = shown;
  const text = (at: number): string => codeText(codes[at]!, frame, levels);
  const area = subject.width * subject.height;
  const at = row * subject.width + column;
  const [rowWord, columnWord] = form.axes;
  if (subject.shape === "matrix")
    return `${rowWord} ${subject.rows[row]}, ${columnWord} ${subject.columns[column]}\n${text(at)}`;
  const zoom = form.layout === "maps" ? stride : 1;
  const where = `${rowWord} ${tile.row}${tile.column === null ? "" : `, ${columnWord} ${tile.column}`}`;
  const pixel = `row ${row * zoom}, column ${column * zoom}`;
  if (subject.planes === 1) return `${where}\n${pixel}: ${text(tile.index * area + at)}`;
  const three = ["red", "green", "blue"].map((name, plane) => `${name} ${text((tile.index * 3 + plane) * area + at)}`);
  return `${where}\n${pixel}: ${three.join(", ")}`;
}
