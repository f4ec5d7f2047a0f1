// What the keys and the buttons do.

import { areaOf } from "../pane/camera";
import { DEEPEST, carriedOver, openBelow, openToDepth } from "../state/expansion";
import { type Format, download, fileName, toPng, toSvg, wholeArea } from "../drawing/export";
import type { Guide } from "../guide";
import { isBox } from "../model/hierarchy";
import { type Direction, inOrder, neighbour } from "../state/navigate";
import { childShown, itemOf, selectionOf } from "../model/model_index";
import { metricsOf } from "../model/measures";
import { carriedOpen, carriedSelection } from "../state/rolling";
import { type Action, HIDE_DETAILS, type Part, SHOW_DETAILS, type State, toggledTrace } from "../state/state";
import { boxItemKey } from "../layout/view";
import { clamp } from "../../shared/scale";

export class Actions {
  private depth = 1;

  constructor(private readonly guide: Guide) {}

  private get stage(): Guide["stages"][number] {
    return this.guide.stages[this.guide.side]!;
  }

  // Opening and closing -----------------------------------------------------------------------------------------------

  /** As the page was when it was opened. */
  startOver(): void {
    const { depth, ...opened } = this.guide.firstView();
    this.depth = depth;
    this.guide.dispatch({ type: "openness", ...opened });
  }

  /** Opens everything down to a depth. Where nothing is selected, the picture is looked at anew. */
  toDepth(depth: number): void {
    const { guide } = this;
    this.depth = clamp(depth, 1, this.deepest());
    guide.say(`Depth ${this.depth}`);
    const { open, shown } = openToDepth(guide.modelIndex(guide.side).hierarchy, this.depth);
    const anchor = guide.anchor();
    guide.apply([{ type: "openness", open, shown }], anchor, () => {
      if (!anchor) for (const stage of guide.stages) stage.pane.start();
    });
  }

  /** The depth at which everything is open. */
  private deepest(): number {
    const { hierarchy } = this.guide.modelIndex(this.guide.side);
    let depth = 1;
    for (let seen = 0; depth < DEEPEST; depth++) {
      const { size } = openToDepth(hierarchy, depth + 1).open;
      if (size === seen) break;
      seen = size;
    }
    return depth;
  }

  deeper(by: number): void {
    this.toDepth(this.depth + by);
  }

  openAll(): void {
    const { guide } = this;
    const all = guide.docs.map(({ side }) => openBelow(guide.modelIndex(side).hierarchy, 0));
    const open = new Set(all.flatMap((one) => [...one.open]));
    const shown = new Map(all.flatMap((one) => [...one.shown]));
    guide.dispatch({ type: "openness", open, shown }, guide.anchor());
  }

  /** Opens everything below the box that is selected, or everything. */
  openBelowSelected(): void {
    const { guide } = this;
    const child = guide.selectedChild();
    if (child === null || !isBox(child)) {
      this.openAll();
      return;
    }
    const { hierarchy } = guide.modelIndex(guide.side);
    const { open, shown } = openBelow(hierarchy, ~child);
    guide.dispatch({ type: "open", keys: open, shown }, { key: boxItemKey(hierarchy.boxes[~child]!.key) });
  }

  toggleSelected(): void {
    const child = this.guide.selectedChild();
    if (child === null) return;
    if (isBox(child)) this.guide.toggle(this.guide.side, child);
    else this.guide.dispatch(SHOW_DETAILS);
  }

  /** Shows the previous or the next block of the run around what is selected. */
  stepRun(by: number): void {
    const { view } = this.stage;
    const child = this.guide.selectedChild();
    if (child === null || !view) return;
    for (let at = itemOf(view, child); at > 0; at = view.items[at]!.parent) {
      if (view.items[at]!.block < 0) continue;
      this.showBlock(at, view.items[at]!.block + by);
      return;
    }
  }

  showBlock(item: number, block: number): void {
    const { guide } = this;
    const view = this.stage.view!;
    const { hierarchy } = view;
    const run = hierarchy.boxes[~view.items[item]!.child]!;
    const to = ((block % run.blocks.length) + run.blocks.length) % run.blocks.length;
    const keys = carriedOver(hierarchy, run.key, to, guide.state);
    const selection = selectionOf(hierarchy, ~run.blocks[to]!, guide.side);
    const show: Action = { type: "show", run: run.key, block: to };
    guide.apply([{ type: "open", keys }, show, { type: "select", selection }], { key: view.items[item]!.key });
  }

  /** Rolled or unrolled. */
  roll(): void {
    const rolled = !this.guide.state.rolled;
    this.guide.say(rolled ? "Rolled: one box per layer" : "Unrolled: one box per operation");
    this.draw({ rolled, hasPlumbing: this.guide.state.hasPlumbing }, () => this.lookAgain());
  }

  /** With or without plumbing: shape functions, masks, positions and what leads only to these. */
  plumbing(): void {
    const hasPlumbing = !this.guide.state.hasPlumbing;
    this.guide.say(hasPlumbing ? "All operations" : "Without plumbing");
    this.draw({ rolled: this.guide.state.rolled, hasPlumbing }, () => this.lookAgain());
  }

  /** Draws another form of the same graph, with the same modules open and the same place selected. */
  private draw(form: Pick<State, "rolled" | "hasPlumbing">, then: () => void): void {
    const { guide } = this;
    const open = new Set<string>();
    for (const doc of guide.docs) {
      const [from, to] = [guide.modelIndex(doc.side).hierarchy, doc.modelIndex(form).hierarchy];
      for (const key of carriedOpen(from, to, guide.state)) open.add(key);
    }
    const side = guide.state.selection?.side ?? 0;
    const [from, to] = [guide.modelIndex(side).hierarchy, guide.docs[side]!.modelIndex(form).hierarchy];
    const selection = carriedSelection(from, to, guide.state.selection);
    guide.apply([{ type: "roll", ...form, open, selection }], null, then);
  }

  /** From left to right, or from top to bottom. */
  turn(): void {
    const { guide } = this;
    const isAcross = !guide.state.isAcross;
    guide.say(isAcross ? "From left to right" : "From top to bottom");
    guide.apply([{ type: "across", isAcross }], null, () => this.lookAgain());
  }

  /** Brings what is selected into sight, or else the whole picture. */
  private lookAgain(): void {
    if (this.guide.state.selection) this.guide.reveal(true);
    else for (const stage of this.guide.stages) stage.pane.start();
  }

  // Moving and selecting ----------------------------------------------------------------------------------------------

  zoom(factor: number): void {
    this.stage.pane.zoom(factor);
  }

  pan(dx: number, dy: number): void {
    this.stage.pane.pan(dx, dy);
  }

  fit(): void {
    for (const stage of this.guide.stages) stage.pane.fit(this.guide.isAnimated);
  }

  selectParent(): void {
    const { view } = this.stage;
    const child = this.guide.selectedChild();
    if (child === null || !view) return;
    const { parent } = view.items[itemOf(view, child)]!;
    if (parent > 0) this.guide.go(this.guide.side, childShown(view, parent));
  }

  moveSelection(direction: Direction | 1 | -1): void {
    const { scene } = this.stage;
    if (!scene) return;
    const child = this.guide.selectedChild();
    const from = child === null ? -1 : itemOf(scene.view, child);
    const next = typeof direction === "number" ? inOrder(scene, from, direction) : neighbour(scene, from, direction);
    if (next > 0) this.guide.go(this.guide.side, childShown(scene.view, next));
  }

  /** Leaves the first of these that is there: help, path, highlight, selection, details, search. */
  escape(): void {
    const { guide } = this;
    const { parts, other, trace, selection, query } = guide.state;
    if (parts.has("help")) guide.dispatch({ type: "part", part: "help", isOpen: false });
    else if (other) guide.dispatch({ type: "select", selection });
    else if (trace !== "none") guide.dispatch({ type: "trace", trace: "none" });
    else if (selection) guide.apply([{ type: "select", selection: null }, HIDE_DETAILS], null);
    else if (parts.has("panel")) guide.dispatch(HIDE_DETAILS);
    else if (query) guide.dispatch({ type: "query", query: "" });
  }

  // Showing and saving ------------------------------------------------------------------------------------------------

  togglePart(part: Part): void {
    this.guide.dispatch({ type: "part", part, isOpen: !this.guide.state.parts.has(part) });
  }

  trace(wanted: "ancestors" | "descendants"): void {
    this.guide.dispatch({ type: "trace", trace: toggledTrace(this.guide.state.trace, wanted) });
  }

  nextMetric(by: number): void {
    const metrics = metricsOf(this.guide.docs.map((doc) => doc.payload));
    const at = metrics.findIndex((metric) => metric.name === this.guide.state.metric);
    const next = metrics[(at + by + metrics.length) % metrics.length]!;
    this.guide.say(`Coloured by ${next.title}`);
    this.guide.dispatch({ type: "metric", metric: next.name });
  }

  switchTheme(): void {
    this.guide.dispatch({ type: "theme", theme: this.guide.theme.name === "dark" ? "light" : "dark" });
  }

  async save(format: Format, isWhole: boolean): Promise<void> {
    const { guide } = this;
    const { picture, camera, size } = this.stage.pane;
    if (!picture) return;
    const area = isWhole ? wholeArea(picture) : areaOf(camera, ...size);
    const { title } = guide.docs[guide.side]!.payload;
    try {
      const blob =
        format === "svg" ? new Blob([toSvg(picture, area, title)], { type: "image/svg+xml" }) : await toPng(picture, area);
      download(blob, fileName(title, format));
      guide.say(`Saved ${fileName(title, format)}`, true);
    } catch (error) {
      guide.say(String(error), true);
    }
  }
}
