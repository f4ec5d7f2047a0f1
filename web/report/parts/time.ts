// The slider, playing, and a metric as a curve over the slider.

import { byId, el, write } from "../../shared/dom";
import * as format from "../../shared/format";
import { clamp } from "../../shared/scale";
import { type Pen, drawCurve, drawDot, keep } from "../charts/frame";
import type { Guide, Part } from "../guide";

const PLAY_TIME = 12000; // milliseconds for a whole run, as far as a step is neither too short nor too long to see
const CURVE_HEIGHT = 40;
const SLIDER_END = 8; // pixels between the end of a slider and the middle of its knob

/** The scale of a metric's curve: its ends, whether it is logarithmic, and where a value lies, 0 to 1. */
export function curveScale(values: (number | null)[]): { range: string; isLog: boolean; share: (value: number) => number } {
  const known = values.filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const isLog = low > 0 && high > 50 * low;
  const share = (value: number): number => {
    if (high === low) return 0.5;
    return isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  };
  const ends = `${format.figure(low, 3)} to ${format.figure(high, 3)}${isLog ? ", logarithmic" : ""}`;
  return { range: known.length ? ends : "no finite value", isLog, share };
}

/** The place of a snapshot on a slider that is so wide. */
export function placeOnSlider(at: number, count: number, width: number): number {
  return SLIDER_END + ((width - 2 * SLIDER_END) * at) / Math.max(count - 1, 1);
}

/** The metric that is shown first: a loss, if there is one. */
export function firstMetric(names: string[]): string {
  return names.find((name) => name.toLowerCase().includes("loss")) ?? names[0] ?? "";
}

export class TimeBar implements Part {
  isPlaying = false;
  private readonly slider = byId<HTMLInputElement>("slider");

  constructor(private readonly guide: Guide) {
    const { run } = guide;
    this.slider.max = String(run.count - 1);
    this.slider.disabled = run.count === 1;
    this.slider.addEventListener("input", () => this.goTo(Number(this.slider.value)));
    byId("play").addEventListener("click", () => this.play());
    byId("back").addEventListener("click", () => this.move(-1));
    byId("forward").addEventListener("click", () => this.move(1));
    for (const id of ["play", "back", "forward"]) byId<HTMLButtonElement>(id).disabled = run.count === 1;
    this.fillMetrics();
  }

  private fillMetrics(): void {
    const names = Object.keys(this.guide.run.facts.metrics);
    byId("metric-box").hidden = !names.length;
    const select = byId<HTMLSelectElement>("metric");
    const options = names.map((value) =>
      el("option", { value, text: format.shortened(value, 24), title: format.clean(value) }),
    );
    select.replaceChildren(...options);
    select.value = this.guide.state.metric;
    select.classList.toggle("alone", names.length === 1);
    select.addEventListener("change", () => this.guide.choose({ metric: select.value }));
  }

  draw(): void {
    const { run, state } = this.guide;
    const step = run.stepText(state.at);
    this.slider.value = String(state.at);
    this.slider.setAttribute("aria-valuetext", `step ${step}`);
    const time = run.facts.times[state.at]!;
    byId("step").replaceChildren(
      el("b", { text: `Step ${step}` }),
      el("span", { class: "muted", text: `${state.at + 1} of ${run.count}` }),
      el("span", { class: "muted", text: time > 0 ? format.time(time) : "" }),
    );
    this.drawMarks();
    this.drawMetric();
  }

  private drawMetric(): void {
    const { run, state, theme } = this.guide;
    const canvas = byId<HTMLCanvasElement>("curve");
    const values = run.facts.metrics[state.metric];
    canvas.hidden = !values;
    if (!values) return;
    const width = canvas.parentElement!.clientWidth;
    const { range, share } = curveScale(values);
    const x = (at: number): number => placeOnSlider(at, run.count, width);
    const y = (value: number): number => CURVE_HEIGHT - 4 - share(value) * (CURVE_HEIGHT - 8);
    const pen = keep(canvas, `${state.metric} ${width} ${theme.name}`, width, CURVE_HEIGHT, (still) => {
      this.drawOthers(still, x);
      still.strokeStyle = still.fillStyle = theme.accent;
      still.lineWidth = 1.5;
      still.lineJoin = "round";
      drawCurve(still, run.count, (at) => values[at] ?? NaN, x, y);
    });
    const now = values[state.at] ?? null;
    if (now !== null) drawDot(pen, x(state.at), y(now), theme);
    const name = format.clean(state.metric);
    const text = now === null ? "not finite, or not given" : format.figure(now, 3);
    write("metric-value", now === null ? "–" : text, `${name} at step ${run.stepText(state.at)}: ${text}`);
    canvas.title = `${name}: ${range}`;
    canvas.setAttribute("aria-label", `${name} over time, ${range}. At step ${run.stepText(state.at)}: ${text}`);
  }

  /** The other metrics, each on a scale of its own, behind the one that is chosen. */
  private drawOthers(pen: Pen, x: (at: number) => number): void {
    const { run, state, theme } = this.guide;
    pen.strokeStyle = pen.fillStyle = theme.edgeFaint;
    pen.lineWidth = 1;
    for (const [name, values] of Object.entries(run.facts.metrics)) {
      const { share } = curveScale(values);
      const y = (value: number): number => CURVE_HEIGHT - 4 - share(value) * (CURVE_HEIGHT - 8);
      if (name !== state.metric) drawCurve(pen, run.count, (at) => values[at] ?? NaN, x, y);
    }
  }

  /** Under the slider: which snapshots have pictures, where some have none. */
  private drawMarks(): void {
    const { run, theme } = this.guide;
    const canvas = byId<HTMLCanvasElement>("marks");
    canvas.hidden = run.facts.pictures.length === run.count;
    if (canvas.hidden) return;
    const width = canvas.parentElement!.clientWidth;
    keep(canvas, `${width} ${theme.name}`, width, 5, (pen) => {
      pen.fillStyle = theme.faint;
      for (const at of run.facts.pictures) pen.fillRect(placeOnSlider(at, run.count, width) - 0.75, 0, 1.5, 5);
    });
  }

  private goTo(at: number): void {
    this.play(false);
    this.guide.choose({ at: clamp(at, 0, this.guide.run.count - 1) });
  }

  move(by: number): void {
    this.goTo(this.guide.state.at + by);
  }

  play(isOn = !this.isPlaying): void {
    const { run, state } = this.guide;
    const last = run.count - 1;
    this.isPlaying = isOn && run.count > 1;
    byId("play").classList.toggle("playing", this.isPlaying);
    byId("play").setAttribute("aria-label", this.isPlaying ? "Pause" : "Play");
    if (!this.isPlaying) return;
    if (state.at === last) this.guide.choose({ at: 0 });
    const pause = clamp(PLAY_TIME / run.count, 40, 400);
    let before = performance.now();
    const turn = (now: number): void => {
      if (!this.isPlaying) return;
      if (now - before >= pause) {
        before = now;
        if (state.at >= last - 1) this.play(false);
        this.guide.choose({ at: Math.min(state.at + 1, last) });
      }
      requestAnimationFrame(turn);
    };
    requestAnimationFrame(turn);
  }
}
