// Patterns of attention heads: how much each query looks at each key. Large ones have several positions in a pixel.

import type { Attention, Payload } from "./payload";
import * as format from "../../shared/format";
import { fromBase64 } from "../../shared/unpacking";

/** The maps of all heads that are shown, in 8-bit codes; null where the data does not fit its sizes. */
export function mapsOf(found: Attention): Uint8Array[] | null {
  const { width, height, shown, data } = found;
  const size = width * height;
  const codes = fromBase64(data);
  if (!(size > 0) || !(shown > 0) || codes.length < size * shown) return null;
  return Array.from({ length: shown }, (_, head) => codes.subarray(head * size, (head + 1) * size));
}

/** The value that a code stands for. Codes are spaced by the square root, so that faint weights differ as well. */
export function valueOf(found: Attention, code: number): number {
  return (code / 255) ** 2 * found.high;
}

/** The first and the last of the positions in a row or column of pixels. */
export function positionsAt(at: number, size: number, count: number): [number, number] {
  return [Math.floor((at * size) / count), Math.floor(((at + 1) * size) / count) - 1];
}

/** What is at a pixel: `head 3: query 5 looks at key 2 with 0.31`. */
export function wordsAt(found: Attention, head: number, row: number, column: number, code: number): string {
  const queries = positionsAt(row, found.queries, found.height);
  const keys = positionsAt(column, found.keys, found.width);
  const verb = queries[0] === queries[1] ? "looks" : "look";
  const value = format.figure(valueOf(found, code), 3);
  return `head ${head}: ${positions("query", "queries", queries)} ${verb} at ${positions("key", "keys", keys)} with ${value}`;
}

function positions(one: string, many: string, [first, last]: [number, number]): string {
  return first === last ? `${one} ${first}` : `${many} ${first}–${last}`;
}

/** What is shown, where it is not everything. */
export function limitsOf(found: Attention): string {
  const { heads, shown, samples, queries, keys, width, height } = found;
  const parts = [
    shown < heads ? `${shown} of ${heads} heads` : "",
    samples > 1 ? `the first of ${samples} samples` : "",
    width < keys || height < queries ? `${queries}×${keys} in ${height}×${width} pixels: a row is a mean, a column a sum` : "",
  ];
  return parts.filter(Boolean).join(", ");
}

/** The only attention inside a call of a module; null where there is none, or more than one. */
export function attentionInside(payload: Payload, module: number): Attention | null {
  const { first, end } = payload.modules[module] ?? { first: -1, end: -1 };
  if (first < 0) return null;
  const found = payload.nodes.slice(first, end).flatMap(({ attention }) => attention ?? []);
  return found.length === 1 ? found[0]! : null;
}
