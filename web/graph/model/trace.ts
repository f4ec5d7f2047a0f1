// Who leads to whom: ancestors, descendants, and everything on the way from one place to another.

import { type Hierarchy, unitsOf } from "./hierarchy";
import type { View } from "../layout/view";

/** Every unit that some units lead to (or that leads to them), themselves included. */
export function reached(hierarchy: Hierarchy, from: number[], direction: "ancestors" | "descendants"): Uint8Array {
  const { wires, units } = hierarchy;
  const found = new Uint8Array(units.length);
  const next = from.slice();
  for (const unit of from) found[unit] = 1;
  while (next.length) {
    const unit = next.pop()!;
    const along = direction === "ancestors" ? wires.into[unit]! : wires.out[unit]!;
    for (const wire of along) {
      const other = direction === "ancestors" ? wires.from[wire]! : wires.to[wire]!;
      if (!found[other]) {
        found[other] = 1;
        next.push(other);
      }
    }
  }
  return found;
}

export interface Path {
  units: Uint8Array; // on any way from one to the other
  count: number;
  steps: number; // of the shortest way; -1 when there is none
  isReversed: boolean;
}

/** Everything on a way from one child to another; where there is none, on a way back. */
export function pathBetween(hierarchy: Hierarchy, one: number, other: number): Path {
  const forth = onTheWay(hierarchy, one, other);
  if (forth.steps >= 0) return forth;
  return { ...onTheWay(hierarchy, other, one), isReversed: true };
}

function onTheWay(hierarchy: Hierarchy, one: number, other: number): Path {
  const starts = unitsOf(hierarchy, one);
  const ends = unitsOf(hierarchy, other);
  const below = reached(hierarchy, starts, "descendants");
  const above = reached(hierarchy, ends, "ancestors");
  const units = below.map((is, unit) => is & above[unit]!);
  const count = units.reduce((sum, is) => sum + is, 0);
  return { units, count, steps: count ? shortest(hierarchy, starts, new Set(ends)) : -1, isReversed: false };
}

function shortest(hierarchy: Hierarchy, starts: number[], ends: Set<number>): number {
  const { wires } = hierarchy;
  const seen = new Set(starts);
  let front = starts;
  for (let steps = 0; front.length; steps++) {
    if (front.some((unit) => ends.has(unit))) return steps;
    const next: number[] = [];
    for (const unit of front) {
      for (const wire of wires.out[unit]!) {
        const to = wires.to[wire]!;
        if (!seen.has(to)) {
          seen.add(to);
          next.push(to);
        }
      }
    }
    front = next;
  }
  return -1;
}

/** The items that show any of some units. */
export function itemsShowing(view: View, units: Uint8Array): Uint8Array {
  const bright = new Uint8Array(view.items.length);
  units.forEach((is, unit) => {
    if (is) bright[view.itemOfUnit[unit]!] = 1;
  });
  return bright;
}

/** The links whose both ends are bright and that carry something between the units. */
export function linksBetween(view: View, units: Uint8Array): number[] {
  const { wires } = view.hierarchy;
  const found: number[] = [];
  view.links.forEach((link, l) => {
    if (link.wires.some((wire) => units[wires.from[wire]!] && units[wires.to[wire]!])) found.push(l);
  });
  return found;
}
