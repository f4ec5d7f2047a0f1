// The histograms of a series: a column for each snapshot, a row for each bin, and the current step as bars beside.

// The bins that any snapshot fills, with one to spare, and the fullest of them but for zero, which often has most values.
function filledBins(run, series) {
  series.filled ??= findFilled(run, series);
  return series.filled.most ? series.filled : null;
}

function findFilled(run, series) {
  let [first, last, most] = [run.bins, -1, 0];
  const zero = run.facts.edges.length / 2;
  for (let bin = 0; bin < run.bins; bin++) {
    for (let at = 0; at < run.count; at++) {
      const part = run.part(series, bin, at);
      if (!part) continue;
      [first, last] = [Math.min(first, bin), Math.max(last, bin)];
      if (bin !== zero) most = Math.max(most, part);
    }
  }
  if (last < 0) return {};
  return { first: Math.max(0, first - 1), last: Math.min(run.bins - 1, last + 1), most: most || 1 };
}

function histogramPlot(width) {
  const side = width < 460 ? 54 : 110;
  return { left: 56, top: 12, side, across: width - 56 - side - 12, tall: 236, height: 236 + 12 + 26 };
}

function drawHistogram(canvas, run, series, at, width, look, key) {
  const filled = filledBins(run, series);
  const plot = histogramPlot(width);
  const { left, top, across, tall } = plot;
  const bins = filled ? filled.last - filled.first + 1 : 0;
  const rowOf = (bin) => top + ((filled.last - bin) / bins) * tall;
  const pen = keep(canvas, key, width, plot.height, (still) => {
    still.fillStyle = cssColour(look.ramp[0]);
    still.fillRect(left, top, across, tall);
    for (let i = 0; i < run.count; i++) {
      const [x, w] = [left + (i / run.count) * across, across / run.count];
      if (!run.has(series, i)) hatch(still, x, top, w, tall, look);
      else if (run.nonfinite(series, i) > 0) {
        still.fillStyle = cssColour(look.palette.nonfinite);
        still.fillRect(x, top - 8, Math.max(w, 1), 5);
      }
    }
    if (filled) {
      paintBins(still, run, series, filled, plot, look);
      drawBinTicks(still, run, filled, rowOf, tall / bins, plot, look);
    }
    drawSteps(still, run, left, across, top + tall + 2, look);
  });
  if (filled && run.has(series, at)) drawBars(pen, run, series, at, filled, rowOf, tall / bins, plot, look);
  drawNow(pen, at, left, top, across, tall, run.count, look);
  return {
    ...plot,
    filled,
    binAt: (y) => (filled ? clamp(filled.last - Math.floor(((y - top) / tall) * bins), filled.first, filled.last) : null),
  };
}

function paintBins(pen, run, series, filled, { left, top, across, tall }, look) {
  const bins = filled.last - filled.first + 1;
  const small = document.createElement("canvas");
  Object.assign(small, { width: run.count, height: bins });
  const smallPen = small.getContext("2d");
  const image = smallPen.createImageData(run.count, bins);
  const target = new Uint32Array(image.data.buffer);
  for (let row = 0; row < bins; row++) {
    for (let at = 0; at < run.count; at++) {
      const part = run.part(series, filled.last - row, at);
      if (part)
        target[row * run.count + at] =
          look.ramp[Math.round((0.1 + 0.9 * Math.sqrt(Math.min(part / filled.most, 1))) * (look.ramp.length - 1))];
    }
  }
  smallPen.putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = run.count > across * screenUnit();
  pen.drawImage(small, left, top, across, tall);
}

function drawBars(pen, run, series, at, filled, rowOf, size, { left, across, side, top, tall }, look) {
  const start = left + across + 12;
  pen.fillStyle = look.grid;
  pen.fillRect(start, top, 1, tall);
  pen.fillStyle = look.accent;
  for (let bin = filled.first; bin <= filled.last; bin++) {
    const part = run.part(series, bin, at);
    if (part)
      pen.fillRect(
        start + 1,
        rowOf(bin) + 0.5,
        clamp((part / filled.most) * (side - 4), 1, side - 4),
        Math.max(size - 1, 0.75),
      );
  }
}

// Powers of ten, the larger first, as far as they do not touch.
function drawBinTicks(pen, run, filled, rowOf, size, { left, top, tall }, look) {
  const { edges } = run.facts;
  const half = edges.length / 2;
  const taken = [];
  const place = (value) => {
    if (value === 0) return rowOf(half) + size / 2;
    const magnitude = Math.abs(value);
    let i = edges.findIndex((edge) => edge > magnitude);
    if (i <= half) return null;
    const part = Math.log(magnitude / edges[i - 1]) / Math.log(edges[i] / edges[i - 1]);
    const bin = i + part;
    return value > 0 ? rowOf(bin - 1) : rowOf(edges.length - bin);
  };
  const values = [0];
  for (let power = 4; power >= -8; power--) values.push(10 ** power, -(10 ** power));
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  pen.fillStyle = look.muted;
  for (const value of values) {
    const y = place(value);
    if (y === null || y < top - 1 || y > top + tall + 1 || taken.some((one) => Math.abs(one - y) < 17)) continue;
    taken.push(y);
    pen.fillRect(left - 5, y - 0.5, 4, 1);
    pen.fillText(value === 0 ? "0" : powerText(value), left - 8, y);
  }
  pen.textBaseline = "alphabetic";
}

function powerText(value) {
  const size = Math.abs(value);
  const text =
    size >= 0.01 && size <= 1000
      ? String(Number(size.toPrecision(1)))
      : `1e${String(Math.round(Math.log10(size))).replace("-", MINUS)}`;
  return value < 0 ? MINUS + text : text;
}

function binText(run, bin) {
  const { edges } = run.facts;
  if (bin === 0) return `below ${number(edges[0])}`;
  if (bin === edges.length / 2) return `nearer to 0 than ${number(edges[bin])}`;
  if (bin === edges.length) return `from ${number(edges[bin - 1])} on`;
  return `${number(edges[bin - 1])} … ${number(edges[bin])}`;
}
