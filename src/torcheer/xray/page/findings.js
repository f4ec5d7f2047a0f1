// What stands out in a run, in a few sentences. Each leads to the place it is about.

const MANY_DEAD = 0.5;
const FAR_APART = 1e4; // between the gradients of two layers
const TINY_UPDATE = 1e-6;
const HUGE_UPDATE = 0.1;

function findingsOf(run) {
  const found = [firstNonfinite(run), mostDead(run), vanishing(run), ...oddUpdates(run)].filter(Boolean);
  if (found.length) return found;
  const text = "Nothing stands out in what was recorded";
  const title =
    "Looked for: values that are not finite, layers with half of their units dead, gradients 10,000 times apart, " +
    "updates below a millionth or above a tenth of a weight.";
  return [{ tone: "fine", text, title }];
}

function placeWords(run, series) {
  if (series.kind === "summary") return `parameters or gradients of ${run.name(series.layer, 32)}`;
  return `${run.kindWords[series.kind]} of ${run.name(series.layer, 32)}`;
}

function firstNonfinite(run) {
  let first = null;
  for (const series of run.series) {
    for (let at = 0; at < run.count && (!first || at < first.at); at++) {
      if (run.nonfinite(series, at) > 0) first = { series, at };
    }
  }
  if (!first) return null;
  const { series, at } = first;
  const others = run.series.filter((one) => one !== series && run.nonfinite(one, at) > 0).length;
  const more = others ? ` and ${plural(others, "other")}` : "";
  return {
    tone: "bad",
    text: `Values are not finite from step ${run.stepText(at)} on: ${placeWords(run, series)}${more}`,
    series,
    at,
  };
}

function mostDead(run) {
  const at = run.count - 1;
  const dead = onePerLayer(run)
    .map((series) => ({ series, part: run.value(series, "dead", at) / run.value(series, "units", at) }))
    .filter(({ part }) => part >= MANY_DEAD)
    .sort((a, b) => b.part - a.part);
  if (!dead.length) return null;
  const more = dead.length > 1 ? `, and half or more in ${plural(dead.length - 1, "other layer")}` : "";
  return {
    tone: "odd",
    text: `${percent(dead[0].part)} of the units of ${run.name(dead[0].series.layer, 32)} are dead in the end${more}`,
    series: dead[0].series,
    at,
  };
}

// At the last snapshot whose gradients are all finite.
function vanishing(run) {
  const field = run.series.some((series) => series.kind === "summary") ? "grad_norm" : "norm";
  const gradients = run.series.filter((series) => series.kind === (field === "norm" ? "grad" : "summary"));
  for (let at = run.count - 1; at >= 0; at--) {
    const there = gradients.filter((series) => !Number.isNaN(run.value(series, field, at)));
    if (there.length < 2 || there.some((series) => run.nonfinite(series, at) > 0)) continue;
    const norms = there.map((series) => ({ series, norm: run.value(series, field, at) })).sort((a, b) => a.norm - b.norm);
    const [least, most] = [norms[0], norms[norms.length - 1]];
    if (!(most.norm > FAR_APART * least.norm)) return null;
    const times = least.norm > 0 ? `${number(most.norm / least.norm, 2)} times smaller than that of` : "zero, unlike that of";
    const [small, large] = [least, most].map(({ series }) => run.name(series.layer, 32));
    const text = `The gradient of ${small} is ${times} ${large} at step ${run.stepText(at)}`;
    return { tone: "odd", text, series: least.series, at };
  }
  return null;
}

// The summary of each layer, where there are any; else every series.
function onePerLayer(run) {
  const summaries = run.series.filter((series) => series.kind === "summary");
  return summaries.length ? summaries : run.series;
}

function oddUpdates(run) {
  const medians = onePerLayer(run)
    .map((series) => ({
      series,
      ratio: median(Array.from({ length: run.count }, (_, at) => run.value(series, "update_ratio", at))),
    }))
    .filter(({ ratio }) => !Number.isNaN(ratio))
    .sort((a, b) => a.ratio - b.ratio);
  const said = (list, word, one) => {
    if (!list.length) return null;
    const more = list.length > 1 ? ` and ${plural(list.length - 1, "other layer")}` : "";
    const part = one.ratio === 0 ? "nothing" : number(one.ratio, 2);
    const who = `Updates of ${run.name(one.series.layer, 32)}${more}`;
    const text = `${who} are ${word}: ${part} of the weight at a step, where about 0.001 is healthy`;
    return { tone: "odd", text, series: one.series, at: run.count - 1 };
  };
  const [tiny, huge] = [medians.filter(({ ratio }) => ratio < TINY_UPDATE), medians.filter(({ ratio }) => ratio > HUGE_UPDATE)];
  return [said(tiny, "tiny", tiny[0]), said(huge, "huge", huge[huge.length - 1])];
}

function median(values) {
  const known = values.filter((value) => !Number.isNaN(value)).sort((a, b) => a - b);
  return known.length ? known[Math.floor(known.length / 2)] : NaN;
}
