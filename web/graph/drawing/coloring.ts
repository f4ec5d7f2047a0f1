// Which colour each item has, by type or by a measured figure, and what the legend says about it.

import { type Category, CATEGORY_TITLES, type Theme, categoryOf, rampColor, readableInk } from "../../shared/color";
import { share } from "../../shared/scale";
import { type Hierarchy, isBox } from "../model/hierarchy";
import { type Measures, type Metric, type MetricName, metricsOf } from "../model/measures";
import type { Payload } from "../model/payload";
import type { View } from "../layout/view";

export interface Paint {
  fill: string;
  accent: string;
  ink: string;
  faint: string;
}

/** Shares of the categories inside a closed box, largest first. */
export type Composition = [Category, number][];

export interface Legend {
  metric: Metric;
  categories: Category[]; // that are seen, when coloured by type
  low: number;
  high: number;
  isLog: boolean;
  hasUnknown: boolean;
  isEmpty: boolean; // nothing is known
}

/** What the pictures of one hierarchy share: categories and compositions. */
export class Palette {
  private readonly categories: Category[];
  private readonly compositions = new Map<number, Composition>();

  constructor(readonly hierarchy: Hierarchy) {
    const { units, payload } = hierarchy;
    this.categories = units.map((unit) => categoryOf(payload.nodes[unit.members[0]!]!));
  }

  category(unit: number): Category {
    return this.categories[unit]!;
  }

  /** The category that all of a child is of: a unit, or equal inputs or outputs; null of other boxes. */
  common(child: number): Category | null {
    if (!isBox(child)) return this.categories[child]!;
    const { boxes, order } = this.hierarchy;
    return boxes[~child]!.kind === "ports" ? this.categories[order[boxes[~child]!.low]!]! : null;
  }

  composition(b: number): Composition {
    const known = this.compositions.get(b);
    if (known) return known;
    const { boxes, order } = this.hierarchy;
    const counts = new Map<Category, number>();
    for (let p = boxes[b]!.low; p < boxes[b]!.high; p++) {
      const category = this.categories[order[p]!]!;
      counts.set(category, (counts.get(category) ?? 0) + 1);
    }
    const total = boxes[b]!.high - boxes[b]!.low;
    const names = Object.keys(CATEGORY_TITLES) as Category[];
    const made = names.filter((name) => counts.has(name)).map((name): [Category, number] => [name, counts.get(name)! / total]);
    this.compositions.set(b, made);
    return made;
  }
}

/** The paint of every item of a view. */
export class Coloring {
  readonly legend: Legend;
  private readonly values: (number | null)[] = [];

  constructor(
    view: View,
    private readonly palette: Palette,
    measures: Measures,
    private readonly theme: Theme,
    name: MetricName,
    scale: "auto" | "linear" | "log",
  ) {
    const metrics = metricsOf([view.hierarchy.payload]);
    const metric = metrics.find((one) => one.name === name) ?? metrics[0]!;
    const leaves = view.items.filter((item) => !item.isOpen);
    if (metric.name === "type") {
      const seen = new Set(leaves.filter((item) => !isBox(item.child)).map((item) => palette.category(item.child)));
      for (const item of leaves) if (isBox(item.child)) for (const [one] of palette.composition(~item.child)) seen.add(one);
      const categories = (Object.keys(CATEGORY_TITLES) as Category[]).filter((one) => seen.has(one));
      this.legend = { metric, categories, low: 0, high: 0, isLog: false, hasUnknown: false, isEmpty: false };
      return;
    }
    this.values = view.items.map((item) => (item.isOpen ? null : measures.of(metric.name, item.child)));
    const known = this.values.filter((value): value is number => value !== null);
    const { payload } = view.hierarchy;
    const isError = payload.verdict !== "" && metric.name.startsWith("own ");
    const [low, high] = extremes(isError ? errorsOf(payload, metric.name) : known); // the same scale on both sides
    const isWide = metric.name !== "zeros" && high > 50 * (smallestAbove(known) || high);
    const isLog = scale === "log" || (scale === "auto" && isWide && !isError); // or rounding would have a colour
    const hasUnknown = known.length < leaves.length;
    const bottom = isLog ? Math.max(low, smallestAbove(known)) : Math.min(low, 0);
    this.legend = { metric, categories: [], low: bottom, high, isLog, hasUnknown, isEmpty: known.length === 0 };
  }

  of(view: View, at: number): Paint {
    const { theme, legend } = this;
    const { child } = view.items[at]!;
    if (legend.metric.name === "type") {
      const category = this.palette.common(child);
      if (category === null) return { fill: theme.box, accent: theme.boxBorder, ink: theme.ink, faint: theme.faint };
      return { ...theme.categories[category], ink: theme.ink, faint: theme.faint };
    }
    const value = this.values[at] ?? null;
    const accent = isBox(child) ? theme.boxBorder : theme.categories[this.palette.category(child)].accent;
    if (value === null) return { fill: theme.missing, accent, ink: theme.ink, faint: theme.faint };
    const fill = rampColor(theme.costRamp, this.place(value));
    const ink = readableInk(fill);
    return { fill, accent: isBox(child) ? theme.boxBorder : ink, ink, faint: ink };
  }

  /** The figure of an item, when it is coloured by one. */
  value(at: number): number | null {
    return this.values[at] ?? null;
  }

  place(value: number): number {
    const { low, high, isLog } = this.legend;
    return share(value, low, high, isLog);
  }
}

/** The errors of all operations, as far as numbers go. */
function errorsOf(payload: Payload, metric: string): number[] {
  const at = Number(metric.replace("own ", ""));
  return payload.nodes.flatMap((node) => {
    const value = node.metrics[at] ?? null;
    return value === null || value > 1e300 ? [] : [value];
  });
}

function extremes(values: number[]): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return values.length ? [low, high] : [0, 0];
}

function smallestAbove(values: number[]): number {
  let found = Infinity;
  for (const value of values) if (value > 0 && value < found) found = value;
  return found === Infinity ? 0 : found;
}
