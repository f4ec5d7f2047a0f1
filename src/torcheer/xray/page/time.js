// The slider, and playing.

function drawTime() {
  const slider = byId("slider");
  slider.max = run.count - 1;
  slider.value = state.at;
  slider.disabled = run.count === 1;
  const step = run.stepText(state.at);
  slider.setAttribute("aria-valuetext", `step ${step}`);
  const time = run.facts.times[state.at];
  byId("step").replaceChildren(
    make("b", { textContent: `Step ${step}` }),
    make("span", { className: "muted", textContent: `${state.at + 1} of ${run.count}` }),
    make("span", { className: "muted clock", textContent: time > 0 ? duration(time) : "" }),
  );
  for (const id of ["play", "back", "forward"]) byId(id).disabled = run.count === 1;
  drawMarks();
  drawCurve();
}

// Metrics: a curve over the slider -------------------------------------------------------------------------------------

const CURVE_HEIGHT = 40;
const SLIDER_END = 8; // pixels between the end of a slider and the middle of its knob

function fillMetrics() {
  const names = Object.keys(run.facts.metrics);
  byId("metric-box").hidden = !names.length;
  if (!names.length) return;
  state.metric = names.find((name) => name.toLowerCase().includes("loss")) ?? names[0];
  byId("metric").replaceChildren(...names.map((name) => make("option", { value: name, textContent: short(name, 24), title: clean(name) })));
  byId("metric").value = state.metric;
  byId("metric").classList.toggle("alone", names.length === 1);
  byId("metric").addEventListener("change", (event) => choose({ metric: event.target.value }));
}

function drawCurve() {
  const canvas = byId("curve");
  canvas.hidden = !state.metric;
  if (canvas.hidden) return;
  const values = run.facts.metrics[state.metric];
  const width = canvas.parentElement.clientWidth;
  const known = values.filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const isLog = low > 0 && high > 50 * low;
  const share = (value) => (high === low ? 0.5 : isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const x = (at) => SLIDER_END + ((width - 2 * SLIDER_END) * at) / Math.max(run.count - 1, 1);
  const y = (value) => CURVE_HEIGHT - 4 - share(value) * (CURVE_HEIGHT - 8);
  const pen = keep(canvas, `${state.metric} ${width} ${look.theme}`, width, CURVE_HEIGHT, (still) => {
    still.strokeStyle = look.accent;
    still.fillStyle = look.accent;
    still.lineWidth = 1.5;
    still.lineJoin = "round";
    stretches(
      run,
      (at) => values[at] !== null,
      (first, last) => {
        if (first === last) return still.fillRect(x(first) - 1.5, y(values[first]) - 1.5, 3, 3);
        still.beginPath();
        for (let at = first; at <= last; at++) still.lineTo(x(at), y(values[at]));
        still.stroke();
      },
    );
  });
  const now = values[state.at];
  if (now !== null) {
    pen.fillStyle = look.accent;
    pen.strokeStyle = look.card;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(x(state.at), y(now), 4, 0, 2 * Math.PI);
    pen.fill();
    pen.stroke();
  }
  const text = now === null ? "not finite, or not given" : number(now);
  byId("metric-value").textContent = now === null ? "–" : text;
  byId("metric-value").title = `${clean(state.metric)} at step ${run.stepText(state.at)}: ${text}`;
  const range = known.length ? `${number(low)} to ${number(high)}${isLog ? ", logarithmic" : ""}` : "no finite value";
  canvas.title = `${clean(state.metric)}: ${range}`;
  canvas.setAttribute("aria-label", `${clean(state.metric)} over time, ${range}. At step ${run.stepText(state.at)}: ${text}`);
}

// Under the slider: which snapshots have pictures, where some have none.
function drawMarks() {
  const canvas = byId("marks");
  canvas.hidden = run.facts.pictures.length === run.count;
  if (canvas.hidden) return;
  const width = canvas.parentElement.clientWidth;
  keep(canvas, `${width} ${look.theme}`, width, 5, (pen) => {
    pen.fillStyle = look.muted;
    for (const at of run.facts.pictures) pen.fillRect(8 + ((width - 16) * at) / Math.max(run.count - 1, 1) - 0.75, 0, 1.5, 5);
  });
}

function move(by) {
  choose({ at: clamp(state.at + by, 0, run.count - 1) });
}

function play(isOn = !isPlaying) {
  isPlaying = isOn && run.count > 1;
  byId("play").classList.toggle("playing", isPlaying);
  byId("play").setAttribute("aria-label", isPlaying ? "Pause" : "Play");
  if (!isPlaying) return;
  if (state.at === run.count - 1) choose({ at: 0 });
  const pause = clamp(PLAY_TIME / run.count, 40, 400);
  let last = performance.now();
  const turn = (now) => {
    if (!isPlaying) return;
    if (now - last >= pause) {
      last = now;
      choose({ at: Math.min(state.at + 1, run.count - 1) });
      if (state.at === run.count - 1) {
        play(false);
        say();
      }
    }
    requestAnimationFrame(turn);
  };
  requestAnimationFrame(turn);
}
