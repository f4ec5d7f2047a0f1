// The graph as an outline: the same items, open and closed in step with the picture, for reading and for the keyboard.

import { el } from "../../shared/dom";
import type { Guide } from "../guide";
import { isBox } from "../model/hierarchy";
import { List } from "./list";
import { shortAddress } from "../drawing/look";
import { childOf, childShown, itemOf } from "../model/model_index";
import * as format from "../../shared/format";

const ROW = 26;

function ownName(address: string): string {
  return shortAddress(address, address.split(".").slice(0, -1).join("."));
}

export class Tree {
  readonly element: HTMLElement;
  private readonly list: List;
  private active = 0; // row

  constructor(private readonly guide: Guide) {
    this.list = new List({
      rowHeight: ROW,
      role: "tree",
      label: "Modules and operations",
      row: (index) => this.row(index + 1),
      onKey: (event) => this.key(event),
    });
    this.element = el("nav", { class: "tree", label: "Outline" }, this.list.element);
  }

  private get side(): number {
    return this.guide.side;
  }

  private get stage(): Guide["stages"][number] {
    return this.guide.stages[this.side]!;
  }

  update(): void {
    const view = this.stage.view;
    if (!view) return;
    const { selection } = this.guide.state;
    const child = selection?.side === this.side ? childOf(view.hierarchy, selection) : null;
    if (child !== null) this.active = itemOf(view, child) - 1;
    this.active = Math.min(this.active, view.items.length - 2);
    this.list.show(view.items.length - 1);
    if (child !== null) this.list.scrollTo(this.active);
    this.list.element.setAttribute("aria-activedescendant", `tree-${this.active}`);
  }

  focus(): void {
    this.list.element.focus();
  }

  private row(at: number): HTMLElement {
    const view = this.stage.view!;
    const item = view.items[at]!;
    const face = this.stage.scene!.faces[at]!;
    const marks = this.stage.pane.picture?.marks;
    const box = isBox(item.child) ? view.hierarchy.boxes[~item.child]! : null;
    const dot = el("span", { class: box ? "twist" : "dot", text: box ? (item.isOpen ? "▾" : "▸") : "" });
    if (!box)
      dot.style.background = this.guide.theme.categories[this.guide.modelIndex(this.side).palette.category(item.child)].accent;
    const unit = box ? null : view.hierarchy.units[item.child]!;
    const node = unit ? view.hierarchy.payload.nodes[unit.members[0]!]! : null;
    const own = unit?.shell.length ? ownName(view.hierarchy.payload.modules[unit.shell[0]!]!.address) : "";
    const title = node ? (own ? own : node.label) : face.title;
    const note = node ? (own && own !== node.type ? node.type : "") : face.kind;
    const count = box ? format.human(this.guide.modelIndex(this.side).measures.operations(item.child)) : "";
    const found = marks?.matches?.[at] ?? 0;
    const made = el(
      "div",
      { class: "tree-row", id: `tree-${at - 1}`, role: "treeitem", on: { click: (event) => this.click(at, event) } },
      dot,
      el("span", { class: box ? "name box" : "name", text: title }),
      note ? el("span", { class: "row-note", text: note }) : null,
      face.badge ? el("span", { class: "pill", text: face.badge }) : null,
      found ? el("span", { class: "pill match", text: box && !item.isOpen ? String(found) : "●" }) : null,
      count ? el("span", { class: "row-detail", text: count }) : null,
    );
    made.style.paddingLeft = `${6 + Math.min(12, item.depth - 1) * 13}px`;
    made.setAttribute("aria-level", String(item.depth));
    if (box) made.setAttribute("aria-expanded", String(item.isOpen));
    const isSelected = marks?.selected === at;
    made.setAttribute("aria-selected", String(isSelected));
    if (at - 1 === this.active) made.classList.add("active");
    return made;
  }

  private click(at: number, event: MouseEvent): void {
    const view = this.stage.view!;
    this.active = at - 1;
    const item = view.items[at]!;
    const isTwist = (event.target as HTMLElement).classList.contains("twist");
    if (isTwist && isBox(item.child)) this.guide.toggle(this.side, item.child, { key: item.key, pointer: null });
    else this.guide.go(this.side, childShown(view, at));
  }

  private key(event: KeyboardEvent): void {
    const view = this.stage.view;
    if (!view || event.ctrlKey || event.metaKey || event.altKey) return;
    const item = view.items[this.active + 1];
    const move = (to: number): void => {
      this.active = Math.max(0, Math.min(view.items.length - 2, to));
      this.list.scrollTo(this.active);
      this.list.refresh();
      this.list.element.setAttribute("aria-activedescendant", `tree-${this.active}`);
    };
    const isOpen = item !== undefined && item.isOpen;
    const toggle = (): void => this.guide.toggle(this.side, item!.child, { key: item!.key, pointer: null });
    const actions: Record<string, () => void> = {
      ArrowDown: () => move(this.active + 1),
      ArrowUp: () => move(this.active - 1),
      PageDown: () => move(this.active + this.list.pageRows),
      PageUp: () => move(this.active - this.list.pageRows),
      Home: () => move(0),
      End: () => move(view.items.length - 2),
      ArrowRight: () => (item && isBox(item.child) && !isOpen ? toggle() : move(this.active + 1)),
      ArrowLeft: () => (isOpen ? toggle() : item && item.parent > 0 ? move(item.parent - 1) : undefined),
      Enter: () => item && this.guide.go(this.side, childShown(view, this.active + 1)),
      " ": () => item && isBox(item.child) && toggle(),
    };
    const act = actions[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }
}
