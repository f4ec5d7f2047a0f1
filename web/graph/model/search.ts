// Finds operations and modules by anything that is written about them.

import { type Hierarchy, isBox, startOf } from "./hierarchy";
import type { OpNode, Payload } from "./payload";
import * as format from "../../shared/format";

export interface Found {
  children: number[]; // units, and complements of boxes, in order of execution
  isInvalid: boolean; // the query is not a valid regular expression
}

type Test = (text: string) => boolean;

const FIELDS = ["label", "address", "function", "type", "class", "shape", "dtype", "source", "kind"] as const;
type Field = (typeof FIELDS)[number];

/** A shape however it is typed: 1,64,56,56 or 1x64x56x56 or torch.Size([1, 64, 56, 56]). Here it is written with ×. */
const SHAPE = /(?:^|\s)(?:torch\.size)?[([]*\s*(\d+(?:\s*[,x×*]\s*\d+)+)\s*,?\s*[)\]]*(?=\s|$)/g;

/** Searches one hierarchy. Texts are put together on the first search. */
export class Search {
  private texts: { units: string[]; boxes: string[] } | null = null;
  private last: { query: string; found: Found } | null = null;

  constructor(private readonly hierarchy: Hierarchy) {}

  find(query: string): Found {
    if (this.last?.query === query) return this.last.found;
    const found = this.search(query.trim());
    this.last = { query, found };
    return found;
  }

  private search(query: string): Found {
    if (query === "") return { children: [], isInvalid: false };
    const field = FIELDS.find((name) => query.toLowerCase().startsWith(`${name}:`));
    const test = testOf(field ? query.slice(field.length + 1).trim() : query);
    if (!test) return { children: [], isInvalid: true };
    const { units, boxes, payload } = this.hierarchy;
    const texts = field ? null : (this.texts ??= this.writeTexts());
    const unitText = (u: number): string =>
      texts ? texts.units[u]! : units[u]!.members.map((node) => fieldOf(payload, payload.nodes[node]!, field!)).join("\n");
    const boxText = (b: number): string => (texts ? texts.boxes[b]! : boxFieldOf(this.hierarchy, b, field!));
    const children: number[] = [];
    units.forEach((_, u) => {
      if (test(unitText(u))) children.push(u);
    });
    boxes.forEach((box, b) => {
      if (box.kind === "module" && test(boxText(b))) children.push(~b);
    });
    const at = (child: number): number => startOf(this.hierarchy, child) - (isBox(child) ? 0.5 : 0); // before its first unit
    children.sort((a, b) => at(a) - at(b) || b - a);
    return { children, isInvalid: false };
  }

  private writeTexts(): { units: string[]; boxes: string[] } {
    const { units, boxes, payload } = this.hierarchy;
    return {
      units: units.map((unit) => unit.members.map((node) => textOf(payload, payload.nodes[node]!)).join("\n")),
      boxes: boxes.map((_, b) => FIELDS.map((field) => boxFieldOf(this.hierarchy, b, field)).join("\n")),
    };
  }
}

/** What a query asks of a text: a regular expression between slashes, or words that must all be there. */
function testOf(query: string): Test | null {
  const regular = /^\/(.+)\/[a-z]*$/.exec(query);
  if (regular) {
    try {
      const expression = new RegExp(regular[1]!, "im");
      return (text) => expression.test(text);
    } catch {
      return null;
    }
  }
  const words: string[][] = []; // each in the ways it may be written
  const others = query.toLowerCase().replace(SHAPE, (typed: string, sizes: string) => {
    words.push([typed.trim(), sizes.replace(/\s*[,x×*]\s*/g, "×")]);
    return " ";
  });
  for (const word of others.split(/\s+/).filter(Boolean)) words.push([word]);
  return (text) => words.every((ways) => ways.some((way) => text.includes(way)));
}

function textOf(payload: Payload, node: OpNode): string {
  const [file = -1, line = -1] = node.stack[node.source] ?? [];
  const source = payload.files[file]?.lines[line] ?? "";
  const exits = node.exits.map((exit) => `${payload.modules[exit]!.address}\n${payload.modules[exit]!.class}`).join("\n");
  const inside = payload.modules[node.module]?.address ?? "";
  const text = `${node.key}\n${node.type}\n${node.function}\n${inside}\n${exits}\n${format.shape(node.shape)}\n${node.dtype}\n${node.role}`;
  return `${text}\n${source}`.toLowerCase();
}

function fieldOf(payload: Payload, node: OpNode, field: Field): string {
  const frame = node.stack[node.source];
  const texts: Record<Field, () => string> = {
    label: () => node.key,
    address: () => [node.module, ...node.exits].map((module) => payload.modules[module]?.address ?? "").join("\n"),
    function: () => node.function,
    type: () => node.type,
    class: () => node.exits.map((module) => payload.modules[module]!.class).join("\n"),
    shape: () => format.shape(node.shape),
    dtype: () => node.dtype ?? "",
    source: () =>
      frame ? `${payload.files[frame[0]]?.path}:${frame[1]} ${payload.files[frame[0]]?.lines[frame[1]] ?? ""}` : "",
    kind: () => node.kind,
  };
  return texts[field]().toLowerCase();
}

function boxFieldOf(hierarchy: Hierarchy, b: number, field: Field): string {
  const calls = hierarchy.boxes[b]!.modules.map((module) => hierarchy.payload.modules[module]!);
  const first = calls[0];
  if (!first) return "";
  if (field === "address" || field === "label") return calls.map((call) => call.key.toLowerCase()).join("\n");
  if (field === "class") return first.class.toLowerCase();
  if (field === "shape") return first.output_shapes.map(format.shape).join("\n");
  return "";
}

/** How many of the children found lie inside each range of positions: prefix counts. */
export function prefixCounts(hierarchy: Hierarchy, found: Found): Int32Array {
  const counts = new Int32Array(hierarchy.units.length + 1);
  for (const child of found.children) counts[startOf(hierarchy, child) + 1]!++;
  for (let i = 1; i < counts.length; i++) counts[i]! += counts[i - 1]!;
  return counts;
}
