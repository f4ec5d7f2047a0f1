// The whole graph in a corner, with a frame around what is on the screen.

import { sharpCanvas } from "../../shared/canvas";
import { el } from "../../shared/dom";
import { clamp } from "../../shared/scale";
import { type Picture, type Rect, rectOf } from "../drawing/picture";
import { drawScene } from "../drawing/draw";
import { CanvasPainter } from "../drawing/paint";
import type { Scene } from "../layout/scene";

const WIDEST = 150;
const TALLEST = 190;
const SMALLEST = 36;

export class Minimap {
  readonly element: HTMLElement;
  private drawn: { scene: Scene; coloring: unknown; across: number; down: number } | null = null;
  private readonly frame: HTMLElement;

  constructor(private readonly onMove: (x: number, y: number) => void) {
    this.frame = el("div", { class: "minimap-frame" });
    this.element = el("div", { class: "minimap", hidden: true, label: "Overview of the whole graph", role: "img" }, this.frame);
    const move = (event: PointerEvent): void => {
      if (!this.drawn || !(event.buttons & 1)) return;
      const box = this.element.getBoundingClientRect();
      const { scene, across, down } = this.drawn;
      this.onMove(scene.x[0]! + (event.clientX - box.left) / across, scene.y[0]! + (event.clientY - box.top) / down);
    };
    this.element.addEventListener("pointerdown", (event) => {
      this.element.setPointerCapture(event.pointerId);
      move(event);
    });
    this.element.addEventListener("pointermove", move);
  }

  /** The next picture is drawn anew. */
  forget(): void {
    this.drawn = null;
  }

  draw(picture: Picture, area: Rect): void {
    const { scene } = picture;
    const isSeenWhole = area.w >= scene.w[0]! && area.h >= scene.h[0]! && area.x <= scene.x[0]! && area.y <= scene.y[0]!;
    this.element.hidden = isSeenWhole;
    if (isSeenWhole) return;
    if (this.drawn?.scene !== scene || this.drawn.coloring !== picture.coloring) this.redraw(picture);
    const { across, down } = this.drawn!;
    const { x, y, w, h } = rectOf(scene, 0);
    const [left, top] = [clamp((area.x - x) * across, 0, w * across), clamp((area.y - y) * down, 0, h * down)];
    const right = clamp((area.x + area.w - x) * across, 0, w * across);
    const bottom = clamp((area.y + area.h - y) * down, 0, h * down);
    const [width, height] = [Math.max(4, right - left), Math.max(4, bottom - top)];
    Object.assign(this.frame.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
  }

  private redraw(picture: Picture): void {
    const { scene } = picture;
    const whole = rectOf(scene, 0);
    const { x, y, w, h } = whole;
    const down = Math.max(Math.min(WIDEST / w, TALLEST / h), Math.min(SMALLEST, h) / h);
    const across = Math.max(Math.min(WIDEST / w, TALLEST / h), Math.min(SMALLEST, w) / w); // wider than true when very tall
    const [canvas, context] = sharpCanvas(w * across, h * down);
    context.scale(across, down);
    context.translate(-x, -y);
    const plain = { ...picture, marks: { ...picture.marks, links: new Map(), selected: -1, hovered: -1 } };
    const painter = new CanvasPainter(context);
    painter.words = (): void => undefined; // too small to be read
    drawScene(painter, plain, whole, Math.min(across, down), null);
    this.element.replaceChildren(canvas, this.frame);
    this.drawn = { scene, coloring: picture.coloring, across, down };
  }
}
