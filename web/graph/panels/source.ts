// Lines of the program around where something ran, and the calls that led there.

import { el, replace } from "../../shared/dom";
import * as format from "../../shared/format";
import type { OpNode, Payload } from "../model/payload";

const AROUND = 4;

/** The code around a frame of a call stack; each frame can be clicked to see its own. */
export function sourceView(payload: Payload, stack: OpNode["stack"], at: number): HTMLElement | null {
  if (!stack.length) return null;
  const code = el("div");
  const show = (which: number): void => {
    replace(code, codeAround(payload, stack[which]!));
    rows.forEach((row, i) => row.setAttribute("aria-current", String(i === which)));
  };
  const rows = stack.map(([file, line, name], i) => {
    const path = payload.files[file]?.path ?? "";
    const place = `${format.baseName(path)}:${line}`;
    const parts = [el("span", { class: "frame-name", text: name }), el("span", { class: "frame-place", text: place })];
    return el("button", { type: "button", class: "frame", title: `${path}:${line}`, on: { click: () => show(i) } }, ...parts);
  });
  show(at >= 0 && at < stack.length ? at : stack.length - 1);
  const summary = el("summary", { text: `Call stack, ${stack.length} calls` });
  const calls = stack.length > 1 ? el("details", {}, summary, el("div", { class: "frames" }, ...rows)) : null;
  return el("div", { class: "source" }, code, calls);
}

export function codeAround(payload: Payload, [file, line]: [number, number, ...unknown[]]): HTMLElement {
  const found = payload.files[file];
  const path = el("div", { class: "path", text: `${found?.path ?? "?"}:${line}`, title: found?.path ?? "" });
  const around = Array.from({ length: 2 * AROUND + 1 }, (_, i) => line - AROUND + i);
  const numbers = around.filter((n) => found?.lines[n] !== undefined);
  const lines = outdented(numbers.map((n) => found!.lines[n]!)).map((text, i) => {
    const parts = [el("span", { class: "number", text: String(numbers[i]) }), el("span", { class: "code", text: text || " " })];
    return el("div", { class: numbers[i] === line ? "line here" : "line" }, ...parts);
  });
  return el("div", {}, path, lines.length ? el("div", { class: "lines" }, ...lines) : null);
}

/** Lines without the indentation that all of them share; blank lines have none. */
function outdented(lines: string[]): string[] {
  const depths = lines.filter((text) => text.trim()).map((text) => text.length - text.trimStart().length);
  const shared = depths.length ? Math.min(...depths) : 0;
  return lines.map((text) => text.slice(shared));
}
