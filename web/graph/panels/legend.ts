// What the colours mean.

import { CATEGORY_TITLES, type Theme } from "../../shared/color";
import type { Coloring } from "../drawing/coloring";
import { paintRamp } from "../../shared/canvas";
import { button, el, replace } from "../../shared/dom";
import type { Guide } from "../guide";
import { dot, ring } from "./panel_parts";

export class LegendBox {
  readonly element = el("div", { class: "legend", role: "group", label: "Legend" });
  private drawn: unknown[] = [];

  constructor(private readonly guide: Guide) {}

  update(coloring: Coloring | null, theme: Theme): void {
    const now = [coloring, theme];
    if (!coloring || now.every((part, i) => part === this.drawn[i])) return;
    this.drawn = now;
    const { legend } = coloring;
    if (legend.metric.name === "type") this.categories(coloring, theme);
    else this.ramp(coloring, theme);
  }

  private categories(coloring: Coloring, theme: Theme): void {
    const items = coloring.legend.categories.map((category) =>
      el("span", { class: "legend-item" }, dot(theme.categories[category].accent), CATEGORY_TITLES[category]),
    );
    replace(this.element, ...(this.guide.comparison ? this.compared(theme) : items));
  }

  private compared(theme: Theme): HTMLElement[] {
    const hasVerdict = this.guide.docs[0]!.payload.verdict !== "";
    const entries: [string, string][] = [
      [hasVerdict ? "only in a" : "only left", theme.onlyLeft],
      [hasVerdict ? "only in b" : "only right", theme.onlyRight],
      [hasVerdict ? "differs by itself" : "differs", theme.changed],
    ];
    return entries.map(([text, color]) => {
      const mark = ring(color);
      if (color === theme.changed) mark.style.borderStyle = "dashed";
      return el("span", { class: "legend-item" }, mark, text);
    });
  }

  private ramp(coloring: Coloring, theme: Theme): void {
    const { metric, low, high, isLog, hasUnknown, isEmpty } = coloring.legend;
    const isClean = metric.name === "nonfinite" && high === 0;
    if (isEmpty || isClean) {
      const text = `${metric.title}: ${isEmpty ? "nothing is known" : "none"}`;
      replace(this.element, el("span", { class: "legend-item", text }));
      return;
    }
    const canvas = paintRamp(el("canvas", { class: "scale" }), theme.costRamp);
    const unknown = el("span", { class: "swatch" });
    unknown.style.background = theme.missing;
    const scale = button(isLog ? "log" : "linear", "Switch between a logarithmic and a linear scale", () =>
      this.guide.dispatch({ type: "scale", scale: isLog ? "linear" : "log" }),
    );
    replace(
      this.element,
      el("strong", { text: metric.title, title: `Of a closed box: ${metric.rule}` }),
      el(
        "span",
        { class: "legend-ramp" },
        el("span", { text: metric.write(low) }),
        canvas,
        el("span", { text: metric.write(high) }),
      ),
      scale,
      hasUnknown ? el("span", { class: "legend-item" }, unknown, "unknown") : null,
      ...(this.guide.comparison ? this.compared(theme) : []),
    );
  }
}
