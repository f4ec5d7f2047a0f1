// All layers and kinds at one step, small. Only those on the screen are drawn.

function fillGallery() {
  const kinds = Object.keys(run.kindWords).filter(
    (kind) => kind !== "summary" && run.series.some((series) => series.kind === kind),
  );
  const pictured = run.layers
    .map((name, layer) => [name, layer]).filter(([, layer]) => run.pictured(layer).length);
  const most = Math.max(...pictured.map(([, layer]) => run.pictured(layer).length));
  byId("gallery").classList.toggle("sparse", most === 1 && pictured.length > 1); // layers stand beside each other
  byId("gallery").style.setProperty("--kinds", most);
  shown.thumbs = new Map();
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) shown.thumbs.get(entry.target).isVisible = entry.isIntersecting;
      redraw();
    },
    { rootMargin: "200px" },
  );
  byId("gallery").replaceChildren(
    ...pictured.map(([name, layer]) => {
      const thumbs = kinds.map((kind) => {
        const series = run.find(layer, kind);
        if (!series) return null;
        const canvas = make("canvas", { width: 0, height: 0 });
        const button = make(
          "button",
          { type: "button", className: "thumb" },
          make("div", { className: "frame" }, canvas),
          make("span", { textContent: run.kindWords[kind] }),
        );
        button.addEventListener("click", () => {
          choose({ layer, kind });
          byId("picture-card").scrollIntoView({ block: "start" });
        });
        shown.thumbs.set(button, { series, canvas, isVisible: false, key: "" });
        watcher.observe(button);
        return button;
      });
      return make(
        "div",
        { className: "gallery-row" },
        make("h3", { textContent: short(name, 60), title: clean(name) }),
        make("div", { className: "thumbs" }, ...thumbs.filter(Boolean)),
      );
    }),
  );
}

function drawGallery() {
  byId("gallery-step").textContent =
    `step ${run.stepText(state.at)} · ${galleryScale()}`;
  for (const [button, thumb] of shown.thumbs) {
    button.classList.toggle("chosen", thumb.series === current());
    if (thumb.isVisible) drawThumb(button, thumb);
  }
}

function galleryScale() {
  if (state.scale) return state.scale === "run" ? "scale of the run" : "scale of this step";
  const scales = new Set(run.series.filter(({ kind }) => kind !== "summary").map(({ kind }) => scaleOf(kind)));
  if (scales.size > 1) return "scale of the run, of gradients: of this step";
  return scales.has("frame") ? "scale of this step" : "scale of the run";
}

function drawThumb(button, thumb) {
  const { series, canvas } = thumb;
  const isThere = run.has(series, state.at);
  const frame = nearestFrame(series, state.at);
  const words = `${run.name(series.layer, 60)}, ${run.kindWords[series.kind]}`;
  button.setAttribute("aria-label", isThere ? words : `${words}: not recorded at this step`);
  button.title = `${run.title(series.layer).slice(0, 300)} · ${run.kindWords[series.kind]}`;
  button.classList.toggle("gone", !isThere || !frame);
  canvas.hidden = !isThere || !frame;
  if (canvas.hidden) return;
  const unit = screenUnit();
  const box = canvas.parentElement;
  const room = { width: box.clientWidth * unit, height: box.clientHeight * unit, unit, isSmall: true };
  const limits = limitsOf(series, frame);
  const key = `${frame.at} ${limits} ${room.width} ${room.height}`;
  if (thumb.key === key) return;
  const codes = album.codes(frame);
  if (!codes) return;
  thumb.key = key;
  const subject = subjectOf(run.form(series, frame.at), frame, run.facts.stride);
  drawFrame(canvas, planOf(subject, room), subject, pixelsOf(subject, codes, frame, limits, look.palette), unit, look.muted);
}
