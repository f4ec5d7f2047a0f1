// What the map of all layers can show: a number for each layer and snapshot, and its colour.

const HEALTHY = 1e-3;

// What the map of all layers can show. `kind` is what a click leads to.
const MEASURES = [
  {
    id: "grad",
    title: "Gradient norm",
    kind: "grad",
    field: "norm",
    summary: "grad_norm",
    scale: "log",
    about: "Norm of the gradients of each layer's parameters, on a logarithmic scale.",
  },
  {
    id: "update",
    title: "Update ratio",
    kind: "weight",
    field: "update_ratio",
    summary: "update_ratio",
    scale: "ratio",
    about: "How far a training step moved each layer's parameters, as a part of their norm. About 10⁻³ is healthy.",
  },
  {
    id: "dead",
    title: "Dead units",
    kind: "activation",
    field: "dead",
    summary: "dead",
    scale: "part",
    about: "Units that were never above zero over several snapshots, as a part of all units.",
  },
  {
    id: "nonfinite",
    title: "Not finite",
    kind: null,
    field: "nonfinite",
    scale: "count",
    about: "Values that are NaN or infinite, in any kind of a layer.",
  },
  {
    id: "layer_grad",
    title: "Output gradient norm",
    kind: "layer_grad",
    field: "norm",
    scale: "log",
    about: "Norm of the gradient of each output, on a logarithmic scale.",
  },
  {
    id: "zeros",
    title: "Zero activations",
    kind: "activation",
    field: "zeros",
    scale: "part",
    about: "The part of each activation that is exactly zero.",
  },
  {
    id: "zeros-weight",
    title: "Zero weights",
    kind: "weight",
    field: "zeros",
    scale: "part",
    about: "The part of each weight that is exactly zero.",
  },
  {
    id: "weight-norm",
    title: "Weight norm",
    kind: "weight",
    field: "norm",
    summary: "norm",
    scale: "log",
    about: "Norm of each layer's parameters, on a logarithmic scale.",
  },
  {
    id: "weight-std",
    title: "Weight spread",
    kind: "weight",
    field: "std",
    scale: "log",
    about: "Standard deviation of each weight, on a logarithmic scale.",
  },
  {
    id: "activation-norm",
    title: "Activation norm",
    kind: "activation",
    field: "norm",
    scale: "log",
    about: "Norm of each activation, on a logarithmic scale.",
  },
  {
    id: "activation-std",
    title: "Activation spread",
    kind: "activation",
    field: "std",
    scale: "log",
    about: "Standard deviation of each activation, on a logarithmic scale.",
  },
  {
    id: "layer-std",
    title: "Output spread",
    kind: "layer",
    field: "std",
    scale: "log",
    about: "Standard deviation of each output, on a logarithmic scale.",
  },
];

// The value of a measure in a cell: a number, null where it is missing; and whether values are not finite.
function cell(run, measure, layer, at) {
  if (measure.kind === null) return allKinds(run, layer, at);
  const summary = measure.summary ? run.find(layer, "summary") : undefined;
  const series = summary ?? run.find(layer, measure.kind);
  if (!series || !run.has(series, at)) return { value: null, bad: 0 };
  const field = summary ? measure.summary : measure.field;
  const bad = run.nonfinite(series, at);
  let value = run.value(series, field, at);
  if (field === "zeros") value /= run.value(series, "count", at);
  if (field === "dead") value /= run.value(series, "units", at);
  return { value: Number.isFinite(value) ? value : null, bad };
}

// Whether a measure is of something at any step: layers that have none are left out of its map.
function allKinds(run, layer, at) {
  const there = run
    .kindsOf(layer)
    .map((kind) => run.find(layer, kind))
    .filter((series) => run.has(series, at));
  const bad = there.reduce((sum, series) => sum + run.nonfinite(series, at), 0);
  return { value: there.length ? bad : null, bad };
}

function cellText(measure, { value, bad }) {
  const told = bad ? `${count(bad)} not finite` : "";
  if (value === null) return told || "not recorded";
  if (measure.scale === "count") return told || "all finite";
  const text = measure.scale === "part" ? percent(value) : number(value);
  return told ? `${text} without those ${told}` : text;
}

// All cells of a measure, and the scale that fits them.
function gridOf(run, measure) {
  const cells = run.layers.map((_, layer) => Array.from({ length: run.count }, (_, at) => cell(run, measure, layer, at)));
  const known = cells.flat().filter((one) => one.value !== null);
  return { measure, cells, ...decadesOf(known.map((one) => one.value)), isEmpty: !known.length };
}

// The powers of ten that most values lie between. A few far beyond, as in a run that explodes, do not stretch the scale.
function decadesOf(values) {
  const powers = values
    .filter((value) => value > 0)
    .map(Math.log10)
    .sort((a, b) => a - b);
  if (!powers.length) return { low: -1, high: 0, isLow: false, isHigh: false };
  const at = (part) => powers[Math.round(part * (powers.length - 1))];
  const [least, most] = [at(0), at(1)];
  const high = Math.ceil((most > at(0.9) + 2 ? at(0.9) : most) - 1e-6);
  const low = Math.min(Math.max(Math.floor((least < at(0.02) - 2 ? at(0.02) : least) + 1e-6), high - 12), high - 1);
  return { low, high, isLow: least < low - 1e-6, isHigh: most > high + 1e-6 };
}

// Where a value lies on the scale of its measure, 0 to 1.
function level({ measure, low, high }, value) {
  if (measure.scale === "part") return clamp(value, 0, 1);
  if (measure.scale === "count") return 0;
  if (measure.scale === "ratio") return value > 0 ? clamp((Math.log10(value / HEALTHY) + 3) / 6, 0, 1) : 0;
  return value > 0 ? clamp((Math.log10(value) - low) / (high - low), 0, 1) : 0;
}

function rampOf(measure, look) {
  if (measure.scale === "ratio") return look.palette.bothSigns;
  return measure.scale === "log" ? look.palette.neverNegative : look.ramp;
}

// A picture of one pixel for each cell, `width` across; where there is less room than snapshots, what is not finite goes first.
function paintGrid(canvas, grid, width, look) {
  const { cells } = grid;
  const total = cells[0].length;
  const columns = Math.min(total, Math.max(width, 1));
  Object.assign(canvas, { width: columns, height: cells.length });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(columns, cells.length);
  const target = new Uint32Array(image.data.buffer);
  const colours = rampOf(grid.measure, look);
  cells.forEach((row, layer) => {
    for (let x = 0; x < columns; x++) {
      const among = row.slice(
        Math.floor((x * total) / columns),
        Math.max(Math.floor(((x + 1) * total) / columns), Math.floor((x * total) / columns) + 1),
      );
      const shown = among.find((one) => one.bad > 0) ?? among.findLast((one) => one.value !== null);
      if (!shown) continue;
      const colour =
        shown.bad > 0 ? look.palette.nonfinite : colours[Math.round(level(grid, shown.value) * (colours.length - 1))];
      target[layer * columns + x] = colour;
    }
  });
  pen.putImageData(image, 0, 0);
}
