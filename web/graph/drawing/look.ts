// What is written on boxes, and how large they are.

import { type Hierarchy, firstCall, firstNode, isBox, unitsOf } from "../model/hierarchy";
import { type Measures, type MetricName, ownMetrics } from "../model/measures";
import type { ModuleCall, OpNode } from "../model/payload";
import type { Item, View } from "../layout/view";
import * as format from "../../shared/format";

type Figure = Exclude<MetricName, "type">;
export type FactName = "name" | "shape" | "dtype" | "edges" | Figure;

/** What the reader can choose; the others are written when boxes are coloured by them. */
export const FACT_TITLES: Partial<Record<FactName, string>> = {
  name: "Names",
  shape: "Shapes",
  dtype: "Data types",
  params: "Parameters",
  time: "Time",
  memory: "Memory",
  flops: "FLOPs",
  edges: "Shapes on edges",
};

const TITLE_FONT = "600 13px";
export const TEXT_FONT = "11px";
export const FAMILY = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif';

export type Measure = (text: string, font: string) => number;

/** A reference to a hub, as it is written at a consumer. */
interface Chip {
  text: string;
  width: number;
  from: number; // item
}

interface Words {
  title: string;
  kind: string; // beside the title: the class of a module
  badge: string; // ×12, or the pass
  lines: string[];
}

/** What is written on an item. */
export interface Face extends Words {
  chips: Chip[];
  width: number;
  height: number;
  titleWidth: number;
  badgeWidth: number;
}

const LONGEST_TITLE = 40;
const LONGEST_LINE = 44;
const WIDEST = 300;
const NARROWEST = 96;
export const LINE = 14;
export const CHIP_HEIGHT = 17;
export const HEADER = 32;
export const PADDING = 16;
const MOST_CHIPS = 3;

export class Faces {
  private readonly widths = new Map<string, number>();
  private readonly kept = new Map<string, Face>();

  constructor(
    private readonly hierarchy: Hierarchy,
    private readonly measures: Measures,
    private readonly facts: ReadonlySet<FactName>,
    private readonly measure: Measure,
  ) {}

  width(text: string, font: string): number {
    const key = font + text;
    let known = this.widths.get(key);
    if (known === undefined) this.widths.set(key, (known = this.measure(text, `${font} ${FAMILY}`)));
    return known;
  }

  /** The face of an item; the same object for the same item with the same references. */
  of(view: View, item: Item): Face {
    const outer = item.parent >= 0 ? view.items[item.parent]!.key : "";
    const key = `${item.key} ${item.isOpen} ${item.block} ${outer} ${item.feeds} ${item.references.map((one) => one.from).join()}`;
    let face = this.kept.get(key);
    if (!face) {
      const isModule = isBox(item.child);
      const text = isModule ? this.boxFace(view, item) : this.unitFace(view, item);
      face = this.sized(text, this.chips(view, item), isModule, item.isOpen);
      this.kept.set(key, face);
    } else if (face.chips.length) face = { ...face, chips: this.chips(view, item) };
    return face;
  }

  private unitFace(view: View, item: Item): Words {
    const { units, payload, rolled } = this.hierarchy;
    const unit = units[item.child]!;
    const node = firstNode(this.hierarchy, item.child);
    const lines: string[] = [];
    const own = payload.modules[unit.shell[0] ?? -1];
    const what = titleOf(node);
    const name = own ? shortAddress(own.address, this.addressAround(view, item.parent)) : what;
    const kind = own ? what : what === node.kind || !END_KINDS.has(node.kind) ? "" : node.kind;
    if (this.facts.has("name")) lines.push(format.shortened(node.label, LONGEST_LINE));
    const shapes = new Set(unit.members.map((one) => format.shape(payload.nodes[one]!.shape)));
    const shape = shapes.size > 1 ? "shapes differ" : node.shape === null ? "" : [...shapes][0]!;
    lines.push(...this.factLines(this.tensorFacts(shape, node.dtype), item.child));
    if (node.inplace) lines[lines.length - 1] += " · in place";
    if (node.kind === "failed") lines.push(format.shortened(`raised ${node.error || "an error"}`, LONGEST_LINE));
    if (item.feeds) lines.push(`feeds ${item.feeds} boxes`);
    const pass = node.num_passes > 1 && !rolled ? `${node.pass}/${node.num_passes}` : "";
    const passes = passesOf(payload.nodes, unit.members);
    const results = unit.members.length / passes;
    if (results > 1) lines.push(`${format.plural(results, "result")} of one call`);
    const badge = passes > 1 ? `×${passes}` : pass;
    return { title: format.shortened(name, LONGEST_TITLE), kind: format.shortened(kind, 30), badge, lines };
  }

  private boxFace(view: View, item: Item): Words {
    const { boxes, payload } = this.hierarchy;
    const box = boxes[~item.child]!;
    if (box.kind === "root") return { title: payload.title, kind: "", badge: "", lines: [] };
    const title = this.boxTitle(view, item);
    if (box.kind === "ports" && item.isOpen) return { ...title, kind: box.title, lines: [] };
    if (box.kind === "ports") return { ...title, lines: this.portLines(~item.child) };
    if (box.kind === "chip") return { ...title, lines: [] };
    const lines: string[] = [];
    if (item.isOpen) return { ...title, lines };
    if (box.kind === "run")
      lines.push([`${box.blocks.length} equal blocks`, this.sharing(~item.child)].filter(Boolean).join(" · "));
    lines.push(...this.factLines([format.plural(this.measures.operations(item.child), "operation")], item.child));
    const [first, last] = [firstCall(this.hierarchy, ~item.child), this.lastCall(~item.child)];
    if (first && last && this.facts.has("shape")) lines.push(throughShapes(first, last));
    if (item.feeds) lines.push(`feeds ${item.feeds} boxes`);
    return { ...title, lines: lines.filter(Boolean) };
  }

  /** The name of a box, as short as its surroundings allow, with its class and how often it is there. */
  private boxTitle(view: View, item: Item): { title: string; kind: string; badge: string } {
    const box = this.hierarchy.boxes[~item.child]!;
    const outer = this.addressAround(view, item.parent);
    const call = firstCall(this.hierarchy, ~item.child);
    const kind = format.shortened(call?.class ?? "", 30);
    if (box.kind === "run") {
      const title = this.runTitle(box.blocks, item.block, outer);
      const badge = item.block >= 0 ? `${item.block + 1} of ${box.blocks.length}` : `×${box.blocks.length}`;
      return { title: format.shortened(title, LONGEST_TITLE), kind, badge };
    }
    const title = this.relative(~item.child, outer);
    if (box.kind === "chip")
      return { title, kind: format.plural(this.measures.operations(item.child), "operation"), badge: "" };
    if (box.kind === "list") return { title, kind: format.plural(this.modulesIn(~item.child), "module"), badge: "" };
    if (!call) return { title, kind, badge: "" };
    const pass = call.num_calls > 1 ? `call ${call.call}/${call.num_calls}` : "";
    const badge = box.modules.length > 1 ? `×${box.modules.length}` : pass;
    return { title: format.shortened(title, LONGEST_TITLE), kind, badge };
  }

  /** The address of a box, without that of the module around it. */
  relative(b: number, outer: string): string {
    const box = this.hierarchy.boxes[b]!;
    if (box.kind === "step") return this.stepTitle(b);
    if (box.kind === "segment") return this.segmentTitle(b);
    if (box.kind === "chip") return box.title;
    if (box.kind === "ports") return format.plural(box.high - box.low, firstNode(this.hierarchy, ~b).kind); // `24 outputs`
    return shortAddress(box.kind === "list" ? box.title : (firstCall(this.hierarchy, b)?.address ?? ""), outer);
  }

  /** What a stack of equal blocks is called: the list that holds them, `layers`, or the first and the last of them. */
  private runTitle(blocks: number[], block: number, outer: string): string {
    const addresses = blocks.map((b) => firstCall(this.hierarchy, b)?.address ?? "");
    const list = addresses[0]!.replace(/\.\d+$/, "");
    const isList = list !== addresses[0] && addresses.every((address) => address.replace(/\.\d+$/, "") === list);
    if (isList && this.hierarchy.boxes[blocks[0]!]!.kind !== "step" && list !== outer)
      return block >= 0 ? `${shortAddress(list, outer)}.${addresses[block]!.split(".").at(-1)!}` : shortAddress(list, outer);
    const shown = block >= 0 ? [blocks[block]!] : [blocks[0]!, blocks.at(-1)!];
    return shown.map((b) => this.relative(b, outer)).join(" … ");
  }

  private addressAround(view: View, at: number): string {
    const { boxes, payload } = this.hierarchy;
    for (let i = at; i > 0; i = view.items[i]!.parent) {
      const item = view.items[i]!;
      const box = boxes[~item.child]!;
      const inner = item.block >= 0 ? boxes[box.blocks[item.block]!]! : box;
      if (inner.modules.length) return payload.modules[inner.modules[0]!]!.address;
    }
    return "";
  }

  private segmentTitle(b: number): string {
    const { low, high } = this.hierarchy.boxes[b]!;
    return `operations ${format.count(low + 1)} – ${format.count(high)}`;
  }

  /** How many modules of a list ran, each block of a run counted. */
  private modulesIn(b: number): number {
    const { boxes } = this.hierarchy;
    const inside = boxes[b]!.children.filter(isBox).map((child) => boxes[~child]!);
    return inside.reduce((sum, box) => sum + (box.kind === "run" ? box.blocks.length : 1), 0);
  }

  private portLines(b: number): string[] {
    const shape = someOf(unitsOf(this.hierarchy, ~b).map((unit) => format.shape(firstNode(this.hierarchy, unit).shape)));
    const name = this.facts.has("name") ? format.shortened(this.hierarchy.boxes[b]!.title, LONGEST_LINE) : "";
    const facts = this.tensorFacts(shape, firstNode(this.hierarchy, ~b).dtype);
    return [name, ...this.factLines(facts, ~b)].filter(Boolean);
  }

  private tensorFacts(shape: string, dtype: string | null): string[] {
    return [this.facts.has("shape") ? shape : "", this.facts.has("dtype") ? (dtype ?? "") : ""];
  }

  private stepTitle(b: number): string {
    const { boxes } = this.hierarchy;
    let run = boxes[b]!.parent;
    while (boxes[run]!.kind !== "run") run = boxes[run]!.parent;
    return `step ${boxes[run]!.blocks.indexOf(b) + 1}`;
  }

  /** Whether the blocks of a run have the same parameters. */
  sharing(b: number): string {
    const { boxes, payload } = this.hierarchy;
    const ids = boxes[b]!.blocks.map((block) => payload.modules[boxes[block]!.modules[0] ?? -1]?.params_id);
    if (ids.includes(undefined) || this.measures.of("params", ~b) === 0) return "";
    return new Set(ids).size === 1 ? "same parameters" : "own parameters";
  }

  private lastCall(b: number): ModuleCall | undefined {
    const { boxes, payload } = this.hierarchy;
    const box = boxes[b]!;
    return payload.modules[(box.kind === "run" ? boxes[box.blocks.at(-1)!]! : box).modules.at(-1) ?? -1];
  }

  private factLines(start: string[], child: number): string[] {
    const found = start.filter(Boolean);
    const add = (fact: Figure, write: (value: number) => string): void => {
      const value = this.facts.has(fact) ? this.measures.of(fact, child) : null;
      if (value) found.push(write(value));
    };
    add("params", (value) => `${format.human(value)} params`);
    add("time", format.time);
    add("memory", format.bytes);
    add("flops", format.flops);
    add("norm", (value) => `norm ${format.figure(value)}`);
    add("zeros", (value) => `${format.percent(value)} zeros`);
    add("gradient", (value) => `gradient ${format.figure(value)}`);
    add("nonfinite", (value) => `${format.human(value)} NaN or infinite`);
    for (const one of ownMetrics(this.hierarchy.payload)) add(one.name, (value) => `${one.title} ${one.write(value)}`);
    const lines: string[] = [];
    for (const fact of found) {
      const last = lines.at(-1);
      if (last !== undefined && last.length + fact.length < 30) lines[lines.length - 1] = `${last} · ${fact}`;
      else lines.push(fact);
    }
    return lines;
  }

  private chips(view: View, item: Item): Chip[] {
    const chip = (text: string, from: number): Chip => ({ text, width: Math.ceil(this.width(text, TEXT_FONT)) + 14, from });
    const shown = item.references.slice(0, MOST_CHIPS);
    const made = shown.map(({ from }) => chip(`← ${format.shortened(this.nameOf(view, from), 22)}`, from));
    const more = item.references.length - made.length;
    return more > 0 ? [...made, chip(`and ${more} more`, item.references[MOST_CHIPS]!.from)] : made;
  }

  /** What an item is called where there is little room. */
  nameOf(view: View, at: number): string {
    const item = view.items[at]!;
    if (isBox(item.child)) return this.boxTitle(view, item).title;
    const node = firstNode(this.hierarchy, item.child);
    return END_KINDS.has(node.kind) ? titleOf(node) : node.label;
  }

  private sized(text: Words, chips: Chip[], isModule: boolean, isOpen: boolean): Face {
    const titleWidth = this.width(text.title, TITLE_FONT);
    const kindWidth = text.kind ? this.width(text.kind, TEXT_FONT) + 8 : 0;
    const badgeWidth = text.badge ? Math.ceil(this.width(text.badge, TEXT_FONT)) + 12 : 0;
    const inner = Math.max(
      titleWidth + kindWidth + (badgeWidth ? badgeWidth + 10 : 0),
      ...text.lines.map((line) => this.width(line, TEXT_FONT)),
      ...chips.map((chip) => chip.width),
    );
    const sides = isModule ? 36 : 29; // the left edge of the words, and as much as looks even on the right
    const width = Math.round(Math.min(WIDEST, Math.max(NARROWEST, inner + sides)) / 2) * 2;
    const rows = 17 + text.lines.length * LINE + chips.length * (CHIP_HEIGHT + 3);
    return { ...text, chips, width, height: isOpen ? HEADER : rows + (isModule ? 22 : 15), titleWidth, badgeWidth };
  }
}

const END_KINDS = new Set(["input", "output", "source"]);

/** What people call an operation, an input or an output: `max_pool2d`, `input_ids`. */
export function titleOf(node: OpNode): string {
  return node.title || node.function || node.type;
}

/** How many passes some nodes are of: fewer than nodes, if a call made several tensors. */
export function passesOf(nodes: OpNode[], members: number[]): number {
  return new Set(members.map((one) => (nodes[one]!.call < 0 ? one : nodes[one]!.call))).size;
}

/** An address without that of the module around it; a bare number keeps the name it is a number of. */
export function shortAddress(address: string, outer: string): string {
  if (!outer || !address.startsWith(`${outer}.`)) return address;
  const parts = address.split(".");
  let first = outer.split(".").length;
  while (first > 0 && /^\d+$/.test(parts[first]!)) first--;
  return parts.slice(first).join(".");
}

/** The first of some texts, and whether there are others. */
function someOf(texts: string[]): string {
  return new Set(texts).size > 1 ? `${texts[0]}, …` : (texts[0] ?? "");
}

function throughShapes(first: ModuleCall, last: ModuleCall): string {
  const [before, after] = [first.input_shapes, last.output_shapes].map((shapes) => someOf(shapes.map(format.shape)));
  if (!before && !after) return "";
  return before === after ? before! : format.shortened(`${before || "–"} → ${after || "–"}`, LONGEST_LINE);
}
