// What stands out in a run, in a few sentences. Each leads to the place it is about.

import * as format from "../../shared/format";
import { shareOf } from "./measures";
import { type Run, SUMMARY, type Series } from "./run";

const MANY_DEAD = 0.5;
const FAR_APART = 1e4; // between the gradients of two layers
const TINY_UPDATE = 1e-6;
const HUGE_UPDATE = 0.1;

export interface Finding {
  tone: "bad" | "odd" | "fine";
  text: string;
  title?: string;
  series?: Series;
  at?: number;
}

export function findingsOf(run: Run): Finding[] {
  const found = [firstNonfinite(run), mostDead(run), vanishing(run), ...oddUpdates(run)].filter((one) => one !== null);
  if (found.length) return found;
  const title =
    "Looked for: values that are not finite, layers with half of their units dead, gradients 10,000 times apart, " +
    "updates below a millionth or above a tenth of a weight.";
  return [{ tone: "fine", text: "Nothing stands out in what was recorded", title }];
}

function firstNonfinite(run: Run): Finding | null {
  for (let at = 0; at < run.count; at++) {
    const [series, ...others] = run.series.filter((one) => run.nonfinite(one, at) > 0);
    if (!series) continue;
    const more = others.length ? ` and ${format.plural(others.length, "other")}` : "";
    const words = series.kind === SUMMARY ? "parameters or gradients" : run.words(series);
    const place = `${words} of ${run.name(series.layer, 32)}`;
    return { tone: "bad", text: `Values are not finite from step ${run.stepText(at)} on: ${place}${more}`, series, at };
  }
  return null;
}

function mostDead(run: Run): Finding | null {
  const at = run.count - 1;
  const dead = ranked(onePerLayer(run), (series) => shareOf(run, series, "dead", at)).filter(({ value }) => value >= MANY_DEAD);
  const worst = dead.find(({ value }) => value === dead.at(-1)!.value);
  if (!worst) return null;
  const more = dead.length > 1 ? `, and half or more in ${format.plural(dead.length - 1, "other layer")}` : "";
  const { series, value } = worst;
  const text = `${format.percent(value)} of the units of ${run.name(series.layer, 32)} are dead in the end${more}`;
  return { tone: "odd", text, series, at };
}

/** At the last snapshot whose gradients are all finite. */
function vanishing(run: Run): Finding | null {
  const hasSummaries = run.series.some((series) => series.kind === SUMMARY);
  const [kind, field] = hasSummaries ? [SUMMARY, "grad_norm"] : ["grad", "norm"];
  const gradients = run.series.filter((series) => series.kind === kind);
  for (let at = run.count - 1; at >= 0; at--) {
    const norms = ranked(gradients, (series) => run.value(series, field, at));
    if (norms.length < 2 || norms.some(({ series }) => run.nonfinite(series, at) > 0)) continue;
    const [least, most] = [norms[0]!, norms.at(-1)!];
    if (!(most.value > FAR_APART * least.value)) return null;
    const ratio = format.figure(most.value / least.value, 2);
    const times = least.value > 0 ? `${ratio} times smaller than that of` : "zero, unlike that of";
    const [small, large] = [least, most].map(({ series }) => run.name(series.layer, 32));
    const text = `The gradient of ${small} is ${times} ${large} at step ${run.stepText(at)}`;
    return { tone: "odd", text, series: least.series, at };
  }
  return null;
}

function oddUpdates(run: Run): (Finding | null)[] {
  const updates = (series: Series): number[] =>
    Array.from({ length: run.count }, (_, at) => run.value(series, "update_ratio", at));
  const medians = ranked(onePerLayer(run), (series) => median(updates(series)));
  const said = (layers: Ranked[], word: string, one: Ranked | undefined): Finding | null => {
    if (!one) return null;
    const more = layers.length > 1 ? ` and ${format.plural(layers.length - 1, "other layer")}` : "";
    const part = one.value === 0 ? "nothing" : format.figure(one.value, 2);
    const who = `Updates of ${run.name(one.series.layer, 32)}${more}`;
    const text = `${who} are ${word}: ${part} of the weight at a step, where about 0.001 is healthy`;
    return { tone: "odd", text, series: one.series, at: run.count - 1 };
  };
  const tiny = medians.filter(({ value }) => value < TINY_UPDATE);
  const huge = medians.filter(({ value }) => value > HUGE_UPDATE);
  return [said(tiny, "tiny", tiny[0]), said(huge, "huge", huge.at(-1))];
}

/** The summary of each layer, where there are any; else every series. */
function onePerLayer(run: Run): Series[] {
  const summaries = run.series.filter((series) => series.kind === SUMMARY);
  return summaries.length ? summaries : run.series;
}

interface Ranked {
  series: Series;
  value: number;
}

/** The series whose value is known, the smallest first. */
function ranked(all: Series[], value: (series: Series) => number): Ranked[] {
  const known = all.map((series) => ({ series, value: value(series) })).filter((one) => !Number.isNaN(one.value));
  return known.sort((a, b) => a.value - b.value);
}

function median(values: number[]): number {
  const known = values.filter((value) => !Number.isNaN(value)).sort((a, b) => a - b);
  return known[Math.floor(known.length / 2)] ?? NaN;
}
