// Takes the links of a view apart into what each open box has to lay out: its children, ports on its border, and the
// pieces of links between them. A link enters an open box through its top and leaves it through its bottom.

import type { View } from "./view";

/** The end of a piece: a child (by its number among the children) or a port of the box itself. */
export interface End {
  at: number; // 0 <= at < children: a child; then the ports in, then the ports out
  port: number; // of an open child: which of its ports; -1 for others
}

export interface Piece {
  from: End;
  to: End;
  links: number[];
  label: string;
  isFeedback: boolean;
}

/** What is to be laid out inside one open item. */
export interface LocalGraph {
  item: number;
  children: number[]; // items
  ins: number; // ports on the top
  outs: number; // ports on the bottom
  pieces: Piece[];
}

const MOST_PORTS = 6;

/** The local graph of every open item, by item. */
export function localGraphs(view: View): Map<number, LocalGraph> {
  const drafts = new Map<number, Draft>();
  view.items.forEach((item, i) => {
    if (item.isOpen) drafts.set(i, new Draft(i, item.children));
  });
  view.links.forEach((link, l) => {
    if (!link.isCut) addLink(view, drafts, l);
  });
  return new Map([...drafts].map(([item, draft]) => [item, draft.finished()]));
}

function addLink(view: View, drafts: Map<number, Draft>, l: number): void {
  const { items, links } = view;
  const { from: source, to: target, isFeedback, label } = links[l]!;
  let above = source;
  let below = target;
  let port = -1;
  const entering: number[] = []; // items from the target up to, not including, the shared box
  const climb = (): void => {
    const outer = items[above]!.parent;
    port = drafts.get(outer)!.leave(above, port, source, l);
    above = outer;
  };
  while (items[above]!.depth > items[below]!.depth) climb();
  while (items[below]!.depth > items[above]!.depth) {
    entering.push(below);
    below = items[below]!.parent;
  }
  while (items[above]!.parent !== items[below]!.parent) {
    climb();
    entering.push(below);
    below = items[below]!.parent;
  }
  entering.push(below);
  const shared = drafts.get(items[above]!.parent)!;
  let inner = entering.length > 1 ? drafts.get(below)!.portIn(source) : -1;
  shared.join(above, port, below, inner, l, label, isFeedback);
  for (let i = entering.length - 1; i > 0; i--) {
    const box = drafts.get(entering[i]!)!;
    const child = entering[i - 1]!;
    const next = i > 1 ? drafts.get(child)!.portIn(source) : -1;
    box.enter(inner, child, next, l);
    inner = next;
  }
}

class Draft {
  private readonly numbers: Map<number, number>;
  private readonly ins = new Map<number, number>();
  private readonly outs = new Map<number, number>();
  private readonly known = new Map<string, Piece>();

  constructor(
    private readonly item: number,
    private readonly children: number[],
  ) {
    this.numbers = new Map(children.map((child, i) => [child, i]));
  }

  portIn(source: number): number {
    return portOf(this.ins, source);
  }

  /** A piece from a child to the bottom; returns the port it takes. */
  leave(child: number, port: number, source: number, link: number): number {
    const out = portOf(this.outs, source);
    this.add({ at: this.numbers.get(child)!, port }, { at: out, port: OUT }, link, "", false);
    return out;
  }

  /** A piece from a port on the top to a child. */
  enter(into: number, child: number, port: number, link: number): void {
    this.add({ at: into, port: IN }, { at: this.numbers.get(child)!, port }, link, "", false);
  }

  join(from: number, fromPort: number, to: number, toPort: number, link: number, label: string, isFeedback: boolean): void {
    const source = { at: this.numbers.get(from)!, port: fromPort };
    this.add(source, { at: this.numbers.get(to)!, port: toPort }, link, label, isFeedback);
  }

  private add(from: End, to: End, link: number, label: string, isFeedback: boolean): void {
    const key = `${from.at} ${from.port} ${to.at} ${to.port}`;
    const piece = this.known.get(key);
    if (!piece) {
      this.known.set(key, { from, to, links: [link], label, isFeedback });
      return;
    }
    if (piece.links.at(-1) === link) return;
    piece.links.push(link);
    piece.label = piece.label === label ? label : "";
  }

  finished(): LocalGraph {
    const [ins, outs] = [countOf(this.ins), countOf(this.outs)];
    const first = this.children.length;
    const settled = (end: End): End => {
      if (end.port === IN) return { at: first + end.at, port: -1 };
      if (end.port === OUT) return { at: first + ins + end.at, port: -1 };
      return end;
    };
    const pieces = [...this.known.values()].map((piece) => ({ ...piece, from: settled(piece.from), to: settled(piece.to) }));
    return { item: this.item, children: this.children, ins, outs, pieces };
  }
}

const IN = -2; // marks the end of a piece at a port of the box itself, until the number of ports is known
const OUT = -3;

/** The port of a source; when there are many, the later ones share the last. */
function portOf(ports: Map<number, number>, source: number): number {
  const known = ports.get(source);
  if (known !== undefined) return known;
  const made = Math.min(ports.size, MOST_PORTS - 1);
  ports.set(source, made);
  return made;
}

function countOf(ports: Map<number, number>): number {
  return Math.min(ports.size, MOST_PORTS);
}
