// What the page was given: decoded, checked, and with every left-out key filled in.

export type Shape = number[];

export interface Histogram {
  low: number;
  high: number;
  counts: number[];
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

export interface Param {
  name: string;
  shape: Shape;
  dtype: string;
  trainable: boolean;
  numel: number;
}

/** File index, line, name of the function. */
export type Frame = [number, number, string];

export interface SourceFile {
  path: string;
  lines: Record<string, string>;
}

export interface Gradient {
  shape: Shape | null;
  stats: Stats | null;
}

export interface OpNode {
  key: string;
  label: string;
  kind: string;
  type: string;
  function: string;
  category: string;
  pass: number;
  num_passes: number;
  module: number;
  exits: number[];
  shape: Shape | null;
  dtype: string | null;
  device: string | null;
  bytes: number;
  seconds: number;
  backward_seconds: number | null;
  flops: number | null;
  macs: number | null;
  params: Param[];
  buffers: string[];
  inplace: boolean;
  role: string;
  arguments: string;
  composite: string | null;
  error: string;
  gradfunc: string | null;
  stack: Frame[];
  source: number;
  departures: string[];
  saved: boolean;
  stats: Stats | null;
  grad: Gradient | null;
  preview: Preview | null;
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
  input_shapes: Shape[];
  output_shapes: Shape[];
  first: number;
  end: number;
  structure: string;
  params_id: string;
  source: [number, number] | null;
}

export interface Edge {
  from: number;
  to: number;
  positions: string[];
  shape: Shape | null;
  dtype: string | null;
  bytes: number;
  memory: boolean;
  gradient: boolean;
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

export interface Payload {
  made_by: string;
  title: string;
  facts: Facts;
  files: SourceFile[];
  modules: ModuleCall[];
  nodes: OpNode[];
  edges: Edge[];
}

export class PayloadError extends Error {}

const FORMAT = "torcheer-history";
const VERSION = 1;

/** The text of a payload: base64 of zlib-deflated UTF-8. */
export async function inflate(encoded: string): Promise<string> {
  const bytes = fromBase64(encoded);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

/** Bytes of base64, whatever white space is around it. */
export function fromBase64(encoded: string): Uint8Array<ArrayBuffer> {
  const binary = atob(encoded.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** A payload from its JSON; throws a PayloadError that says what is wrong. */
export function readPayload(text: string): Payload {
  let raw: unknown;
  try {
    raw = JSON.parse(text);
  } catch (error) {
    throw new PayloadError(`The data of this page is not JSON (${String(error)}). The file may have been cut off.`);
  }
  if (!isRecord(raw) || raw["format"] !== FORMAT)
    throw new PayloadError(`Expected the format "${FORMAT}" in the data of this page.`);
  if (raw["version"] !== VERSION) {
    throw new PayloadError(`This viewer reads version ${VERSION} of the format; the data says ${String(raw["version"])}.`);
  }
  const payload: Payload = {
    made_by: text_(raw["made_by"]),
    title: text_(raw["title"]) || "model",
    facts: { ...NO_FACTS, ...(isRecord(raw["facts"]) ? raw["facts"] : {}) },
    files: list(raw, "files").map((one) => ({ path: "", lines: {}, ...one })),
    modules: list(raw, "modules").map((one) => ({ ...NO_MODULE, ...one }) as ModuleCall),
    nodes: list(raw, "nodes").map(filledNode),
    edges: list(raw, "edges").map((one) => ({ ...NO_EDGE, ...one }) as Edge),
  };
  checkReferences(payload);
  return payload;
}

/** Every index of a payload points at something, and modules come after those around them. */
function checkReferences(payload: Payload): void {
  const { nodes, modules, edges } = payload;
  const fits = (index: number, below: number, from = 0): boolean => Number.isInteger(index) && index >= from && index < below;
  modules.forEach((one, i) => {
    if (!fits(one.parent, modules.length, -1) || one.parent === i)
      throw new PayloadError(`Module ${i} has no parent ${one.parent}.`);
  });
  const depths = new Int32Array(modules.length);
  modules.forEach((one, i) => {
    let at = one.parent;
    for (let steps = 0; at >= 0 && depths[at] === 0; steps++) {
      if (steps > modules.length) throw new PayloadError(`Module ${i} is inside itself.`);
      at = modules[at]!.parent;
    }
    depths[i] = 1;
  });
  nodes.forEach((one, i) => {
    if (!fits(one.module, modules.length, -1))
      throw new PayloadError(`Node ${i} is in module ${one.module}, which is not there.`);
    if (!one.exits.every((exit) => fits(exit, modules.length)))
      throw new PayloadError(`Node ${i} leaves a module that is not there.`);
  });
  edges.forEach((one, i) => {
    if (!fits(one.from, nodes.length) || !fits(one.to, nodes.length)) {
      throw new PayloadError(`Edge ${i} joins ${one.from} and ${one.to}; there are ${nodes.length} nodes.`);
    }
  });
}

function filledNode(given: Record<string, unknown>): OpNode {
  const node = { ...NO_NODE, ...given } as OpNode;
  if (!node.label) node.label = node.key;
  if (!node.type) node.type = node.function || node.kind;
  if (node.stats) node.stats = { ...NO_STATS, ...node.stats };
  if (node.grad)
    node.grad = { shape: node.grad.shape ?? null, stats: node.grad.stats ? { ...NO_STATS, ...node.grad.stats } : null };
  if (node.preview) node.preview = { ...NO_PREVIEW, ...node.preview };
  if (node.params.length) node.params = node.params.map((one) => ({ ...NO_PARAM, ...one }));
  return node;
}

function list(raw: Record<string, unknown>, name: string): Record<string, unknown>[] {
  const found = raw[name] ?? [];
  if (!Array.isArray(found) || !found.every(isRecord)) throw new PayloadError(`Expected a list of objects under "${name}".`);
  return found;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text_(value: unknown): string {
  return typeof value === "string" ? value : "";
}

const NO_FACTS: Facts = {
  operations: 0,
  layers: 0,
  modules: 0,
  parameters: 0,
  seconds: 0,
  bytes: 0,
  flops: null,
  unknown_flops: 0,
  is_recurrent: false,
  failure: null,
  notes: [],
  left_out: "",
};

const NO_MODULE: ModuleCall = {
  key: "",
  address: "",
  class: "",
  call: 1,
  num_calls: 1,
  step: "",
  parent: -1,
  depth: 1,
  training: false,
  seconds: 0,
  flops: null,
  bytes: 0,
  num_params: 0,
  input_shapes: [],
  output_shapes: [],
  first: -1,
  end: -1,
  structure: "",
  params_id: "",
  source: null,
};

const NO_NODE: OpNode = {
  key: "",
  label: "",
  kind: "operation",
  type: "",
  function: "",
  category: "arithmetic",
  pass: 1,
  num_passes: 1,
  module: -1,
  exits: [],
  shape: null,
  dtype: null,
  device: null,
  bytes: 0,
  seconds: 0,
  backward_seconds: null,
  flops: null,
  macs: null,
  params: [],
  buffers: [],
  inplace: false,
  role: "",
  arguments: "",
  composite: null,
  error: "",
  gradfunc: null,
  stack: [],
  source: -1,
  departures: [],
  saved: false,
  stats: null,
  grad: null,
  preview: null,
};

const NO_EDGE: Edge = { from: -1, to: -1, positions: [], shape: null, dtype: null, bytes: 0, memory: false, gradient: false };
const NO_PARAM: Param = { name: "", shape: [], dtype: "", trainable: true, numel: 0 };
const NO_STATS: Stats = {
  count: 0,
  min: null,
  max: null,
  mean: null,
  std: null,
  norm: null,
  zeros: 0,
  nan: 0,
  inf: 0,
  histogram: null,
};
const NO_PREVIEW: Preview = {
  kind: "matrix",
  width: 0,
  height: 0,
  channels: 1,
  data: "",
  low: null,
  high: null,
  diverging: false,
  note: "",
};
