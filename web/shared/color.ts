// Colours: what is generated from Python's table, and what is worked out from colours.

import { CATEGORY_TITLES, type Category } from "./generated/colors";
import { clamp } from "./scale";

export * from "./generated/colors";

/** What kind of step a node is; an unknown kind counts as arithmetic. */
export function categoryOf(node: { category: string }): Category {
  return node.category in CATEGORY_TITLES ? (node.category as Category) : "arithmetic";
}

/** The colour at a place between the ends of a ramp, 0 to 1. */
export function rampColor(ramp: readonly string[], place: number): string {
  const at = clamp(place, 0, 1) * (ramp.length - 1);
  const low = Math.min(Math.floor(at), ramp.length - 2);
  const one = channels(ramp[low]!);
  const other = channels(ramp[low + 1]!);
  const mixed = one.map((part, i) => Math.round(part + (other[i]! - part) * (at - low)));
  return `#${mixed.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

/** So many colours from one end of a ramp to the other, as pixels. */
export function rampPixels(ramp: readonly string[], count: number): Uint32Array {
  return Uint32Array.from({ length: count }, (_, i) => pixelOf(rampColor(ramp, i / (count - 1))));
}

/** A colour as a pixel of ImageData, which is little-endian. */
export function pixelOf(color: string): number {
  const [red, green, blue] = channels(color);
  return packedPixel(red!, green!, blue!);
}

export function packedPixel(red: number, green: number, blue: number): number {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** Black or white, whichever is easier to read on a colour. */
export function readableInk(fill: string): string {
  return luminance(fill) > 0.22 ? "#16181D" : "#FFFFFF";
}

export function luminance(color: string): number {
  const [red, green, blue] = channels(color).map((part) => {
    const scaled = part / 255;
    return scaled <= 0.04045 ? scaled / 12.92 : ((scaled + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red! + 0.7152 * green! + 0.0722 * blue!;
}

export function channels(color: string): number[] {
  return [1, 3, 5].map((i) => Number.parseInt(color.slice(i, i + 2), 16));
}
