// What a click on the graph does, and what moving over it shows.

import type { Actions } from "../controls/actions";
import type { Guide } from "../guide";
import { isBox } from "../model/hierarchy";
import type { Control } from "./controls";
import type { Click, Point } from "./gestures";
import type { Hit } from "./hit";
import { childShown, selectionOf } from "../model/model_index";
import { type Action, SHOW_DETAILS, type Selection } from "../state/state";
import { Tip } from "../controls/tip";

export class Pointing {
  readonly tip = new Tip();
  private hasToggled = false; // the last click opened or closed something

  constructor(
    private readonly guide: Guide,
    private readonly actions: () => Actions,
    private readonly isNarrow: () => boolean,
  ) {}

  click(side: number, hit: Hit | null, event: Click): void {
    const { guide } = this;
    guide.side = side;
    this.tip.hide();
    const { view } = guide.stages[side]!;
    if (event.isSecond && !event.shift) {
      this.secondClick(side, hit);
      return;
    }
    this.hasToggled = false;
    if (!hit || !view) {
      if (guide.state.selection) guide.dispatch({ type: "select", selection: null });
      return;
    }
    if (hit.kind === "edge") guide.select(this.edgeSelection(side, hit.links));
    else if (hit.kind === "chip") guide.go(side, childShown(view, hit.from));
    else if (hit.kind === "control") this.control(hit.item, hit.control);
    else this.clickItem(side, hit, event);
  }

  /** A double click opens a closed box and closes an open one: what the first click did is not undone. */
  private secondClick(side: number, hit: Hit | null): void {
    const view = this.guide.stages[side]!.view;
    if (this.hasToggled || !view || hit?.kind !== "item") return;
    const { child, isOpen } = view.items[hit.item]!;
    if (isBox(child) && isOpen) this.guide.toggle(side, child);
  }

  /** Opens a closed box, closes an open one by its title, selects anything; with Shift, makes a path to it. */
  private clickItem(side: number, hit: Hit & { kind: "item" }, event: Click): void {
    const { guide } = this;
    const view = guide.stages[side]!.view!;
    const item = view.items[hit.item]!;
    const selection = selectionOf(view.hierarchy, childShown(view, hit.item), side);
    if (event.shift) {
      guide.apply([{ type: "path", to: selection }, SHOW_DETAILS], null);
      return;
    }
    const isToggled = isBox(item.child) && !event.plain && (!item.isOpen || hit.isHeader);
    const actions: Action[] = [];
    this.hasToggled = isToggled;
    if (isToggled) {
      const { key } = view.hierarchy.boxes[~item.child]!;
      actions.push(item.isOpen ? { type: "close", keys: [key] } : { type: "open", keys: [key] });
    }
    const chosen = isToggled && item.block >= 0 ? selectionOf(view.hierarchy, item.child, side) : selection;
    actions.push({ type: "select", selection: chosen });
    if (!isToggled || !this.isNarrow()) actions.push(SHOW_DETAILS);
    guide.apply(actions, { key: item.key, pointer: event.pointer });
  }

  private control(item: number, name: Control["name"]): void {
    const { guide } = this;
    const view = guide.stages[guide.side]!.view!;
    const { block, child, key } = view.items[item]!;
    if (name === "previous" || name === "next") {
      this.actions().showBlock(item, block + (name === "next" ? 1 : -1));
      return;
    }
    const run = view.hierarchy.boxes[~child]!.key;
    guide.dispatch({ type: "show", run, block: name === "all" ? "all" : 0 }, { key });
  }

  private edgeSelection(side: number, links: number[]): Selection {
    const view = this.guide.stages[side]!.view!;
    const found = links.map((link) => view.links[link]!);
    const key = (item: number): string => view.items[item]!.key;
    return { kind: "edge", from: key(found[0]!.from), to: found.map((link) => key(link.to)).join("\n"), side };
  }

  hover(side: number, hit: Hit | null, pointer: Point): void {
    const stage = this.guide.stages[side]!;
    stage.hover(hit && hit.kind !== "edge" ? hit.item : -1);
    stage.pane.canvas.style.cursor = hit ? "pointer" : "";
    this.tip.follow(this.guide, side, hit, pointer, stage.pane.canvas);
  }
}
