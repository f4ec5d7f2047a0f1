// Pointer, keyboard, and the words for screen readers.

function listen() {
  byId("theme").addEventListener("click", turnTheme);
  byId("slider").addEventListener("input", (event) => {
    play(false);
    choose({ at: Number(event.target.value) });
  });
  byId("play").addEventListener("click", () => play());
  byId("back").addEventListener("click", () => {
    play(false);
    move(-1);
  });
  byId("forward").addEventListener("click", () => {
    play(false);
    move(1);
  });
  byId("layer").addEventListener("change", (event) => choose({ layer: Number(event.target.value) }));
  listenToMap();
  listenToPicture();
  listenToChart("histogram", histogramTip);
  listenToChart("lines", linesTip);
  document.addEventListener("keydown", pressed);
  new ResizeObserver(redraw).observe(byId("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
    if (savedTheme()) return;
    chooseTheme(event.matches ? "dark" : "light");
    readLook();
    redraw();
  });
  addEventListener("scroll", hideTip, { passive: true });
}

function listenToMap() {
  const canvas = byId("map");
  canvas.addEventListener("click", (event) => {
    play(false);
    openCell(cellUnder(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    const { layer, at } = cellUnder(event);
    const { grid } = shown.map;
    const value = cellText(grid.measure, grid.cells[layer][at]);
    showTip(
      `${run.name(layer, 300)}\nstep ${run.stepText(at)}\n${grid.measure.title.toLowerCase()}: ${value}`,
      event.clientX,
      event.clientY,
    );
  });
  canvas.addEventListener("pointerleave", hideTip);
}

function listenToPicture() {
  const canvas = byId("picture");
  const hover = (event) => {
    if (!shown.picture) return;
    const { plan, subject, unit } = shown.picture;
    const box = canvas.getBoundingClientRect();
    const place = placeAt(plan, subject, (event.clientX - box.left) * unit, (event.clientY - box.top) * unit);
    if (place) showTip(tipOfPlace(place), event.clientX, event.clientY);
    else hideTip();
  };
  canvas.addEventListener("pointermove", hover);
  canvas.addEventListener("pointerdown", hover);
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("blur", () => {
    shown.cursor = null;
    hideTip();
    redraw();
  });
}

function listenToChart(id, tip) {
  const canvas = byId(id);
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const { left, across } = shown[id];
    return { at: columnAt(event.clientX - box.left, left, across, run.count), y: event.clientY - box.top };
  };
  canvas.addEventListener("click", (event) => {
    play(false);
    choose({ at: under(event).at });
  });
  canvas.addEventListener("pointermove", (event) => {
    const { at, y } = under(event);
    showTip(`step ${run.stepText(at)}\n${tip(at, y)}`, event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", hideTip);
}

function histogramTip(at, y) {
  const series = current();
  if (!run.has(series, at)) return "not recorded";
  const bad = run.nonfinite(series, at);
  const bin = shown.histogram.binAt(y);
  const part = bin === null ? 0 : run.part(series, bin, at);
  const text =
    bin === null ? "no value is finite" : `${binText(run, bin)}: ${part ? `about ${percent(part)} of the values` : "no value"}`;
  return bad > 0 ? `${text}\n${count(bad)} not finite` : text;
}

function linesTip(at) {
  return linesText(current(), shown.lines.chart, at);
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { target, key } = event;
  if (target.matches("select, input, summary")) return;
  if (target === byId("picture") && key.startsWith("Arrow") && shown.picture) moveCursor(key);
  else if (target === byId("map") && key === "ArrowUp") choose({ layer: Math.max(state.layer - 1, 0) });
  else if (target === byId("map") && key === "ArrowDown") choose({ layer: Math.min(state.layer + 1, run.layers.length - 1) });
  else if (target === byId("map") && key === "Enter") openCell(state);
  else if (key === "ArrowLeft" || key === "ArrowRight") {
    play(false);
    move((key === "ArrowLeft" ? -1 : 1) * (event.shiftKey ? 10 : 1));
  } else if (key === "Home" || key === "End") {
    play(false);
    move(key === "Home" ? -run.count : run.count);
  } else if (key === "p" || key === "P") play();
  else if (key === "s" || key === "S") choose({ scale: scaleOf(state.kind) === "run" ? "frame" : "run" });
  else if (key === "d" || key === "D") turnTheme();
  else if (/^[1-9]$/.test(key) && run.kindsOf(state.layer)[key - 1]) choose({ kind: run.kindsOf(state.layer)[key - 1] });
  else return;
  event.preventDefault();
}

function showTip(text, x, y) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth ? x - 14 - box.width : x + 16;
  const top = y + 16 + box.height > innerHeight ? y - 14 - box.height : y + 16;
  const inside = clamp(left, 4, innerWidth - box.width - 4);
  tip.style.transform = `translate(${Math.round(inside)}px, ${Math.round(Math.max(top, 4))}px)`;
}

function hideTip() {
  byId("tip").hidden = true;
}

let saying = 0;
function say() {
  clearTimeout(saying);
  saying = setTimeout(() => {
    const what = `${run.name(state.layer, 60)}, ${run.kindWords[state.kind]}, step ${run.stepText(state.at)}`;
    byId("said").textContent = `${what}: ${linesText(current(), CHARTS[0], state.at)}`;
  }, 400);
}
