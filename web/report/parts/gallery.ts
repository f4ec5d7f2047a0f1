// All layers and kinds at one step, small. Those on the screen are drawn first, the others when there is time, so that a
// screenshot of the whole page, or a print of it, has them all.

import { screenUnit } from "../../shared/canvas";
import { byId, el, write } from "../../shared/dom";
import * as format from "../../shared/format";
import { type Series, nearestFrame } from "../data/run";
import type { Guide, Part } from "../guide";
import { drawFrame } from "../pictures/drawing";
import { planOf, subjectOf } from "../pictures/layout";
import { limitsOf, scaleWords } from "../pictures/limits";

const TURN = 8; // milliseconds
const MOMENT = 60;

interface Thumb {
  button: HTMLElement;
  series: Series;
  canvas: HTMLCanvasElement;
  isVisible: boolean;
  key: string; // of what is drawn
}

export class Gallery implements Part {
  private readonly thumbs = new Map<Element, Thumb>();
  private readonly watcher: IntersectionObserver;
  private waiting = 0; // the timer of those that are not on the screen

  constructor(private readonly guide: Guide) {
    const { run } = guide;
    this.watcher = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) this.thumbs.get(entry.target)!.isVisible = entry.isIntersecting;
        guide.redraw();
      },
      { rootMargin: "200px" },
    );
    const layers = run.facts.layers.map((_, layer) => layer).filter((layer) => run.picturedKinds(layer).length);
    const most = Math.max(...layers.map((layer) => run.picturedKinds(layer).length));
    const gallery = byId("gallery");
    gallery.classList.toggle("sparse", most === 1 && layers.length > 1); // layers stand beside each other
    gallery.style.setProperty("--kinds", String(most));
    gallery.replaceChildren(...layers.map((layer) => this.row(layer)));
    addEventListener("beforeprint", () => this.thumbs.forEach((thumb) => this.drawThumb(thumb)));
  }

  private row(layer: number): HTMLElement {
    const { run } = this.guide;
    const thumbs = run.picturedKinds(layer).map((kind) => this.thumb(run.find(layer, kind)!));
    const heading = el("h3", { text: run.name(layer, 60), title: run.title(layer) });
    return el("div", { class: "gallery-row" }, heading, el("div", { class: "thumbs" }, ...thumbs));
  }

  private thumb(series: Series): HTMLElement {
    const canvas = el("canvas");
    Object.assign(canvas, { width: 0, height: 0 });
    const click = (): void => {
      this.guide.choose({ layer: series.layer, kind: series.kind });
      byId("picture-card").scrollIntoView({ block: "start" });
    };
    const words = el("span", { text: this.guide.run.words(series) });
    const frame = el("div", { class: "frame" }, canvas);
    const button = el("button", { type: "button", class: "thumb", on: { click } }, frame, words);
    this.thumbs.set(button, { button, series, canvas, isVisible: false, key: "" });
    this.watcher.observe(button);
    return button;
  }

  draw(): void {
    const { run, state, series } = this.guide;
    write("gallery-step", `step ${run.stepText(state.at)} · ${scaleWords(run.allPictured, state.scale)}`);
    for (const thumb of this.thumbs.values()) {
      thumb.button.classList.toggle("chosen", thumb.series === series);
      if (thumb.isVisible) this.drawThumb(thumb);
    }
    this.drawLater();
  }

  /** Once nothing has changed for a moment, draws the others one after the other, a few milliseconds at a time. */
  private drawLater(): void {
    const left = [...this.thumbs.values()].filter((thumb) => !thumb.isVisible);
    const turn = (): void => {
      const end = performance.now() + TURN;
      while (left.length && performance.now() < end) this.drawThumb(left.shift()!);
      if (left.length) this.waiting = window.setTimeout(turn, 0);
    };
    clearTimeout(this.waiting);
    this.waiting = window.setTimeout(turn, MOMENT);
  }

  private drawThumb(thumb: Thumb): void {
    const { run, state } = this.guide;
    const { button, series, canvas } = thumb;
    const frame = run.has(series, state.at) ? nearestFrame(series, state.at) : null;
    const words = `${run.name(series.layer, 60)}, ${run.words(series)}`;
    button.setAttribute("aria-label", run.has(series, state.at) ? words : `${words}: not recorded at this step`);
    button.title = `${format.shortened(run.title(series.layer), 300)} · ${run.words(series)}`;
    button.classList.toggle("gone", !frame);
    canvas.hidden = !frame;
    if (!frame) return;
    const unit = screenUnit();
    const box = canvas.parentElement!;
    const room = { width: box.clientWidth * unit, height: box.clientHeight * unit, unit, isSmall: true };
    const limits = limitsOf(run, series, frame, state.scale);
    const key = `${frame.at} ${limits} ${room.width} ${room.height}`;
    if (thumb.key === key) return;
    const subject = subjectOf(run.form(series, frame.at), frame, run.facts.stride);
    if (drawFrame(this.guide, canvas, series, frame, subject, planOf(subject, room), unit)) thumb.key = key;
  }
}
