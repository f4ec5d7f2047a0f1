// What the panels are made of: sections, lists of facts, rows that lead somewhere.

import { button, el } from "../../shared/dom";

export type Fact = [string, string | Node | null | undefined];

export function section(title: string, ...children: (Node | null | undefined | false)[]): HTMLElement | null {
  const found = children.filter((child): child is Node => Boolean(child));
  if (!found.length) return null;
  return el("section", {}, el("h3", { text: title }), ...found);
}

/** Names and values; those without a value are left out. */
export function facts(rows: Fact[]): HTMLElement | null {
  const known = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  if (!known.length) return null;
  const list = el("dl", { class: "facts" });
  for (const [name, value] of known) {
    const shown = typeof value === "string" ? el("dd", { text: value }) : el("dd", {}, value!);
    list.append(el("dt", { text: name }), shown);
  }
  return list;
}

export interface RowOptions {
  title: string;
  detail?: string;
  note?: string;
  color?: string;
  share?: number; // drawn as a bar behind
  onClick: () => void;
}

/** A row that leads somewhere. */
export function row(options: RowOptions): HTMLElement {
  const { title, detail, note, color, share, onClick } = options;
  const dot = color ? el("span", { class: "dot" }) : null;
  if (dot) dot.style.background = color!;
  const made = el(
    "button",
    { type: "button", class: "link-row", on: { click: onClick } },
    dot,
    el("span", { class: "row-title", text: title }),
    note ? el("span", { class: "row-note", text: note }) : null,
    detail ? el("span", { class: "row-detail", text: detail }) : null,
  );
  if (share !== undefined) made.style.setProperty("--share", `${Math.round(share * 100)}%`);
  return made;
}

const FIRST = 12;

/** Rows, the first few of them until the reader asks for the rest. */
export function rows(options: RowOptions[]): HTMLElement | null {
  if (!options.length) return null;
  const list = el("div", { class: "rows" }, ...options.slice(0, FIRST).map(row));
  const rest = options.slice(FIRST);
  if (rest.length) {
    const more = button(`Show ${rest.length.toLocaleString("en-US")} more`, "Show the rest", () => {
      more.replaceWith(...rest.slice(0, 500).map(row));
      if (rest.length > 500) list.append(el("p", { class: "note", text: `… and ${rest.length - 500} more, in the table.` }));
    });
    more.className = "more";
    list.append(more);
  }
  return list;
}
