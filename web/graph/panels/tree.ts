// The graph as an outline: the same items, open and closed in step with the picture, for reading and for the keyboard.

import { el } from "../../shared/dom";
import type { Guide } from "../guide";
import { titleOf } from "../model/compare";
import { isBox } from "../model/hierarchy";
import { List } from "./list";
import { dot } from "./panel_parts";
import { childOf, childShown, itemOf } from "../model/model_index";
import * as format from "../../shared/format";
import { clamp } from "../../shared/scale";

const ROW = 26;

export class Tree {
  readonly element: HTMLElement;
  private readonly list: List;
  private readonly whose = el("p", { class: "note", hidden: true }); // of two models
  private active = 0; // row

  constructor(private readonly guide: Guide) {
    this.list = new List({
      rowHeight: ROW,
      role: "tree",
      label: "Modules and operations",
      row: (index) => this.row(index + 1),
      onKey: (event) => this.key(event),
    });
    this.element = el("nav", { class: "tree", label: "Outline" }, this.whose, this.list.element);
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
    this.whose.hidden = this.guide.docs.length < 2;
    this.whose.textContent = titleOf(this.guide, this.side);
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
    const { measures, palette } = this.guide.modelIndex(this.side);
    const isModule = isBox(item.child);
    const mark = isModule
      ? el("span", { class: "twist", text: item.isOpen ? "▾" : "▸" })
      : dot(this.guide.theme.categories[palette.category(item.child)].accent);
    const { title, kind: note } = face;
    const found = marks?.matches?.[at] ?? 0;
    const aria = { level: item.depth, selected: marks?.selected === at, ...(isModule ? { expanded: item.isOpen } : {}) };
    const made = el(
      "div",
      { class: "tree-row", id: `tree-${at - 1}`, role: "treeitem", aria, on: { click: (event) => this.click(at, event) } },
      mark,
      el("span", { class: isModule ? "name box" : "name", title }, ...cutInMiddle(title)),
      note ? el("span", { class: "row-note", text: note }) : null,
      face.badge ? el("span", { class: "pill", text: face.badge }) : null,
      found ? el("span", { class: "pill match", text: isModule && !item.isOpen ? String(found) : "●" }) : null,
      isModule ? el("span", { class: "row-detail", text: format.human(measures.operations(item.child)) }) : null,
    );
    made.style.paddingLeft = `${6 + Math.min(12, item.depth - 1) * 13}px`;
    if (at - 1 === this.active) made.classList.add("active");
    return made;
  }

  private click(at: number, event: MouseEvent): void {
    const view = this.stage.view!;
    this.active = at - 1;
    const item = view.items[at]!;
    const isTwist = (event.target as HTMLElement).classList.contains("twist");
    if (isTwist && isBox(item.child)) this.guide.toggle(this.side, item.child, { key: item.key });
    else this.guide.go(this.side, childShown(view, at));
  }

  private key(event: KeyboardEvent): void {
    const view = this.stage.view;
    if (!view || event.ctrlKey || event.metaKey || event.altKey) return;
    const item = view.items[this.active + 1];
    const move = (to: number): void => {
      this.active = clamp(to, 0, view.items.length - 2);
      this.list.scrollTo(this.active);
      this.list.refresh();
      this.list.element.setAttribute("aria-activedescendant", `tree-${this.active}`);
    };
    const isOpen = item?.isOpen;
    const toggle = (): void => this.guide.toggle(this.side, item!.child, { key: item!.key });
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

const END = 9; // characters of a long name that stay when it is cut

/** A name whose middle is cut where it has no room. */
function cutInMiddle(name: string): HTMLElement[] {
  if (name.length < 2 * END) return [el("span", { text: name })];
  return [el("span", { class: "start", text: name.slice(0, -END) }), el("span", { class: "end", text: name.slice(-END) })];
}
