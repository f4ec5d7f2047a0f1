// The map of all layers: what it shows is chosen from small maps, and a cell leads to its layer and step.

function fillMap() {
  byId("measures").replaceChildren(
    ...grids.map((grid) => {
      const input = make("input", {
        type: "radio",
        name: "measure",
        value: grid.measure.id,
        checked: grid.measure.id === state.measure,
      });
      input.addEventListener("change", () => choose({ measure: grid.measure.id }));
      grid.thumb = make("canvas");
      return make("label", { title: grid.measure.about }, input, grid.thumb, make("span", { textContent: grid.measure.title }));
    }),
  );
  byId("map-labels").replaceChildren(
    ...run.layers.map((name, layer) => {
      const button = make("button", { type: "button", title: clean(name), tabIndex: -1 }, make("bdi", { textContent: short(name, 60) }));
      button.addEventListener("click", () => choose({ layer }));
      return button;
    }),
  );
}

function drawMap() {
  const grid = grids.find((one) => one.measure.id === state.measure);
  byId("overview").hidden = !grid;
  if (!grid) return;
  for (const one of grids) {
    if (one.painted === look.theme) continue;
    one.painted = look.theme;
    paintGrid(one.thumb, one, 160, look);
  }
  byId("measures").querySelector(`[value="${grid.measure.id}"]`).checked = true;
  byId("measure-about").textContent = grid.measure.about;
  const layers = run.layers.length;
  const size = clamp(Math.floor(260 / layers), 14, 44);
  const plot = byId("map").parentElement;
  const [width, height] = [plot.clientWidth, size * layers];
  const pen = keep(byId("map"), `${grid.measure.id} ${width} ${look.theme}`, width, height, (still) => {
    hatch(still, 0, 0, width, height, look);
    const small = document.createElement("canvas");
    paintGrid(small, grid, Math.round(width * screenUnit()), look);
    still.imageSmoothingEnabled = false;
    still.drawImage(small, 0, 0, width, height);
    still.fillStyle = look.card;
    for (let layer = 1; layer < layers; layer++) still.fillRect(0, layer * size - 0.5, width, 1);
  });
  drawNow(pen, state.at, 0, state.layer * size, width, size, run.count, look);
  shown.map = { grid, size, width };
  const axis = keep(byId("map-axis"), `${width} ${look.theme}`, width, 26, (still) => drawSteps(still, run, 0, width, 5, look));
  drawArrow(axis, middleOf(state.at, 0, width, run.count), 0);
  for (const [layer, label] of [...byId("map-labels").children].entries()) {
    label.style.height = `${size}px`;
    label.style.fontSize = `${clamp(size - 3, 11, 13)}px`;
    label.setAttribute("aria-current", String(layer === state.layer));
  }
  if (shown.row !== state.layer) keepInSight(byId("map-scroll"), state.layer * size, size);
  shown.row = state.layer;
  drawLegend(grid);
  const all = `${grid.measure.title} of ${run.layers.length} layers over ${run.count} snapshots.`;
  const here = `${run.name(state.layer, 60)} at step ${run.stepText(state.at)}`;
  byId("map").setAttribute("aria-label", `${all} ${here}: ${cellText(grid.measure, grid.cells[state.layer][state.at])}`);
}

// Scrolls the rows, never the page.
function keepInSight(box, top, height) {
  box.scrollTop = clamp(box.scrollTop, top + height - box.clientHeight, top);
}

function drawArrow(pen, x, y) {
  pen.fillStyle = look.accent;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x + 5, y + 7);
  pen.lineTo(x - 5, y + 7);
  pen.fill();
}

function drawLegend(grid) {
  const key = `${grid.measure.id} ${look.theme}`;
  if (byId("map-legend").dataset.key === key) return;
  byId("map-legend").dataset.key = key;
  const parts = [];
  if (grid.measure.scale !== "count") parts.push(rampElement(grid));
  const flat = grid.cells.flat();
  if (grid.measure.scale === "count" || flat.some((one) => one.bad > 0))
    parts.push(make("span", { className: "swatch" }, make("i"), "not finite"));
  if (flat.some((one) => one.value === null && !one.bad))
    parts.push(make("span", { className: "swatch" }, make("i", { className: "missing" }), "not recorded"));
  byId("map-legend").replaceChildren(...parts);
}

function rampElement(grid) {
  const colours = rampOf(grid.measure, look);
  const canvas = make("canvas", { width: colours.length, height: 1 });
  const pen = canvas.getContext("2d");
  colours.forEach((colour, at) => {
    pen.fillStyle = cssColour(colour);
    pen.fillRect(at, 0, 1, 1);
  });
  const ticksRow = make("div", { className: "ramp-ticks" });
  for (const [value, text, isStrong] of legendValues(grid)) {
    const tick = make("span", {
      textContent: text,
      className: [level(grid, value) < 0.05 ? "first" : level(grid, value) > 0.95 ? "last" : "", isStrong ? "strong" : ""]
        .join(" ")
        .trim(),
    });
    tick.style.left = `${100 * level(grid, value)}%`;
    ticksRow.append(tick);
  }
  return make("div", { className: "ramp" }, canvas, ticksRow);
}

function legendValues({ measure, low, high, isLow, isHigh }) {
  if (measure.scale === "part") return [0, 0.25, 0.5, 0.75, 1].map((value) => [value, percent(value)]);
  if (measure.scale === "ratio")
    return [
      [1e-6, "≤ 1e−6"],
      [1e-3, "healthy 1e−3", true],
      [1, "≥ 1"],
    ];
  const every = Math.max(1, Math.ceil((high - low) / 5));
  const values = [];
  for (let power = high; power >= low; power -= every)
    values.unshift([
      10 ** power,
      `${power === high && isHigh ? "≥ " : power === low && isLow ? "≤ " : ""}${powerText(10 ** power)}`,
    ]);
  return values;
}

function cellUnder(event) {
  const box = byId("map").getBoundingClientRect();
  const layer = clamp(Math.floor((event.clientY - box.top) / shown.map.size), 0, run.layers.length - 1);
  return { layer, at: columnAt(event.clientX - box.left, 0, shown.map.width, run.count) };
}

// What a cell is of: the kind of the measure, or the first kind that has values that are not finite.
function openCell({ layer, at }) {
  const { kind } = shown.map.grid.measure;
  const bad = run.kindsOf(layer).find((one) => run.nonfinite(run.find(layer, one), at) > 0);
  const wanted = kind && !run.find(layer, kind) ? "summary" : kind;
  choose({ layer, at, kind: wanted ?? bad ?? state.kind });
  const card = byId("picture-card").getBoundingClientRect();
  if (card.top > innerHeight - 80) byId("picture-card").scrollIntoView({ block: "start" });
}
