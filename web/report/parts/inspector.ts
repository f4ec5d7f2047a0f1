// The picture of the chosen layer, kind and step, with its colours and numbers.

import { paintRamp, screenUnit } from "../../shared/canvas";
import { byId, el, write } from "../../shared/dom";
import * as format from "../../shared/format";
import { clamp } from "../../shared/scale";
import { type Frame, nearestFrame } from "../data/run";
import type { Guide, Part, ScaleName } from "../guide";
import { rampFor } from "../pictures/codes";
import { drawFrame } from "../pictures/drawing";
import { type Place, type Shown, placeAt, placeText, planOf, subjectOf } from "../pictures/layout";
import { limitsOf, scaleOf } from "../pictures/limits";
import { numberRows, pictureCaption, whyNone } from "../pictures/words";
import { choices } from "./choices";
import { followPointer } from "./pointer";

const KIND_WORDS: Record<string, string> = { layer: "Output", grad: "Gradient", layer_grad: "Output gradient" };
const MOVES: Record<string, [number, number]> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
};
const GREYS = ["#000000", "#FFFFFF"];

/** A value that the keyboard is at. */
interface Cursor {
  index: number; // of a tile
  row: number;
  column: number;
}

export class Inspector implements Part {
  private readonly canvas = byId<HTMLCanvasElement>("picture");
  private readonly layers = byId<HTMLSelectElement>("layer");
  private shown: Shown | null = null;
  private cursor: Cursor | null = null;

  constructor(private readonly guide: Guide) {
    const { layers, canvas } = this;
    layers.replaceChildren(
      ...guide.run.facts.layers.map((name, layer) =>
        el("option", { value: String(layer), text: format.shortened(name, 60), title: format.clean(name) }),
      ),
    );
    layers.addEventListener("change", () => guide.choose({ layer: Number(layers.value) }));
    const text = (event: PointerEvent): string => {
      const place = this.placeUnder(event);
      return place ? this.tipOf(place) : "";
    };
    followPointer(guide, canvas, text);
    canvas.addEventListener("blur", () => {
      this.cursor = null;
      guide.hideTip();
      guide.redraw();
    });
  }

  draw(): void {
    const { run, state, series } = this.guide;
    this.layers.value = String(state.layer);
    this.drawChoices();
    write("picture-title", `${run.name(state.layer, 48)} · ${run.words(series)}`, run.title(state.layer));
    write("picture-step", `step ${run.stepText(state.at)}`);
    this.drawNumbers();
    const frame = nearestFrame(series, state.at);
    const why = whyNone(run, series, state.at, frame);
    byId("instead").hidden = !why;
    write("instead", why);
    this.canvas.hidden = byId("scale").hidden = Boolean(why);
    if (frame && !why) {
      this.drawPicture(frame);
      return;
    }
    this.shown = null;
    write("picture-about", "");
    this.canvas.setAttribute("aria-busy", "false");
  }

  private drawPicture(frame: Frame): void {
    const { run, state, series } = this.guide;
    const form = run.form(series, frame.at);
    const subject = subjectOf(form, frame, run.facts.stride);
    const unit = screenUnit();
    const width = Math.floor(this.canvas.parentElement!.clientWidth * unit);
    const height = Math.floor(clamp(innerHeight * 0.55, 320, 520) * unit);
    const plan = planOf(subject, { width, height, unit, isSmall: false });
    const caption = pictureCaption(run, series, state.at, frame, subject, plan);
    write("picture-about", caption);
    this.drawScale(frame, form.color);
    const codes = drawFrame(this.guide, this.canvas, series, frame, subject, plan, unit);
    this.canvas.setAttribute("aria-busy", String(!codes));
    if (!codes) return;
    this.shown = { plan, subject, form, codes, frame, unit };
    if (document.activeElement === this.canvas && this.cursor) this.drawCursor(this.shown, this.cursor);
    const title = `${byId("picture-title").textContent}, step ${run.stepText(frame.at)}. ${caption}`;
    this.canvas.setAttribute("aria-label", title);
  }

  private drawChoices(): void {
    const { guide } = this;
    const { run, state } = guide;
    const kinds = run.kindsOf(state.layer).map((kind): [string, string, string] => {
      return [kind, KIND_WORDS[kind] ?? kind.replace(/^./, (letter) => letter.toUpperCase()), run.facts.kinds[kind]!];
    });
    choices("kinds", kinds, state.kind, (kind) => guide.choose({ kind }));
    const scales: [ScaleName, string, string][] = [
      ["run", "Scale of the run", "Colours mean the same at every step"],
      ["frame", "Scale of this step", "Colours fit this step alone"],
    ];
    choices("scales", scales, scaleOf(state.kind, state.scale), (scale) => guide.choose({ scale }));
  }

  private drawScale(frame: Frame, isColor: boolean): void {
    const { run, state, series } = this.guide;
    const limits = limitsOf(run, series, frame, state.scale);
    paintRamp(byId<HTMLCanvasElement>("bar"), isColor ? GREYS : rampFor(limits));
    const ends = { "bar-low": limits[0], "bar-middle": (limits[0] + limits[1]) / 2, "bar-high": limits[1] };
    const isFinite = !Number.isNaN(run.value(series, "min", frame.at)); // otherwise no pixel has a colour of the bar
    for (const [id, value] of Object.entries(ends)) write(id, isFinite ? format.figure(value, 3) : "");
    if (!isFinite) write("bar-middle", "no value is finite");
    byId("nonfinite-key").hidden = !(run.nonfinite(series, state.at) > 0);
  }

  private drawNumbers(): void {
    const { run, state, series } = this.guide;
    const rows = numberRows(run, series, state.at).map(([name, text, tone = ""]) =>
      el("div", { class: tone }, el("dt", { text: name }), el("dd", { text })),
    );
    byId("numbers").replaceChildren(...rows);
  }

  private placeUnder(event: PointerEvent): Place | null {
    if (!this.shown) return null;
    const { plan, subject, unit } = this.shown;
    const box = this.canvas.getBoundingClientRect();
    return placeAt(plan, subject, (event.clientX - box.left) * unit, (event.clientY - box.top) * unit);
  }

  private tipOf(place: Place): string {
    const { stride, levels } = this.guide.run.facts;
    return placeText(place, this.shown!, stride, levels);
  }

  /** The keyboard's way over the values; whether there was one. */
  moveCursor(key: string): boolean {
    const move = MOVES[key];
    if (!this.shown || !move) return false;
    const { plan, subject } = this.shown;
    const cursor = this.cursor ?? { index: 0, row: 0, column: 0 };
    const [x, y] = centerOf(this.shown, cursor);
    const tile = plan.tiles[cursor.index] ?? plan.tiles[0]!;
    const [w, h] = [tile.w / subject.width, tile.h / subject.height];
    this.cursor = cursor;
    for (let reach = 1; reach < 60; reach++) {
      const place = placeAt(plan, subject, x + move[0] * w * reach, y + move[1] * h * reach); // over the gap between tiles
      if (!place) continue;
      this.cursor = { index: place.tile.index, row: place.row, column: place.column };
      break;
    }
    this.guide.redraw();
    return true;
  }

  private drawCursor(shown: Shown, cursor: Cursor): void {
    const { plan, subject, unit } = shown;
    cursor.index = Math.min(cursor.index, plan.tiles.length - 1);
    const [x, y] = centerOf(shown, cursor);
    const place = placeAt(plan, subject, x, y);
    if (!place) return;
    const pen = this.canvas.getContext("2d")!;
    const size = Math.max(6 * unit, place.tile.w / subject.width);
    for (const [color, width] of [
      ["#000", 3],
      ["#fff", 1.5],
    ] as const) {
      pen.strokeStyle = color;
      pen.lineWidth = width * unit;
      pen.strokeRect(x - size / 2, y - size / 2, size, size);
    }
    const box = this.canvas.getBoundingClientRect();
    this.guide.showTip(this.tipOf(place), box.left + x / unit, box.top + y / unit);
    this.guide.say(this.tipOf(place));
  }
}

function centerOf({ plan, subject }: Shown, { index, row, column }: Cursor): [number, number] {
  const tile = plan.tiles[index] ?? plan.tiles[0]!;
  return [tile.x + ((column + 0.5) / subject.width) * tile.w, tile.y + ((row + 0.5) / subject.height) * tile.h];
}
