// Lines that are drawn often: made once, as a path of the canvas and as text for SVG.

import { type Route, exchanged } from "../layout/layout";

const COUNTS = [2, 2, 6, 0]; // numbers after each command

/** A path in plain numbers: 0 x y moves, 1 x y draws a line, 2 x y x y x y a curve, 3 closes. */
export class Shape {
  readonly commands: number[] = [];
  private path: Path2D | null = null;

  move(x: number, y: number): void {
    this.commands.push(0, x, y);
  }

  line(x: number, y: number): void {
    this.commands.push(1, x, y);
  }

  curve(x1: number, y1: number, x2: number, y2: number, x: number, y: number): void {
    this.commands.push(2, x1, y1, x2, y2, x, y);
  }

  close(): void {
    this.commands.push(3);
  }

  /** Adds another shape with x and y exchanged. */
  addTurned(other: Shape): void {
    const c = other.commands;
    for (let i = 0; i < c.length;) {
      const command = c[i++]!;
      const numbers = c.slice(i, i + COUNTS[command]!);
      this.commands.push(command, ...exchanged(numbers));
      i += numbers.length;
    }
  }

  get isEmpty(): boolean {
    return this.commands.length === 0;
  }

  asPath(): Path2D {
    if (this.path) return this.path;
    const path = new Path2D();
    const c = this.commands;
    for (let i = 0; i < c.length;) {
      const command = c[i++];
      if (command === 0) path.moveTo(c[i++]!, c[i++]!);
      else if (command === 1) path.lineTo(c[i++]!, c[i++]!);
      else if (command === 2) path.bezierCurveTo(c[i++]!, c[i++]!, c[i++]!, c[i++]!, c[i++]!, c[i++]!);
      else path.closePath();
    }
    return (this.path = path);
  }

  asSvg(): string {
    const c = this.commands;
    const parts: string[] = [];
    for (let i = 0; i < c.length;) {
      const command = c[i++]!;
      const numbers = c.slice(i, i + COUNTS[command]!);
      parts.push("MLCZ"[command]! + numbers.map(short).join(" "));
      i += numbers.length;
    }
    return parts.join("");
  }
}

function short(value: number): string {
  return String(Math.round(value * 10) / 10);
}

const CORNER = 8;
const HEAD = 7; // length of an arrow head
const HEAD_HALF = 3.6;

/** Adds the line of a route to a shape. */
export function addRoute(shape: Shape, route: Route, hasHead: boolean): void {
  if (route.isAcross) {
    const down = new Shape();
    addRoute(down, downward(route), hasHead);
    shape.addTurned(down);
  } else if (route.isLane) addLane(shape, route.points, hasHead);
  else addCurves(shape, route.points, hasHead);
}

/** A route from left to right as the route from top to bottom that it was laid out as. */
function downward(route: Route): Route {
  return { ...route, points: exchanged(route.points), isAcross: false };
}

function addCurves(shape: Shape, points: number[], hasHead: boolean): void {
  let [x, y] = [points[0]!, points[1]!];
  shape.move(x, y);
  for (let i = 2; i < points.length; i += 2) {
    const nextX = points[i]!;
    const nextY = points[i + 1]! - (hasHead && i === points.length - 2 ? HEAD - 1 : 0);
    if (nextX === x) {
      if (nextY !== y) shape.line(x, nextY);
    } else {
      const middle = (y + nextY) / 2;
      shape.curve(x, middle, nextX, middle, nextX, nextY);
    }
    [x, y] = [nextX, nextY];
  }
}

/** Straight lines with rounded corners. */
function addLane(shape: Shape, points: number[], hasHead: boolean): void {
  const count = points.length / 2;
  const at = (i: number): [number, number] => [
    points[2 * i]!,
    points[2 * i + 1]! - (hasHead && i === count - 1 ? HEAD - 1 : 0),
  ];
  shape.move(...at(0));
  for (let i = 1; i < count - 1; i++) {
    const [before, corner, after] = [at(i - 1), at(i), at(i + 1)];
    const [x1, y1] = towards(corner, before);
    const [x2, y2] = towards(corner, after);
    shape.line(x1, y1);
    shape.curve(corner[0], corner[1], corner[0], corner[1], x2, y2);
  }
  shape.line(...at(count - 1));
}

function towards(from: [number, number], to: [number, number]): [number, number] {
  const distance = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1;
  const part = Math.min(CORNER, distance / 2) / distance;
  return [from[0] + (to[0] - from[0]) * part, from[1] + (to[1] - from[1]) * part];
}

/** Adds the arrow head at the end of a route. */
export function addHead(shape: Shape, route: Route): void {
  if (route.isAcross) {
    const down = new Shape();
    addHead(down, downward(route));
    shape.addTurned(down);
    return;
  }
  const [x, y] = [route.points.at(-2)!, route.points.at(-1)!];
  shape.move(x, y);
  shape.line(x - HEAD_HALF, y - HEAD);
  shape.line(x + HEAD_HALF, y - HEAD);
  shape.close();
}

/** Points along a route, close enough to tell how far something is from it. */
export function sampled(route: Route): number[] {
  if (route.isLane) return route.points;
  if (route.isAcross) return exchanged(sampled(downward(route)));
  const { points } = route;
  const found = [points[0]!, points[1]!];
  for (let i = 2; i < points.length; i += 2) {
    const [x, y, nextX, nextY] = [points[i - 2]!, points[i - 1]!, points[i]!, points[i + 1]!];
    if (x !== nextX) {
      for (let step = 1; step < 8; step++) {
        const t = step / 8;
        const across = 3 * t * t - 2 * t * t * t; // of a curve whose control points lie half way down
        const down = 1.5 * t * (1 - t) * (1 - t) + 1.5 * t * t * (1 - t) + t * t * t;
        found.push(x + (nextX - x) * across, y + (nextY - y) * down);
      }
    }
    found.push(nextX, nextY);
  }
  return found;
}
