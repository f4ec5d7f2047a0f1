// The search field with its list of results.

import { button, el } from "../../shared/dom";
import type { Found } from "../model/search";
import type { Guide } from "../guide";
import { firstCall, firstNode, isBox } from "../model/hierarchy";
import { List, stepped } from "../panels/list";
import { dot } from "../panels/panel_parts";
import { stepOf } from "../model/outline";
import * as format from "../../shared/format";

const ROW = 42;
const MOST_ROWS = 8;
const PAUSE = 60; // milliseconds after a keystroke

export class Finder {
  readonly element: HTMLElement;
  readonly field: HTMLInputElement;
  private readonly list: List;
  private readonly count = el("span", { class: "found-count", role: "status" });
  private readonly results: HTMLElement;
  private readonly nothing = el("p", { class: "note nothing", hidden: true });
  private pending = 0;
  private isOpen = false;

  constructor(private readonly guide: Guide) {
    this.field = el("input", {
      type: "search",
      class: "search",
      placeholder: "Search: name, class, shape, /regex/",
      label: "Search operations and modules",
      on: {
        input: () => this.typed(),
        keydown: (event) => this.key(event),
        focus: () => this.open(true),
      },
    });
    this.field.autocomplete = "off";
    this.field.spellcheck = false;
    this.list = new List({ rowHeight: ROW, role: "listbox", label: "Results", row: (index) => this.row(index) });
    this.list.element.tabIndex = -1;
    this.results = el("div", { class: "results", hidden: true }, this.list.element, this.nothing);
    this.element = el(
      "div",
      { class: "finder" },
      this.field,
      this.count,
      button("‹", "Previous result (Shift-Enter, N)", () => this.step(-1), { class: "small" }),
      button("›", "Next result (Enter, n)", () => this.step(1), { class: "small" }),
      this.results,
    );
    document.addEventListener("pointerdown", (event) => {
      if (!this.element.contains(event.target as Node)) this.open(false);
    });
  }

  private get found(): Found {
    return this.guide.modelIndex(this.guide.side).search.find(this.guide.state.query);
  }

  update(): void {
    const { query, match } = this.guide.state;
    if (this.field.value !== query && document.activeElement !== this.field) this.field.value = query;
    this.element.classList.toggle("active", query !== "");
    const { children, isInvalid } = this.found;
    this.field.setAttribute("aria-invalid", String(isInvalid));
    const place = match >= 0 ? `${format.count(match + 1)} of ` : "";
    const said = isInvalid ? "not a pattern" : place + format.count(children.length);
    this.count.textContent = query ? said : "";
    this.results.hidden = !this.isOpen || !query;
    this.nothing.hidden = children.length > 0 || isInvalid;
    this.nothing.textContent = `Nothing here fits “${format.shortened(query, 40)}”.`;
    const rows = Math.min(MOST_ROWS, children.length);
    this.list.element.style.height = `${rows * ROW}px`;
    this.list.show(children.length);
    if (match >= 0) this.list.scrollTo(match);
  }

  focus(): void {
    this.field.focus();
    this.field.select();
  }

  /** Goes to the next result, or to the previous one. */
  step(by: number): void {
    this.flush();
    const { children } = this.found;
    if (!children.length) return;
    this.choose(stepped(this.guide.state.match, by, children.length));
  }

  private choose(index: number): void {
    const child = this.found.children[index];
    if (child === undefined) return;
    this.guide.dispatch({ type: "match", match: index });
    this.guide.go(this.guide.side, child);
  }

  /** Goes to a result, and closes the list. */
  private take(index: number): void {
    this.choose(index);
    this.open(false);
  }

  private typed(): void {
    this.open(true);
    window.clearTimeout(this.pending);
    this.pending = window.setTimeout(() => this.flush(), PAUSE);
  }

  private flush(): void {
    window.clearTimeout(this.pending);
    if (document.activeElement === this.field || this.field.value)
      this.guide.dispatch({ type: "query", query: this.field.value });
  }

  private open(isOpen: boolean): void {
    if (this.isOpen === isOpen) return;
    this.isOpen = isOpen;
    this.update();
  }

  private key(event: KeyboardEvent): void {
    if (event.key === "Enter") {
      this.step(event.shiftKey ? -1 : 1);
      if (this.found.children.length) this.open(false);
    }
    else if (event.key === "ArrowDown") this.step(1);
    else if (event.key === "ArrowUp") this.step(-1);
    else if (event.key === "Escape") this.leave();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Closes the list and focuses the graph, where n and N step through the results; without a list, ends the search. */
  private leave(): void {
    if (!this.isOpen && this.guide.state.match < 0) this.field.value = "";
    this.flush();
    this.open(false);
    this.field.blur();
    this.guide.stages[this.guide.side]?.pane.canvas.focus({ preventScroll: true });
  }

  private row(index: number): HTMLElement {
    const { hierarchy, palette } = this.guide.modelIndex(this.guide.side);
    const { payload, units, rolled } = hierarchy;
    const child = this.found.children[index]!;
    const aria = { selected: index === this.guide.state.match };
    const made = (mark: HTMLElement, title: string, detail: string, note: string): HTMLElement =>
      el(
        "div",
        { class: "result", role: "option", aria, on: { click: () => this.take(index) } },
        mark,
        el("span", { class: "result-title", text: title }),
        el("span", { class: "row-detail", text: detail }),
        el("span", { class: "result-note", text: note }),
      );
    if (isBox(child)) {
      const call = firstCall(hierarchy, ~child)!;
      return made(el("span", { class: "twist", text: "▸" }), rolled ? stepOf(call) : call.key, "module", call.class);
    }
    const node = firstNode(hierarchy, child);
    const mark = dot(this.guide.theme.categories[palette.category(child)].accent);
    const note = payload.modules[node.exits[0] ?? node.module]?.address ?? node.role;
    return made(mark, units[child]!.key, node.shape ? format.shape(node.shape) : "", note);
  }
}
