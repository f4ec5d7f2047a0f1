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
