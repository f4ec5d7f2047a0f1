// Which colour each item has, by type or by a measured figure, and what the legend says about it.

import { type Category, CATEGORY_TITLES, type Theme, categoryOf, rampColor, readableInk } from "../../shared/color";
import { share } from "../../shared/scale";
import { type Hierarchy, firstNode, isBox, startOf, unitsOf } from "../model/hierarchy";
import { type Measures, type Metric, type MetricName, metricsOf, ownReading } from "../model/measures";
import type { Payload } from "../model/payload";
import type { View } from "../layout/view";

export interface Paint {
  fill: string;
  accent: string;
  ink: string;
  faint: string;
}

const CATEGORIES = Object.keys(CATEGORY_TITLES) as Category[];

/** Shares of the categories inside a closed box, in the order of the legend. */
type Composition = [Category, number][];

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
    this.categories = hierarchy.units.map((_, unit) => categoryOf(firstNode(hierarchy, unit)));
  }

  category(unit: number): Category {
    return this.categories[unit]!;
  }

  /** The category of a unit, or of equal inputs or outputs; null for other boxes. */
  common(child: number): Category | null {
    const isMixed = isBox(child) && this.hierarchy.boxes[~child]!.kind !== "ports";
    return isMixed ? null : this.category(this.hierarchy.order[startOf(this.hierarchy, child)]!);
  }

  composition(b: number): Composition {
    const known = this.compositions.get(b);
    if (known) return known;
    const inside = unitsOf(this.hierarchy, ~b);
    const counts = new Map<Category, number>();
    for (const unit of inside) counts.set(this.category(unit), (counts.get(this.category(unit)) ?? 0) + 1);
    const names = CATEGORIES.filter((name) => counts.has(name));
    const made = names.map((name): [Category, number] => [name, counts.get(name)! / inside.length]);
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
      const categories = CATEGORIES.filter((one) => seen.has(one));
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

/** The errors of all operations, without those that stand for infinity. */
function errorsOf(payload: Payload, metric: MetricName): number[] {
  return payload.nodes.map(ownReading(metric)).filter((value) => value !== null && value <= 1e300) as number[];
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
