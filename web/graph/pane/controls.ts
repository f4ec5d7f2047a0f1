// The buttons in the title of an open run: the block before, the next one, all of them.

import { isBox } from "../model/hierarchy";
import type { Rect } from "../drawing/picture";
import type { Scene } from "../layout/scene";

export interface Control extends Rect {
  name: "previous" | "next" | "all" | "one";
  text: string;
}

/** The buttons in the title of an open run. */
export function runControls(scene: Scene, i: number, x: number, y: number, w: number): Control[] {
  const item = scene.view.items[i]!;
  if (!item.isOpen || !isBox(item.child) || scene.view.hierarchy.boxes[~item.child]!.kind !== "run") return [];
  const top = y + 7;
  if (item.block < 0) return [{ name: "one", text: "fold", x: x + w - 48, y: top, w: 38, h: 18 }];
  return [
    { name: "previous", text: "‹", x: x + w - 88, y: top, w: 20, h: 18 },
    { name: "next", text: "›", x: x + w - 66, y: top, w: 20, h: 18 },
    { name: "all", text: "all", x: x + w - 44, y: top, w: 34, h: 18 },
  ];
}

export function controlsWidth(scene: Scene, i: number): number {
  const controls = runControls(scene, i, 0, 0, 0);
  return controls.length ? -controls[0]!.x - 4 : 0;
}
