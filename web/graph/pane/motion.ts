// How one scene turns into the next: boxes glide to their new places, and what was inside a box grows out of it.

import { type Camera, between, panned } from "./camera";
import type { Motion } from "../drawing/picture";
import type { Scene } from "../layout/scene";

const DURATION = 240;

export class Transition {
  readonly motion: Motion;
  private readonly started: number;
  private readonly fromX: Float64Array;
  private readonly fromY: Float64Array;
  private readonly fromW: Float64Array;
  private readonly fromH: Float64Array;

  constructor(
    before: Scene,
    private readonly scene: Scene,
    private fromCamera: Camera,
    private toCamera: Camera,
    now: number,
  ) {
    this.started = now;
    const count = scene.view.items.length;
    [this.fromX, this.fromY] = [new Float64Array(count), new Float64Array(count)];
    [this.fromW, this.fromH] = [new Float64Array(count), new Float64Array(count)];
    const isNew = new Uint8Array(count);
    const rearranged = new Uint8Array(count);
    scene.view.items.forEach((item, i) => {
      const old = before.view.itemByKey.get(item.key);
      if (old === undefined) {
        isNew[i] = 1;
        this.grow(i, item.parent);
      } else {
        this.fromX[i] = before.x[old]!;
        this.fromY[i] = before.y[old]!;
        this.fromW[i] = before.w[old]!;
        this.fromH[i] = before.h[old]!;
      }
      const had = old === undefined ? undefined : before.layouts.get(old);
      rearranged[i] = had !== scene.layouts.get(i) ? 1 : 0;
    });
    const copy = (from: Float64Array): Float64Array => from.slice();
    this.motion = {
      x: copy(this.fromX),
      y: copy(this.fromY),
      w: copy(this.fromW),
      h: copy(this.fromH),
      progress: 0,
      isNew,
      isRearranged: (item) => rearranged[item] === 1,
    };
  }

  /** Starts an item inside its parent, in proportion. */
  private grow(i: number, parent: number): void {
    const { scene } = this;
    const across = this.fromW[parent]! / scene.w[parent]!;
    const down = this.fromH[parent]! / scene.h[parent]!;
    this.fromX[i] = this.fromX[parent]! + (scene.x[i]! - scene.x[parent]!) * across;
    this.fromY[i] = this.fromY[parent]! + (scene.y[i]! - scene.y[parent]!) * down;
    this.fromW[i] = scene.w[i]! * across;
    this.fromH[i] = scene.h[i]! * down;
  }

  /** Moves the picture on the screen, while it is on its way. */
  shift(dx: number): void {
    this.fromCamera = panned(this.fromCamera, dx, 0);
    this.toCamera = panned(this.toCamera, dx, 0);
  }

  /** Moves everything to where it is at a moment; returns the camera then, or null when all has arrived. */
  advance(now: number): Camera | null {
    const elapsed = Math.min(1, (now - this.started) / DURATION);
    if (elapsed >= 1) return null;
    const part = 1 - (1 - elapsed) ** 3;
    const { motion, scene } = this;
    motion.progress = part;
    for (let i = 0; i < scene.x.length; i++) {
      motion.x[i] = this.fromX[i]! + (scene.x[i]! - this.fromX[i]!) * part;
      motion.y[i] = this.fromY[i]! + (scene.y[i]! - this.fromY[i]!) * part;
      motion.w[i] = this.fromW[i]! + (scene.w[i]! - this.fromW[i]!) * part;
      motion.h[i] = this.fromH[i]! + (scene.h[i]! - this.fromH[i]!) * part;
    }
    return between(this.fromCamera, this.toCamera, part);
  }
}
