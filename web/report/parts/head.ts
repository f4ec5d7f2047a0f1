// What the run is, what stands out in it, and what the file leaves out.

import { byId, el, write } from "../../shared/dom";
import * as format from "../../shared/format";
import { type Finding, findingsOf } from "../data/findings";
import { aboutRun, notesOf } from "../data/notes";
import type { Guide } from "../guide";

const MOST_NOTES = 500;

export function fillHead(guide: Guide): void {
  const { run } = guide;
  const { title } = run.facts;
  write("title", format.shortened(title, 120), format.clean(title));
  write("about", aboutRun(run));
  byId("findings").replaceChildren(...findingsOf(run).map((one) => findingItem(guide, one)));
  const { title: summary, sentences } = notesOf(run);
  const notes = byId("notes");
  notes.hidden = !sentences.length;
  notes.querySelector("summary")!.textContent = summary;
  notes.querySelector("ul")!.replaceChildren(...sentences.slice(0, MOST_NOTES).map((text) => el("li", { text })));
}

function findingItem(guide: Guide, { tone, text, title = "", series, at }: Finding): HTMLElement {
  if (!series || at === undefined) return el("li", {}, el("span", { class: tone, title }, el("i"), text));
  const click = (): void => guide.choose({ layer: series.layer, kind: series.kind, at });
  return el("li", {}, el("button", { type: "button", class: tone, title, on: { click } }, el("i"), text));
}
