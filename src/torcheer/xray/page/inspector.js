// The picture of the chosen layer, kind and step, with its colours and numbers.

function fillPicture() {
  byId("layer").replaceChildren(
    ...run.layers.map((name, layer) =>
      make("option", { value: String(layer), textContent: short(name, 60), title: clean(name) }),
    ),
  );
}

function drawPicture() {
  const series = current();
  byId("layer").value = String(state.layer);
  drawChoices(series);
  byId("picture-title").textContent = `${run.name(state.layer, 48)} · ${run.kindWords[state.kind]}`;
  byId("picture-title").title = run.title(state.layer);
  byId("picture-step").textContent = `step ${run.stepText(state.at)}`;
  drawNumbers(series);
  const frame = nearestFrame(series, state.at);
  const isThere = run.has(series, state.at);
  const why = state.kind === "summary"
    ? `These are a few numbers of all parameters of ${run.name(state.layer, 48)} together. ` +
      (run.pictured(state.layer).length
        ? "Choose another kind to see pictures."
        : "No pictures of it were kept: name it in layers= to see its tensors.")
    : !isThere
    ? `${run.name(state.layer, 48)}: the ${run.kindWords[state.kind]} was not recorded at step ${run.stepText(state.at)}.`
    : !frame
      ? "There is no picture: the tensor is empty, or could not be read."
      : "";
  byId("instead").hidden = !why;
  byId("instead").textContent = why;
  byId("picture").hidden = Boolean(why);
  byId("scale").hidden = Boolean(why);
  byId("picture-about").textContent = why ? "" : pictureCaption(series, frame);
  if (why) {
    shown.picture = null;
    byId("picture").setAttribute("aria-busy", "false");
    return;
  }
  drawScale(series, frame);
  const codes = album.codes(frame);
  byId("picture").setAttribute("aria-busy", String(!codes));
  if (!codes) return;
  const form = run.form(series, frame.at);
  const unit = screenUnit();
  const stage = byId("picture").parentElement;
  const subject = subjectOf(form, frame, run.facts.stride);
  const room = {
    width: Math.floor(stage.clientWidth * unit),
    height: Math.floor(clamp(innerHeight * 0.55, 320, 520) * unit),
    unit,
    isSmall: false,
  };
  const plan = planOf(subject, room);
  drawFrame(
    byId("picture"),
    plan,
    subject,
    pixelsOf(subject, codes, frame, limitsOf(series, frame), look.palette),
    unit,
    look.muted,
  );
  shown.picture = { plan, subject, form, codes, frame, unit };
  if (document.activeElement === byId("picture") && shown.cursor) drawCursor();
  byId("picture").setAttribute(
    "aria-label",
    `${byId("picture-title").textContent}, step ${run.stepText(frame.at)}. ${byId("picture-about").textContent}`,
  );
}

function drawChoices(series) {
  const scale = scaleOf(state.kind);
  const key = `${state.layer}/${state.kind}/${scale}/${state.chart}`;
  if (shown.choices === key) return;
  shown.choices = key;
  const keepFocus = document.activeElement?.closest?.(".segments")?.id;
  const words = {
    weight: "Weight",
    layer: "Output",
    activation: "Activation",
    attention: "Attention",
    grad: "Gradient",
    layer_grad: "Output gradient",
    summary: "Summary",
  };
  choices(
    byId("kinds"),
    "kind",
    run.kindsOf(state.layer).map((kind) => [kind, words[kind] ?? kind, run.kindWords[kind]]),
    state.kind,
    (kind) => choose({ kind }),
  );
  choices(
    byId("scales"),
    "scale",
    [
      ["run", "Scale of the run", "Colours mean the same at every step"],
      ["frame", "Scale of this step", "Colours fit this step alone"],
    ],
    scale,
    (chosen) => choose({ scale: chosen }),
  );
  const charts = CHARTS.filter((chart) => hasChart(run, series, chart));
  if (!charts.some((chart) => chart.id === state.chart)) state.chart = charts[0]?.id ?? "values";
  choices(
    byId("charts"),
    "chart",
    charts.map((chart) => [chart.id, chart.title]),
    state.chart,
    (chart) => choose({ chart }),
  );
  if (keepFocus) byId(keepFocus).querySelector(":checked")?.focus();
}

// The scale that was chosen. By default that of the run; of gradients that of the step, since they shrink.
function scaleOf(kind) {
  return state.scale ?? (kind === "grad" || kind === "layer_grad" ? "frame" : "run");
}

function limitsOf(series, frame) {
  if (scaleOf(series.kind) === "run") return series.limits;
  const [low, high] = ["low", "high"].map((field) => run.value(series, field, frame.at));
  const reach = Math.max(-low, high);
  return series.limits[0] < 0 ? [-reach, reach] : [low, high]; // the same colours for the same sign at every step
}

function pictureCaption(series, frame) {
  const form = run.form(series, frame.at);
  const subject = subjectOf(form, frame, run.facts.stride);
  const [rowWord, columnWord] = form.axes;
  const part = (kept, total, word) =>
    `${count(kept)}${total === null || total <= kept ? "" : ` of ${count(total)}`} ${word}${(total ?? kept) === 1 ? "" : "s"}`;
  const said = [part(form.rows.length, form.totals[0], rowWord)];
  if (form.colour) said.push("with input channels 0, 1, 2 as red, green, blue and zero as grey");
  else if (columnWord && subject.shape !== "tiles") said.push(part(subject.columns.length, form.totals[1], columnWord));
  const lines = [`Shows ${said.join(", ")}`, `tensor of ${form.shape.join(" × ") || "one value"}, ${form.dtype}`];
  if (shown.picture?.plan.isTurned && subject.shape === "grid") lines.push("filters go across, input channels down");
  else if (subject.shape === "grid") lines.push("filters go down, input channels across");
  const plain = [run.layers[state.layer], `${run.layers[state.layer]}.weight`];
  if (form.source && !plain.includes(form.source)) lines.push(`of ${short(form.source, 60)}`);
  if (form.note) lines.push(short(form.note, 300));
  const far = frame.at === state.at ? "" : `Picture of step ${run.stepText(frame.at)}, the nearest in this file. `;
  return `${far}${lines.join(" · ")}`;
}

function drawScale(series, frame) {
  const limits = limitsOf(series, frame);
  const isColour = run.form(series, frame.at).colour;
  const colours = isColour ? Uint32Array.from({ length: 256 }, (_, i) => packedColour(i, i, i)) : look.palette.of(limits);
  const bar = byId("bar");
  Object.assign(bar, { width: colours.length, height: 1 });
  const pen = bar.getContext("2d");
  colours.forEach((colour, at) => {
    pen.fillStyle = cssColour(colour);
    pen.fillRect(at, 0, 1, 1);
  });
  byId("bar-low").textContent = number(limits[0]);
  byId("bar-middle").textContent = number((limits[0] + limits[1]) / 2);
  byId("bar-high").textContent = number(limits[1]);
  byId("nonfinite-key").hidden = !(run.nonfinite(series, state.at) > 0);
}

function drawNumbers(series) {
  const at = state.at;
  const value = (field) => run.value(series, field, at);
  const rows = [];
  if (run.has(series, at) && state.kind === "summary") {
    const known = (field) => (Number.isNaN(value(field)) ? "none" : number(value(field)));
    rows.push(["parameters", count(value("count"))], ["norm", known("norm")], ["gradient norm", known("grad_norm")]);
    rows.push(["update ratio", known("update_ratio")]);
    if (!Number.isNaN(value("dead"))) rows.push(["dead units", `${count(value("dead"))} of ${count(value("units"))}`]);
    if (value("nan") > 0) rows.push(["not finite", count(value("nan")), "bad"]);
  } else if (run.has(series, at)) {
    const known = (field) => (Number.isNaN(value(field)) ? "none" : number(value(field)));
    rows.push(
      ["mean", known("mean")],
      ["std", known("std")],
      ["min", known("min")],
      ["max", known("max")],
      ["norm", known("norm")],
      ["zeros", percent(value("zeros") / Math.max(value("count"), 1))],
    );
    if (!Number.isNaN(value("update_ratio"))) rows.push(["update ratio", number(value("update_ratio"))]);
    if (!Number.isNaN(value("dead")))
      rows.push([
        "dead units",
        Number.isNaN(value("units")) ? count(value("dead")) : `${count(value("dead"))} of ${count(value("units"))}`,
      ]);
    if (value("nan") > 0) rows.push(["NaN", count(value("nan")), "bad"]);
    if (value("inf") > 0) rows.push(["infinite", count(value("inf")), "bad"]);
  } else rows.push(["this step", "not recorded"]);
  byId("numbers").replaceChildren(
    ...rows.map(([name, text, className]) =>
      make("div", { className: className ?? "" }, make("dt", { textContent: name }), make("dd", { textContent: text })),
    ),
  );
}

function tipOfPlace(place) {
  const { subject, form, codes, frame } = shown.picture;
  return placeText(place, subject, form, codes, frame, run.facts.stride, run.facts.levels);
}

// The keyboard's way over the values.
function moveCursor(key) {
  const { plan, subject } = shown.picture;
  const cursor = shown.cursor ?? { index: 0, row: 0, column: 0 };
  const [x, y] = centreOf(cursor);
  const tile = plan.tiles[cursor.index];
  const [w, h] = [tile.w / subject.width, tile.h / subject.height];
  const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  for (let reach = 1; reach < 60; reach++) {
    // over the gap between tiles
    const place = placeAt(plan, subject, x + dx * w * reach, y + dy * h * reach);
    if (place) {
      shown.cursor = { index: place.tile.index, row: place.row, column: place.column };
      break;
    }
  }
  shown.cursor ??= cursor;
  redraw();
}

function centreOf({ index, row, column }) {
  const { plan, subject } = shown.picture;
  const tile = plan.tiles[index] ?? plan.tiles[0];
  return [tile.x + ((column + 0.5) / subject.width) * tile.w, tile.y + ((row + 0.5) / subject.height) * tile.h];
}

function drawCursor() {
  const { plan, subject, unit } = shown.picture;
  shown.cursor.index = Math.min(shown.cursor.index, plan.tiles.length - 1);
  const [x, y] = centreOf(shown.cursor);
  const place = placeAt(plan, subject, x, y);
  if (!place) return;
  const pen = byId("picture").getContext("2d");
  const size = Math.max(6 * unit, place.tile.w / subject.width);
  for (const [colour, width] of [
    ["#000", 4],
    ["#fff", 2],
  ]) {
    pen.strokeStyle = colour;
    pen.lineWidth = width * unit * 0.75;
    pen.strokeRect(x - size / 2, y - size / 2, size, size);
  }
  const box = byId("picture").getBoundingClientRect();
  showTip(tipOfPlace(place), box.left + x / unit, box.top + y / unit);
  byId("said").textContent = tipOfPlace(place);
}
