// The bar at the top: what the model is, the search, and how the graph is shown.

import type { Actions } from "./actions";
import { button, el, replace } from "../../shared/dom";
import type { Finder } from "./finder";
import type { Guide } from "../guide";
import { FACT_TITLES, type FactName } from "../drawing/look";
import { type MetricName, metricsOf } from "../model/measures";
import { SHOW_DETAILS } from "../state/state";
import * as format from "../../shared/format";

export class Toolbar {
  readonly element: HTMLElement;
  private readonly roll: HTMLButtonElement;
  private readonly tree: HTMLButtonElement;
  private readonly plumbing: HTMLButtonElement;
  private readonly turn: HTMLButtonElement;
  private readonly table: HTMLButtonElement;
  private readonly metric: HTMLSelectElement;
  private readonly factBoxes = new Map<FactName, HTMLInputElement>();
  private readonly differences: HTMLButtonElement | null = null;

  constructor(
    private readonly guide: Guide,
    finder: Finder,
    actions: Actions,
  ) {
    const { docs } = guide;
    this.tree = button("☰", "Outline (m)", () => actions.togglePart("tree"), { class: "icon" });
    this.roll = button("Rolled", "One box per layer, however often it ran (r)", () => actions.roll());
    this.roll.hidden = !docs.some((doc) => doc.hasPasses);
    const about = "Shape functions, masks, positions and what leads only to these (p)";
    this.plumbing = button("Plumbing", about, () => actions.plumbing(), { class: "plumbing" });
    this.plumbing.hidden = !docs.some((doc) => doc.hasPlumbing);
    this.turn = button("⇉", "From left to right, or from top to bottom (h)", () => actions.turn(), { class: "icon" });
    this.table = button("Table", "Table of operations and modules (t)", () => actions.togglePart("table"));
    this.metric = el("select", {
      label: "Colour by (b)",
      title: "Colour by (b)",
      on: { change: () => guide.dispatch({ type: "metric", metric: this.metric.value as MetricName }) },
    });
    const metrics = metricsOf(docs.map((doc) => doc.payload));
    this.metric.append(...metrics.map((metric) => el("option", { value: metric.name, text: metric.title })));
    if (docs.length > 1)
      this.differences = button("Differences", "What differs (v goes to the next)", () => actions.togglePart("differences"));
    const depth = el(
      "span",
      { class: "group wide", role: "group", label: "How deep" },
      button("−", "One level less (O)", () => actions.deeper(-1)),
      button("+", "One level more (o)", () => actions.deeper(1)),
      button("all", "Open everything (e)", () => actions.openAll()),
      button("none", "Close everything (c)", () => actions.toDepth(1)),
    );
    this.element = el(
      "header",
      { class: "toolbar" },
      this.tree,
      this.name(),
      finder.element,
      depth,
      el("label", { class: "field" }, el("span", { class: "field-name", text: "Colour" }), this.metric),
      this.roll,
      this.plumbing,
      this.turn,
      this.factMenu(),
      this.differences,
      this.table,
      this.saveMenu(actions),
      button("◐", "Light or dark (g)", () => actions.switchTheme(), { class: "icon" }),
      button("?", "Keys and help (?)", () => actions.togglePart("help"), { class: "icon" }),
    );
    document.addEventListener("pointerdown", (event) => {
      for (const menu of this.element.querySelectorAll("details[open]")) {
        if (!menu.contains(event.target as Node)) menu.removeAttribute("open");
      }
    });
  }

  private name(): HTMLElement {
    const { docs } = this.guide;
    const titles = [...new Set(docs.map((doc) => doc.payload.title))].join(" and ");
    const { facts } = docs[0]!.payload;
    const parts = [
      format.plural(facts.operations, "operation"),
      facts.parameters ? `${format.human(facts.parameters)} params` : "",
      facts.seconds ? format.time(facts.seconds) : "",
      facts.flops ? format.flops(facts.flops) : "",
    ];
    const summary =
      docs.length > 1
        ? docs.map((doc) => format.plural(doc.payload.facts.operations, "operation")).join(" and ")
        : parts.filter(Boolean).join(" · ");
    const show = (): void => this.guide.apply([{ type: "select", selection: null }, SHOW_DETAILS], null);
    const about = button("", "About the model (i)", show, { class: "about" });
    about.append(el("strong", { text: titles }), el("span", { class: "note", text: summary }));
    return about;
  }

  private factMenu(): HTMLElement {
    const choices = (Object.entries(FACT_TITLES) as [FactName, string][]).map(([fact, title]) => {
      const box = el("input", {
        type: "checkbox",
        on: { change: () => this.guide.dispatch({ type: "fact", fact, isShown: box.checked }) },
      });
      this.factBoxes.set(fact, box);
      return el("label", { class: "choice" }, box, title);
    });
    return menu("Labels", "What is written on the boxes", ...choices);
  }

  private saveMenu(actions: Actions): HTMLElement {
    const choice = (text: string, kind: "svg" | "png", isWhole: boolean): HTMLElement =>
      button(text, text, (event) => {
        (event.currentTarget as HTMLElement).closest("details")?.removeAttribute("open");
        void actions.save(kind, isWhole);
      });
    return menu(
      "Save",
      "Save what is seen as a picture",
      choice("SVG, whole graph", "svg", true),
      choice("SVG, what is on the screen", "svg", false),
      choice("PNG, whole graph", "png", true),
      choice("PNG, what is on the screen", "png", false),
    );
  }

  update(): void {
    const { state } = this.guide;
    const press = (one: HTMLElement | null, isOn: boolean): void => one?.setAttribute("aria-pressed", String(isOn));
    press(this.roll, state.rolled);
    press(this.plumbing, state.hasPlumbing);
    press(this.turn, state.isAcross);
    press(this.tree, state.parts.has("tree"));
    press(this.table, state.parts.has("table"));
    press(this.differences, state.parts.has("differences"));
    this.metric.value = state.metric;
    for (const [fact, box] of this.factBoxes) box.checked = state.facts.has(fact);
  }
}

function menu(text: string, label: string, ...choices: Node[]): HTMLElement {
  return el(
    "details",
    { class: "menu" },
    el("summary", { text, title: label, label }),
    el("div", { class: "menu-body" }, ...choices),
  );
}

export interface Crumb {
  title: string;
  go: () => void;
}

/** The way from the model to what is selected. */
export class Breadcrumb {
  readonly element = el("nav", { class: "breadcrumb", label: "Where this is" });

  update(path: Crumb[]): void {
    this.element.hidden = path.length < 2; // the name of the model stands above
    const parts = path.flatMap((part, i) => [
      ...(i ? [el("span", { class: "apart", text: "›" })] : []),
      button(part.title, part.title, part.go, { class: i === path.length - 1 ? "crumb last" : "crumb" }),
    ]);
    replace(this.element, ...parts);
  }
}
