// What the panels are made of: sections, lists of facts, rows that lead somewhere.

import { button, el } from "../../shared/dom";
import * as format from "../../shared/format";

export type Fact = [string, string | Node | null | undefined];

/** A small square of a colour. */
export function dot(color: string, size: "" | "large" = ""): HTMLElement {
  const made = el("span", { class: `dot ${size}`.trim() });
  made.style.background = color;
  return made;
}

/** A small ring of a colour: what differs between two models. */
export function ring(color: string): HTMLElement {
  const made = el("span", { class: "ring" });
  made.style.borderColor = color;
  return made;
}

/** The values at the ends of a scale, and between them. */
export function scaleEnds(...texts: string[]): HTMLElement {
  return el("div", { class: "scale-ends" }, ...texts.map((text) => el("span", { text })));
}

export function section(title: string, ...children: (Node | null | undefined | false)[]): HTMLElement | null {
  return children.some(Boolean) ? el("section", {}, el("h3", { text: title }), ...children) : null;
}

/** Names and values; those without a value are left out. */
export function facts(rows: Fact[]): HTMLElement | null {
  const known = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  if (!known.length) return null;
  const list = el("dl", { class: "facts" });
  for (const [name, value] of known) list.append(el("dt", { text: name }), el("dd", {}, value));
  return list;
}

export interface RowOptions {
  title: string;
  detail?: string;
  note?: string;
  color?: string;
  share?: number | undefined; // drawn as a bar behind
  onClick: () => void;
}

/** A row that leads somewhere. */
export function row(options: RowOptions): HTMLElement {
  const { title, detail, note, color, share, onClick } = options;
  const made = el(
    "button",
    { type: "button", class: "link-row", on: { click: onClick } },
    color ? dot(color) : null,
    el("span", { class: "row-title", text: title }),
    note ? el("span", { class: "row-note", text: note }) : null,
    detail ? el("span", { class: "row-detail", text: detail }) : null,
  );
  if (share !== undefined) made.style.setProperty("--share", `${Math.round(share * 100)}%`);
  return made;
}

const FIRST = 12;
const MOST = 500;

/** Rows, the first few of them until the reader asks for the rest. */
export function rows(options: RowOptions[]): HTMLElement | null {
  if (!options.length) return null;
  const list = el("div", { class: "rows" }, ...options.slice(0, FIRST).map(row));
  const rest = options.slice(FIRST);
  if (rest.length) {
    const show = (): void => {
      more.replaceWith(...rest.slice(0, MOST).map(row));
      if (rest.length > MOST) list.append(el("p", { class: "note", text: `… and ${rest.length - MOST} more, in the table.` }));
    };
    const more = button(`Show ${format.count(rest.length)} more`, "Show the rest", show, { class: "more" });
    list.append(more);
  }
  return list;
}
