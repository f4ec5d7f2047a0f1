import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";
import { readPayload } from "../../graph/model/payload";
import { DataError } from "../../shared/filling";
import { inflate } from "../../shared/unpacking";
import { addModule, addNode, draft, text } from "./making";

test("a payload survives compression and base64, white space around it and letters of any script", async () => {
  const original = JSON.stringify({ title: "模型 ×12 😀" });
  const packed = deflateSync(Buffer.from(original)).toString("base64");
  assert.equal(await inflate(`\n ${packed} \n`).text(), original);
});

test("keys that were left out get the defaults of the format", () => {
  const payload = readPayload(
    JSON.stringify({
      format: "torcheer-history",
      version: 1,
      made_by: "test",
      title: "model",
      facts: {},
      files: [],
      nodes: [
        {
          key: "relu_1_1:1",
          label: "relu_1_1",
          type: "relu",
          function: "relu",
          params: [{ name: "w", shape: [1], dtype: "float32", numel: 1 }],
          stats: { count: 2 },
          grad: { shape: [1] },
          preview: { kind: "vector", width: 1, height: 1, data: "" },
        },
      ],
      modules: [{ key: "a:1", address: "a", class: "A" }],
      edges: [{ from: 0, to: 0 }],
    }),
  );
  const [node] = payload.nodes;
  assert.equal(node!.kind, "operation");
  assert.deepEqual([node!.pass, node!.num_passes, node!.module, node!.exits], [1, 1, -1, []]);
  assert.deepEqual(
    [node!.params[0]!.trainable, node!.stats!.zeros, node!.grad!.stats, node!.preview!.channels],
    [true, 0, null, 1],
  );
  assert.deepEqual([payload.modules[0]!.parent, payload.modules[0]!.depth, payload.modules[0]!.params_id], [-1, 1, ""]);
  assert.deepEqual([payload.runs, payload.ports], [[], []]);
  assert.deepEqual([payload.edges[0]!.positions, payload.edges[0]!.memory], [[], false]);
  assert.deepEqual(payload.facts.notes, []);
});

test("what is no payload is refused with the reason", () => {
  assert.throws(() => readPayload("{"), /not JSON/);
  assert.throws(() => readPayload("[]"), /format/);
  assert.throws(() => readPayload('{"format":"torcheer-history","version":9}'), /version 1.*9/);
  const whole = JSON.parse(text(draft())) as Record<string, unknown>;
  const without = (change: Record<string, unknown>): string => JSON.stringify({ ...whole, ...change });
  assert.throws(() => readPayload(without({ nodes: [1] })), /nodes\[0\]: expected an object/);
  assert.throws(() => readPayload(without({ nodes: undefined })), /"nodes" is missing/);
  assert.throws(() => readPayload(without({ title: 3 })), /title: expected a string/);
  assert.throws(() => readPayload(without({ edges: [{ from: 0, to: null }] })), /edges\[0\]\.to: expected a number/);
});

test("an index that points nowhere is refused", () => {
  const broken = (change: (made: ReturnType<typeof draft>) => void): string => {
    const made = draft();
    addModule(made, "a", "A");
    addNode(made, "relu", [], 0);
    change(made);
    return text(made);
  };
  assert.throws(() => readPayload(broken((made) => made.edges.push([0, 7]))), DataError);
  assert.throws(() => readPayload(broken((made) => (made.nodes[0]!["module"] = 3))), DataError);
  assert.throws(() => readPayload(broken((made) => (made.nodes[0]!["exits"] = [-1]))), DataError);
  assert.throws(() => readPayload(broken((made) => (made.modules[0]!["parent"] = 0))), DataError);
});

test("a module that stands before the one around it is refused", () => {
  const made = draft();
  addModule(made, "a", "A", 1);
  addModule(made, "b", "B", 0);
  assert.throws(() => readPayload(text(made)), /stands before module 1/);
});
