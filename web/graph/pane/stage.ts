// One model on its pane: turns the state into a view, has it laid out, and shows the picture.

import { type Anchor, Pane, type PaneEvents } from "./canvas";
import type { Theme } from "../../shared/color";
import { Coloring } from "../drawing/coloring";
import type { Comparison } from "../model/compare";
import type { Picture } from "../drawing/picture";
import type { Engine } from "../layout/engine";
import { addDifferences, marksOf } from "../drawing/marks";
import type { Doc, ModelIndex } from "../model/model_index";
import { type Draft, type Scene, draftScene, placeScene } from "../layout/scene";
import { type Selection, type State, factsShown } from "../state/state";
import { type Openness, type View, buildView } from "../layout/view";
import { openTo } from "../state/expansion";

export class Stage {
  readonly pane: Pane;
  scene: Scene | null = null;
  coloring: Coloring | null = null;
  isWaiting = false; // for the worker
  private shownState: State | null = null;
  private shownBlocks: Openness["shown"] = new Map();
  private anchor: Anchor | null = null;
  private hovered = "";
  private colored: { view: View; theme: Theme; metric: State["metric"]; scale: State["scale"] } | null = null;

  constructor(
    readonly doc: Doc,
    private readonly engine: Engine,
    label: string,
    events: PaneEvents,
    isFrame: boolean,
    private readonly onScene: () => void,
  ) {
    this.pane = new Pane(label, events, isFrame);
  }

  modelIndex(state: State): ModelIndex {
    return this.doc.modelIndex(state);
  }

  get view(): View | null {
    return this.scene?.view ?? null;
  }

  /** Brings the picture in step with the state. `anchor` stays in place when boxes open or close. */
  update(state: State, scope: Scope, anchor: Anchor | null): void {
    const before = this.shownState;
    this.shownState = state;
    const shown = this.blocksFor(state, scope);
    const isWritten = before !== null && before.facts === state.facts && before.metric === state.metric;
    const isArranged =
      isWritten &&
      before.open === state.open &&
      before.shown === state.shown &&
      showSame(this.shownBlocks, shown) &&
      before.rolled === state.rolled &&
      before.hasPlumbing === state.hasPlumbing &&
      before.isAcross === state.isAcross;
    if (isArranged && (this.scene || this.isWaiting)) {
      if (this.scene && !this.isWaiting) this.paint(scope);
      return;
    }
    this.anchor = anchor;
    const modelIndex = this.modelIndex(state);
    const { spacing, isAcross, facts } = state;
    this.shownBlocks = shown;
    const view = buildView(modelIndex.hierarchy, { open: state.open, shown }, facts.has("edges"));
    const draft = draftScene(view, modelIndex.faces(factsShown(state)), { spacing, isAcross });
    const solved = this.engine.solve(draft.plan, (layouts) => {
      this.isWaiting = false;
      this.settle(draft, layouts, scope);
      this.onScene();
    });
    this.isWaiting = solved === null;
    if (solved) this.settle(draft, solved, scope);
  }

  /** Which blocks the open runs show: what the reader chose, or the block to see beside what is selected on the other side. */
  private blocksFor(state: State, scope: Scope): Openness["shown"] {
    const { side } = this.doc;
    const child = !state.selection || state.selection.side === side ? null : scope.beside(side);
    if (child === null) return state.shown;
    return new Map([...state.shown, ...openTo(this.modelIndex(state).hierarchy, child, state).shown]);
  }

  private settle(draft: Draft, layouts: Parameters<typeof placeScene>[1], scope: Scope): void {
    this.scene = placeScene(draft, layouts);
    this.paint(scope);
    this.anchor = null;
  }

  private paint(scope: Scope): void {
    const state = this.shownState!;
    const modelIndex = this.modelIndex(state);
    const scene = this.scene!;
    const { theme, comparison, isAnimated } = scope;
    const { view } = scene;
    this.color(view, modelIndex, state, theme);
    const marks = marksOf(view, modelIndex, state, scope.selected(this.doc.side), this.doc.side);
    if (comparison) addDifferences(view, comparison, this.doc.side, marks);
    marks.hovered = view.itemByKey.get(this.hovered) ?? -1;
    const picture: Picture = { scene, theme, coloring: this.coloring!, palette: modelIndex.palette, marks };
    this.pane.show(picture, this.anchor, isAnimated);
  }

  /** Works out the colours anew only when they change. */
  private color(view: View, modelIndex: ModelIndex, state: State, theme: Theme): void {
    const { metric, scale } = state;
    const last = this.colored;
    if (last && last.view === view && last.theme === theme && last.metric === metric && last.scale === scale) return;
    this.colored = { view, theme, metric, scale };
    this.coloring = new Coloring(view, modelIndex.palette, modelIndex.measures, theme, metric, scale);
  }

  /** Marks the item under the pointer. */
  hover(item: number): void {
    const key = item < 0 ? "" : (this.scene?.view.items[item]?.key ?? "");
    if (key === this.hovered || !this.pane.picture) return;
    this.hovered = key;
    this.pane.picture = { ...this.pane.picture, marks: { ...this.pane.picture.marks, hovered: item } };
    this.pane.ask();
  }
}

function showSame(one: Openness["shown"], other: Openness["shown"]): boolean {
  return one.size === other.size && [...one].every(([run, block]) => other.get(run) === block);
}

/** What a stage needs to know besides the state. */
export interface Scope {
  theme: Theme;
  comparison: Comparison | null;
  isAnimated: boolean;
  selected: (side: number) => Selection | null; // what is selected on a side, or corresponds to what is
  beside: (side: number) => number | null; // the child that a side shows beside what is selected on the other
}
