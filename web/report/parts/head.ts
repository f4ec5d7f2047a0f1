// What the run is, what stands out in it, and what the file leaves out.

import { byId, el, write } from "../../shared/dom";
import * as format from "../../shared/format";
import type { Finding } from "../../shared/generated/report_format";
import { aboutRun, notesOf } from "../data/notes";
import type { Guide } from "../guide";

const MOST_NOTES = 500;

export function fillHead(guide: Guide): void {
  const { run } = guide;
  const { title } = run.facts;
  write("title", format.shortened(title, 120), format.clean(title));
  write("about", aboutRun(run));
  byId("findings").replaceChildren(...run.facts.findings.map((one) => findingItem(guide, one)));
  const { title: summary, sentences } = notesOf(run);
  const notes = byId("notes");
  notes.hidden = !sentences.length;
  notes.querySelector("summary")!.textContent = summary;
  notes.querySelector("ul")!.replaceChildren(...sentences.slice(0, MOST_NOTES).map((text) => el("li", { text })));
}

function findingItem(guide: Guide, { tone, text, about, series: index, at }: Finding): HTMLElement {
  const series = guide.run.series[index ?? -1];
  const said = format.clean(text);
  if (!series || at === null) return el("li", {}, el("span", { class: tone, title: about }, el("i"), said));
  const click = (): void => guide.choose({ layer: series.layer, kind: series.kind, at });
  return el("li", {}, el("button", { type: "button", class: tone, title: about, on: { click } }, el("i"), said));
}
