// Makes payloads for the tests from a few words.

import { type Payload, readPayload } from "../../graph/model/payload";

export interface Draft {
  nodes: Record<string, unknown>[];
  edges: [number, number][];
  modules: Record<string, unknown>[];
  facts: Record<string, unknown>;
  runs: Record<string, unknown>[];
  ports: Record<string, unknown>[];
}

export function draft(): Draft {
  return { nodes: [], edges: [], modules: [], facts: {}, runs: [], ports: [] };
}

/** Adds a module call; returns its number. */
export function addModule(
  made: Draft,
  address: string,
  className: string,
  parent = -1,
  more: Record<string, unknown> = {},
): number {
  const call = (more["call"] as number | undefined) ?? 1;
  made.modules.push({
    key: `${address}:${call}`,
    address,
    class: className,
    parent,
    params_id: address,
    ...more,
  });
  return made.modules.length - 1;
}

/** Adds a node that reads from others; returns its number. */
export function addNode(made: Draft, type: string, from: number[], module = -1, more: Record<string, unknown> = {}): number {
  const at = made.nodes.length;
  const label = (more["label"] as string | undefined) ?? `${type}_${at}`;
  const pass = (more["pass"] as number | undefined) ?? 1;
  made.nodes.push({ key: `${label}:${pass}`, label, type, function: type, module, shape: [1, 4], dtype: "float32", ...more });
  for (const source of from) made.edges.push([source, at]);
  return at;
}

export function finish(made: Draft): Payload {
  return readPayload(text(made));
}

export function text(made: Draft): string {
  return JSON.stringify({
    format: "torcheer-history",
    version: 1,
    made_by: "test",
    title: "Model",
    facts: { operations: made.nodes.length, seconds: 1, ...made.facts },
    files: [],
    modules: made.modules,
    nodes: made.nodes,
    edges: made.edges.map(([from, to]) => ({ from, to, positions: ["args[0]"], shape: [1, 4], dtype: "float32", bytes: 16 })),
    runs: made.runs,
    ports: made.ports,
  });
}

/** A chain: input, so many equal blocks (linear, relu, add with a skip), output; every block has its own parameters. */
export function blocks(count: number): Payload {
  const made = draft();
  let last = addNode(made, "input", [], -1, { kind: "input" });
  made.runs.push({ starts: Array.from({ length: count }, (_, i) => 1 + 3 * i), end: 1 + 3 * count });
  for (let i = 0; i < count; i++) {
    const block = addModule(made, `h.${i}`, "Block");
    const inner = addModule(made, `h.${i}.fc`, "Linear", block);
    const linear = addNode(made, "linear", [last], inner, {
      exits: [inner],
      seconds: 0.01,
      params: [{ name: `h.${i}.w`, shape: [4, 4], dtype: "float32", numel: 16 }],
    });
    const relu = addNode(made, "relu", [linear], block, { seconds: 0.002 });
    last = addNode(made, "add", [relu, last], block, { exits: [block], seconds: 0.001 });
  }
  addNode(made, "output", [last], -1, { kind: "output" });
  return finish(made);
}

/** One linear layer, an addition and a multiplication, in a loop. */
export function loop(times: number): Payload {
  const made = draft();
  let last = addNode(made, "input", [], -1, { kind: "input" });
  made.runs.push({ starts: Array.from({ length: times }, (_, i) => 1 + 3 * i), end: 1 + 3 * times });
  for (let pass = 1; pass <= times; pass++) {
    const module = addModule(made, "fc", "Linear", -1, { call: pass, num_calls: times });
    const more = { pass, num_passes: times };
    const params = [{ name: "fc.w", shape: [4, 4], dtype: "float32", numel: 16 }];
    last = addNode(made, "linear", [last], module, { label: "linear_1_1", exits: [module], params, ...more });
    last = addNode(made, "add", [last], -1, { label: "add_1_2", ...more });
    last = addNode(made, "mul", [last], -1, { label: "mul_1_3", ...more });
  }
  addNode(made, "output", [last], -1, { kind: "output" });
  return finish(made);
}

/** One block of two operations without parameters, after two different layers. */
export function shared(): Payload {
  const made = draft();
  let last = addNode(made, "input", [], -1, { kind: "input" });
  for (let call = 1; call <= 2; call++) {
    last = addNode(made, "linear", [last]);
    const module = addModule(made, "up", "Up", -1, { call, num_calls: 2, step: `up:${call}` });
    last = addNode(made, "pad", [last], module);
    last = addNode(made, "mul", [last], module, { exits: [module] });
  }
  addNode(made, "output", [last], -1, { kind: "output" });
  return finish(made);
}

/** A node that every one of many different modules reads. */
export function hub(count: number): Payload {
  const made = draft();
  let last = addNode(made, "input", [], -1, { kind: "input" });
  const mask = addNode(made, "tril", []);
  for (let i = 0; i < count; i++) {
    const block = addModule(made, `b${i}`, `Block${i}`);
    const masked = addNode(made, "mul", [last, mask], block);
    last = addNode(made, "relu", [masked], block, { exits: [block] });
  }
  addNode(made, "output", [last], -1, { kind: "output" });
  return finish(made);
}

/** A flat chain of so many operations of changing types. */
export function chain(count: number): Payload {
  const made = draft();
  let last = addNode(made, "input", [], -1, { kind: "input" });
  for (let i = 1; i < count; i++) last = addNode(made, `op${(i * i) % 97}`, [last]);
  return finish(made);
}
