// The list of what differs between two models.

import { type ChangeKind, type Comparison, type Difference, isOfValues, onlyIn } from "../model/compare";
import { button, el, replace } from "../../shared/dom";
import type { Guide } from "../guide";
import { List, stepped } from "./list";
import { ring } from "./panel_parts";
import * as format from "../../shared/format";

const ROW = 44;
type Filter = "all" | "only" | ChangeKind;

export class Differences {
  readonly element: HTMLElement;
  private readonly list: List;
  private readonly bar = el("div", { class: "difference-bar", role: "group", label: "Which differences" });
  private filter: Filter = "all";
  private shown: Difference[] = [];
  private at = -1;

  constructor(
    private readonly guide: Guide,
    private readonly comparison: Comparison,
    private readonly onClose: () => void,
  ) {
    this.list = new List({ rowHeight: ROW, role: "listbox", label: "Differences", row: (index) => this.row(index) });
    this.element = el("section", { class: "differences", label: "Differences" }, this.bar, this.list.element);
    this.choose(guide.docs[0]!.payload.verdict && comparison.counts.values ? "values" : "all");
  }

  update(): void {
    this.list.refresh();
  }

  /** Goes to the next difference, or to the previous one. */
  step(by: number): void {
    if (!this.shown.length) return;
    this.go(stepped(this.at, by, this.shown.length));
    this.list.scrollTo(this.at);
  }

  private go(index: number): void {
    this.at = index;
    const one = this.shown[index]!;
    if (one.left >= 0) this.guide.goToNode(0, one.left);
    else this.guide.goToNode(1, one.right);
    this.list.refresh();
  }

  private choose(filter: Filter): void {
    this.filter = filter;
    this.at = -1;
    const { differences, counts } = this.comparison;
    this.shown = differences.filter((one) => fits(one, filter));
    const real = differences.filter((one) => fits(one, "all")).length;
    const tabs: [Filter, string, number][] = [
      ["all", "All", real],
      ["only", "Only in one", counts.left + counts.right],
      ["structure", "Shape, type", counts.structure],
      ["parameters", "Parameters", counts.parameters],
      ["values", this.guide.docs[0]!.payload.verdict ? "Own error" : "Values", counts.values],
      ["time", "Time", counts.time],
    ];
    replace(
      this.bar,
      el("strong", { text: real ? format.plural(real, "difference") : "No differences" }),
      ...tabs.map(([name, title, count]) =>
        button(`${title} ${format.count(count)}`, `Show: ${title}`, () => this.choose(name), {
          aria: { pressed: name === this.filter },
        }),
      ),
      button("×", "Close the list", this.onClose, { class: "close" }),
    );
    this.list.show(this.shown.length);
  }

  private row(index: number): HTMLElement {
    const one = this.shown[index]!;
    const { docs, theme } = this.guide;
    const side = one.left >= 0 ? 0 : 1;
    const payload = docs[side]!.payload;
    const node = payload.nodes[side === 0 ? one.left : one.right]!;
    const isOnly = one.left < 0 || one.right < 0;
    const color = isOnly ? (side === 0 ? theme.onlyLeft : theme.onlyRight) : theme.changed;
    const said = one.changes.filter((change) => (change.kind === "time") === (this.filter === "time")).map(summary);
    const text = isOnly ? one.cause || onlyIn(this.guide, side) : [one.cause, ...said].filter(Boolean).join(" · ");
    const aria = { selected: index === this.at };
    return el(
      "div",
      { class: "result", role: "option", title: text, aria, on: { click: () => this.go(index) } },
      ring(color),
      el("span", { class: "result-title", text: node.key }),
      el("span", { class: "row-detail", text: payload.modules[node.module]?.address ?? "" }),
      el("span", { class: "result-note", text }),
    );
  }
}

function fits(one: Difference, filter: Filter): boolean {
  const isOnly = one.left < 0 || one.right < 0;
  if (filter === "only") return isOnly;
  if (filter === "all") return isOnly || one.cause !== "" || one.changes.some((change) => change.kind !== "time");
  if (filter === "values") return isOfValues(one);
  return one.changes.some((change) => change.kind === filter);
}

function summary(change: Difference["changes"][number]): string {
  if (change.kind === "parameters") return `${change.name} has other values (${change.amount})`;
  if (change.kind === "values") return `${change.name} ${change.amount || `${change.left} → ${change.right}`}`;
  return `${change.name} ${change.left} → ${change.right}${change.amount && change.kind === "time" ? `, ${change.amount}` : ""}`;
}
