// A few words about what is under the pointer.

import { el, replace } from "../../shared/dom";
import type { Guide } from "../guide";
import type { Hit } from "../pane/hit";
import * as format from "../../shared/format";
import { placeBeside } from "../../shared/tip";

const DELAY = 350;

export class Tip {
  readonly element = el("div", { class: "tip", hidden: true });
  private timer = 0;
  private key = "";

  hide(): void {
    window.clearTimeout(this.timer);
    this.key = "";
    this.element.hidden = true;
  }

  follow(guide: Guide, side: number, hit: Hit | null, pointer: [number, number], canvas: HTMLElement): void {
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
  const stage = guide.stages[side]!;
  const { scene, coloring } = stage;
  if (!scene) return [];
  const { view } = scene;
  const faces = guide.modelIndex(side).faces(guide.state.facts);
  if (hit.kind === "control")
    return [
      { previous: "The block before ([)", next: "The next block (])", all: "Show all blocks", one: "Show one for all" }[
        hit.control
      ],
    ];
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
  const hint = item.child < 0 ? (item.isOpen ? (hit.isHeader ? "click to close" : "") : "click to open") : "";
  if (item.isOpen && !hit.isHeader) return [];
  return [[face.title, face.kind, face.badge].filter(Boolean).join("  "), ...face.lines, figure, hint].filter(Boolean);
}
