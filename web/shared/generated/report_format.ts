// Written by `make web-types` from src/torcheer/page/schema.py. Do not edit.

import type { Parts } from "../filling";

export interface Report {
  title: string;
  model: string;
  bytes: number;
  max_bytes: number;
  snapshots: number;
  steps: number[];
  times: number[];
  notes: [number, string[]][];
  metrics: Record<string, (number | null)[]>;
  layers: string[];
  watched: number;
  kinds: Record<string, string>;
  fields: string[];
  edges: number[];
  least_fraction: number;
  levels: number;
  pictures: number[];
  stride: number;
  unreadable: number[];
  dead: number;
  findings: Finding[];
  series: SeriesFacts[];
}

export interface Finding {
  tone: string;
  text: string;
  about: string;
  series: number | null;
  at: number | null;
  until: number | null;
}

export interface SeriesFacts {
  layer: number;
  kind: string;
  limits: [number, number];
  forms: Form[];
  chunks: Chunk[];
}

export interface Form {
  source: string;
  shape: number[];
  dtype: string;
  layout: string;
  rows: number[];
  columns: number[] | null;
  note: string;
  axes: string[];
  totals: (number | null)[];
  color: boolean;
}

export interface Chunk {
  block: number;
  kept: number[];
  frames: [number, number, number][];
}

export const PARTS: Parts = {
  Report: {
    required: ["title", "model", "bytes", "max_bytes", "snapshots", "steps", "times", "notes", "metrics", "layers", "watched", "kinds", "fields", "edges", "least_fraction", "levels", "pictures", "stride", "unreadable", "dead", "findings", "series"],
    template: {"title": null, "model": null, "bytes": null, "max_bytes": null, "snapshots": null, "steps": null, "times": null, "notes": null, "metrics": null, "layers": null, "watched": null, "kinds": null, "fields": null, "edges": null, "least_fraction": null, "levels": null, "pictures": null, "stride": null, "unreadable": null, "dead": null, "findings": null, "series": null},
    checks: { title: { is: "string" }, model: { is: "string" }, bytes: { is: "number" }, max_bytes: { is: "number" }, snapshots: { is: "number" }, steps: { is: "list" }, times: { is: "list" }, notes: { is: "list" }, metrics: { is: "object" }, layers: { is: "list" }, watched: { is: "number" }, kinds: { is: "object" }, fields: { is: "list" }, edges: { is: "list" }, least_fraction: { is: "number" }, levels: { is: "number" }, pictures: { is: "list" }, stride: { is: "number" }, unreadable: { is: "list" }, dead: { is: "number" }, findings: { is: "list", of: "Finding" }, series: { is: "list", of: "SeriesFacts" } },
  },
  Finding: {
    required: ["tone", "text"],
    template: {"tone": null, "text": null, "about": "", "series": null, "at": null, "until": null},
    checks: { tone: { is: "string" }, text: { is: "string" }, about: { is: "string" }, series: { is: "number", isNullable: true }, at: { is: "number", isNullable: true }, until: { is: "number", isNullable: true } },
  },
  SeriesFacts: {
    required: ["layer", "kind", "limits", "forms", "chunks"],
    template: {"layer": null, "kind": null, "limits": null, "forms": null, "chunks": null},
    checks: { layer: { is: "number" }, kind: { is: "string" }, limits: { is: "list" }, forms: { is: "list", of: "Form" }, chunks: { is: "list", of: "Chunk" } },
  },
  Form: {
    required: ["source", "shape", "dtype", "layout", "rows", "note", "color"],
    template: {"source": null, "shape": null, "dtype": null, "layout": null, "rows": null, "columns": null, "note": null, "axes": [], "totals": [], "color": null},
    checks: { source: { is: "string" }, shape: { is: "list" }, dtype: { is: "string" }, layout: { is: "string" }, rows: { is: "list" }, columns: { is: "list", isNullable: true }, note: { is: "string" }, axes: { is: "list" }, totals: { is: "list" }, color: { is: "boolean" } },
  },
  Chunk: {
    required: ["block", "kept", "frames"],
    template: {"block": null, "kept": null, "frames": null},
    checks: { block: { is: "number" }, kept: { is: "list" }, frames: { is: "list" } },
  },
};
