// Colours: themes, categories of operations, ramps. Told apart by lightness and words besides, for colour-blind readers.

import type { OpNode } from "../model/payload";

export type Category =
  | "input"
  | "output"
  | "layer"
  | "attention"
  | "normalisation"
  | "activation"
  | "pooling"
  | "arithmetic"
  | "reduction"
  | "shape"
  | "random"
  | "constant"
  | "opaque"
  | "failed";

export interface Look {
  fill: string;
  accent: string;
}

export interface Theme {
  name: "light" | "dark";
  page: string;
  dots: string;
  ink: string;
  faint: string;
  edge: string;
  edgeFaint: string;
  box: string; // closed modules
  boxBorder: string;
  inside: [string, string]; // open modules, by depth
  insideBorder: string;
  header: [string, string];
  accent: string; // what is selected
  into: string; // edges that lead to it
  outOf: string; // edges that leave it
  match: string; // what the search found
  chip: string;
  missing: string; // where nothing is known to colour by
  onlyLeft: string;
  onlyRight: string;
  changed: string;
  ramp: string[]; // from little to much
  categories: Record<Category, Look>;
}

export const CATEGORY_TITLES: Record<Category, string> = {
  input: "input",
  output: "output",
  layer: "layer with weights",
  attention: "attention",
  normalisation: "normalisation",
  activation: "activation",
  pooling: "pooling",
  arithmetic: "arithmetic",
  reduction: "reduction",
  shape: "shape and indexing",
  random: "dropout and random",
  constant: "constant or buffer",
  opaque: "opaque",
  failed: "failed",
};

export const LIGHT: Theme = {
  name: "light",
  page: "#F7F8FA",
  dots: "#E3E6EB",
  ink: "#16181D",
  faint: "#5A616C",
  edge: "#7A828E",
  edgeFaint: "#C9CED6",
  box: "#FFFFFF",
  boxBorder: "#8A929E",
  inside: ["#FFFFFF", "#F4F6F9"],
  insideBorder: "#C3C9D3",
  header: ["#EDF0F4", "#E5E9EF"],
  accent: "#0B57D0",
  into: "#0B7285",
  outOf: "#B54708",
  match: "#B8860B",
  chip: "#E9ECF1",
  missing: "#FFFFFF",
  onlyLeft: "#B54708",
  onlyRight: "#0B57D0",
  changed: "#8A2BA8",
  ramp: ["#FFFBE0", "#FDE7A5", "#F9C46B", "#EF9A4D", "#D96B3F", "#B23A3A", "#7A1F3D"],
  categories: {
    input: { fill: "#D6F1E5", accent: "#00724F" },
    output: { fill: "#FFE1C7", accent: "#A84300" },
    layer: { fill: "#DCEAFB", accent: "#1565B8" },
    attention: { fill: "#F9DDEC", accent: "#AD2470" },
    normalisation: { fill: "#E8E2F7", accent: "#6A4FB0" },
    activation: { fill: "#FDF0C4", accent: "#94690A" },
    pooling: { fill: "#D4F0F3", accent: "#0B7285" },
    arithmetic: { fill: "#E9ECF0", accent: "#4B5563" },
    reduction: { fill: "#E2F0D5", accent: "#4A7A10" },
    shape: { fill: "#F7F6F2", accent: "#97958A" },
    random: { fill: "#F4E7DE", accent: "#8D5B3E" },
    constant: { fill: "#EFEFEF", accent: "#7D7D7D" },
    opaque: { fill: "#DEE1E7", accent: "#16181D" },
    failed: { fill: "#FFD9D5", accent: "#C00000" },
  },
};

export const DARK: Theme = {
  name: "dark",
  page: "#15171B",
  dots: "#24272D",
  ink: "#F0F1F3",
  faint: "#AEB5BF",
  edge: "#8D95A1",
  edgeFaint: "#414750",
  box: "#282C33",
  boxBorder: "#89919D",
  inside: ["#1B1E23", "#20242A"],
  insideBorder: "#434A54",
  header: ["#262A31", "#2C3138"],
  accent: "#7CB4FF",
  into: "#4FD1E0",
  outOf: "#FFAA66",
  match: "#FFD54A",
  chip: "#343A43",
  missing: "#22252B",
  onlyLeft: "#FFAA66",
  onlyRight: "#7CB4FF",
  changed: "#DE9BF5",
  ramp: ["#2B2E34", "#3F3A4F", "#653F63", "#95456A", "#C55A5C", "#EB8B54", "#FAD06A"],
  categories: {
    input: { fill: "#12493A", accent: "#5FDDB4" },
    output: { fill: "#5E3214", accent: "#FFB077" },
    layer: { fill: "#1B3F66", accent: "#7CC0FA" },
    attention: { fill: "#562543", accent: "#F58ACB" },
    normalisation: { fill: "#3B3160", accent: "#B9A3F2" },
    activation: { fill: "#50420F", accent: "#F3D05A" },
    pooling: { fill: "#124650", accent: "#5FD3E3" },
    arithmetic: { fill: "#363C45", accent: "#A9B2BE" },
    reduction: { fill: "#32481A", accent: "#A9D86E" },
    shape: { fill: "#2B2C2E", accent: "#8E8D86" },
    random: { fill: "#4A3628", accent: "#DBA98A" },
    constant: { fill: "#353537", accent: "#A0A0A3" },
    opaque: { fill: "#40444D", accent: "#FFFFFF" },
    failed: { fill: "#651818", accent: "#FF8A82" },
  },
};

/** What kind of step a node is. The page is told; a name it does not know is arithmetic. */
export function categoryOf(node: OpNode): Category {
  return node.category in CATEGORY_TITLES ? (node.category as Category) : "arithmetic";
}

/** Where a value lies between two others, 0 to 1, on a straight or a logarithmic scale. */
export function share(value: number, low: number, high: number, isLog: boolean): number {
  if (!(high > low)) return value > 0 ? 1 : 0;
  if (!isLog) return clamp((value - low) / (high - low));
  const floor = Math.max(low, high * 1e-12);
  if (value <= floor) return 0;
  return clamp(Math.log(value / floor) / Math.log(high / floor));
}

/** The colour at a place between the ends of a ramp, 0 to 1. */
export function rampColor(ramp: string[], place: number): string {
  const at = clamp(place) * (ramp.length - 1);
  const low = Math.min(Math.floor(at), ramp.length - 2);
  const one = channels(ramp[low]!);
  const other = channels(ramp[low + 1]!);
  const mixed = one.map((part, i) => Math.round(part + (other[i]! - part) * (at - low)));
  return `#${mixed.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
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

function clamp(value: number): number {
  return Math.min(1, Math.max(0, value));
}
