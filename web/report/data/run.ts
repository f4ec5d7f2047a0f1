// What the page was given: facts at once, statistics and histograms unpacked at the start, pictures when they are looked at.

import { filled } from "../../shared/filling";
import * as format from "../../shared/format";
import { type Chunk, type Form, PARTS, type Report, type SeriesFacts } from "../../shared/generated/report_format";
import { inflate } from "../../shared/unpacking";

export const SUMMARY = "summary"; // the kind of series without pictures

/** The picture of a series at one snapshot. */
export interface Frame {
  at: number; // snapshot
  low: number; // the value of code 0
  high: number; // and of the largest code
  isClipped: boolean; // values beyond are shown as the ends
  number: number; // in its chunk
  chunk: Chunk;
}

/** One kind of one layer over the run. */
export interface Series extends SeriesFacts {
  index: number;
  frames: Frame[];
}

export class Run {
  readonly count: number; // snapshots
  readonly bins: number;
  readonly series: Series[];
  private readonly table: Float32Array;
  private readonly fields: Map<string, number>;
  private readonly parts: Float64Array; // by the code of a bin
  private readonly found: Map<string, Series>;

  constructor(
    readonly facts: Report,
    planes: Uint8Array,
    private readonly histograms: Uint8Array,
  ) {
    this.count = facts.steps.length;
    this.bins = facts.edges.length + 1;
    this.series = facts.series.map((one, index) => ({ ...one, index, frames: one.chunks.flatMap(framesOf) }));
    this.table = fromPlanes(planes);
    this.fields = new Map(facts.fields.map((name, at) => [name, at]));
    this.parts = Float64Array.from({ length: 256 }, (_, code) => (code ? facts.least_fraction ** (1 - (code - 1) / 254) : 0));
    this.found = new Map(this.series.map((one) => [`${one.layer}/${one.kind}`, one]));
  }

  find(layer: number, kind: string): Series | undefined {
    return this.found.get(`${layer}/${kind}`);
  }

  kindsOf(layer: number): string[] {
    return Object.keys(this.facts.kinds).filter((kind) => this.find(layer, kind));
  }

  /** The kinds of a layer that have pictures. */
  picturedKinds(layer: number): string[] {
    return this.kindsOf(layer).filter((kind) => kind !== SUMMARY);
  }

  /** The kinds that any layer has pictures of. */
  get allPictured(): string[] {
    return Object.keys(this.facts.kinds).filter((kind) => kind !== SUMMARY && this.series.some((one) => one.kind === kind));
  }

  value(series: Series, field: string, at: number): number {
    return this.table[(series.index * this.fields.size + this.fields.get(field)!) * this.count + at] ?? NaN;
  }

  has(series: Series, at: number): boolean {
    return !Number.isNaN(this.value(series, "form", at));
  }

  form(series: Series, at: number): Form {
    return series.forms[this.value(series, "form", at)]!;
  }

  /** How many values are not finite; in a summary, of the parameters and their gradients. */
  nonfinite(series: Series, at: number): number {
    return this.value(series, "nan", at) + this.value(series, "inf", at) + (this.value(series, "grad_nonfinite", at) || 0);
  }

  /** The part of the values that lie in a bin, to within a few hundredths of itself. */
  part(series: Series, bin: number, at: number): number {
    if (series.kind === SUMMARY) return 0;
    return this.parts[this.histograms[(series.index * this.bins + bin) * this.count + at]!]!;
  }

  name(layer: number, most: number): string {
    return format.shortened(this.facts.layers[layer]!, most);
  }

  title(layer: number): string {
    return format.clean(this.facts.layers[layer]!);
  }

  words(series: Series): string {
    return this.facts.kinds[series.kind]!;
  }

  stepText(at: number): string {
    return format.count(this.facts.steps[at]!);
  }
}

/** Reads a run from the elements of a page, by their ids. */
export async function readRun(textOf: (id: string) => string): Promise<Run> {
  const facts = filled<Report>(PARTS, "Report", JSON.parse(textOf("facts")));
  const [planes, histograms] = await Promise.all(["statistics", "histograms"].map((id) => unpacked(textOf(id))));
  return new Run(facts, planes!, histograms!);
}

export async function unpacked(text: string): Promise<Uint8Array> {
  return new Uint8Array(await inflate(text).arrayBuffer());
}

function framesOf(chunk: Chunk): Frame[] {
  return chunk.frames.map(([at, high, flags], number) => {
    return { at, low: flags & 1 ? -high : 0, high, isClipped: Boolean(flags & 2), number, chunk };
  });
}

/** Floats whose first bytes all come first, then all second, third and fourth bytes. */
function fromPlanes(planes: Uint8Array): Float32Array {
  const length = planes.length / 4;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < 4; plane++) {
    for (let i = 0; i < length; i++) bytes[4 * i + plane] = planes[plane * length + i]!;
  }
  return new Float32Array(bytes.buffer); // little-endian, as every browser's machine is
}

/** The frame nearest to a snapshot; most often its own. */
export function nearestFrame(series: Series, at: number): Frame | null {
  let best: Frame | null = null;
  for (const frame of series.frames) if (!best || Math.abs(frame.at - at) < Math.abs(best.at - at)) best = frame;
  return best;
}
