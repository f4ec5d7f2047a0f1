// The patterns of attention heads in the panel: one large, with its axes, and all of them small. A click makes one large.

import { attentionInside, limitsOf, mapsOf, valueOf, wordsAt } from "../model/attention";
import { paintPixels, paintRamp } from "../../shared/canvas";
import { type Theme, rampPixels } from "../../shared/color";
import { button, el, replace } from "../../shared/dom";
import * as format from "../../shared/format";
import type { Attention, Payload } from "../model/payload";
import { scaleEnds, section } from "./panel_parts";

let chosen = 0; // stays when another attention is looked at, so that the same head of two layers is compared

/** The section of an attention's heads; null where there is nothing to see. */
export function attentionHeads(found: Attention | null, theme: Theme): HTMLElement | null {
  const maps = found && mapsOf(found);
  if (!found || !maps) return null;
  const colors = rampPixels(theme.shareRamp, 256);
  const readout = el("p", { class: "readout", role: "status", text: HINT });
  const large = el("div", { class: "large-head" });
  const small = maps.map((_, head) => smallMap(head, () => show(head)));
  const show = (head: number): void => {
    chosen = head;
    small.forEach((one, i) => one.setAttribute("aria-pressed", String(i === head)));
    const label = `Attention of head ${head}: ${found.queries} queries by ${found.keys} keys`;
    const picture = painted(found, maps[head]!, colors, label);
    follow(picture, found, head, maps[head]!, readout);
    replace(large, ...axes(found, head, picture));
  };
  small.forEach((one, head) => {
    const picture = painted(found, maps[head]!, colors, "");
    follow(picture, found, head, maps[head]!, readout);
    one.prepend(picture);
  });
  show(Math.min(chosen, maps.length - 1));
  const limits = limitsOf(found);
  return section(
    "Attention heads",
    large,
    readout,
    scale(found, theme),
    maps.length > 1 ? el("div", { class: "heads", role: "group", label: "Heads" }, ...small) : null,
    limits ? el("p", { class: "note", text: limits }) : null,
  );
}

/** The heads of the only attention in a module. */
export function headsInside(payload: Payload, module: number | undefined, theme: Theme): HTMLElement | null {
  return module === undefined ? null : attentionHeads(attentionInside(payload, module), theme);
}

const HINT = "Point at the map to read it.";

function smallMap(head: number, onClick: () => void): HTMLElement {
  const label = `Show head ${head} large`;
  return button(`head ${head}`, label, onClick, { class: "head" });
}

function painted(found: Attention, codes: Uint8Array, colors: Uint32Array, label: string): HTMLCanvasElement {
  const canvas = el("canvas", { class: "pattern", ...(label ? { role: "img", label } : {}) });
  paintPixels(canvas, found.width, Uint32Array.from(codes, (code) => colors[code]!));
  return canvas;
}

/** Says what is under the pointer. */
function follow(canvas: HTMLCanvasElement, found: Attention, head: number, codes: Uint8Array, readout: HTMLElement): void {
  const say = (event: PointerEvent): void => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * found.width);
    const row = Math.floor(((event.clientY - box.top) / box.height) * found.height);
    const code = column >= 0 && column < found.width ? codes[row * found.width + column] : undefined;
    readout.textContent = code === undefined ? HINT : wordsAt(found, head, row, column, code);
  };
  canvas.addEventListener("pointermove", say);
  canvas.addEventListener("pointerdown", say);
  canvas.addEventListener("pointerleave", () => (readout.textContent = HINT));
}

/** A map between its axes: keys from left to right, queries from top to bottom. */
function axes(found: Attention, head: number, picture: HTMLElement): HTMLElement[] {
  const ends = (name: string, count: number, side: string): HTMLElement =>
    el(
      "div",
      { class: `axis ${side}` },
      el("span", { text: "0" }),
      el("span", { text: name }),
      el("span", { text: String(count - 1) }),
    );
  const title = el("strong", { class: "head-name", text: `head ${head}` });
  return [title, ends("keys: looked at →", found.keys, "across"), ends("← queries: looking", found.queries, "down"), picture];
}

/** The colours of the maps, with the value in the middle, since they follow the square root. */
function scale(found: Attention, theme: Theme): HTMLElement {
  const bar = paintRamp(el("canvas", { class: "scale", role: "img", label: "Scale of colours" }), theme.shareRamp);
  const ends = [0, valueOf(found, 127.5), found.high].map((value) => format.figure(value, 3));
  return el("div", { class: "attention-scale" }, bar, scaleEnds(...ends));
}
