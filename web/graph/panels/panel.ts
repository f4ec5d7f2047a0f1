// The panel with everything known about the selection, or about the model when nothing is selected.

import { button, el, replace } from "../../shared/dom";
import { edgePanel } from "./edge_panel";
import type { Guide } from "../guide";
import { titleOf } from "../model/compare";
import { isBox } from "../model/hierarchy";
import { modulePanel } from "./module_panel";
import { type PanelContent, nodePanel } from "./node_panel";
import { dot, facts, section } from "./panel_parts";
import { childOf } from "../model/model_index";
import { type Selection, isSame, toggledTrace } from "../state/state";
import { pathBetween } from "../model/trace";
import * as format from "../../shared/format";

export class Panel {
  readonly element: HTMLElement;
  private readonly body = el("div", { class: "panel-body", tabIndex: -1 });
  private shown: Selection | null = null;
  private pass = 0;

  constructor(
    private readonly guide: Guide,
    private readonly onClose: () => void,
  ) {
    this.element = el("aside", { class: "panel", label: "Details" }, this.body);
  }

  update(): void {
    const { selection } = this.guide.state;
    if (!isSame(this.shown, selection)) {
      this.pass = 0;
      this.body.scrollTop = 0;
    }
    this.shown = selection;
    const content = this.content(selection);
    if (!content) {
      replace(this.body, ...this.overview());
      return;
    }
    replace(this.body, this.sides(), this.header(content), this.path(), ...content.body);
  }

  /** Shows the pass of a rolled layer that was asked for. */
  showPass(pass: number): void {
    this.pass = pass;
    this.update();
  }

  private content(selection: Selection | null): PanelContent | null {
    if (!selection) return null;
    if (selection.kind === "edge") return edgePanel(this.guide, selection);
    const child = childOf(this.guide.modelIndex(selection.side).hierarchy, selection);
    if (child === null) return null;
    if (isBox(child)) return modulePanel(this.guide, selection.side, ~child);
    return nodePanel(this.guide, selection.side, child, this.pass, (pass) => this.showPass(pass));
  }

  private header(content: PanelContent): HTMLElement {
    const close = button("×", "Close the details (Esc)", this.onClose, { class: "close" });
    const title = el("h2", {}, dot(content.color, "large"), el("span", { text: content.title }));
    if (content.kind) title.append(el("span", { class: "kind", text: content.kind }));
    const made = el("header", {}, close, title);
    if (content.subtitle) made.append(el("p", { class: "subtitle", text: content.subtitle }));
    if (content.key) {
      const copy = button("copy", `Copy ${content.key}`, () => this.guide.copy(content.key), { class: "copy" });
      made.append(el("p", { class: "key" }, el("code", { text: content.key }), copy));
    }
    if (content.kind !== "edge") made.append(this.traces());
    return made;
  }

  /** Of two models: whose values these are, and the way to those of the other. */
  private sides(): HTMLElement | null {
    const { guide } = this;
    const { selection } = guide.state;
    if (guide.docs.length < 2 || !selection) return null;
    const tabs = guide.docs.map(({ side }) => {
      const child = childOf(guide.modelIndex(side).hierarchy, guide.selectedOn(side));
      const isThis = side === selection.side;
      const label = isThis ? "These are its values" : child === null ? "It has no counterpart here" : "To its counterpart";
      const tab = button(titleOf(guide, side), label, () => child !== null && guide.go(side, child), { aria: { pressed: isThis } });
      tab.disabled = child === null && !isThis;
      return tab;
    });
    return el("div", { class: "actions sides", role: "group", label: "Model" }, ...tabs);
  }

  private traces(): HTMLElement {
    const { guide } = this;
    const make = (text: string, label: string, wanted: "ancestors" | "descendants"): HTMLElement => {
      const { trace } = guide.state;
      const toggle = (): void => guide.dispatch({ type: "trace", trace: toggledTrace(trace, wanted) });
      return button(text, label, toggle, { aria: { pressed: trace === wanted || trace === "both" } });
    };
    return el(
      "div",
      { class: "actions" },
      make("↑ ancestors", "Highlight everything that leads to it (a)", "ancestors"),
      make("↓ descendants", "Highlight everything it leads to (d)", "descendants"),
    );
  }

  /** What is between the two ends the reader chose. */
  private path(): HTMLElement | null {
    const { selection, other } = this.guide.state;
    if (!selection || !other) return null;
    const { hierarchy } = this.guide.modelIndex(selection.side);
    const [one, two] = [childOf(hierarchy, selection), childOf(hierarchy, other)];
    if (one === null || two === null || other.kind === "edge" || selection.kind === "edge") return null;
    const path = pathBetween(hierarchy, one, two);
    const [from, to] = path.isReversed ? [other.key, selection.key] : [selection.key, other.key];
    const noun = hierarchy.rolled ? "layer" : "operation";
    const text =
      path.steps < 0
        ? "No data flows between them."
        : `${format.plural(path.count, noun)} on the ways, shortest ${format.plural(path.steps, "step")}.`;
    const ends = facts([
      ["from", from],
      ["to", to],
    ]);
    return section("Path", ends, el("p", { text }));
  }

  private overview(): (HTMLElement | null)[] {
    const { docs } = this.guide;
    const close = button("×", "Close the details", this.onClose, { class: "close" });
    return [
      close,
      ...docs.flatMap(({ payload, side }) => {
        const { facts: known } = payload;
        const unknown = known.unknown_flops ? ` (${format.plural(known.unknown_flops, "operation")} without a formula)` : "";
        return [
          el("header", {}, el("h2", { text: titleOf(this.guide, side) })),
          known.failure ? el("p", { class: "error", text: `The pass failed: ${known.failure}` }) : null,
          section(
            "Model",
            facts([
              ["operations", format.count(known.operations)],
              ["layers", format.count(known.layers)],
              ["modules", known.modules ? format.count(known.modules) : null],
              ["parameters", known.parameters ? format.count(known.parameters) : null],
              ["time", known.seconds ? format.time(known.seconds) : null],
              ["memory made", known.bytes ? format.bytes(known.bytes) : null],
              ["FLOPs", known.flops === null ? null : format.human(known.flops) + unknown],
              ["recurrent", known.is_recurrent ? "some layers run more than once" : null],
            ]),
          ),
          known.left_out ? el("p", { class: "note", text: known.left_out }) : null,
          ...known.notes.map((note) => el("p", { class: "note", text: note })),
          payload.made_by ? el("p", { class: "note", text: `Made by ${payload.made_by}.` }) : null,
        ];
      }),
      el("p", {
        class: "note",
        text: "Click a box to open it, an operation or an edge to see everything known about it. ? lists the keys.",
      }),
    ];
  }
}
