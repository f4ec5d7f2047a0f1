// Which values have the colours at the ends of the scale.

import type { Frame, Run, Series } from "../data/run";
import type { ScaleName } from "../guide";
import type { Limits } from "./codes";

const SCALE_WORDS: Record<ScaleName, string> = { run: "scale of the run", frame: "scale of this step" };

/** The scale that was chosen. By default that of the run; of gradients that of the step, since they shrink. */
export function scaleOf(kind: string, chosen: ScaleName | null): ScaleName {
  return chosen ?? (kind === "grad" || kind === "layer_grad" ? "frame" : "run");
}

export function limitsOf(run: Run, series: Series, frame: Frame, chosen: ScaleName | null): Limits {
  if (scaleOf(series.kind, chosen) === "run") return series.limits;
  const [low, high] = [run.value(series, "low", frame.at), run.value(series, "high", frame.at)];
  const reach = Math.max(-low, high);
  return series.limits[0] < 0 ? [-reach, reach] : [low, high]; // the same colours for the same sign at every step
}

/** The scale of several kinds, in words. */
export function scaleWords(kinds: string[], chosen: ScaleName | null): string {
  const scales = new Set(kinds.map((kind) => scaleOf(kind, chosen)));
  if (scales.size > 1) return `${SCALE_WORDS.run}, of gradients: of this step`;
  return SCALE_WORDS[scales.has("frame") ? "frame" : "run"];
}
