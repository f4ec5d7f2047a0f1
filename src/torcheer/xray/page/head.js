// What the run is, what stands out in it, and what the file leaves out.

function fillHead() {
  const { facts } = run;
  byId("title").textContent = short(facts.title, 120);
  byId("title").title = clean(facts.title);
  const [first, last] = [run.steps[0], run.steps[run.count - 1]].map(count);
  const kinds = Object.keys(run.kindWords).filter(
    (kind) => kind !== "summary" && run.series.some((series) => series.kind === kind),
  );
  const others = run.layers.length - facts.watched;
  const parts = [
    facts.title === facts.model ? null : `model ${short(facts.model, 60)}`,
    plural(facts.snapshots, "snapshot"),
    run.count === 1 ? `step ${first}` : `steps ${first} – ${last}`,
    `${plural(facts.watched, "layer")} with pictures (${kinds.map((kind) => run.kindWords[kind]).join(", ")})`,
    others ? `${plural(others, "other")} with a summary` : null,
    `${byteSize(facts.bytes)} on disk`,
  ];
  byId("about").textContent = parts.filter(Boolean).join("  ·  ");
  byId("findings").replaceChildren(...findingsOf(run).map(findingItem));
  fillNotes();
}

function findingItem({ tone, text, title, series, at }) {
  const inner = series ? make("button", { type: "button", className: tone }) : make("span", { className: tone });
  inner.append(make("i"), text);
  inner.title = title ?? "";
  if (series) inner.addEventListener("click", () => choose({ layer: series.layer, kind: series.kind, at }));
  return make("li", {}, inner);
}

function fillNotes() {
  const { facts } = run;
  const notes = notesOnce(facts.notes);
  const left = leftOut();
  const about = [];
  const limit = `To stay below ${byteSize(facts.maxBytes)},`;
  if (run.count < facts.snapshots)
    about.push(`This file shows ${count(run.count)} of the ${count(facts.snapshots)} snapshots, evenly over the run.`);
  const list = (numbers) => numbers.map((at) => run.stepText(at)).join(", ");
  if (left.length) {
    const which = left.length > facts.pictures.length ? `of steps ${list(facts.pictures)} only` : `but for steps ${list(left)}`;
    about.push(`${limit} this file has pictures ${which}. Numbers and histograms are of every step.`);
  }
  if (facts.stride > 1) {
    const every = `${facts.stride}${facts.stride === 2 ? "nd" : "th"}`;
    about.push(`${limit} pictures show every ${every} pixel, filter, and row and column of a matrix.`);
  }
  if (facts.unreadable.length) about.push(`The pictures of these steps could not be read: ${list(facts.unreadable)}.`);
  const all = [...about, ...notes];
  byId("notes").hidden = !all.length;
  const words = [
    left.length ? `pictures of ${facts.pictures.length} of ${count(run.count)} snapshots` : "",
    notes.length ? plural(notes.length, "note") : "",
  ];
  byId("notes").querySelector("summary").textContent = clean(words.filter(Boolean).join(", ") || plural(all.length, "note"));
  byId("notes")
    .querySelector("ul")
    .replaceChildren(...all.slice(0, 500).map((text) => make("li", { textContent: short(text, 2000) })));
}

// What many snapshots say is said once.
function notesOnce(notes) {
  const found = new Map();
  for (const [at, texts] of notes) for (const text of texts) found.set(text, [...(found.get(text) ?? []), at]);
  return [...found].map(([text, places]) => {
    const [first, last] = [places[0], places[places.length - 1]].map((at) => run.stepText(at));
    const where = places.length === 1 ? `Step ${first}` : `${plural(places.length, "snapshot")}, steps ${first} – ${last}`;
    return `${where}: ${clean(text)}`;
  });
}

function leftOut() {
  const there = new Set(run.facts.pictures);
  return run.steps.map((_, at) => at).filter((at) => !there.has(at));
}
