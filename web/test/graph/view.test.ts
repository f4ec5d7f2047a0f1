import assert from "node:assert/strict";
import { test } from "node:test";
import { carriedOver, countVisible, openBelow, openTo } from "../../graph/state/expansion";
import { type Hierarchy, buildHierarchy, isBox } from "../../graph/model/hierarchy";
import { type View, buildView } from "../../graph/layout/view";
import { Faces } from "../../graph/drawing/look";
import { Measures } from "../../graph/model/measures";
import type { Payload } from "../../graph/model/payload";
import { firstView } from "../../graph/state/first_view";
import { itemOf } from "../../graph/model/model_index";
import { pathBetween, reached } from "../../graph/model/trace";
import { addModule, addNode, blocks, chain, draft, finish, hub, loop, shared } from "./making";

const NOTHING = { open: new Set<string>(), shown: new Map<string, number | "all">() };

function leaves(view: View): string[] {
  return view.items.filter((item) => !item.isOpen).map((item) => item.key);
}

function links(view: View): string[] {
  return view.links.map(
    (link) => `${view.items[link.from]!.key} → ${view.items[link.to]!.key}${link.isFeedback ? " (back)" : ""}`,
  );
}

function unit(hierarchy: Hierarchy, key: string): number {
  return hierarchy.unitByKey.get(key)!;
}

test("a module that holds one operation is drawn as that operation", () => {
  const hierarchy = buildHierarchy(blocks(1), false);
  const linear = hierarchy.units[unit(hierarchy, "linear_1:1")]!;
  assert.deepEqual(
    linear.shell.map((module) => hierarchy.payload.modules[module]!.address),
    ["h.0.fc"],
  );
  assert.deepEqual(
    hierarchy.boxes.map((box) => box.key),
    ["", "h.0:1"],
  );
});

test("every box covers a range of positions that holds what is inside it and nothing else", () => {
  const hierarchy = buildHierarchy(blocks(5), false);
  for (const box of hierarchy.boxes) {
    const inside = (children: number[]): number[] =>
      children.flatMap((child) => (isBox(child) ? inside(hierarchy.boxes[~child]!.children) : [child]));
    assert.deepEqual(Array.from(hierarchy.order.subarray(box.low, box.high)), inside(box.children));
  }
});

test("equal blocks in a row are one run, closed at first, and one of them stands for all when it opens", () => {
  const hierarchy = buildHierarchy(blocks(12), false);
  const closed = buildView(hierarchy, NOTHING);
  assert.deepEqual(leaves(closed), ["n:input_0:1", "m:run h.0:1", "n:output_37:1"]);
  assert.deepEqual(links(closed), ["n:input_0:1 → m:run h.0:1", "m:run h.0:1 → n:output_37:1"]);
  const third = buildView(hierarchy, { open: new Set(["run h.0:1"]), shown: new Map([["run h.0:1", 2]]) });
  assert.deepEqual(leaves(third), ["n:input_0:1", "n:linear_7:1", "n:relu_8:1", "n:add_9:1", "n:output_37:1"]);
  assert.deepEqual(links(third).sort(), [
    "n:add_9:1 → n:output_37:1",
    "n:input_0:1 → n:add_9:1",
    "n:input_0:1 → n:linear_7:1",
    "n:linear_7:1 → n:relu_8:1",
    "n:relu_8:1 → n:add_9:1",
  ]);
});

test("a run of passes is one box when rolled, and a run of modules stays a run", () => {
  const looped = buildHierarchy(loop(40), true);
  assert.equal(looped.boxes.length, 1);
  const rolled = buildHierarchy(blocks(12), true);
  assert.deepEqual(
    rolled.boxes.filter((box) => box.kind === "run").map((box) => [box.key, box.blocks.length]),
    [["run h.0", 12]],
  );
});

test("equal outputs are one box, below what makes them, and can be opened", () => {
  const made = draft();
  const input = addNode(made, "input", [], -1, { kind: "input" });
  const relu = addNode(made, "relu", [input]);
  for (let i = 0; i < 8; i++) addNode(made, "output", [relu], -1, { kind: "output", role: `output['cache'][${i}]` });
  made.ports.push({ name: "cache", nodes: [2, 3, 4, 5, 6, 7, 8, 9] });
  const hierarchy = buildHierarchy(finish(made), false);
  const closed = buildView(hierarchy, NOTHING);
  assert.deepEqual(leaves(closed), ["n:input_0:1", "n:relu_1:1", "m:outputs cache output_2:1"]);
  assert.deepEqual(links(closed), ["n:input_0:1 → n:relu_1:1", "n:relu_1:1 → m:outputs cache output_2:1"]);
  const open = buildView(hierarchy, { open: new Set(["outputs cache output_2:1"]), shown: new Map() });
  assert.equal(leaves(open).length, 10);
});

test("modules of a list that follow one another are in one box, with the operations between them", () => {
  const made = draft();
  let last = addNode(made, "input", [], -1, { kind: "input" });
  for (const address of ["down.0", "down.1", "mid", "up.0", "up.1"]) {
    const module = addModule(made, address, address);
    last = addNode(made, "relu", [addNode(made, "mul", [last], module)], module);
    if (address === "up.0") last = addNode(made, "cat", [last]);
  }
  const hierarchy = buildHierarchy(finish(made), false);
  const closed = buildView(hierarchy, NOTHING);
  assert.deepEqual(leaves(closed), ["n:input_0:1", "m:list down.0:1", "m:mid:1", "m:list up.0:1"]);
  const inside = hierarchy.boxes[hierarchy.boxByKey.get("list up.0:1")!]!;
  assert.deepEqual([inside.title, inside.children.length], ["up", 3]);
});

test("opening everything shows every operation once, and every edge", () => {
  const payload = blocks(12);
  const hierarchy = buildHierarchy(payload, false);
  const view = buildView(hierarchy, openBelow(hierarchy, 0));
  assert.deepEqual(leaves(view).sort(), payload.nodes.map((node) => `n:${node.key}`).sort());
  assert.equal(view.links.length, payload.edges.length);
});

test("a closed module joins what flows between two boxes into one link that says how many tensors", () => {
  const made = draft();
  const [a, b] = [addModule(made, "a", "A"), addModule(made, "b", "B")];
  const one = addNode(made, "relu", [], a);
  const two = addNode(made, "tanh", [], a);
  addNode(made, "add", [one, two], b);
  addNode(made, "mul", [one], b);
  const view = buildView(buildHierarchy(finish(made), false), NOTHING);
  assert.deepEqual(links(view), ["m:a:1 → m:b:1"]);
  assert.equal(view.links[0]!.label, "2 tensors");
});

test("rolled, a layer is one box however often it ran, and its edges say which passes travel them", () => {
  const view = buildView(buildHierarchy(loop(4), true), NOTHING);
  assert.deepEqual(leaves(view), ["n:input_0", "n:linear_1_1", "n:add_1_2", "n:mul_1_3", "n:output_13"]);
  const labels = Object.fromEntries(view.links.map((link, i) => [links(view)[i], link.label]));
  assert.deepEqual(labels, {
    "n:input_0 → n:linear_1_1": "pass 1",
    "n:linear_1_1 → n:add_1_2": "",
    "n:add_1_2 → n:mul_1_3": "",
    "n:mul_1_3 → n:linear_1_1 (back)": "pass 2–4",
    "n:mul_1_3 → n:output_13": "pass 4",
  });
});

test("rolled, a module without parameters is a box for each step that calls it", () => {
  const view = buildView(buildHierarchy(shared(), true), NOTHING);
  assert.deepEqual(leaves(view), ["n:input_0", "n:linear_1", "m:up:1", "n:linear_4", "m:up:2", "n:output_7"]);
  assert.ok(view.links.every((link) => !link.isFeedback));
});

test("rolled, a layer that feeds itself has a loop", () => {
  const made = draft();
  let last = addNode(made, "input", [], -1, { kind: "input" });
  for (let pass = 1; pass <= 3; pass++) last = addNode(made, "relu", [last], -1, { label: "relu_1_1", pass, num_passes: 3 });
  const view = buildView(buildHierarchy(finish(made), true), NOTHING);
  assert.equal(view.items.find((item) => item.key === "n:relu_1_1")!.loop, "pass 2–3");
});

test("a node that feeds many boxes keeps its first edge and is a reference at the others", () => {
  const view = buildView(buildHierarchy(hub(20), false), NOTHING);
  const mask = view.itemByKey.get("n:tril_1:1")!;
  const from = view.links.filter((link) => link.from === mask);
  assert.equal(from.length, 20);
  assert.deepEqual(
    from.filter((link) => !link.isCut).map((link) => view.items[link.to]!.key),
    ["m:b0:1"],
  );
  assert.equal(view.items[mask]!.feeds, 20);
  assert.deepEqual(
    view.items[view.itemByKey.get("m:b7:1")!]!.references.map((one) => one.from),
    [mask],
  );
});

test("a box with very many operations is divided, so that nothing has many children", () => {
  const hierarchy = buildHierarchy(chain(5000), false);
  assert.ok(hierarchy.boxes.every((box) => box.children.length <= 96));
  assert.ok(countVisible(hierarchy, NOTHING) <= 96);
  const view = buildView(hierarchy, openBelow(hierarchy, 0));
  assert.equal(leaves(view).length, 5000);
});

test("a loop of many steps is folded into its steps, also where no module is called", () => {
  const hierarchy = buildHierarchy(loop(40), false);
  const run = hierarchy.boxes.find((box) => box.kind === "run")!;
  assert.equal(run.blocks.length, 40);
  assert.ok(
    run.blocks.every((block) => hierarchy.boxes[block]!.kind === "step" && hierarchy.boxes[block]!.children.length === 3),
  );
});

test("the first view opens the modules that the payload names, and a stack if it names its first block", () => {
  const faces = (hierarchy: Hierarchy): Faces =>
    new Faces(hierarchy, new Measures(hierarchy), new Set(["name", "shape"]), (text) => 7 * text.length);
  const seen = (payload: Payload, named: string[]): number => {
    const hierarchy = buildHierarchy({ ...payload, first_view: named }, false);
    return countVisible(hierarchy, firstView(hierarchy, faces(hierarchy), 900, 700));
  };
  assert.deepEqual([seen(blocks(12), []), seen(blocks(12), ["h.0:1"]), seen(blocks(12), ["nothing:1"])], [3, 5, 3]);
});

test("rows are further apart where a narrow window would leave most of its height empty", () => {
  const hierarchy = buildHierarchy(blocks(1), false);
  const faces = new Faces(hierarchy, new Measures(hierarchy), new Set(["name"]), (text) => 30 * text.length);
  assert.ok(firstView(hierarchy, faces, 200, 900).spacing > firstView(hierarchy, faces, 900, 400).spacing);
});

test("revealing an operation opens what it is in and shows its block", () => {
  const hierarchy = buildHierarchy(blocks(12), false);
  const wanted = unit(hierarchy, "relu_20:1");
  const { open, shown } = openTo(hierarchy, wanted, NOTHING);
  const view = buildView(hierarchy, { open, shown });
  assert.equal(view.items[itemOf(view, wanted)]!.key, "n:relu_20:1");
  assert.equal(shown.get("run h.0:1"), 6);
});

test("what is open in one block stays open when its run shows another", () => {
  const made = draft();
  let last = addNode(made, "input", [], -1, { kind: "input" });
  made.runs.push({ starts: [1, 4, 7, 10], end: 13 });
  for (let i = 0; i < 4; i++) {
    const block = addModule(made, `h.${i}`, "Block");
    const inner = addModule(made, `h.${i}.mlp`, "Mlp", block);
    last = addNode(made, "relu", [addNode(made, "mul", [last], inner)], inner);
    last = addNode(made, "add", [last], block);
  }
  const hierarchy = buildHierarchy(finish(made), false);
  const openness = { open: new Set(["run h.0:1", "h.0.mlp:1"]), shown: new Map<string, number | "all">() };
  assert.deepEqual(carriedOver(hierarchy, "run h.0:1", 3, openness), ["h.3.mlp:1"]);
});

test("ancestors, descendants and ways between two operations follow the edges", () => {
  const hierarchy = buildHierarchy(blocks(3), false);
  const keys = (units: Uint8Array): string[] => hierarchy.units.filter((_, u) => units[u]).map((one) => one.key);
  assert.deepEqual(keys(reached(hierarchy, [unit(hierarchy, "add_3:1")], "ancestors")), [
    "input_0:1",
    "linear_1:1",
    "relu_2:1",
    "add_3:1",
  ]);
  assert.deepEqual(keys(reached(hierarchy, [unit(hierarchy, "relu_8:1")], "descendants")), [
    "relu_8:1",
    "add_9:1",
    "output_10:1",
  ]);
  const path = pathBetween(hierarchy, unit(hierarchy, "input_0:1"), unit(hierarchy, "add_3:1"));
  assert.deepEqual([path.count, path.steps, path.isReversed], [4, 1, false]);
  const back = pathBetween(hierarchy, unit(hierarchy, "add_3:1"), unit(hierarchy, "input_0:1"));
  assert.deepEqual([back.count, back.steps, back.isReversed], [4, 1, true]);
});
