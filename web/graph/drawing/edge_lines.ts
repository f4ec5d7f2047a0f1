// The edges inside an open box, joined into few shapes, so that drawing them takes few strokes.

import type { Scene } from "../layout/scene";
import { Shape, addHead, addRoute } from "./shapes";
import type { LocalGraph, Piece } from "../layout/wiring";

export const EDGE_WIDTHS = [1.2, 1.9, 2.8]; // by the size of the tensor

interface EdgeLines {
  plain: Shape[]; // by width
  dashed: Shape;
  heads: Shape;
}

const knownLines = new WeakMap<LocalGraph, EdgeLines>();

/** The edges inside an open item, from its corner; made when they are first seen. */
export function edgeLines(scene: Scene, local: LocalGraph): EdgeLines {
  const known = knownLines.get(local);
  if (known) return known;
  const made: EdgeLines = { plain: EDGE_WIDTHS.map(() => new Shape()), dashed: new Shape(), heads: new Shape() };
  const layout = scene.layouts.get(local.item)!;
  local.pieces.forEach((piece, p) => {
    const isLast = endsAtChild(local, piece);
    const { isMemory, size } = cargo(scene, piece.links[0]!);
    addRoute(piece.isFeedback || isMemory ? made.dashed : made.plain[size]!, layout.routes[p]!, isLast);
    if (isLast) addHead(made.heads, layout.routes[p]!);
  });
  knownLines.set(local, made);
  return made;
}

/** Whether a piece ends at a closed child, with an arrow head, rather than at a port. */
export function endsAtChild(local: LocalGraph, piece: Piece): boolean {
  return piece.to.at < local.children.length && piece.to.port < 0;
}

/** What a link carries: how large (0 to 2), and whether only through shared memory. */
function cargo(scene: Scene, link: number): { isMemory: boolean; size: number } {
  const { hierarchy, links } = scene.view;
  const edge = hierarchy.payload.edges[hierarchy.wires.edges[links[link]!.wires[0]!]![0]!]!;
  return { isMemory: edge.memory, size: edge.bytes < 2 ** 18 ? 0 : edge.bytes < 2 ** 23 ? 1 : 2 };
}
