// What travels along an edge.

import { categoryOf } from "../../shared/color";
import { el } from "../../shared/dom";
import type { Guide } from "../guide";
import { linksOfEdge } from "../drawing/marks";
import type { PanelContent } from "./node_panel";
import { facts, row, section } from "./panel_parts";
import type { Selection } from "../state/state";
import * as format from "../../shared/format";

const MOST = 100;

export function edgePanel(guide: Guide, selection: Selection): PanelContent | null {
  const { theme } = guide;
  const { side } = selection;
  const view = guide.stages[side]?.view;
  if (!view) return null;
  const { payload, wires } = view.hierarchy;
  const links = linksOfEdge(view, selection).map((link) => view.links[link]!);
  const numbers = new Set(links.flatMap((link) => link.wires).flatMap((wire) => wires.edges[wire]!));
  const edges = [...numbers].map((edge) => payload.edges[edge]!);
  if (!edges.length) return null;
  const sizes = new Map(edges.map((edge) => [edge.from, edge.bytes])); // each tensor once
  const bytes = [...sizes.values()].reduce((sum, size) => sum + size, 0);
  const faces = guide.modelIndex(side).faces(guide.state.facts);
  const names = [links[0]!.from, ...links.map((link) => link.to)].map((item) => faces.nameOf(view, item));
  const returning = new Set(payload.edges.filter((edge) => edge.gradient).map((edge) => `${edge.to} ${edge.from}`));
  const parts = edges.slice(0, MOST).map((edge) => {
    const [from, to] = [payload.nodes[edge.from]!, payload.nodes[edge.to]!];
    const color = (node: typeof from): string => theme.categories[categoryOf(node)].accent;
    const name = (node: typeof from): string => (node.num_passes > 1 ? node.key : node.label);
    return el(
      "div",
      { class: "cargo" },
      row({ title: name(from), note: "from", color: color(from), onClick: () => guide.goToNode(side, edge.from) }),
      row({ title: name(to), note: "to", color: color(to), onClick: () => guide.goToNode(side, edge.to) }),
      facts([
        ["tensor", [edge.shape ? format.shape(edge.shape) : "shapes differ", edge.dtype].filter(Boolean).join(" · ")],
        ["size", format.bytes(edge.bytes)],
        ["argument", edge.positions.join(", ")],
        ["memory", edge.memory ? "only through memory that both share" : null],
        ["gradient", returning.has(`${edge.from} ${edge.to}`) ? "comes back along it" : null],
      ]),
    );
  });
  const more = edges.length > MOST ? el("p", { class: "note", text: `… and ${edges.length - MOST} more` }) : null;
  return {
    title: `${names[0]} → ${names.length > 2 ? `${names.length - 1} boxes` : names[1]}`,
    kind: "edge",
    color: theme.edge,
    subtitle: `${format.plural(sizes.size, "tensor")}, ${format.bytes(bytes)}`,
    key: "",
    body: [section(edges.length === 1 ? "What travels" : `What travels, ${edges.length} times`, ...parts, more)],
  };
}
