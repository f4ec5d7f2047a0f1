// A payload and everything worked out from it, rolled and unrolled, each when it is first asked for.

import { Palette } from "../drawing/coloring";
import { type Hierarchy, buildHierarchy, isBox } from "./hierarchy";
import { type FactName, Faces, type Measure } from "../drawing/look";
import { Measures } from "./measures";
import type { Payload } from "./payload";
import { Search } from "./search";
import type { Selection, State } from "../state/state";
import { type View, boxItemKey } from "../layout/view";

export class ModelIndex {
  readonly measures: Measures;
  readonly search: Search;
  readonly palette: Palette;
  private readonly made = new Map<string, Faces>(); // by what is written on boxes

  constructor(
    readonly hierarchy: Hierarchy,
    private readonly measure: Measure,
  ) {
    this.measures = new Measures(hierarchy);
    this.search = new Search(hierarchy);
    this.palette = new Palette(hierarchy);
  }

  faces(facts: ReadonlySet<FactName>): Faces {
    const key = [...facts].sort().join();
    const faces = this.made.get(key) ?? new Faces(this.hierarchy, this.measures, facts, this.measure);
    this.made.set(key, faces);
    return faces;
  }
}

export class Doc {
  private readonly indices: (ModelIndex | null)[] = [null, null, null, null];

  constructor(
    readonly payload: Payload,
    readonly side: number,
    private readonly measure: Measure,
  ) {}

  modelIndex({ rolled, hasPlumbing }: Pick<State, "rolled" | "hasPlumbing">): ModelIndex {
    const at = (rolled ? 1 : 0) + (hasPlumbing ? 2 : 0);
    return (this.indices[at] ??= new ModelIndex(buildHierarchy(this.payload, rolled, hasPlumbing), this.measure));
  }

  get hasPlumbing(): boolean {
    return this.payload.chips.length > 0 || this.payload.nodes.some((node) => node.folded);
  }

  /** Whether some layer with parameters runs again and again: then one node per layer is the better picture. */
  get isLoop(): boolean {
    return this.payload.nodes.some((node) => node.num_passes >= 3 && node.params.length > 0);
  }

  get hasPasses(): boolean {
    return this.payload.nodes.some((node) => node.num_passes > 1);
  }
}

/** What a selection means in a hierarchy: a unit, or the complement of a box; null when it is not there. */
export function childOf(hierarchy: Hierarchy, selection: Selection | null): number | null {
  if (!selection || selection.kind === "edge") return null;
  if (selection.kind === "unit") return hierarchy.unitByKey.get(selection.key) ?? null;
  const box = hierarchy.boxByKey.get(selection.key);
  return box === undefined || box === 0 ? null : ~box;
}

export function selectionOf(hierarchy: Hierarchy, child: number, side: number): Selection {
  if (isBox(child)) return { kind: "box", key: hierarchy.boxes[~child]!.key, side };
  return { kind: "unit", key: hierarchy.units[child]!.key, side };
}

/** The item that shows a child, or the closed box it is in. */
export function itemOf(view: View, child: number): number {
  if (!isBox(child)) return view.itemOfUnit[child]!;
  const { boxes, order } = view.hierarchy;
  const own = view.itemByKey.get(boxItemKey(boxes[~child]!.key));
  if (own !== undefined) return own;
  const parent = boxes[~child]!.parent;
  const around = view.itemByKey.get(boxItemKey(boxes[parent]?.key ?? ""));
  if (around !== undefined && view.items[around]!.isOpen) return around; // a block that its run shows
  return view.itemOfUnit[order[boxes[~child]!.low]!]!;
}

/** The child that an item shows: for an open run, the block it shows. */
export function childShown(view: View, at: number): number {
  const { child, block } = view.items[at]!;
  return block >= 0 ? ~view.hierarchy.boxes[~child]!.blocks[block]! : child;
}
