// The application: holds the state, keeps the graphs and everything around them in step with it, and answers what the parts
// of the page ask for.

import { Actions } from "./controls/actions";
import type { Camera } from "./pane/camera";
import type { Anchor } from "./pane/canvas";
import { loadChoices, saveChoices } from "./state/choices";
import type { Theme } from "../shared/color";
import { applyTheme, screenScheme, themeFor } from "../shared/theme";
import { commandsOf } from "./controls/commands";
import { type Comparison, compare, counterpart } from "./model/compare";
import { Engine } from "./layout/engine";
import { boxItemKey } from "./layout/view";
import { carriedOver, openTo } from "./state/expansion";
import { type FirstView, firstView } from "./state/first_view";
import type { Guide } from "./guide";
import { Address } from "./state/hash";
import { isBox, unitsOf } from "./model/hierarchy";
import { listen } from "./controls/keyboard";
import { Messages } from "./controls/messages";
import { Parts } from "./controls/parts";
import { Pointing } from "./pane/pointing";
import { type Doc, type ModelIndex, childOf, itemOf, selectionOf } from "./model/model_index";
import { resolved } from "./state/rolling";
import { type Scope, Stage } from "./pane/stage";
import { type Action, INITIAL, type Part, SHOW_DETAILS, type Selection, type State, factsShown, reduce } from "./state/state";

export class App implements Guide {
  state: State;
  side = 0;
  readonly stages: Stage[];
  readonly comparison: Comparison | null;
  readonly actions: Actions;
  readonly parts: Parts;
  private readonly dark = screenScheme();
  private readonly still = window.matchMedia("(prefers-reduced-motion: reduce)");
  private readonly narrow = window.matchMedia("(max-width: 760px)");
  private readonly messages = new Messages();
  private readonly pointing: Pointing;
  private readonly address: Address;
  private afterScene: (() => void) | null = null;
  private announced = "";

  constructor(
    readonly docs: Doc[],
    source: string,
    private readonly isFrame: boolean,
  ) {
    this.comparison = docs.length > 1 ? compare(docs[0]!.payload, docs[1]!.payload) : null;
    const rolled = docs.some((doc) => doc.isLoop);
    const parts = new Set<Part>(this.narrow.matches ? [] : [this.comparison ? "differences" : "tree"]);
    const metric = docs[0]!.payload.verdict && docs[0]!.payload.metrics.length ? "own 0" : INITIAL.metric;
    this.state = { ...INITIAL, ...loadChoices(), rolled, parts, metric };
    this.pointing = new Pointing(
      this,
      () => this.actions,
      () => this.narrow.matches,
    );
    this.stages = docs.map((doc) => this.makeStage(doc, source));
    this.actions = new Actions(this);
    const commands = commandsOf(this);
    this.parts = new Parts(this, this.actions, commands, this.messages, this.pointing.tip.element);
    this.address = new Address(isFrame, (selection) => this.follow(selection));
    listen(commands);
    this.dark.addEventListener("change", () => this.update(null));
  }

  private makeStage(doc: Doc, source: string): Stage {
    const { side } = doc;
    const label = `Graph of ${doc.payload.title}. The outline beside it holds the same for screen readers.`;
    const events = {
      click: this.pointing.click.bind(this.pointing, side),
      hover: this.pointing.hover.bind(this.pointing, side),
      moved: (from: Camera, to: Camera, by: "reader" | "program"): void => {
        if (by === "reader") this.moveOther(side, from, to);
        this.pointing.tip.hide();
        this.parts?.moved(); // the first picture comes before the parts
      },
    };
    return new Stage(doc, new Engine(source), label, events, this.isFrame, () => this.sceneCame());
  }

  /** The first picture, once the page has its size. */
  start(): void {
    const { selection } = this.address; // before the first update writes the address
    this.parts.update(); // what is above and beside the graph takes its room
    this.actions.startOver();
    if (selection) this.follow(selection);
    else if (!this.goToCulprit()) this.docs.forEach((doc) => this.goToFailure(doc));
  }

  /** Goes to the operation that a comparison names; whether there is one. */
  private goToCulprit(): boolean {
    const named = this.docs.filter(({ payload }) => payload.culprits.length > 0);
    for (const { side, payload } of named.reverse()) this.goToNode(side, payload.culprits[0]!); // the last stays selected: a
    return named.length > 0;
  }

  private goToFailure({ payload, side }: Doc): void {
    const failed = payload.nodes.findIndex((node) => node.kind === "failed");
    if (failed >= 0) this.goToNode(side, failed);
  }

  // What the parts ask for --------------------------------------------------------------------------------------------

  get theme(): Theme {
    return themeFor(this.state.theme, this.dark.matches);
  }

  get isAnimated(): boolean {
    return !this.still.matches;
  }

  modelIndex(side: number): ModelIndex {
    return this.docs[side]!.modelIndex(this.state);
  }

  dispatch(action: Action, anchor: Anchor | null = null): void {
    this.apply([action], anchor);
  }

  apply(actions: Action[], anchor: Anchor | null, then: (() => void) | null = null): void {
    const before = this.state;
    this.state = actions.reduce(reduce, before);
    if (then) this.afterScene = then;
    if (this.state !== before) this.update(anchor);
    if (!this.isWaiting) this.sceneIsThere();
  }

  go(side: number, child: number): void {
    const unit = isBox(child) ? null : this.modelIndex(side).hierarchy.units[child]!;
    if (unit?.isFolded) {
      this.actions.plumbing(); // it is drawn only with the rest of the plumbing
      this.go(side, this.modelIndex(side).hierarchy.unitByKey.get(unit.key)!);
      return;
    }
    const { hierarchy } = this.modelIndex(side);
    const { open, shown } = openTo(hierarchy, child, this.state);
    const keys = [...open];
    for (const [run, block] of shown) if (block !== "all") keys.push(...carriedOver(hierarchy, run, block, this.state));
    const selection = selectionOf(hierarchy, child, side);
    const beside = this.comparison ? this.besideOn(1 - side, selection) : null;
    if (beside !== null) keys.push(...openTo(this.modelIndex(1 - side).hierarchy, beside, this.state).open);
    const anchor = this.anchor();
    this.side = side;
    const details = this.narrow.matches ? [] : [SHOW_DETAILS];
    this.apply([{ type: "open", keys, shown }, { type: "select", selection }, ...details], anchor, () => this.reveal(false));
  }

  goToNode(side: number, node: number): void {
    const { unitOfNode, units } = this.modelIndex(side).hierarchy;
    this.go(side, unitOfNode[node]!);
    const pass = units[unitOfNode[node]!]!.members.indexOf(node);
    if (pass > 0) this.parts.panel.showPass(pass);
  }

  select(selection: Selection | null): void {
    if (selection) this.side = selection.side;
    this.apply([{ type: "select", selection }, ...(selection ? [SHOW_DETAILS] : [])], null);
  }

  /** Opens or closes a box; of a block that its run shows, the run. */
  toggle(side: number, child: number, anchor: Anchor | null = null): void {
    if (!isBox(child)) return;
    const { boxes } = this.modelIndex(side).hierarchy;
    const run = boxes.find((one) => one.blocks.includes(~child) && this.state.shown.get(one.key) !== "all");
    const box = run ?? boxes[~child]!;
    const isOpen = this.state.open.has(box.key);
    this.say(`${isOpen ? "Closed" : "Opened"} ${box.key}`);
    this.dispatch({ type: isOpen ? "close" : "open", keys: [box.key] }, anchor ?? { key: boxItemKey(box.key) });
  }

  firstView(): FirstView {
    const facts = factsShown(this.state);
    const views = this.stages.map((stage) => {
      const modelIndex = stage.modelIndex(this.state);
      return firstView(modelIndex.hierarchy, modelIndex.faces(facts), ...stage.pane.measured(), this.state.isAcross);
    });
    const depth = Math.min(...views.map((view) => view.depth));
    const spacing = Math.min(...views.map((view) => view.spacing));
    const open = new Set(views.flatMap((view) => [...view.open]));
    return { depth, spacing, open, shown: new Map(views.flatMap((view) => [...view.shown])) };
  }

  selectedChild(): number | null {
    const { selection } = this.state;
    return selection ? childOf(this.modelIndex(selection.side).hierarchy, selection) : null;
  }

  anchor(): Anchor | null {
    const { view } = this.stages[this.side]!;
    const child = this.selectedChild();
    if (!view || child === null || this.state.selection?.side !== this.side) return null;
    return { key: view.items[itemOf(view, child)]!.key };
  }

  reveal(always: boolean): void {
    const side = this.state.selection?.side ?? this.side;
    const item = this.selectedItem(side);
    if (item < 0) return;
    const { pane } = this.stages[side]!;
    pane.afterSized(() => {
      pane.reveal(item, this.isAnimated, always);
      const other = this.stages[1 - side];
      const beside = other ? this.besideOn(1 - side) : null;
      if (other?.view && beside !== null) other.pane.alignWith(pane, item, itemOf(other.view, beside), this.isAnimated);
    });
  }

  copy(text: string): void {
    const failed = (): void => this.say("The browser does not allow copying here", true);
    if (!navigator.clipboard) failed();
    else navigator.clipboard.writeText(text).then(() => this.say(`Copied ${text}`, true), failed);
  }

  say(text: string, isSeen = false): void {
    this.messages.say(text, isSeen);
  }

  // Keeping in step ---------------------------------------------------------------------------------------------------

  private update(anchor: Anchor | null): void {
    const { state, theme, comparison, isAnimated } = this;
    applyTheme(theme);
    saveChoices(state);
    const scope: Scope = { theme, comparison, isAnimated, selected: (side) => this.selectedOn(side), beside: (side) => this.besideOn(side) };
    for (const stage of this.stages) stage.update(state, scope, anchor);
    this.updateParts();
    this.address.write(state.selection);
  }

  private updateParts(): void {
    this.messages.busy.hidden = !this.isWaiting;
    this.parts.update();
    this.announce();
  }

  private get isWaiting(): boolean {
    return this.stages.some((stage) => stage.isWaiting);
  }

  /** A layout came from the worker. */
  private sceneCame(): void {
    this.updateParts();
    if (!this.isWaiting) this.sceneIsThere();
  }

  private sceneIsThere(): void {
    const act = this.afterScene;
    this.afterScene = null;
    act?.();
  }

  selectedOn(side: number, selection = this.state.selection): Selection | null {
    if (!selection || selection.side === side || !this.comparison) return selection;
    if (selection.kind === "edge") return { ...selection, side };
    const [from, to] = [this.modelIndex(selection.side).hierarchy, this.modelIndex(side).hierarchy];
    const child = childOf(from, selection);
    const matched = side === 1 ? this.comparison.toRight : this.comparison.toLeft;
    const other = child === null ? null : counterpart(from, to, child, matched);
    return other === null ? null : selectionOf(to, other, side);
  }

  /** What a side shows beside the selection on the other: its counterpart, or what ran before the place where that would be. */
  private besideOn(side: number, selection = this.state.selection): number | null {
    const { hierarchy: to } = this.modelIndex(side);
    const known = childOf(to, this.selectedOn(side, selection));
    if (known !== null || !selection || !this.comparison || selection.side === side) return known;
    const { hierarchy: from } = this.modelIndex(selection.side);
    const child = childOf(from, selection);
    if (child === null) return null;
    const matched = side === 1 ? this.comparison.toRight : this.comparison.toLeft;
    let node = from.units[unitsOf(from, child)[0]!]!.members[0]!;
    while (node >= 0 && matched[node]! < 0) node--;
    return node < 0 ? null : to.unitOfNode[matched[node]!]!;
  }

  private selectedItem(side: number): number {
    const view = this.stages[side]?.view;
    const child = view ? childOf(view.hierarchy, this.selectedOn(side)) : null;
    return view && child !== null ? itemOf(view, child) : -1;
  }

  /** The other pane makes the same movement on the screen: a point p goes to p × factor + shift. */
  private moveOther(side: number, from: Camera, to: Camera): void {
    const other = this.stages[1 - side];
    if (!other) return;
    const factor = to.scale / from.scale;
    const { scale, x, y } = other.pane.camera;
    other.pane.follow({
      scale: scale * factor,
      x: x * factor + to.x - from.x * factor,
      y: y * factor + to.y - from.y * factor,
    });
  }

  /** Goes where the address says. */
  private follow(selection: Selection | null): void {
    if (!selection) {
      this.dispatch({ type: "select", selection: null });
      return;
    }
    const side = Math.min(selection.side, this.docs.length - 1);
    const { hierarchy } = this.modelIndex(side);
    const found = resolved(hierarchy, { ...selection, side });
    const child = childOf(hierarchy, found);
    if (child !== null) this.go(side, child);
    else if (found?.kind === "edge") this.select(found);
    else this.say(`There is no ${selection.kind === "unit" ? "node" : "module"} of that name here`, true);
  }

  private announce(): void {
    const { selection } = this.state;
    const written = JSON.stringify(selection);
    if (written === this.announced) return;
    this.announced = written;
    const item = selection ? this.selectedItem(selection.side) : -1;
    if (selection?.kind === "edge") this.say("Selected an edge");
    else if (selection && item >= 0) {
      const { kind, lines } = this.stages[selection.side]!.scene!.faces[item]!;
      this.say(`Selected ${[selection.key, kind, ...lines].filter(Boolean).join(", ")}`);
    }
  }
}
