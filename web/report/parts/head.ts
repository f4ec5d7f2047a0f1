// What the run is, what stands out in it, and what the file leaves out.

import { byId, el } from "../../shared/dom";
import * as format from "../../shared/format";
import { type Finding, findingsOf } from "../data/findings";
import { aboutRun, notesOf } from "../data/notes";
import type { Guide } from "../guide";

const MOST_NOTES = 500;

export function fillHead(guide: Guide): void {
  const { run } = guide;
  const { title } = run.facts;
  byId("title").textContent = format.shortened(title, 120);
  byId("title").title = format.clean(title);
  byId("about").textContent = aboutRun(run);
  byId("findings").replaceChildren(...findingsOf(run).map((one) => findingItem(guide, one)));
  const notes = notesOf(run);
  byId("notes").hidden = !notes.sentences.length;
  byId("notes").querySelector("summary")!.textContent = notes.title;
  const items = notes.sentences.slice(0, MOST_NOTES).map((text) => el("li", { text }));
  byId("notes")
    .querySelector("ul")!
    .replaceChildren(...items);
}

function findingItem(guide: Guide, { tone, text, title = "", series, at }: Finding): HTMLElement {
  if (!series || at === undefined) return el("li", {}, el("span", { class: tone, title }, el("i"), text));
  const click = (): void => guide.choose({ layer: series.layer, kind: series.kind, at });
  return el("li", {}, el("button", { type: "button", class: tone, title, on: { click } }, el("i"), text));
}
