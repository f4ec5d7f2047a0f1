// Operations or modules as a table: sorted by any column, narrowed by the search, as long as it has to be.

import { button, el, replace } from "../../shared/dom";
import { download, fileName } from "../drawing/export";
import type { Guide } from "../guide";
import { titleOf } from "../model/compare";
import { type Hierarchy, isBox } from "../model/hierarchy";
import { List } from "./list";
import { type Column, UNKNOWN, columnsOf } from "./columns";
import { childOf } from "../model/model_index";
import * as format from "../../shared/format";
import { clamp } from "../../shared/scale";

const ROW = 26;

/** Text as a cell of a CSV file. A leading = + - @, tab or end of line would be a formula to a spreadsheet. */
function quoted(text: string): string {
  const plain = /^[=+\-@\t\r\n]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

/** Whether a column holds figures, and not just the order of execution. */
function isFigure({ isNumber, name }: Column): boolean {
  return isNumber && name !== "#";
}

export class Table {
  readonly element: HTMLElement;
  private readonly list: List;
  private readonly head = el("div", { class: "table-head", role: "row" });
  private readonly summary = el("span", { class: "note" });
  private what: "operations" | "modules" = "operations";
  private sorted: { column: string; isDown: boolean } = { column: "#", isDown: false };
  private rows: number[] = [];
  private columns: Column[] = [];
  private active = 0; // row that the keys move
  private selected = -1;
  private made = "";
  private readonly tabs: HTMLButtonElement[];

  constructor(
    private readonly guide: Guide,
    onClose: () => void,
  ) {
    this.list = new List({
      rowHeight: ROW,
      role: "rowgroup",
      label: "Rows",
      row: (index) => this.row(index),
      onKey: (event) => this.key(event),
    });
    const choose = (what: "operations" | "modules"): HTMLButtonElement =>
      button(what === "operations" ? "Operations" : "Modules", `List ${what}`, () => {
        this.what = what;
        this.update();
      });
    this.tabs = [choose("operations"), choose("modules")];
    const bar = el(
      "div",
      { class: "table-bar" },
      ...this.tabs,
      this.summary,
      button("CSV", "Save the table as CSV", () => this.save()),
      button("×", "Close the table (t)", onClose, { class: "close" }),
    );
    const grid = el("div", { class: "grid", role: "table", label: "Operations and modules" }, this.head, this.list.element);
    this.element = el("section", { class: "table", label: "Table" }, bar, grid);
  }

  update(): void {
    const { state, side } = this.guide;
    const modelIndex = this.guide.modelIndex(side);
    this.tabs.forEach((tab, i) => tab.setAttribute("aria-pressed", String((i === 0) === (this.what === "operations"))));
    const key = [side, state.rolled, this.what, state.query, this.sorted.column, this.sorted.isDown].join("|");
    if (key !== this.made) {
      this.made = key;
      this.columns = columnsOf(modelIndex, this.what);
      this.rows = this.sortedRows(modelIndex.hierarchy);
      this.active = 0;
      this.drawHead();
    }
    const child = state.selection?.side === side ? childOf(modelIndex.hierarchy, state.selection) : null;
    const at = child === null ? -1 : this.rows.indexOf(child);
    if (at >= 0) this.active = at;
    this.selected = at;
    const { units, boxes } = modelIndex.hierarchy;
    const all =
      this.what === "operations"
        ? format.plural(units.length, state.rolled ? "layer" : "operation")
        : format.plural(boxes.filter((box) => box.kind === "module").length, "module");
    const said = state.query ? `${format.count(this.rows.length)} of ${all} fit the search` : all;
    this.summary.textContent = this.guide.docs.length > 1 ? `${titleOf(this.guide, side)} · ${said}` : said;
    this.list.show(this.rows.length);
    if (at >= 0) this.list.scrollTo(at);
  }

  private sortedRows(hierarchy: Hierarchy): number[] {
    const { query } = this.guide.state;
    const isWanted = (child: number): boolean =>
      isBox(child) === (this.what === "modules") && (!isBox(child) || hierarchy.boxes[~child]!.kind === "module");
    const all = query
      ? this.guide.modelIndex(this.guide.side).search.find(query).children
      : this.what === "operations"
        ? Array.from(hierarchy.order)
        : hierarchy.boxes.map((_, b) => ~b);
    const rows = all.filter(isWanted);
    const column = this.columns.find((one) => one.name === this.sorted.column) ?? this.columns[0]!;
    if (column.name === "#" && !this.sorted.isDown && this.what === "operations") return rows;
    const values = new Map(rows.map((child) => [child, column.value(child)]));
    const sign = this.sorted.isDown ? -1 : 1;
    return rows.sort((a, b) => {
      const [one, other] = [values.get(a)!, values.get(b)!];
      if (typeof one === "number" && typeof other === "number") return sign * (one - other);
      return sign * (String(one) < String(other) ? -1 : one === other ? 0 : 1);
    });
  }

  /** The rows as they are sorted and narrowed, as a file: figures as numbers, in seconds and bytes. */
  private save(): void {
    const { docs, side } = this.guide;
    const cell = (column: Column, child: number): string =>
      isFigure(column) ? (column.value(child) === UNKNOWN ? "" : String(column.value(child))) : quoted(column.text(child));
    const lines = [this.columns.map((column) => quoted(column.name)).join()];
    for (const child of this.rows) lines.push(this.columns.map((column) => cell(column, child)).join());
    const name = fileName(`${docs[side]!.payload.title}_${this.what}`, "csv");
    download(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }), name);
    this.guide.say(`Saved ${name}`, true);
  }

  private drawHead(): void {
    const cells = this.columns.map((column) => {
      const sort = this.sorted.column !== column.name ? "none" : this.sorted.isDown ? "descending" : "ascending";
      const arrow = { none: "", descending: " ↓", ascending: " ↑" }[sort];
      const cell = button(column.name + arrow, `Sort by ${column.name}`, () => this.sort(column), {
        role: "columnheader",
        class: column.isNumber ? "cell number" : "cell",
        aria: { sort },
      });
      cell.style.width = `${column.width}px`;
      return cell;
    });
    replace(this.head, ...cells);
    const width = this.columns.reduce((sum, column) => sum + column.width, 12);
    this.head.style.minWidth = `${width}px`;
    this.list.element.style.minWidth = `${width}px`;
  }

  private sort(column: Column): void {
    const isSame = this.sorted.column === column.name;
    this.sorted = { column: column.name, isDown: isSame ? !this.sorted.isDown : isFigure(column) };
    this.update();
  }

  private row(index: number): HTMLElement {
    const child = this.rows[index]!;
    const cells = this.columns.map((column) => {
      const text = column.text(child);
      const cell = el("span", { class: column.isNumber ? "cell number" : "cell", role: "cell", text });
      if (text.length > 20) cell.title = text;
      cell.style.width = `${column.width}px`;
      return cell;
    });
    const aria = { selected: index === this.selected };
    const made = el("div", { class: "table-row", role: "row", aria, on: { click: () => this.choose(index) } }, ...cells);
    if (index === this.active) made.classList.add("active");
    return made;
  }

  private choose(index: number): void {
    this.active = index;
    const child = this.rows[index];
    if (child !== undefined) this.guide.go(this.guide.side, child);
  }

  private key(event: KeyboardEvent): void {
    const moves: Record<string, number> = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: this.list.pageRows,
      PageUp: -this.list.pageRows,
      Home: -1e9,
      End: 1e9,
    };
    const by = moves[event.key];
    if (by === undefined && event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    if (by === undefined) {
      this.choose(this.active);
      return;
    }
    this.active = clamp(this.active + by, 0, this.rows.length - 1);
    this.list.scrollTo(this.active);
    this.list.refresh();
  }
}
