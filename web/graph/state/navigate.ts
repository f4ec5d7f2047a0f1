// Moving the selection with keys: along the data, sideways, and in order of execution.

import type { Scene } from "../layout/scene";

export type Direction = "up" | "down" | "left" | "right";

/** The item next to another in a direction; without an item to start from, the first; -1 where there is none. */
export function neighbour(scene: Scene, from: number, direction: Direction): number {
  const { items, links } = scene.view;
  if (from < 0) return items.length > 1 ? 1 : -1;
  if (scene.isAcross) return neighbour(turned(scene), from, TURNED[direction]);
  const middle = scene.x[from]! + scene.w[from]! / 2;
  const across = (item: number): number => Math.abs(scene.x[item]! + scene.w[item]! / 2 - middle);
  if (direction === "up" || direction === "down") {
    const along = links.filter((link) => !link.isFeedback && (direction === "down" ? link.from : link.to) === from);
    const ends = along.map((link) => (direction === "down" ? link.to : link.from));
    const nearest = ends.sort((a, b) => distance(scene, from, a) - distance(scene, from, b))[0];
    if (nearest !== undefined) return nearest;
    if (direction === "down" && items[from]!.isOpen) return items[from]!.children[0] ?? -1;
  }
  const siblings = items[items[from]!.parent]?.children.filter((item) => item !== from) ?? [];
  const isThere = (item: number): boolean => {
    if (direction === "left") return scene.x[item]! + scene.w[item]! <= scene.x[from]! && overlaps(scene, from, item);
    if (direction === "right") return scene.x[item]! >= scene.x[from]! + scene.w[from]! && overlaps(scene, from, item);
    return direction === "down" ? scene.y[item]! > scene.y[from]! : scene.y[item]! < scene.y[from]!;
  };
  const isSideways = direction === "left" || direction === "right";
  const found = siblings
    .filter(isThere)
    .sort((a, b) => (isSideways ? across(a) - across(b) : distance(scene, from, a) - distance(scene, from, b)));
  return found[0] ?? -1;
}

const TURNED: Record<Direction, Direction> = { up: "left", down: "right", left: "up", right: "down" };

/** The same scene with x and y exchanged. */
function turned(scene: Scene): Scene {
  return { ...scene, x: scene.y, y: scene.x, w: scene.h, h: scene.w, isAcross: false };
}

/** The item that comes after another, or before it, in order of execution. */
export function inOrder(scene: Scene, from: number, by: number): number {
  const count = scene.view.items.length - 1;
  if (count < 1) return -1;
  return from < 1 ? (by > 0 ? 1 : count) : ((from - 1 + by + count) % count) + 1;
}

function distance(scene: Scene, one: number, other: number): number {
  return (
    Math.abs(scene.y[one]! - scene.y[other]!) +
    Math.abs(scene.x[one]! + scene.w[one]! / 2 - scene.x[other]! - scene.w[other]! / 2) / 4
  );
}

function overlaps(scene: Scene, one: number, other: number): boolean {
  return scene.y[one]! < scene.y[other]! + scene.h[other]! && scene.y[other]! < scene.y[one]! + scene.h[one]!;
}
