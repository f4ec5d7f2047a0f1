// What the run is, what stands out in it, and what the file leaves out.

import { byId, el, write } from "../../shared/dom";
import * as format from "../../shared/format";
import type { Finding } from "../../shared/generated/report_format";
import { aboutRun, notesOf } from "../data/notes";
import type { Guide, Part } from "../guide";

const MOST_NOTES = 500;

const MOST_AT_ONCE = 6; // findings beside each other; the list over time has all

export class Head implements Part {
  private shown = -1; // the snapshot whose findings are shown
  private readonly items: [HTMLElement, Finding][] = []; // of the list over time

  constructor(private readonly guide: Guide) {
    fillHead(guide);
    this.fillList();
  }

  draw(): void {
    const { run, state } = this.guide;
    if (this.shown === state.at) return;
    this.shown = state.at;
    const found = findingsAt(run.facts.findings, state.at);
    const items = found.slice(0, MOST_AT_ONCE).map((one) => findingItem(this.guide, one));
    const more = found.length - items.length;
    if (more > 0) items.push(el("li", {}, el("span", { class: "odd" }, el("i"), `${more} more, in the list below`)));
    if (!found.length) {
      const text = `Nothing stands out at step ${run.stepText(state.at)}`;
      items.push(el("li", {}, el("span", { class: "fine" }, el("i"), text)));
    }
    byId("findings").replaceChildren(...items);
    for (const [item, one] of this.items) item.classList.toggle("now", found.includes(one));
  }

  private fillList(): void {
    const { run } = this.guide;
    const list = byId("over-time");
    const found = run.facts.findings.filter((one) => one.at !== null);
    list.hidden = !found.length;
    list.querySelector("summary")!.textContent = `${found.length} ${found.length === 1 ? "finding" : "findings"} over the run`;
    found.sort((one, other) => one.at! - other.at!);
    list.querySelector("ul")!.replaceChildren(...found.map((one) => this.rowOf(one)));
  }

  private rowOf(one: Finding): HTMLElement {
    const { run } = this.guide;
    const extent = el("i");
    const last = Math.max(run.count - 1, 1);
    const [from, to] = [one.at!, one.until ?? one.at!];
    extent.style.left = `${(100 * from) / last}%`;
    extent.style.width = `${(100 * (to - from)) / last}%`;
    if (from === last) extent.style.transform = "translateX(-100%)";
    const steps = from === to ? `step ${run.stepText(from)}` : `steps ${run.stepText(from)} to ${run.stepText(to)}`;
    const click = (): void => leadTo(this.guide, one);
    const parts = [el("span", { class: "extent" }, extent), format.clean(one.text)];
    const button = el("button", { type: "button", class: one.tone, title: [steps, one.about].filter(Boolean).join(". "), on: { click } }, ...parts);
    this.items.push([button, one]);
    return el("li", {}, button);
  }
}

/** What holds at a snapshot; what is said of no snapshot holds at each. */
export function findingsAt(findings: Finding[], at: number): Finding[] {
  return findings.filter((one) => one.at === null || (one.at <= at && at <= (one.until ?? one.at)));
}

function leadTo(guide: Guide, { series: index, at }: Finding): void {
  const series = guide.run.series[index ?? -1];
  if (series && at !== null) guide.choose({ layer: series.layer, kind: series.kind, at });
}

function fillHead(guide: Guide): void {
  const { run } = guide;
  const { title } = run.facts;
  write("title", format.shortened(title, 120), format.clean(title));
  write("about", aboutRun(run));
  const { title: summary, sentences } = notesOf(run);
  const notes = byId("notes");
  notes.hidden = !sentences.length;
  notes.querySelector("summary")!.textContent = summary;
  notes.querySelector("ul")!.replaceChildren(...sentences.slice(0, MOST_NOTES).map((text) => el("li", { text })));
}

function findingItem(guide: Guide, one: Finding): HTMLElement {
  const { tone, text, about, series, at } = one;
  const said = format.clean(text);
  if (series === null || at === null) return el("li", {}, el("span", { class: tone, title: about }, el("i"), said));
  const click = (): void => leadTo(guide, one);
  return el("li", {}, el("button", { type: "button", class: tone, title: about, on: { click } }, el("i"), said));
}
