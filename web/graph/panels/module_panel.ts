// What is known about a module, a run of equal blocks, or another group of operations.

import { headsInside } from "./attention";
import { button, el } from "../../shared/dom";
import type { Guide } from "../guide";
import { type Box, type Hierarchy, firstCall, firstNode, isBox, unitsOf } from "../model/hierarchy";
import type { PanelContent } from "./node_panel";
import { stepOf } from "../model/outline";
import { type Fact, type RowOptions, facts, rows, section } from "./panel_parts";
import type { ModuleCall } from "../model/payload";
import { itemOf } from "../model/model_index";
import { boxItemKey } from "../layout/view";
import { codeAround } from "./source";
import * as format from "../../shared/format";

const KINDS: Partial<Record<Box["kind"], string>> = {
  run: "equal blocks",
  step: "one step of a repeated pattern",
  segment: "a part, for reading only",
  list: "a list of modules",
  ports: "equal inputs or outputs",
};

export function modulePanel(guide: Guide, side: number, b: number): PanelContent {
  const { theme } = guide;
  const modelIndex = guide.modelIndex(side);
  const { hierarchy, measures } = modelIndex;
  const { payload, boxes } = hierarchy;
  const box = boxes[b]!;
  const faces = modelIndex.faces(guide.state.facts);
  const calls = box.modules.map((module) => payload.modules[module]!);
  const first = calls[0];
  const isRun = box.kind === "run";
  const named = isRun ? [box.blocks[0]!, box.blocks.at(-1)!] : [b];
  const run = runOf(hierarchy, b);
  return {
    title: named.map((one) => faces.relative(one, "")).join(" … "),
    kind: first?.class ?? KINDS[box.kind] ?? "",
    color: theme.boxBorder,
    subtitle: isRun ? [`${box.blocks.length} equal blocks in a row`, faces.sharing(b)].filter(Boolean).join(", ") : "",
    key: first ? (hierarchy.rolled ? stepOf(first) : first.key) : "",
    body: [
      actions(guide, side, b),
      section("Module", first ? facts(moduleFacts(calls)) : null),
      section("Totals", facts(totals(guide, side, ~b))),
      headsInside(payload, box.modules[0], theme),
      run ? section("Equal blocks", blocks(guide, side, run, b)) : null,
      section("Inside", inside(guide, side, isRun ? box.blocks[0]! : b)),
      first?.source ? section("Called from", codeAround(payload, first.source)) : null,
      section("Largest by time", hottest(guide, side, b, measures.of("time", ~b) ?? 0)),
    ],
  };
}

function actions(guide: Guide, side: number, b: number): HTMLElement {
  const { hierarchy } = guide.modelIndex(side);
  const view = guide.stages[side]?.view;
  const isOpen = view?.items[itemOf(view, ~b)]!.isOpen;
  const parts = [button(isOpen ? "Close" : "Open", isOpen ? "Close this box" : "Open this box", () => guide.toggle(side, ~b))];
  const run = runOf(hierarchy, b);
  if (run && guide.state.open.has(run.key)) {
    const isAll = guide.state.shown.get(run.key) === "all";
    const text = isAll ? "Fold into one" : `Show all ${run.blocks.length}`;
    const anchor = { key: boxItemKey(run.key) };
    const block = isAll ? Math.max(0, run.blocks.indexOf(b)) : "all";
    const show = (): void => guide.apply([{ type: "show", run: run.key, block }], anchor, () => guide.reveal(false));
    parts.push(button(text, text, show));
  }
  return el("div", { class: "actions" }, ...parts);
}

/** The run that a box is, or is a block of. */
function runOf(hierarchy: Hierarchy, b: number): Box | null {
  const { boxes } = hierarchy;
  if (boxes[b]!.kind === "run") return boxes[b]!;
  for (let at = boxes[b]!.parent; at > 0; at = boxes[at]!.parent) {
    if (boxes[at]!.kind === "run") return boxes[at]!.blocks.includes(b) ? boxes[at]! : null;
  }
  return null;
}

function moduleFacts(calls: ModuleCall[]): Fact[] {
  const [first, last] = [calls[0]!, calls.at(-1)!];
  const shapes = (found: number[][]): string => found.map(format.shape).join(", ");
  const seconds = calls.reduce((sum, call) => sum + call.seconds, 0);
  return [
    ["address", el("span", { class: "mono", text: first.address })],
    ["class", first.class],
    ["call", calls.length > 1 ? `all ${calls.length}` : first.num_calls > 1 ? `${first.call} of ${first.num_calls}` : null],
    ["input", shapes(first.input_shapes)],
    ["output", shapes(last.output_shapes)],
    ["mode", first.training ? "training" : "evaluation"],
    ["on the clock", seconds ? format.time(seconds) : null],
  ];
}

function totals(guide: Guide, side: number, child: number): Fact[] {
  const { measures, hierarchy } = guide.modelIndex(side);
  const known = (name: Parameters<typeof measures.of>[0], write: (value: number) => string): string | null => {
    const value = measures.of(name, child);
    return value === null || value === 0 ? null : write(value);
  };
  const total = hierarchy.payload.facts.seconds;
  const zeros = measures.of("zeros", child);
  const share = (value: number): string =>
    format.time(value) + (total ? ` (${format.percent(value / total)} of the pass)` : "");
  return [
    ["operations", format.count(measures.operations(child))],
    ["parameters", known("params", format.human)],
    ["time", known("time", share)],
    ["memory made", known("memory", format.bytes)],
    ["FLOPs", known("flops", format.human)],
    ["zeros", zeros ? format.percent(zeros) : null],
    ["NaN, infinite", known("nonfinite", format.count)],
  ];
}

/** The blocks of a run, with how long each took; a click shows that one. */
function blocks(guide: Guide, side: number, run: Box, shown: number): HTMLElement | null {
  const modelIndex = guide.modelIndex(side);
  const times = run.blocks.map((block) => modelIndex.measures.of("time", ~block) ?? 0);
  const longest = Math.max(...times);
  return rows(
    run.blocks.map((block, i) => ({
      title: modelIndex.faces(guide.state.facts).relative(block, ""),
      note: block === shown ? "this one" : "",
      detail: times[i] ? format.time(times[i]!) : "",
      share: longest ? times[i]! / longest : 0,
      onClick: () => guide.go(side, ~block),
    })),
  );
}

function inside(guide: Guide, side: number, b: number): HTMLElement | null {
  const { hierarchy } = guide.modelIndex(side);
  return rows(hierarchy.boxes[b]!.children.map((child) => childRow(guide, side, child)));
}

/** The row of a child, with its time, also as a share of the longest where that is given. */
function childRow(guide: Guide, side: number, child: number, longest?: number): RowOptions {
  const modelIndex = guide.modelIndex(side);
  const { hierarchy } = modelIndex;
  const time = modelIndex.measures.of("time", child) ?? 0;
  const detail = time ? format.time(time) : "";
  const onClick = (): void => guide.go(side, child);
  const share = longest && time / longest;
  if (isBox(child)) {
    const { kind, blocks } = hierarchy.boxes[~child]!;
    const title = modelIndex.faces(guide.state.facts).relative(blocks[0] ?? ~child, "");
    const times = kind === "run" ? `×${blocks.length}` : "";
    const note = [firstCall(hierarchy, ~child)?.class, times].filter(Boolean).join(" ");
    return { title, note, detail, color: guide.theme.boxBorder, onClick, share };
  }
  const { members } = hierarchy.units[child]!;
  const node = firstNode(hierarchy, child);
  const title = members.length > 1 ? `${node.label} ×${members.length}` : node.label;
  const note = node.shape ? format.shape(node.shape) : "";
  const color = guide.theme.categories[modelIndex.palette.category(child)].accent;
  return { title, note, detail, color, onClick, share };
}

const HOTTEST = 5;

function hottest(guide: Guide, side: number, b: number, total: number): HTMLElement | null {
  const { hierarchy, measures } = guide.modelIndex(side);
  const units = unitsOf(hierarchy, ~b);
  if (!total || units.length < HOTTEST + 3) return null;
  const time = (unit: number): number => measures.of("time", unit) ?? 0;
  const found = units.sort((a, z) => time(z) - time(a)).slice(0, HOTTEST);
  return rows(found.map((unit) => childRow(guide, side, unit, time(found[0]!))));
}
