// A few words about what is under the pointer.

import { el, replace } from "../../shared/dom";
import type { Guide } from "../guide";
import type { Point } from "../pane/gestures";
import type { Hit } from "../pane/hit";
import { firstNode, isBox } from "../model/hierarchy";
import type { ModelIndex } from "../model/model_index";
import * as format from "../../shared/format";
import type { Stats } from "../model/payload";
import { placeBeside } from "../../shared/tip";

const DELAY = 350; // milliseconds
const CONTROLS = {
  previous: "The previous block ([)",
  next: "The next block (])",
  all: "Show all blocks",
  one: "Show one for all",
};

export class Tip {
  readonly element = el("div", { class: "tip", hidden: true });
  private timer = 0;
  private key = "";

  hide(): void {
    window.clearTimeout(this.timer);
    this.key = "";
    this.element.hidden = true;
  }

  follow(guide: Guide, side: number, hit: Hit | null, pointer: Point, canvas: HTMLElement): void {
    const key = hit ? JSON.stringify(hit) : "";
    if (key === this.key) return;
    this.hide();
    if (!hit) return;
    this.key = key;
    this.timer = window.setTimeout(() => {
      const lines = linesOf(guide, side, hit);
      if (!lines.length) return;
      replace(this.element, ...lines.map((text, i) => el(i ? "div" : "strong", { text })));
      this.element.hidden = false;
      const box = canvas.getBoundingClientRect();
      placeBeside(this.element, box.left + pointer[0], box.top + pointer[1]);
    }, DELAY);
  }
}

function linesOf(guide: Guide, side: number, hit: Hit): string[] {
  const { scene, coloring } = guide.stages[side]!;
  if (!scene) return [];
  const { view } = scene;
  const faces = guide.modelIndex(side).faces(guide.state.facts);
  if (hit.kind === "control") return [CONTROLS[hit.control]];
  if (hit.kind === "chip") return [`From ${faces.nameOf(view, hit.from)}`, "drawn as a reference, since it feeds many boxes"];
  if (hit.kind === "edge") {
    const links = hit.links.map((link) => view.links[link]!);
    const edge = view.hierarchy.payload.edges[view.hierarchy.wires.edges[links[0]!.wires[0]!]![0]!]!;
    const ends = links.length > 1 ? `${links.length} boxes` : faces.nameOf(view, links[0]!.to);
    return [
      `${faces.nameOf(view, links[0]!.from)} → ${ends}`,
      [edge.shape ? format.shape(edge.shape) : "", edge.dtype, format.bytes(edge.bytes)].filter(Boolean).join(" · "),
      links[0]!.label,
    ];
  }
  const face = scene.faces[hit.item]!;
  const item = view.items[hit.item]!;
  const value = coloring?.value(hit.item) ?? null;
  const metric = coloring?.legend.metric;
  const figure = value !== null && metric ? `${metric.title}: ${metric.write(value)}` : "";
  if (item.isOpen && !hit.isHeader) return [];
  const hint = isBox(item.child) ? (item.isOpen ? "click to close" : "click to open") : "";
  const modelIndex = guide.modelIndex(side);
  const title = [face.title, face.kind, face.badge].filter(Boolean).join("  ");
  const known = isBox(item.child) ? boxLines(modelIndex, item.child) : unitLines(modelIndex, item.child);
  const isWritten = (line: string): boolean => face.lines.some((written) => written.includes(line)) || face.title === line;
  return [title, ...known.filter((line) => line && !isWritten(line)), figure, hint].filter(Boolean);
}

/** What is known of an operation beyond what is written on its box: where it is, how it was called, what came out. */
function unitLines({ hierarchy, measures }: ModelIndex, unit: number): string[] {
  const { payload } = hierarchy;
  const { shell } = hierarchy.units[unit]!;
  const node = firstNode(hierarchy, unit);
  const { stats } = node;
  const [file = -1, line = -1] = node.stack[node.source] ?? [];
  const source = payload.files[file];
  return [
    payload.modules[shell[0] ?? node.module]?.address ?? "",
    node.arguments ? format.shortened(`${node.function}(${node.arguments})`, 90) : "",
    stats && stats.mean !== null ? spread(stats) : "",
    costLine(measures, unit, payload.facts.seconds),
    source ? format.shortened(`${format.baseName(source.path)}:${line}  ${source.lines[line]?.trim() ?? ""}`, 90) : "",
  ];
}

function spread({ mean, std, min, max }: Stats): string {
  return `${format.figure(mean)} ± ${format.figure(std)}, from ${format.figure(min)} to ${format.figure(max)}`;
}

/** Of a closed box: its address, its parameters and what it cost. */
function boxLines({ hierarchy, measures }: ModelIndex, child: number): string[] {
  const { payload, boxes } = hierarchy;
  const box = boxes[~child]!;
  const params = measures.of("params", child);
  return [
    payload.modules[box.modules[0] ?? -1]?.address ?? "",
    params ? `${format.count(params)} values of parameters` : "",
    costLine(measures, child, payload.facts.seconds),
  ];
}

function costLine(measures: ModelIndex["measures"], child: number, total: number): string {
  const [time, flops, memory] = (["time", "flops", "memory"] as const).map((name) => measures.of(name, child));
  const share = time && total ? ` (${format.percent(time / total)} of the pass)` : "";
  const parts = [time ? format.time(time) + share : "", flops ? format.flops(flops) : "", memory ? format.bytes(memory) : ""];
  return parts.filter(Boolean).join(" · ");
}
