// Lines of the program around where something ran, and the calls that led there.

import { el, replace } from "../../shared/dom";
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
  const rows = stack.map((frame, i) => {
    const [file, line, name] = frame;
    const path = payload.files[file]?.path ?? "";
    const place = `${baseName(path)}:${line}`;
    const parts = [el("span", { class: "frame-name", text: name }), el("span", { class: "frame-place", text: place })];
    return el("button", { type: "button", class: "frame", title: `${path}:${line}`, on: { click: () => show(i) } }, ...parts);
  });
  const first = at >= 0 && at < stack.length ? at : stack.length - 1;
  const made = el("div", { class: "source" }, code);
  if (stack.length > 1) {
    const details = el(
      "details",
      {},
      el("summary", { text: `Call stack, ${stack.length} calls` }),
      el("div", { class: "frames" }, ...rows),
    );
    made.append(details);
  }
  show(first);
  return made;
}

export function codeAround(payload: Payload, [file, line]: [number, number, ...unknown[]]): HTMLElement {
  const found = payload.files[file];
  const path = el("div", { class: "path", text: `${found?.path ?? "?"}:${line}`, title: found?.path ?? "" });
  const lines: HTMLElement[] = [];
  for (let n = line - AROUND; n <= line + AROUND; n++) {
    const text = found?.lines[n];
    if (text === undefined) continue;
    const row = el("div", { class: n === line ? "line here" : "line" });
    row.append(el("span", { class: "number", text: String(n) }), el("span", { class: "code", text: text || " " }));
    lines.push(row);
  }
  return el("div", {}, path, lines.length ? el("div", { class: "lines" }, ...outdented(lines)) : null);
}

/** Takes away the indentation that all lines share. */
function outdented(rows: HTMLElement[]): HTMLElement[] {
  const codes = rows.map((row) => row.lastElementChild as HTMLElement);
  const depth = (text: string): number => (text.trim() ? text.length - text.trimStart().length : Infinity);
  const shared = Math.min(...codes.map((code) => depth(code.textContent ?? "")));
  if (Number.isFinite(shared)) for (const code of codes) code.textContent = (code.textContent ?? "").slice(shared) || " ";
  return rows;
}

function baseName(path: string): string {
  return path.split(/[\\/]/).at(-1) ?? path;
}
