// From the codes of a frame to colours and words. Codes 0 to `levels` lie evenly between the ends of the frame.

import { BOTH_SIGNS, NEVER_NEGATIVE, NONFINITE, packedPixel, pixelOf, rampPixels } from "../../shared/color";
import * as format from "../../shared/format";
import { clamp } from "../../shared/scale";
import type { Frame } from "../data/run";

export type Limits = readonly [number, number]; // the values at the ends of a colour scale

const NEGATIVE = 253;
const POSITIVE = 254;
const NOT_A_NUMBER = 255;
const COLORS = 255; // odd, so that zero has a colour of its own in the middle of the scale with both signs

export const PALETTE = {
  bothSigns: rampPixels(BOTH_SIGNS, COLORS),
  neverNegative: rampPixels(NEVER_NEGATIVE, COLORS),
  nonfinite: pixelOf(NONFINITE),
};

export function rampFor(limits: Limits): readonly string[] {
  return limits[0] < 0 ? BOTH_SIGNS : NEVER_NEGATIVE;
}

function codeValue(frame: Frame, code: number, levels: number): number {
  return frame.low + ((frame.high - frame.low) * code) / levels;
}

/** The pixels of a frame; of three planes one after the other where they are red, green and blue of tiles of some area. */
export function pixelsOf(codes: Uint8Array, frame: Frame, limits: Limits, levels: number, colorArea = 0): Uint32Array {
  const [low, width] = [limits[0], limits[1] - limits[0] || 1];
  const places = Array.from({ length: 256 }, (_, code) => clamp((codeValue(frame, code, levels) - low) / width, 0, 1));
  const bright = places.map((place) => Math.round(place * 255));
  if (colorArea) return colorPixels(codes, colorArea, bright, levels);
  const colors = limits[0] < 0 ? PALETTE.bothSigns : PALETTE.neverNegative;
  const table = Uint32Array.from(places, (place, code) =>
    code > levels ? PALETTE.nonfinite : colors[Math.round(place * (colors.length - 1))]!,
  );
  return Uint32Array.from(codes, (code) => table[code]!);
}

function colorPixels(codes: Uint8Array, area: number, bright: number[], levels: number): Uint32Array {
  return Uint32Array.from({ length: codes.length / 3 }, (_, i) => {
    const at = Math.floor(i / area) * 3 * area + (i % area);
    const [red, green, blue] = [codes[at]!, codes[at + area]!, codes[at + 2 * area]!];
    if (Math.max(red, green, blue) > levels) return PALETTE.nonfinite;
    return packedPixel(bright[red]!, bright[green]!, bright[blue]!);
  });
}

export function codeText(code: number, frame: Frame, levels: number): string {
  if (code === NOT_A_NUMBER) return "NaN";
  if (code === POSITIVE) return "+∞";
  if (code === NEGATIVE) return "−∞";
  const isBeyond = frame.isClipped && (code === levels || (code === 0 && frame.low < 0));
  const sign = isBeyond ? (code === 0 ? "≤ " : "≥ ") : "";
  return sign + format.figure(codeValue(frame, code, levels), 3);
}
