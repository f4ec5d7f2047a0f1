// What the page was given: checked, and with every left-out key filled in.

import { DataError, filled, isRecord } from "../../shared/filling";
import { FORMAT, PARTS, type Payload, VERSION } from "../../shared/generated/graph_format";

export type * from "../../shared/generated/graph_format";

/** A payload from its JSON; throws a DataError that says what is wrong. */
export function readPayload(text: string): Payload {
  let raw: unknown;
  try {
    raw = JSON.parse(text);
  } catch (error) {
    throw new DataError(`The data of this page is not JSON (${String(error)}). The file may have been cut off.`);
  }
  if (!isRecord(raw) || raw["format"] !== FORMAT)
    throw new DataError(`Expected the format "${FORMAT}" in the data of this page.`);
  if (raw["version"] !== VERSION)
    throw new DataError(`This viewer reads version ${VERSION} of the format; the data says ${String(raw["version"])}.`);
  const payload = filled<Payload>(PARTS, "Payload", raw);
  checkReferences(payload);
  return payload;
}

/** Every index of a payload points at something, and modules come after those around them. */
function checkReferences({ nodes, modules, edges, runs, ports, chips }: Payload): void {
  const fits = (index: number, below: number, from = 0): boolean => Number.isInteger(index) && index >= from && index < below;
  modules.forEach((one, i) => {
    if (!fits(one.parent, modules.length, -1)) throw new DataError(`Module ${i} has no parent ${one.parent}.`);
    if (one.parent >= i) throw new DataError(`Module ${i} stands before module ${one.parent}, which is around it.`);
  });
  nodes.forEach((one, i) => {
    if (!fits(one.module, modules.length, -1)) throw new DataError(`Node ${i} is in module ${one.module}, which is not there.`);
    if (!fits(one.call, i + 1, -1)) throw new DataError(`Node ${i} is of call ${one.call}, which comes later.`);
    if (!one.exits.every((exit) => fits(exit, modules.length)))
      throw new DataError(`Node ${i} leaves a module that is not there.`);
  });
  edges.forEach((one, i) => {
    if (!fits(one.from, nodes.length) || !fits(one.to, nodes.length))
      throw new DataError(`Edge ${i} joins ${one.from} and ${one.to}; there are ${nodes.length} nodes.`);
  });
  runs.forEach((one, i) => {
    const isThere = fits(one.module, modules.length, -1) && one.starts.every((node) => fits(node, nodes.length));
    if (!isThere || !fits(one.end, nodes.length + 1))
      throw new DataError(`Run ${i} begins or ends at a node that is not there.`);
  });
  const groups = [...ports.map((one) => ["Port", one] as const), ...chips.map((one) => ["Chip", one] as const)];
  groups.forEach(([kind, one], i) => {
    if (!one.nodes.length || !one.nodes.every((node) => fits(node, nodes.length)))
      throw new DataError(`${kind} ${kind === "Port" ? i : i - ports.length} holds a node that is not there.`);
  });
}
