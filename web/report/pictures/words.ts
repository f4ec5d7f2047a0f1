// What is said about a picture: its caption, its numbers, and why there is none.

import * as format from "../../shared/format";
import type { Form } from "../../shared/generated/report_format";
import { type Frame, type Run, SUMMARY, type Series } from "../data/run";
import type { Plan, Subject } from "./layout";

/** Why a series has no picture at a snapshot; nothing where it has one. */
export function whyNone(run: Run, series: Series, at: number, frame: Frame | null): string {
  const name = run.name(series.layer, 48);
  if (series.kind === SUMMARY) {
    const more = run.picturedKinds(series.layer).length
      ? "Choose another kind to see pictures."
      : "No pictures of it were kept: name it in layers= to see its tensors.";
    return `These are a few numbers of all parameters of ${name} together. ${more}`;
  }
  if (!run.has(series, at)) return `${name}: the ${run.words(series)} was not recorded at step ${run.stepText(at)}.`;
  return frame ? "" : "There is no picture: the tensor is empty, or could not be read.";
}

export function pictureCaption(run: Run, series: Series, at: number, frame: Frame, subject: Subject, plan: Plan): string {
  const form = run.form(series, frame.at);
  const shape = form.shape.map((size) => (size < 0 ? "?" : String(size))).join(" × ") || "one value";
  const lines = [`Shows ${shownParts(form, subject)}`, `tensor of ${shape}, ${form.dtype}`];
  if (subject.shape === "grid")
    lines.push(plan.isTurned ? "filters go across, input channels down" : "filters go down, input channels across");
  const layer = run.facts.layers[series.layer]!;
  if (form.source && form.source !== layer && form.source !== `${layer}.weight`)
    lines.push(`of ${format.shortened(form.source, 60)}`);
  if (form.note) lines.push(format.shortened(form.note, 300));
  const far = frame.at === at ? "" : `Picture of step ${run.stepText(frame.at)}, the nearest in this file. `;
  return far + lines.join(" · ");
}

function shownParts(form: Form, subject: Subject): string {
  const part = (kept: number, total: number | null | undefined, word: string): string => {
    const all = total ?? kept;
    return `${format.count(kept)}${all > kept ? ` of ${format.count(all)}` : ""} ${word}${all === 1 ? "" : "s"}`;
  };
  const [rowWord = "", columnWord = ""] = form.axes;
  const said = [part(form.rows.length, form.totals[0], rowWord)];
  if (form.color) said.push("with input channels 0, 1, 2 as red, green, blue and zero as grey");
  else if (columnWord && subject.shape !== "tiles") said.push(part(subject.columns.length, form.totals[1], columnWord));
  return said.join(", ");
}

/** Names and values, and a class for what is alarming. */
export type NumberRow = [name: string, text: string, tone?: "bad"];

export function numberRows(run: Run, series: Series, at: number): NumberRow[] {
  if (!run.has(series, at)) return [["this step", "not recorded"]];
  const value = (field: string): number => run.value(series, field, at);
  const known = (field: string): string => (Number.isNaN(value(field)) ? "none" : format.figure(value(field), 3));
  const dead = format.count(value("dead"));
  const units = Number.isNaN(value("units")) ? dead : `${dead} of ${format.count(value("units"))}`;
  const ifKnown = (field: string, row: NumberRow): NumberRow[] => (Number.isNaN(value(field)) ? [] : [row]);
  const ifAny = (field: string, name: string): NumberRow[] =>
    value(field) > 0 ? [[name, format.count(value(field)), "bad"]] : [];
  if (series.kind === SUMMARY)
    return [
      ["parameters", format.count(value("count"))],
      ["norm", known("norm")],
      ["gradient norm", known("grad_norm")],
      ["update ratio", known("update_ratio")],
      ...ifKnown("dead", ["dead units", units]),
      ...ifAny("nan", "not finite"),
      ...ifAny("grad_nonfinite", "gradients not finite"),
    ];
  return [
    ...["mean", "std", "min", "max", "norm"].map((field): NumberRow => [field, known(field)]),
    ["zeros", format.percent(value("zeros") / Math.max(value("count"), 1))],
    ...ifKnown("update_ratio", ["update ratio", known("update_ratio")]),
    ...ifKnown("dead", ["dead units", units]),
    ...ifAny("nan", "NaN"),
    ...ifAny("inf", "infinite"),
  ];
}
