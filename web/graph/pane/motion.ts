// How one scene turns into the next: boxes glide to their new places, and what was inside a box grows out of it.

import { type Camera, between, panned } from "./camera";
import { type Motion, type Places, type Rect, emptyPlaces, rectOf } from "../drawing/picture";
import type { Scene } from "../layout/scene";

const DURATION = 240; // milliseconds
const SIDES = ["x", "y", "w", "h"] as const;

export class Transition {
  readonly motion: Motion;
  private readonly from: Places;

  constructor(
    before: Scene,
    private readonly scene: Scene,
    private fromCamera: Camera,
    private toCamera: Camera,
    private readonly started: number,
  ) {
    const count = scene.view.items.length;
    this.from = emptyPlaces(count);
    const isNew = new Uint8Array(count);
    const rearranged = new Uint8Array(count);
    scene.view.items.forEach((item, i) => {
      const old = before.view.itemByKey.get(item.key);
      isNew[i] = old === undefined ? 1 : 0;
      const rect = old === undefined ? this.grown(i, item.parent) : rectOf(before, old);
      for (const side of SIDES) this.from[side][i] = rect[side];
      const had = old === undefined ? undefined : before.layouts.get(old);
      rearranged[i] = had !== scene.layouts.get(i) ? 1 : 0;
    });
    const isRearranged = (item: number): boolean => rearranged[item] === 1;
    this.motion = { ...emptyPlaces(count), progress: 0, isNew, isRearranged };
    for (const side of SIDES) this.motion[side].set(this.from[side]);
  }

  /** Where an item would be inside its parent as it was, in proportion. */
  private grown(i: number, parent: number): Rect {
    const [own, after, before] = [rectOf(this.scene, i), rectOf(this.scene, parent), rectOf(this.from, parent)];
    const [across, down] = [before.w / after.w, before.h / after.h];
    return {
      x: before.x + (own.x - after.x) * across,
      y: before.y + (own.y - after.y) * down,
      w: own.w * across,
      h: own.h * down,
    };
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
    this.motion.progress = part;
    for (const side of SIDES) {
      const [from, to, at] = [this.from[side], this.scene[side], this.motion[side]];
      for (let i = 0; i < at.length; i++) at[i] = from[i]! + (to[i]! - from[i]!) * part;
    }
    return between(this.fromCamera, this.toCamera, part);
  }
}
