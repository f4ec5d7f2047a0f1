// Everything on the page around the graphs, put together and kept in step.

import type { Actions } from "./actions";
import { Differences } from "../panels/differences";
import { button, el } from "../../shared/dom";
import { Finder } from "./finder";
import type { Guide } from "../guide";
import { Help } from "./help";
import type { Command } from "./keyboard";
import { LegendBox } from "../panels/legend";
import type { Messages } from "./messages";
import { Panel } from "../panels/panel";
import { childShown, itemOf } from "../model/model_index";
import { titleOf } from "../model/compare";
import type { Part } from "../state/state";
import { Table } from "../panels/table";
import { type Crumb, Breadcrumb, Toolbar } from "./toolbar";
import { Tree } from "../panels/tree";

export class Parts {
  readonly finder: Finder;
  readonly panel: Panel;
  readonly differences: Differences | null;
  readonly element: HTMLElement;
  private readonly toolbar: Toolbar;
  private readonly tree: Tree;
  private readonly table: Table;
  private readonly legend: LegendBox;
  private readonly breadcrumb: Breadcrumb;
  private readonly help: Help;
  private middle = ""; // what was in the middle of the screen

  constructor(
    private readonly guide: Guide,
    private readonly actions: Actions,
    commands: Command[],
    messages: Messages,
    tip: HTMLElement,
  ) {
    const close =
      (part: Part): (() => void) =>
      () =>
        guide.dispatch({ type: "part", part, isOpen: false });
    this.finder = new Finder(guide);
    this.tree = new Tree(guide);
    this.panel = new Panel(guide, close("panel"));
    this.table = new Table(guide, close("table"));
    this.legend = new LegendBox(guide);
    this.breadcrumb = new Breadcrumb();
    this.differences = guide.comparison ? new Differences(guide, guide.comparison, close("differences")) : null;
    this.toolbar = new Toolbar(guide, this.finder, actions);
    this.help = new Help(commands, close("help"));
    this.element = this.assemble(messages, tip);
  }

  private assemble(messages: Messages, tip: HTMLElement): HTMLElement {
    const { guide, actions } = this;
    if (guide.docs.length > 1) {
      guide.stages.forEach(({ pane }, side) => {
        pane.element.append(el("div", { class: "pane-title", text: titleOf(guide, side) }));
      });
    }
    const zoom = el(
      "div",
      { class: "zoom", role: "group", label: "Zoom" },
      button("+", "Zoom in (+)", () => actions.zoom(1.3)),
      button("−", "Zoom out (−)", () => actions.zoom(1 / 1.3)),
      button("⤢", "Everything in sight (0)", () => actions.fit()),
    );
    const graphs = el("div", { class: "graphs" }, ...guide.stages.map((stage) => stage.pane.element));
    const over = [this.breadcrumb.element, zoom, messages.busy, messages.notice];
    const middle = el("main", { class: "middle" }, graphs, ...over);
    const center = el("div", { class: "center" }, middle, this.legend.element, this.differences?.element, this.table.element);
    const body = el("div", { class: "body" }, this.tree.element, center, this.panel.element);
    const { verdict } = guide.docs[0]!.payload;
    const kind = verdict.startsWith("equal") ? "agrees" : "differs";
    const said = verdict ? el("p", { class: `verdict ${kind}`, role: "status", text: verdict }) : null;
    const app = el("div", { class: "app" }, this.toolbar.element, said, body, tip, this.help.element, messages.live);
    app.classList.toggle("comparing", guide.docs.length > 1);
    return app;
  }

  update(): void {
    const { state, stages, side, theme } = this.guide;
    this.element.dataset["parts"] = [...state.parts].join(" ");
    this.toolbar.update();
    this.finder.update();
    this.help.show(state.parts.has("help"));
    if (state.parts.has("tree")) this.tree.update();
    if (state.parts.has("panel")) this.panel.update();
    if (state.parts.has("table")) this.table.update();
    this.differences?.update();
    this.legend.update(stages[side]!.coloring, theme);
    this.breadcrumb.update(this.crumbs());
  }

  /** Shows the outline and moves the keys there, or hides it. */
  toggleTree(): void {
    this.actions.togglePart("tree");
    if (this.guide.state.parts.has("tree")) this.tree.focus();
  }

  /** The graph was moved: says where the reader is. */
  moved(): void {
    const { pane, view } = this.guide.stages[this.guide.side]!;
    const now = view?.items[pane.middleItem()]?.key ?? "";
    const place = `${now} ${pane.isSeenWhole}`;
    if (this.guide.state.selection || place === this.middle) return;
    this.middle = place;
    this.breadcrumb.update(this.crumbs());
  }

  /** The way from the model to what is selected, or else to what is in the middle of the screen. */
  private crumbs(): Crumb[] {
    const { guide } = this;
    const { side, state } = guide;
    const { view } = guide.stages[side]!;
    const top = { title: titleOf(guide, side), go: () => this.actions.fit() };
    const child = guide.selectedChild();
    if (!view) return [top];
    const isSelected = child !== null && state.selection?.side === side;
    if (!isSelected && guide.stages[side]!.pane.isSeenWhole) return [top];
    const faces = guide.modelIndex(side).faces(state.facts);
    const path: Crumb[] = [];
    const last = isSelected ? itemOf(view, child) : guide.stages[side]!.pane.middleItem();
    for (let at = last; at > 0; at = view.items[at]!.parent) {
      const to = childShown(view, at);
      path.unshift({ title: faces.nameOf(view, at), go: () => guide.go(side, to) });
    }
    return [top, ...path];
  }
}
