import assert from "node:assert/strict";
import { test } from "node:test";
import { buildHierarchy, isBox } from "../../graph/model/hierarchy";
import { Search, prefixCounts } from "../../graph/model/search";
import { addModule, addNode, draft, finish } from "./making";

function searched(): (query: string) => string[] {
  const made = draft();
  const block = addModule(made, "net.layer1", "Bottleneck");
  const conv = addModule(made, "net.layer1.conv", "Conv2d", block);
  addNode(made, "input", [], -1, { kind: "input", shape: [1, 3, 224, 224] });
  addNode(made, "conv2d", [0], conv, { exits: [conv], shape: [1, 64, 56, 56], stack: [[0, 12, "forward"]], source: 0 });
  addNode(made, "relu", [1], block, { exits: [block], shape: [1, 64, 56, 56], dtype: "float16" });
  const payload = finish(made);
  payload.files.push({ path: "model.py", lines: { "12": "y = self.CONV(x)  # the stem" } });
  const hierarchy = buildHierarchy(payload, false);
  const search = new Search(hierarchy);
  return (query) =>
    search.find(query).children.map((child) => (isBox(child) ? hierarchy.boxes[~child]!.key : hierarchy.units[child]!.key));
}

test("labels, addresses, classes, functions, dtypes and lines of code are found, whatever their case", () => {
  const find = searched();
  assert.deepEqual(find("RELU"), ["relu_2:1"]);
  assert.deepEqual(find("layer1.conv"), ["conv2d_1:1"]);
  assert.deepEqual(find("bottleneck"), ["net.layer1:1", "relu_2:1"]);
  assert.deepEqual(find("Conv2d"), ["conv2d_1:1"]);
  assert.deepEqual(find("float16"), ["relu_2:1"]);
  assert.deepEqual(find("the stem"), ["conv2d_1:1"]);
});

test("a shape is found however it is typed", () => {
  const find = searched();
  for (const query of ["1×64×56×56", "1,64,56,56", "1, 64, 56, 56", "(1, 64, 56, 56)", "[1,64,56,56]", "1x64x56x56", "64×56"]) {
    assert.deepEqual(find(query), ["conv2d_1:1", "relu_2:1"], query);
  }
  for (const query of ["torch.Size([1, 64, 56, 56])", "shape: 1,64,56,56", "Shape:1x64", "1, 64 56"]) {
    assert.deepEqual(find(query), ["conv2d_1:1", "relu_2:1"], query);
  }
});

test("a shape can stand among other words", () => {
  const find = searched();
  assert.deepEqual(find("relu 1,64,56,56"), ["relu_2:1"]);
  assert.deepEqual(find("(1, 64, 56, 56) float16"), ["relu_2:1"]);
});

test("what looks like a shape is also found as it is written", () => {
  const made = draft();
  const conv = addModule(made, "mixed.branch_3x3", "Conv2d");
  addNode(made, "conv2d", [], conv, { shape: [1, 8] });
  addNode(made, "relu", [0], conv, { shape: [3, 3] });
  const hierarchy = buildHierarchy(finish(made), false);
  assert.equal(new Search(hierarchy).find("3x3").children.length, 3);
  assert.equal(new Search(hierarchy).find("branch_3x3").children.length, 3);
  assert.equal(new Search(hierarchy).find("3×3").children.length, 1);
});

test("all words of a query must be there", () => {
  const find = searched();
  assert.deepEqual(find("64×56 float16"), ["relu_2:1"]);
  assert.deepEqual(find("relu float64"), []);
});

test("slashes make a regular expression, and a broken one is said to be so", () => {
  const find = searched();
  assert.deepEqual(find("/^(conv|relu)/"), ["conv2d_1:1", "relu_2:1"]);
  const search = new Search(buildHierarchy(finish(draft()), false));
  assert.equal(search.find("/(/").isInvalid, true);
});

test("a field narrows the search to one place", () => {
  const find = searched();
  assert.deepEqual(find("class:conv"), ["conv2d_1:1"]);
  assert.deepEqual(find("class:Bottleneck"), ["net.layer1:1", "relu_2:1"]);
  assert.deepEqual(find("type:conv"), ["conv2d_1:1"]);
  assert.deepEqual(find("shape:3,224,224"), ["input_0:1"]);
  assert.deepEqual(find("kind:input"), ["input_0:1"]);
});

test("nothing is found for nothing", () => {
  assert.deepEqual(searched()("  "), []);
});

test("a module and what is in it count as found inside the boxes around them", () => {
  const made = draft();
  const outer = addModule(made, "a", "A");
  const inner = addModule(made, "a.hit", "B", outer);
  addNode(made, "x", [], outer);
  addNode(made, "y", [0], inner);
  addNode(made, "z", [1], inner);
  const hierarchy = buildHierarchy(finish(made), false);
  const counts = prefixCounts(hierarchy, new Search(hierarchy).find("hit"));
  const { low, high } = hierarchy.boxes[hierarchy.boxByKey.get("a:1")!]!;
  assert.equal(counts[high]! - counts[low]!, 3);
});
