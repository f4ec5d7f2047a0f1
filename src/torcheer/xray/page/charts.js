// The charts of the chosen layer and kind.

function drawCharts() {
  const series = current();
  const name = `${run.name(state.layer, 32)} · ${run.kindWords[state.kind]}`;
  for (const id of ["histogram-of", "lines-of"]) {
    byId(id).textContent = name;
    byId(id).title = run.title(state.layer);
  }
  byId("histogram-card").hidden = series.kind === "summary";
  const wide = byId("histogram").parentElement.clientWidth || 400;
  shown.histogram = drawHistogram(
    byId("histogram"),
    run,
    series,
    state.at,
    wide,
    look,
    `${series.index} ${wide} ${look.theme}`,
  );
  byId("histogram-about").textContent = histogramCaption(series, shown.histogram.filled);
  byId("histogram").setAttribute("aria-label", `Histogram over time of ${name}. ${byId("histogram-about").textContent}`);
  const chart = CHARTS.find((one) => one.id === state.chart);
  const width = byId("lines").parentElement.clientWidth;
  shown.lines = {
    ...drawLines(
      byId("lines"),
      run,
      series,
      chart,
      state.at,
      width,
      look,
      `${series.index} ${chart.id} ${width} ${look.theme}`,
    ),
    chart,
  };
  byId("lines-about").textContent = `Step ${run.stepText(state.at)}: ${linesText(series, chart, state.at)}`;
  byId("lines").setAttribute("aria-label", `${chart.title} over time of ${name}. ${byId("lines-about").textContent}`);
}

function histogramCaption(series, filled) {
  if (series.kind === "summary") return "A summary has no histogram.";
  if (!filled) return "No value is finite at any step.";
  if (!run.has(series, state.at)) return "Not recorded at this step.";
  let [fullest, most] = [null, 0];
  for (let bin = filled.first; bin <= filled.last; bin++) {
    const part = run.part(series, bin, state.at);
    if (part > most) [fullest, most] = [bin, part];
  }
  if (fullest === null) return `Step ${run.stepText(state.at)}: no value is finite.`;
  const full = `Bars show step ${run.stepText(state.at)}: about ${percent(most)} of the values are in the fullest bin,`;
  const how = "Bins are logarithmic on both sides of zero; the stronger the colour, the more values.";
  return `${full} ${binText(run, fullest)}. ${how}`;
}

function linesText(series, chart, at) {
  if (!run.has(series, at)) return "not recorded";
  const text = (value) => (Number.isNaN(value) ? "none" : chart.scale === "part" ? percent(value) : number(value));
  const values = chart.fields.map((field) => [field, chartValue(run, series, chart, field, at)]);
  if (chart.band) return `mean ${text(values[0][1])} ± ${text(run.value(series, "std", at))}`;
  const bad = run.nonfinite(series, at);
  const said = values
    .map(([field, value]) => `${chart.fields.length > 1 ? `${field} ` : `${chart.title.toLowerCase()} `}${text(value)}`)
    .join(", ");
  return bad > 0 ? `${said}; ${count(bad)} not finite` : said;
}
