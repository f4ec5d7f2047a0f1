// Written by `make web-types` from src/torcheer/page/schema.py. Do not edit.

export const FORMAT = "torcheer-history";
export const VERSION = 1;

import type { Parts } from "../filling";

export interface Payload {
  format: string;
  version: number;
  made_by: string;
  title: string;
  facts: Facts;
  files: SourceFile[];
  modules: ModuleCall[];
  nodes: OpNode[];
  edges: Edge[];
  runs: Run[];
  ports: Port[];
  chips: Chip[];
  first_view: string[];
  weights: Weight[];
  metrics: string[];
  verdict: string;
  culprits: number[];
  partners: number[];
}

export interface Facts {
  operations: number;
  layers: number;
  modules: number;
  parameters: number;
  seconds: number;
  bytes: number;
  flops: number | null;
  unknown_flops: number;
  is_recurrent: boolean;
  failure: string | null;
  notes: string[];
  left_out: string;
}

export interface SourceFile {
  path: string;
  lines: Record<string, string>;
}

export interface ModuleCall {
  key: string;
  address: string;
  class: string;
  call: number;
  num_calls: number;
  step: string;
  parent: number;
  depth: number;
  training: boolean;
  seconds: number;
  flops: number | null;
  bytes: number;
  num_params: number;
  input_shapes: number[][];
  output_shapes: number[][];
  first: number;
  end: number;
  params_id: string;
  source: [number, number] | null;
}

export interface OpNode {
  label: string;
  key: string;
  type: string;
  pass: number;
  num_passes: number;
  shape: number[] | null;
  dtype: string | null;
  device: string | null;
  bytes: number;
  function: string;
  gradfunc: string | null;
  inplace: boolean;
  composite: string | null;
  kind: string;
  role: string;
  title: string;
  folded: boolean;
  call: number;
  category: string;
  module: number;
  exits: number[];
  seconds: number;
  backward_seconds: number | null;
  flops: number | null;
  macs: number | null;
  params: Param[];
  buffers: string[];
  arguments: string;
  error: string;
  rows: [string, string][];
  stack: [number, number, string][];
  source: number;
  python_reads: string[];
  saved: boolean;
  stats: Stats | null;
  grad: Gradient | null;
  preview: Preview | null;
  attention: Attention | null;
  metrics: (number | null)[];
  cause: string;
}

export interface Param {
  name: string;
  shape: number[];
  dtype: string;
  trainable: boolean;
  numel: number;
}

export interface Stats {
  count: number;
  min: number | null;
  max: number | null;
  mean: number | null;
  std: number | null;
  norm: number | null;
  zeros: number;
  nan: number;
  inf: number;
  histogram: Histogram | null;
}

export interface Histogram {
  low: number;
  high: number;
  counts: number[];
}

export interface Gradient {
  shape: number[];
  stats: Stats | null;
}

export interface Preview {
  kind: string;
  width: number;
  height: number;
  channels: number;
  data: string;
  low: number | null;
  high: number | null;
  diverging: boolean;
  note: string;
}

export interface Attention {
  heads: number;
  shown: number;
  queries: number;
  keys: number;
  width: number;
  height: number;
  data: string;
  high: number;
  samples: number;
}

export interface Edge {
  from: number;
  to: number;
  positions: string[];
  shape: number[] | null;
  dtype: string | null;
  bytes: number;
  memory: boolean;
  gradient: boolean;
}

export interface Run {
  module: number;
  starts: number[];
  end: number;
}

export interface Chip {
  name: string;
  nodes: number[];
}

export interface Weight {
  name: string;
  values_id: string;
  stats: Stats | null;
  preview: Preview | null;
}

export interface Port {
  name: string;
  nodes: number[];
}

export const PARTS: Parts = {
  Payload: {
    required: ["format", "version", "made_by", "title", "facts", "files", "modules", "nodes", "edges"],
    template: {"format": null, "version": null, "made_by": null, "title": null, "facts": null, "files": null, "modules": null, "nodes": null, "edges": null, "runs": [], "ports": [], "chips": [], "first_view": [], "weights": [], "metrics": [], "verdict": "", "culprits": [], "partners": []},
    checks: { format: { is: "string" }, version: { is: "number" }, made_by: { is: "string" }, title: { is: "string" }, facts: { is: "object", of: "Facts" }, files: { is: "list", of: "SourceFile" }, modules: { is: "list", of: "ModuleCall" }, nodes: { is: "list", of: "OpNode" }, edges: { is: "list", of: "Edge" }, runs: { is: "list", of: "Run" }, ports: { is: "list", of: "Port" }, chips: { is: "list", of: "Chip" }, first_view: { is: "list" }, weights: { is: "list", of: "Weight" }, metrics: { is: "list" }, verdict: { is: "string" }, culprits: { is: "list" }, partners: { is: "list" } },
  },
  Facts: {
    required: [],
    template: {"operations": 0, "layers": 0, "modules": 0, "parameters": 0, "seconds": 0, "bytes": 0, "flops": null, "unknown_flops": 0, "is_recurrent": false, "failure": null, "notes": [], "left_out": ""},
    checks: { operations: { is: "number" }, layers: { is: "number" }, modules: { is: "number" }, parameters: { is: "number" }, seconds: { is: "number" }, bytes: { is: "number" }, flops: { is: "number", isNullable: true }, unknown_flops: { is: "number" }, is_recurrent: { is: "boolean" }, failure: { is: "string", isNullable: true }, notes: { is: "list" }, left_out: { is: "string" } },
  },
  SourceFile: {
    required: ["path", "lines"],
    template: {"path": null, "lines": null},
    checks: { path: { is: "string" }, lines: { is: "object" } },
  },
  ModuleCall: {
    required: ["key", "address", "class"],
    template: {"key": null, "address": null, "class": null, "call": 1, "num_calls": 1, "step": "", "parent": -1, "depth": 1, "training": false, "seconds": 0.0, "flops": null, "bytes": 0, "num_params": 0, "input_shapes": [], "output_shapes": [], "first": -1, "end": -1, "params_id": "", "source": null},
    checks: { key: { is: "string" }, address: { is: "string" }, class: { is: "string" }, call: { is: "number" }, num_calls: { is: "number" }, step: { is: "string" }, parent: { is: "number" }, depth: { is: "number" }, training: { is: "boolean" }, seconds: { is: "number" }, flops: { is: "number", isNullable: true }, bytes: { is: "number" }, num_params: { is: "number" }, input_shapes: { is: "list" }, output_shapes: { is: "list" }, first: { is: "number" }, end: { is: "number" }, params_id: { is: "string" }, source: { is: "list", isNullable: true } },
  },
  OpNode: {
    required: ["label", "key", "type", "function"],
    template: {"label": null, "key": null, "type": null, "pass": 1, "num_passes": 1, "shape": null, "dtype": null, "device": null, "bytes": 0, "function": null, "gradfunc": null, "inplace": false, "composite": null, "kind": "operation", "role": "", "title": "", "folded": false, "call": -1, "category": "arithmetic", "module": -1, "exits": [], "seconds": 0.0, "backward_seconds": null, "flops": null, "macs": null, "params": [], "buffers": [], "arguments": "", "error": "", "rows": [], "stack": [], "source": -1, "python_reads": [], "saved": false, "stats": null, "grad": null, "preview": null, "attention": null, "metrics": [], "cause": ""},
    checks: { label: { is: "string" }, key: { is: "string" }, type: { is: "string" }, pass: { is: "number" }, num_passes: { is: "number" }, shape: { is: "list", isNullable: true }, dtype: { is: "string", isNullable: true }, device: { is: "string", isNullable: true }, bytes: { is: "number" }, function: { is: "string" }, gradfunc: { is: "string", isNullable: true }, inplace: { is: "boolean" }, composite: { is: "string", isNullable: true }, kind: { is: "string" }, role: { is: "string" }, title: { is: "string" }, folded: { is: "boolean" }, call: { is: "number" }, category: { is: "string" }, module: { is: "number" }, exits: { is: "list" }, seconds: { is: "number" }, backward_seconds: { is: "number", isNullable: true }, flops: { is: "number", isNullable: true }, macs: { is: "number", isNullable: true }, params: { is: "list", of: "Param" }, buffers: { is: "list" }, arguments: { is: "string" }, error: { is: "string" }, rows: { is: "list" }, stack: { is: "list" }, source: { is: "number" }, python_reads: { is: "list" }, saved: { is: "boolean" }, stats: { is: "object", of: "Stats", isNullable: true }, grad: { is: "object", of: "Gradient", isNullable: true }, preview: { is: "object", of: "Preview", isNullable: true }, attention: { is: "object", of: "Attention", isNullable: true }, metrics: { is: "list" }, cause: { is: "string" } },
  },
  Param: {
    required: ["name", "shape", "dtype", "numel"],
    template: {"name": null, "shape": null, "dtype": null, "trainable": true, "numel": null},
    checks: { name: { is: "string" }, shape: { is: "list" }, dtype: { is: "string" }, trainable: { is: "boolean" }, numel: { is: "number" } },
  },
  Stats: {
    required: ["count"],
    template: {"count": null, "min": null, "max": null, "mean": null, "std": null, "norm": null, "zeros": 0, "nan": 0, "inf": 0, "histogram": null},
    checks: { count: { is: "number" }, min: { is: "number", isNullable: true }, max: { is: "number", isNullable: true }, mean: { is: "number", isNullable: true }, std: { is: "number", isNullable: true }, norm: { is: "number", isNullable: true }, zeros: { is: "number" }, nan: { is: "number" }, inf: { is: "number" }, histogram: { is: "object", of: "Histogram", isNullable: true } },
  },
  Histogram: {
    required: ["low", "high", "counts"],
    template: {"low": null, "high": null, "counts": null},
    checks: { low: { is: "number" }, high: { is: "number" }, counts: { is: "list" } },
  },
  Gradient: {
    required: ["shape"],
    template: {"shape": null, "stats": null},
    checks: { shape: { is: "list" }, stats: { is: "object", of: "Stats", isNullable: true } },
  },
  Preview: {
    required: ["kind", "width", "height", "data"],
    template: {"kind": null, "width": null, "height": null, "channels": 1, "data": null, "low": null, "high": null, "diverging": false, "note": ""},
    checks: { kind: { is: "string" }, width: { is: "number" }, height: { is: "number" }, channels: { is: "number" }, data: { is: "string" }, low: { is: "number", isNullable: true }, high: { is: "number", isNullable: true }, diverging: { is: "boolean" }, note: { is: "string" } },
  },
  Attention: {
    required: ["heads", "shown", "queries", "keys", "width", "height", "data", "high"],
    template: {"heads": null, "shown": null, "queries": null, "keys": null, "width": null, "height": null, "data": null, "high": null, "samples": 1},
    checks: { heads: { is: "number" }, shown: { is: "number" }, queries: { is: "number" }, keys: { is: "number" }, width: { is: "number" }, height: { is: "number" }, data: { is: "string" }, high: { is: "number" }, samples: { is: "number" } },
  },
  Edge: {
    required: ["from", "to"],
    template: {"from": null, "to": null, "positions": [], "shape": null, "dtype": null, "bytes": 0, "memory": false, "gradient": false},
    checks: { from: { is: "number" }, to: { is: "number" }, positions: { is: "list" }, shape: { is: "list", isNullable: true }, dtype: { is: "string", isNullable: true }, bytes: { is: "number" }, memory: { is: "boolean" }, gradient: { is: "boolean" } },
  },
  Run: {
    required: ["starts", "end"],
    template: {"module": -1, "starts": null, "end": null},
    checks: { module: { is: "number" }, starts: { is: "list" }, end: { is: "number" } },
  },
  Chip: {
    required: ["name", "nodes"],
    template: {"name": null, "nodes": null},
    checks: { name: { is: "string" }, nodes: { is: "list" } },
  },
  Weight: {
    required: ["name"],
    template: {"name": null, "values_id": "", "stats": null, "preview": null},
    checks: { name: { is: "string" }, values_id: { is: "string" }, stats: { is: "object", of: "Stats", isNullable: true }, preview: { is: "object", of: "Preview", isNullable: true } },
  },
  Port: {
    required: ["name", "nodes"],
    template: {"name": null, "nodes": null},
    checks: { name: { is: "string" }, nodes: { is: "list" } },
  },
};

export const PANEL_ROWS = {
  Tensor: [
    { title: "shape", key: "shape", format: "shape" },
    { title: "dtype", key: "dtype", format: "text" },
    { title: "device", key: "device", format: "text" },
    { title: "size", key: "bytes", format: "bytes" },
    { title: "pass", key: "pass", format: "pass" },
    { title: "activation", key: "saved", format: "flag", yes: "saved" },
    { title: "in place", key: "inplace", format: "flag", yes: "yes, it overwrites its input" },
  ],
  Cost: [
    { title: "time", key: "seconds", format: "time" },
    { title: "backward", key: "backward_seconds", format: "seconds" },
    { title: "FLOPs", key: "flops", format: "flops" },
    { title: "MACs", key: "macs", format: "count" },
  ],
  Call: [
    { title: "function", key: "function", format: "text" },
    { title: "arguments", key: "arguments", format: "code" },
    { title: "part of", key: "composite", format: "text" },
    { title: "backward", key: "gradfunc", format: "text" },
    { title: "read by Python", key: "python_reads", format: "list" },
  ],
} as const;
