// What the file leaves out, and what the run noted.

import * as format from "../../shared/format";
import type { Run } from "./run";

/** One line under the heading. */
export function aboutRun(run: Run): string {
  const { facts } = run;
  const [first, last] = [run.stepText(0), run.stepText(run.count - 1)];
  const others = facts.layers.length - facts.watched;
  const kinds = run.allPictured.map((kind) => facts.kinds[kind]).join(", ");
  const parts = [
    facts.title === facts.model ? "" : `model ${format.shortened(facts.model, 60)}`,
    format.plural(facts.snapshots, "snapshot"),
    run.count === 1 ? `step ${first}` : `steps ${first} – ${last}`,
    `${format.plural(facts.watched, "layer")} with pictures (${kinds})`,
    others ? `${format.plural(others, "other")} with a summary` : "",
    `${format.bytes(facts.bytes)} on disk`,
  ];
  return parts.filter(Boolean).join("  ·  ");
}

/** A short title, and everything in sentences. */
export function notesOf(run: Run): { title: string; sentences: string[] } {
  const { facts } = run;
  const notes = notesOnce(run);
  const without = facts.steps.map((_, at) => at).filter((at) => !facts.pictures.includes(at));
  const words = [
    without.length ? `pictures of ${facts.pictures.length} of ${format.count(run.count)} snapshots` : "",
    notes.length ? format.plural(notes.length, "note") : "",
  ];
  const sentences = [...leftOut(run, without), ...notes];
  return { title: words.filter(Boolean).join(", ") || format.plural(sentences.length, "note"), sentences };
}

function leftOut(run: Run, without: number[]): string[] {
  const { facts } = run;
  const limit = `To stay below ${format.bytes(facts.max_bytes)},`;
  const steps = (numbers: number[]): string => numbers.map((at) => run.stepText(at)).join(", ");
  const said: string[] = [];
  if (run.count < facts.snapshots) {
    const part = `${format.count(run.count)} of the ${format.count(facts.snapshots)} snapshots`;
    said.push(`This file shows ${part}, evenly over the run.`);
  }
  if (without.length) {
    const isMost = without.length > facts.pictures.length;
    const which = isMost ? `of steps ${steps(facts.pictures)} only` : `but for steps ${steps(without)}`;
    said.push(`${limit} this file has pictures ${which}. Numbers and histograms are of every step.`);
  }
  if (facts.stride > 1) {
    const every = `${facts.stride}${facts.stride === 2 ? "nd" : "th"}`;
    said.push(`${limit} pictures show every ${every} pixel, filter, and row and column of a matrix.`);
  }
  if (facts.unreadable.length) said.push(`The pictures of these steps could not be read: ${steps(facts.unreadable)}.`);
  return said;
}

/** A note of many snapshots is given once, with their steps. */
function notesOnce(run: Run): string[] {
  const found = new Map<string, number[]>();
  for (const [at, texts] of run.facts.notes) for (const text of texts) found.set(text, [...(found.get(text) ?? []), at]);
  return [...found].map(([text, places]) => {
    const [first, last] = [run.stepText(places[0]!), run.stepText(places.at(-1)!)];
    const many = `${format.plural(places.length, "snapshot")}, steps ${first} – ${last}`;
    return `${places.length === 1 ? `Step ${first}` : many}: ${format.shortened(text, 2000)}`;
  });
}
