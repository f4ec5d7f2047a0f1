// One graph on the screen: a canvas with a camera, and the way from one scene to the next.

import { type Camera, TITLES, areaOf, between, fitting, opening, panned, showing, toPlane, zoomed } from "./camera";
import { el } from "../../shared/dom";
import { clamp } from "../../shared/scale";
import { type Picture, type Rect, rectOf } from "../drawing/picture";
import { drawScene } from "../drawing/draw";
import { type GestureEvents, Gestures, type Point } from "./gestures";
import { type Hit, hitAt } from "./hit";
import { HEADER } from "../drawing/look";
import { Minimap } from "./minimap";
import { Transition } from "./motion";
import { CanvasPainter } from "../drawing/paint";
import type { Scene } from "../layout/scene";

/** The item that stays where it is while the rest makes room; at the pointer when there was one. */
export interface Anchor {
  key: string;
  pointer?: Point; // on the screen
}

export interface PaneEvents extends GestureEvents {
  moved: (from: Camera, to: Camera, by: "reader" | "program") => void;
}

const GLIDE = 260; // milliseconds

export class Pane {
  readonly element: HTMLElement;
  readonly canvas: HTMLCanvasElement;
  camera: Camera = { scale: 1, x: 0, y: 0 };
  picture: Picture | null = null;
  frames = 0;
  firstDraw = 0; // milliseconds after the page was asked for
  lastDraw = 0; // milliseconds it took
  private width = 0;
  private height = 0;
  private isAsked = false;
  private transition: Transition | null = null;
  private glide: { from: Camera; to: Camera; started: number } | null = null;
  private readonly context: CanvasRenderingContext2D;
  private readonly minimap: Minimap;
  private isSized = false;
  private isFirstLook = true; // nothing was moved, opened or closed yet
  private whenSized: (() => void)[] = [];

  constructor(
    label: string,
    private readonly events: PaneEvents,
    isFrame: boolean,
  ) {
    this.canvas = el("canvas", { class: "graph", tabIndex: 0, role: "application", label });
    this.canvas.dataset["canvas"] = "graph";
    this.minimap = new Minimap((x, y) => this.centreOn(x, y));
    this.element = el("div", { class: "pane" }, this.canvas, this.minimap.element);
    this.context = this.canvas.getContext("2d")!;
    new Gestures(this, events, isFrame);
    new ResizeObserver(() => this.resize()).observe(this.element);
  }

  // Pictures --------------------------------------------------------------------------------------------------------

  /** Shows a picture; when its scene is new, what was there before glides to its new place. */
  show(picture: Picture, anchor: Anchor | null, isAnimated: boolean): void {
    const before = this.picture?.scene;
    this.picture = picture;
    if (!before) {
      this.afterSized(() => this.setCamera(this.firstLook(picture.scene), "program"));
    } else if (before !== picture.scene) {
      this.isFirstLook = false;
      const middle = before.view.items[this.itemInMiddle(before)]!; // stays in place where nothing is chosen
      const camera = this.anchored(before, picture.scene, anchor ?? middle);
      const isSame = before.view.hierarchy === picture.scene.view.hierarchy;
      this.transition =
        isAnimated && isSame ? new Transition(before, picture.scene, this.camera, camera, performance.now()) : null;
      this.glide = null;
      this.setCamera(camera, "program");
      this.minimap.forget();
    }
    this.ask();
  }

  /** All of the model, if at least its titles can be read. */
  private firstLook(scene: Scene): Camera {
    return opening(rectOf(scene, 0), this.width, this.height, TITLES);
  }

  /** The innermost item in the middle of the screen. */
  private itemInMiddle(scene: Scene): number {
    const hit = hitAt(scene, ...toPlane(this.camera, this.width / 2, this.height / 3), 0);
    return hit?.kind === "item" ? hit.item : 0;
  }

  /** The innermost open item around what is in the middle of the screen. */
  middleItem(): number {
    if (!this.picture) return 0;
    const { scene } = this.picture;
    const item = this.itemInMiddle(scene);
    return scene.view.items[item]!.isOpen ? item : scene.view.items[item]!.parent;
  }

  private anchored(before: Scene, after: Scene, anchor: Anchor): Camera {
    let old = before.view.itemByKey.get(anchor.key);
    if (old === undefined) return this.camera;
    while (old > 0 && !after.view.itemByKey.has(before.view.items[old]!.key)) old = before.view.items[old]!.parent;
    const now = after.view.itemByKey.get(before.view.items[old]!.key)!;
    const { scale } = this.camera;
    const middle = before.x[old]! + before.w[old]! / 2;
    const [px, py] = anchor.pointer ? toPlane(this.camera, ...anchor.pointer) : [middle, before.y[old]! + HEADER / 2];
    const half = after.w[now]! / 2 - 8;
    const across = clamp(px - middle, -half, half);
    const down = after.view.items[now]!.isOpen ? HEADER / 2 : Math.min(py - before.y[old]!, after.h[now]! - 6);
    const x = after.x[now]! + after.w[now]! / 2 + across;
    const y = after.y[now]! + down;
    return { scale, x: px * scale + this.camera.x - x * scale, y: py * scale + this.camera.y - y * scale };
  }

  get isMoving(): boolean {
    return this.transition !== null || this.glide !== null;
  }

  // Camera ----------------------------------------------------------------------------------------------------------

  setCamera(camera: Camera, by: "reader" | "program"): void {
    const from = this.camera;
    this.camera = camera;
    if (by === "reader") this.isFirstLook = false;
    this.events.moved(from, camera, by);
    this.ask();
  }

  glideTo(camera: Camera, isAnimated: boolean): void {
    this.isFirstLook = false;
    if (!isAnimated || this.transition) {
      this.transition = null;
      this.setCamera(camera, "program");
      return;
    }
    this.glide = { from: this.camera, to: camera, started: performance.now() };
    this.ask();
  }

  /** Moves with the reader, who moves another pane. */
  follow(camera: Camera): void {
    this.stop();
    this.setCamera(camera, "program");
  }

  pan(dx: number, dy: number): void {
    this.stop();
    this.setCamera(panned(this.camera, dx, dy), "reader");
  }

  zoom(factor: number, at: Point = [this.width / 2, this.height / 2]): void {
    this.stop();
    this.setCamera(zoomed(this.camera, factor, ...at), "reader");
  }

  fit(isAnimated: boolean): void {
    if (this.picture) this.glideTo(fitting(rectOf(this.picture.scene, 0), this.width, this.height), isAnimated);
  }

  /** The first look at a picture again. */
  start(): void {
    if (this.picture) this.setCamera(opening(rectOf(this.picture.scene, 0), this.width, this.height), "program");
  }

  /** Brings an item into sight; `always` puts it in the middle even when it is seen already. */
  reveal(item: number, isAnimated: boolean, always = false): void {
    if (!this.picture) return;
    this.resize(); // a side may just have opened
    const target = this.glide?.to ?? this.camera;
    const camera = showing(target, rectOf(this.picture.scene, item), this.width, this.height, always);
    if (camera !== target) this.glideTo(camera, isAnimated);
  }

  /** Brings an item to where its counterpart is, or will be, on another pane. */
  alignWith(other: Pane, theirs: number, item: number, isAnimated: boolean): void {
    if (!this.picture || !other.picture) return;
    this.resize();
    const target = other.glide?.to ?? other.camera;
    const [own, wanted] = [rectOf(this.picture.scene, item), rectOf(other.picture.scene, theirs)];
    const x = (wanted.x + wanted.w / 2 - own.x - own.w / 2) * target.scale + target.x;
    const y = (wanted.y - own.y) * target.scale + target.y;
    this.glideTo({ scale: target.scale, x, y }, isAnimated);
  }

  private centreOn(x: number, y: number): void {
    const { scale } = this.camera;
    this.stop();
    this.setCamera({ scale, x: this.width / 2 - x * scale, y: this.height / 2 - y * scale }, "reader");
  }

  /** Ends a movement of the camera where it is. */
  stop(): void {
    this.glide = null;
  }

  /** The size it has on the page now, also before it was drawn. */
  measured(): Point {
    const { width, height } = this.element.getBoundingClientRect();
    return [width, height];
  }

  get size(): Point {
    return [this.width, this.height];
  }

  /** Whether all of the graph is on the screen. */
  get isSeenWhole(): boolean {
    if (!this.picture) return true;
    const { x, y, w, h } = rectOf(this.picture.scene, 0);
    const area = areaOf(this.camera, this.width, this.height);
    return area.x <= x && area.y <= y && area.x + area.w >= x + w && area.y + area.h >= y + h;
  }

  /** Where an item is on the screen, from the corner of the window. */
  onScreen(item: number): Rect {
    const { scene } = this.picture!;
    const box = this.canvas.getBoundingClientRect();
    const { scale, x, y } = this.camera;
    return {
      x: box.left + scene.x[item]! * scale + x,
      y: box.top + scene.y[item]! * scale + y,
      w: scene.w[item]! * scale,
      h: scene.h[item]! * scale,
    };
  }

  // Drawing ---------------------------------------------------------------------------------------------------------

  ask(): void {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame((now) => {
      this.isAsked = false;
      this.draw(now);
    });
  }

  private draw(now: number): void {
    if (!this.picture || !this.width || !this.height) return;
    const start = performance.now();
    const camera = this.step(now);
    const ratio = window.devicePixelRatio || 1;
    const { context, width, height } = this;
    const { theme } = this.picture;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.globalAlpha = 1;
    context.fillStyle = theme.page;
    context.fillRect(0, 0, width, height);
    this.drawDots(camera, theme.dots);
    context.setTransform(ratio * camera.scale, 0, 0, ratio * camera.scale, ratio * camera.x, ratio * camera.y);
    const area = areaOf(camera, width, height);
    drawScene(new CanvasPainter(context), this.picture, area, camera.scale, this.transition?.motion ?? null);
    context.globalAlpha = 1;
    this.minimap.draw(this.picture, area);
    if (this.frames++ === 0) this.firstDraw = performance.now();
    this.lastDraw = performance.now() - start;
    if (this.isMoving) this.ask();
  }

  /** The camera of this frame. */
  private step(now: number): Camera {
    if (this.transition) {
      const camera = this.transition.advance(now);
      if (camera) return camera;
      this.transition = null;
    }
    if (!this.glide) return this.camera;
    const { from, to, started } = this.glide;
    const elapsed = Math.min(1, (now - started) / GLIDE);
    if (elapsed >= 1) this.glide = null;
    const before = this.camera;
    this.camera = elapsed >= 1 ? to : between(from, to, 1 - (1 - elapsed) ** 3);
    this.events.moved(before, this.camera, "program");
    return this.camera;
  }

  /** A faint grid, so that moving is seen where there is nothing else. */
  private drawDots(camera: Camera, color: string): void {
    let step = 28 * camera.scale;
    while (step < 18) step *= 2;
    while (step > 48) step /= 2;
    this.context.fillStyle = color;
    const offset = (value: number): number => ((value % step) + step) % step;
    for (let x = offset(camera.x); x < this.width; x += step) {
      for (let y = offset(camera.y); y < this.height; y += step) this.context.fillRect(x, y, 1.4, 1.4);
    }
  }

  private resize(): void {
    const box = this.element.getBoundingClientRect();
    if (box.width === this.width && box.height === this.height) return;
    const ratio = window.devicePixelRatio || 1;
    const before = this.width;
    this.width = box.width;
    this.height = box.height;
    this.canvas.width = Math.round(box.width * ratio);
    this.canvas.height = Math.round(box.height * ratio);
    if (!box.width || !box.height) return;
    if (!this.isSized) {
      this.isSized = true;
      for (const act of this.whenSized.splice(0)) act();
    } else if (this.isFirstLook && this.picture) {
      this.camera = this.firstLook(this.picture.scene);
    } else if (before && before !== this.width) {
      this.keepMiddle((this.width - before) / 2);
    }
    this.draw(performance.now()); // at once, or the canvas would be blank for a frame
  }

  /** A side opened or closed: the middle stays the middle. */
  private keepMiddle(dx: number): void {
    this.camera = panned(this.camera, dx, 0);
    if (this.glide) this.glide = { ...this.glide, from: panned(this.glide.from, dx, 0), to: panned(this.glide.to, dx, 0) };
    this.transition?.shift(dx);
  }

  afterSized(act: () => void): void {
    if (this.isSized) act();
    else this.whenSized.push(act);
  }

  /** What is at a point of the canvas; a finger need not be as exact as a mouse. */
  hit(point: Point, isTouch = false): Hit | null {
    if (!this.picture) return null;
    const [x, y] = toPlane(this.camera, ...point);
    return hitAt(this.picture.scene, x, y, (isTouch ? 14 : 6) / this.camera.scale);
  }
}
