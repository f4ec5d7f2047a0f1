// The page: one state, shown by several views. A change of the state asks for one drawing at the next frame of the screen.

const PLAY_TIME = 12000; // milliseconds for a whole run, as far as a step is neither too short nor too long to see
let run;
let look; // colours of the theme
let album;
let grids; // of the measures that have values
const state = { layer: 0, kind: "weight", at: 0, scale: null, measure: "", chart: "values", metric: "" };
const shown = {}; // what the picture and the charts show now, to know what is under the pointer
let isPlaying = false;
let isAsked = false;

chooseTheme(savedTheme() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
document.addEventListener("DOMContentLoaded", () =>
  start().catch((error) => {
    byId("trouble").textContent =
      typeof DecompressionStream === "undefined"
        ? "This browser is too old for the report: it needs one from 2023 or newer."
        : `The report could not be read: ${error.message}`;
    byId("trouble").hidden = false;
    throw error;
  }),
);

async function start() {
  run = await Run.read();
  album = new Album(redraw);
  document.documentElement.style.setProperty("--nonfinite", run.facts.nonfinite);
  readLook();
  grids = MEASURES.map((measure) => gridOf(run, measure)).filter((grid) => !grid.isEmpty);
  grids = grids.filter(({ measure, cells }) => measure.id !== "zeros-weight" || cells.flat().some(({ value }) => value > 0));
  state.at = run.count - 1;
  state.measure = grids[0]?.measure.id ?? "";
  const first = run.series.find((series) => series.kind === "activation") ?? run.series[0];
  Object.assign(state, { layer: first.layer, kind: first.kind });
  fillHead();
  fillMetrics();
  fillMap();
  fillPicture();
  fillGallery();
  listen();
  byId("main").hidden = false;
  redraw();
}

function choose(change) {
  Object.assign(state, change);
  if (!run.find(state.layer, state.kind)) state.kind = run.kindsOf(state.layer)[0];
  redraw();
  if (!isPlaying) say();
}

function redraw() {
  if (isAsked || !run) return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    drawTime();
    drawMap();
    drawPicture();
    drawCharts();
    drawGallery();
  });
}

function current() {
  return run.find(state.layer, state.kind);
}
