// Operations or modules as a table: sorted by any column, narrowed by the search, as long as it has to be.

import { button, el, replace } from "../../shared/dom";
import { download, fileName } from "../drawing/export";
import type { Guide } from "../guide";
import { type Hierarchy, isBox } from "../model/hierarchy";
import { List } from "./list";
import { type MetricName, ownMetrics } from "../model/measures";
import { stepOf } from "../model/outline";
import { childOf } from "../model/model_index";
import * as format from "../../shared/format";

interface Column {
  name: string;
  width: number;
  text: (child: number) => string;
  value: (child: number) => number | string;
  isNumber: boolean;
}

const ROW = 26;

/** Text as a cell of a CSV file. A leading = + - or @ would be a formula to a spreadsheet. */
function quoted(text: string): string {
  const plain = /^[=+\-@]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

function numberCell(value: number | string): string {
  return value === UNKNOWN ? "" : String(value);
}

const UNKNOWN = -1; // of figures, none of which is negative but those of the reader's own

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
    const tabs = [choose("operations"), choose("modules")];
    this.tabs = tabs;
    const bar = el(
      "div",
      { class: "table-bar" },
      ...tabs,
      this.summary,
      button("CSV", "Save the table as CSV", () => this.save()),
      button("×", "Close the table (t)", onClose, { class: "close" }),
    );
    const grid = el("div", { class: "grid", role: "table", label: "Operations and modules" }, this.head, this.list.element);
    this.element = el("section", { class: "table", label: "Table" }, bar, grid);
  }

  private readonly tabs: HTMLButtonElement[];

  update(): void {
    const { state, side } = this.guide;
    const modelIndex = this.guide.modelIndex(side);
    this.tabs.forEach((tab, i) => tab.setAttribute("aria-pressed", String((i === 0) === (this.what === "operations"))));
    const key = [side, state.rolled, this.what, state.query, this.sorted.column, this.sorted.isDown].join("|");
    if (key !== this.made) {
      this.made = key;
      this.columns = this.columnsOf(modelIndex.hierarchy);
      this.rows = this.sortedRows(modelIndex.hierarchy);
      this.active = 0;
      this.drawHead();
    }
    const child = state.selection?.side === side ? childOf(modelIndex.hierarchy, state.selection) : null;
    const at = child === null ? -1 : this.rows.indexOf(child);
    if (at >= 0) this.active = at;
    this.selected = at;
    const total =
      this.what === "operations"
        ? modelIndex.hierarchy.units.length
        : modelIndex.hierarchy.boxes.filter((box) => box.kind === "module").length;
    const noun = this.what === "operations" ? (state.rolled ? "layer" : "operation") : "module";
    this.summary.textContent = state.query
      ? `${this.rows.length.toLocaleString("en-US")} of ${format.plural(total, noun)} fit the search`
      : format.plural(total, noun);
    this.list.show(this.rows.length);
    if (at >= 0) this.list.scrollTo(at);
  }

  private columnsOf(hierarchy: Hierarchy): Column[] {
    const { measures } = this.guide.modelIndex(this.guide.side);
    const { units, boxes, payload, position } = hierarchy;
    const node = (child: number): (typeof payload.nodes)[number] => payload.nodes[units[child]!.members[0]!]!;
    const call = (child: number): (typeof payload.modules)[number] => payload.modules[boxes[~child]!.modules[0]!]!;
    const metric = (name: string, of: MetricName, width: number, write: (value: number) => string): Column => ({
      name,
      width,
      isNumber: true,
      text: (child) => {
        const value = measures.of(of, child);
        return value === null || value === 0 ? "" : write(value);
      },
      value: (child) => measures.of(of, child) ?? UNKNOWN,
    });
    const words = (name: string, width: number, text: (child: number) => string): Column => ({
      name,
      width,
      isNumber: false,
      text,
      value: text,
    });
    const shape = (child: number): number[] | null =>
      isBox(child) ? (call(child).output_shapes[0] ?? null) : node(child).shape;
    const address = (child: number): string => {
      if (isBox(child)) return hierarchy.rolled ? stepOf(call(child)) : call(child).key;
      return payload.modules[node(child).exits[0] ?? node(child).module]?.address ?? "";
    };
    const first: Column = {
      name: "#",
      width: 64,
      isNumber: true,
      text: (child) => ((isBox(child) ? boxes[~child]!.low : position[child]!) + 1).toLocaleString("en-US"),
      value: (child) => (isBox(child) ? boxes[~child]!.low : position[child]!),
    };
    const isOperations = this.what === "operations";
    return [
      first,
      ...(isOperations
        ? [words("operation", 190, (child) => units[child]!.key), words("type", 110, (child) => node(child).type)]
        : []),
      words("module", 210, address),
      ...(isOperations ? [] : [words("class", 150, (child) => call(child).class)]),
      {
        ...words("shape", 130, (child) => (shape(child) ? format.shape(shape(child)) : "")),
        value: (child) => (shape(child) ?? []).reduce((product, size) => product * size, 1),
      },
      ...(isOperations
        ? [words("dtype", 80, (child) => node(child).dtype ?? "")]
        : [
            {
              ...metric("operations", "time", 90, String),
              text: (child: number) => measures.operations(child).toLocaleString("en-US"),
              value: (child: number) => measures.operations(child),
            },
          ]),
      metric("time", "time", 90, format.time),
      metric("memory", "memory", 90, format.bytes),
      metric("FLOPs", "flops", 80, format.human),
      metric("params", "params", 80, format.human),
      metric("norm", "norm", 80, format.figure),
      metric("zeros", "zeros", 70, format.percent),
      metric("grad norm", "gradient", 90, format.figure),
      metric("NaN, inf", "nonfinite", 80, format.human),
      ...ownMetrics(payload).map((one) => metric(one.title, one.name, 110, one.write)),
    ];
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
      column.isNumber && column.name !== "#" ? numberCell(column.value(child)) : quoted(column.text(child));
    const lines = [this.columns.map((column) => quoted(column.name)).join()];
    for (const child of this.rows) lines.push(this.columns.map((column) => cell(column, child)).join());
    const name = fileName(`${docs[side]!.payload.title}_${this.what}`, "csv");
    download(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }), name);
    this.guide.say(`Saved ${name}`, true);
  }

  private drawHead(): void {
    const cells = this.columns.map((column) => {
      const isSorted = this.sorted.column === column.name;
      const arrow = isSorted ? (this.sorted.isDown ? " ↓" : " ↑") : "";
      const cell = button(column.name + arrow, `Sort by ${column.name}`, () => this.sort(column), {
        role: "columnheader",
        class: column.isNumber ? "cell number" : "cell",
      });
      cell.style.width = `${column.width}px`;
      cell.setAttribute("aria-sort", isSorted ? (this.sorted.isDown ? "descending" : "ascending") : "none");
      return cell;
    });
    replace(this.head, ...cells);
    const width = this.columns.reduce((sum, column) => sum + column.width, 12);
    this.head.style.minWidth = `${width}px`;
    this.list.element.style.minWidth = `${width}px`;
  }

  private sort(column: Column): void {
    const isSame = this.sorted.column === column.name;
    this.sorted = { column: column.name, isDown: isSame ? !this.sorted.isDown : column.isNumber && column.name !== "#" };
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
    const made = el("div", { class: "table-row", role: "row", on: { click: () => this.choose(index) } }, ...cells);
    if (index === this.active) made.classList.add("active");
    made.setAttribute("aria-selected", String(index === this.selected));
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
    this.active = Math.max(0, Math.min(this.rows.length - 1, this.active + by));
    this.list.scrollTo(this.active);
    this.list.refresh();
  }
}
