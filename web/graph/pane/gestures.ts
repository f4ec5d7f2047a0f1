// What the pointer does on the canvas of a graph: clicks, drags, pinches and the wheel.

import { clamp } from "../../shared/scale";
import type { Pane } from "./canvas";
import type { Hit } from "./hit";

export type Point = [x: number, y: number];

export interface Click {
  shift: boolean;
  plain: boolean; // selects a box without opening it
  isSecond: boolean; // of a double click
  pointer: Point;
}

export interface GestureEvents {
  click: (hit: Hit | null, event: Click) => void;
  hover: (hit: Hit | null, pointer: Point) => void;
}

const DRAG_STARTS = 4; // pixels
const DOUBLE = 400; // milliseconds between the two clicks of a double click

export class Gestures {
  private readonly canvas: HTMLCanvasElement;
  private readonly pointers = new Map<number, Point>();
  private pressed: { at: Point; isDrag: boolean } | null = null;
  private lastClick = { time: -Infinity, x: 0, y: 0 };

  constructor(
    private readonly pane: Pane,
    private readonly events: GestureEvents,
    private readonly isFrame: boolean,
  ) {
    const { canvas } = pane;
    this.canvas = canvas;
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointercancel", (event) => this.forget(event));
    canvas.addEventListener("pointerleave", () => this.events.hover(null, [0, 0]));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  private at(event: MouseEvent): Point {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  private down(event: PointerEvent): void {
    if (event.button > 1) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, this.at(event));
    this.pressed = this.pointers.size === 1 ? { at: this.at(event), isDrag: event.button === 1 } : null;
    this.pane.stop();
  }

  private move(event: PointerEvent): void {
    const now = this.at(event);
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      if (event.pointerType !== "touch") this.events.hover(this.pane.hit(now), now);
      return;
    }
    this.pointers.set(event.pointerId, now);
    if (this.pointers.size === 2) this.pinch(event.pointerId, before, now);
    else if (this.pressed) this.drag(this.pressed, before, now);
  }

  private drag(pressed: { at: Point; isDrag: boolean }, before: Point, now: Point): void {
    if (!pressed.isDrag) {
      if (Math.hypot(now[0] - pressed.at[0], now[1] - pressed.at[1]) < DRAG_STARTS) return;
      pressed.isDrag = true;
      this.canvas.classList.add("dragging");
      this.events.hover(null, now);
    }
    this.pane.pan(now[0] - before[0], now[1] - before[1]);
  }

  private pinch(moved: number, before: Point, now: Point): void {
    const still = [...this.pointers].find(([id]) => id !== moved)![1];
    const apart = (point: Point): number => Math.max(1, Math.hypot(point[0] - still[0], point[1] - still[1]));
    const middle: Point = [(now[0] + still[0]) / 2, (now[1] + still[1]) / 2];
    this.pane.zoom(apart(now) / apart(before), middle);
    this.pane.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
  }

  private up(event: PointerEvent): void {
    const { pressed, lastClick } = this;
    this.forget(event);
    if (!pressed || pressed.isDrag || event.button !== 0) return;
    this.canvas.focus({ preventScroll: true });
    const hit = this.pane.hit(pressed.at, event.pointerType === "touch");
    const plain = event.ctrlKey || event.metaKey || event.altKey;
    const [x, y] = pressed.at;
    const isSecond = event.timeStamp - lastClick.time < DOUBLE && Math.hypot(lastClick.x - x, lastClick.y - y) < DRAG_STARTS;
    this.lastClick = { time: isSecond ? -DOUBLE : event.timeStamp, x, y };
    this.events.click(hit, { shift: event.shiftKey, plain, isSecond, pointer: pressed.at });
  }

  private forget(event: PointerEvent): void {
    this.pointers.delete(event.pointerId);
    this.pressed = null;
    this.canvas.classList.remove("dragging");
  }

  private wheel(event: WheelEvent): void {
    // Inside a notebook the page scrolls until the reader has clicked into the graph.
    if (this.isFrame && document.activeElement !== this.canvas && !event.ctrlKey) return;
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    if (event.shiftKey) this.pane.pan(-(event.deltaX || event.deltaY) * unit, 0);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pane.pan(-event.deltaX * unit, 0);
    else {
      const amount = clamp(event.deltaY * unit, -240, 240) * (event.ctrlKey ? 4 : 1);
      this.pane.zoom(Math.exp(-amount * 0.0022), this.at(event));
    }
  }
}
