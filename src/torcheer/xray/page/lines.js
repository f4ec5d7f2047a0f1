// Statistics of a series as lines.

const CHARTS = [
  { id: "values", title: "Mean ± std", fields: ["mean"], band: ["mean", "std"], scale: "linear" },
  { id: "range", title: "Min, mean, max", fields: ["min", "mean", "max"], scale: "linear" },
  { id: "norm", title: "Norm", fields: ["norm"], scale: "log" },
  { id: "gradient", title: "Gradient norm", fields: ["grad_norm"], scale: "log" },
  { id: "zeros", title: "Zeros", fields: ["zeros"], scale: "part", by: "count" },
  { id: "update", title: "Update ratio", fields: ["update_ratio"], scale: "log", mark: HEALTHY },
  { id: "dead", title: "Dead units", fields: ["dead"], scale: "part", by: "units" },
];

function chartValue(run, series, chart, field, at) {
  const value = run.value(series, field, at);
  return chart.by ? value / run.value(series, chart.by, at) : value;
}

function hasChart(run, series, chart) {
  for (let at = 0; at < run.count; at++) {
    if (!Number.isNaN(chartValue(run, series, chart, chart.fields[0], at))) return true;
  }
  return false;
}

function linesRange(run, series, chart) {
  let [low, high] = [Infinity, -Infinity];
  const take = (value) => {
    if (Number.isNaN(value) || (chart.scale === "log" && !(value > 0))) return;
    [low, high] = [Math.min(low, value), Math.max(high, value)];
  };
  for (let at = 0; at < run.count; at++) {
    for (const field of chart.fields) take(chartValue(run, series, chart, field, at));
    if (chart.band) {
      const [mean, std] = chart.band.map((field) => run.value(series, field, at));
      take(mean - std);
      take(mean + std);
    }
  }
  if (chart.mark && Number.isFinite(low)) {
    take(chart.mark / 2);
    take(chart.mark * 2);
  }
  if (chart.scale === "part") return [0, 1];
  if (low > high) return chart.scale === "log" ? [0.1, 1] : [-1, 1];
  if (chart.scale === "log")
    return [
      10 ** Math.floor(Math.log10(low) + 1e-9),
      10 ** Math.max(Math.ceil(Math.log10(high) - 1e-9), Math.floor(Math.log10(low) + 1e-9) + 1),
    ];
  const slack = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - slack, high + slack];
}

function drawLines(canvas, run, series, chart, at, width, look, key) {
  const [left, top, tall] = [64, 10, 226];
  const across = width - left - 8;
  const height = top + tall + 26;
  const [low, high] = linesRange(run, series, chart);
  const isLog = chart.scale === "log";
  const position = (value) => {
    const part = isLog ? Math.log(Math.max(value, low / 10) / low) / Math.log(high / low) : (value - low) / (high - low);
    return top + tall - clamp(part, -0.02, 1.02) * tall;
  };
  const x = (i) => middleOf(i, left, across, run.count);
  const pen = keep(canvas, key, width, height, (still) => {
    drawLevels(still, chart, low, high, position, left, across, look);
    for (let i = 0; i < run.count; i++) {
      const [start, w] = [left + (i / run.count) * across, across / run.count];
      if (!run.has(series, i)) hatch(still, start, top, w, tall, look);
      else if (run.nonfinite(series, i) > 0) {
        still.fillStyle = cssColour(look.palette.nonfinite);
        still.fillRect(start, top + tall - 5, Math.max(w, 1), 5);
      }
    }
    if (chart.band) drawBand(still, run, series, chart, x, position, look);
    for (const field of chart.fields) drawLine(still, run, series, chart, field, x, position, look);
    drawSteps(still, run, left, across, top + tall + 2, look);
  });
  pen.fillStyle = look.ink;
  pen.globalAlpha = 0.55;
  pen.fillRect(x(at) - 0.75, top, 1.5, tall);
  pen.globalAlpha = 1;
  for (const field of chart.fields) {
    const value = chartValue(run, series, chart, field, at);
    if (Number.isNaN(value)) continue;
    pen.beginPath();
    pen.arc(x(at), position(value), 4, 0, 2 * Math.PI);
    pen.fillStyle = look.accent;
    pen.strokeStyle = look.card;
    pen.lineWidth = 2;
    pen.fill();
    pen.stroke();
  }
  return { left, top, across, tall };
}

function drawLevels(pen, chart, low, high, position, left, across, look) {
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const value of levelsOf(chart, low, high)) {
    const y = position(value);
    pen.fillStyle = look.grid;
    pen.fillRect(left, Math.round(y), across, 1);
    pen.fillStyle = look.muted;
    const text = chart.scale === "part" ? percent(value) : chart.scale === "log" ? powerText(value) : number(value);
    pen.fillText(text, left - 8, y);
  }
  if (chart.mark) {
    pen.strokeStyle = look.accent;
    pen.setLineDash([5, 4]);
    pen.beginPath();
    pen.moveTo(left, position(chart.mark));
    pen.lineTo(left + across, position(chart.mark));
    pen.stroke();
    pen.setLineDash([]);
    pen.fillStyle = look.accent;
    pen.fillText("healthy, about 10⁻³", left + across - 4, position(chart.mark) - 8);
  }
  pen.textBaseline = "alphabetic";
}

function levelsOf(chart, low, high) {
  if (chart.scale === "log") {
    const [first, last] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
    const every = Math.max(1, Math.ceil((last - first) / 8));
    return Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, i) => 10 ** (first + i * every));
  }
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++)
    found.push(i === 0 ? 0 : Number((i * step).toPrecision(6)));
  return found;
}

// Calls `draw` for each run of snapshots that are next to each other and known.
function stretches(run, isKnown, draw) {
  let start = -1;
  for (let at = 0; at <= run.count; at++) {
    if (at < run.count && isKnown(at)) {
      if (start < 0) start = at;
      continue;
    }
    if (start >= 0) draw(start, at - 1);
    start = -1;
  }
}

function drawLine(pen, run, series, chart, field, x, position, look) {
  const value = (at) => chartValue(run, series, chart, field, at);
  const isMain = chart.fields.length === 1 || field === "mean";
  pen.strokeStyle = isMain ? look.accent : look.muted;
  pen.fillStyle = pen.strokeStyle;
  pen.lineWidth = isMain ? 2 : 1.5;
  pen.lineJoin = "round";
  pen.setLineDash(isMain ? [] : [4, 3]);
  stretches(
    run,
    (at) => !Number.isNaN(value(at)),
    (first, last) => {
      if (first === last) {
        pen.fillRect(x(first) - 2, position(value(first)) - 2, 4, 4);
        return;
      }
      pen.beginPath();
      for (let at = first; at <= last; at++) pen.lineTo(x(at), position(value(at)));
      pen.stroke();
    },
  );
  pen.setLineDash([]);
}

function drawBand(pen, run, series, chart, x, position, look) {
  const [mean, std] = chart.band.map((field) => (at) => run.value(series, field, at));
  pen.fillStyle = look.accent;
  pen.globalAlpha = 0.18;
  stretches(
    run,
    (at) => !Number.isNaN(mean(at)) && !Number.isNaN(std(at)),
    (first, last) => {
      pen.beginPath();
      const reach = first === last ? 3 : 0;
      for (let at = first; at <= last; at++) {
        pen.lineTo(x(at) - reach, position(mean(at) + std(at)));
      }
      if (reach)
        (pen.lineTo(x(first) + reach, position(mean(first) + std(first))),
          pen.lineTo(x(first) + reach, position(mean(first) - std(first))));
      for (let at = last; at >= first; at--) pen.lineTo(x(at) - reach, position(mean(at) - std(at)));
      pen.fill();
    },
  );
  pen.globalAlpha = 1;
}
