// Everything that is known about one operation.

import { attentionHeads } from "./attention";
import { histogram, preview } from "./charts";
import { categoryOf } from "../../shared/color";
import { changesBetween, onlyIn, sideName, weightsOf } from "../model/compare";
import { titleOf } from "../drawing/look";
import { ownMetrics } from "../model/measures";
import { button, el } from "../../shared/dom";
import type { Guide } from "../guide";
import { type Fact, facts, row, rows, section } from "./panel_parts";
import type { OpNode, Payload, Stats } from "../model/payload";
import { sourceView } from "./source";
import * as format from "../../shared/format";
import { PANEL_ROWS } from "../../shared/generated/graph_format";

export interface PanelContent {
  title: string;
  kind: string;
  color: string;
  subtitle: string;
  key: string; // what can be copied
  body: (Node | null)[];
}

const WIDTH = 300;

/** The panel of a unit; `pass` says which of its members. */
export function nodePanel(
  guide: Guide,
  side: number,
  unit: number,
  pass: number,
  onPass: (pass: number) => void,
): PanelContent {
  const { theme } = guide;
  const { hierarchy } = guide.modelIndex(side);
  const { payload } = hierarchy;
  const { members } = hierarchy.units[unit]!;
  const index = members[Math.min(pass, members.length - 1)]!;
  const node = payload.nodes[index]!;
  return {
    title: titleOf(node),
    kind: node.kind === "operation" ? "" : node.kind,
    color: theme.categories[categoryOf(node)].accent,
    subtitle: node.role || (payload.modules[node.exits[0] ?? -1]?.address ?? ""),
    key: node.key,
    body: [
      members.length > 1 ? memberChooser(members.length, pass, onPass, node.call < 0 ? "pass" : "tensor") : null,
      node.error ? el("p", { class: "error", text: `Raised ${node.error}` }) : null,
      section("Tensor", facts(declaredFacts("Tensor", node, payload))),
      attentionHeads(node.attention, theme),
      node.preview ? section("Values", preview(node.preview, WIDTH)) : null,
      section("Statistics", statistics(node.stats)),
      section(
        "Gradient",
        node.grad?.shape ? facts([["shape", format.shape(node.grad.shape)]]) : null,
        statistics(node.grad?.stats ?? null),
      ),
      section(payload.verdict ? "Errors" : "Figures of your own", facts(ownFacts(node, payload))),
      section("Cost", facts(declaredFacts("Cost", node, payload))),
      section("Parameters", params(node, payload)),
      differences(guide, side, index),
      section("Comes from", neighbours(guide, side, index, "into")),
      section("Leads to", neighbours(guide, side, index, "out")),
      section("Modules", modulePath(guide, side, node)),
      section("Call", facts([...declaredFacts("Call", node, payload), ...furtherFacts(node)])),
      section("Source", sourceView(payload, node.stack, node.source)),
    ],
  };
}

/** Steps through the passes of a layer, or the tensors of a call. */
function memberChooser(count: number, pass: number, onPass: (pass: number) => void, what: string): HTMLElement {
  const go = (to: number): void => onPass(((to % count) + count) % count);
  return el(
    "div",
    { class: "chooser", role: "group", label: what },
    button("‹", `Previous ${what}`, () => go(pass - 1)),
    el("span", { text: `${what} ${pass + 1} of ${count}` }),
    button("›", `Next ${what}`, () => go(pass + 1)),
  );
}

type Row = (typeof PANEL_ROWS)[keyof typeof PANEL_ROWS][number];
type Write = (value: never, node: OpNode, payload: Payload, row: Row) => Fact[1];

/** How the values of declared rows are written; a row without text is left out. */
const FORMATS: Record<Row["format"], Write> = {
  text: (value: string | null) => value,
  code: (value: string) => (value ? el("span", { class: "mono", text: value }) : null),
  list: (values: string[]) => values.join(", "),
  flag: (value: boolean, _node, _payload, row) => (value && "yes" in row ? row.yes : null),
  shape: (value: number[] | null) => (value === null ? null : format.shape(value)),
  bytes: (value: number) => (value ? format.bytes(value) : null),
  count: (value: number | null) => (value ? format.human(value) : null),
  pass: (value: number, node) => (node.num_passes > 1 ? `${value} of ${node.num_passes}` : null),
  seconds: (value: number | null) => (value === null ? null : format.time(value)),
  time: (value: number, _node, { facts }) =>
    value ? format.time(value) + (facts.seconds ? ` (${format.percent(value / facts.seconds)} of the pass)` : "") : null,
  flops: (value: number | null, node) =>
    value === null ? (node.kind === "operation" ? "unknown" : null) : format.human(value),
};

function declaredFacts(name: keyof typeof PANEL_ROWS, node: OpNode, payload: Payload): Fact[] {
  return PANEL_ROWS[name].map((row): Fact => [row.title, FORMATS[row.format](node[row.key] as never, node, payload, row)]);
}

function statistics(stats: Stats | null): HTMLElement | null {
  if (!stats) return null;
  const share = (count: number): string =>
    `${format.count(count)} (${format.percent(count / Math.max(1, stats.count))})`;
  const table = facts([
    ["values", format.count(stats.count)],
    ["range", stats.min === null ? null : `${format.figure(stats.min)} … ${format.figure(stats.max)}`],
    ["mean", stats.mean === null ? null : format.figure(stats.mean)],
    ["deviation", stats.std === null ? null : format.figure(stats.std)],
    ["norm", stats.norm === null ? null : format.figure(stats.norm)],
    ["zeros", stats.zeros ? share(stats.zeros) : null],
    ["NaN", stats.nan ? share(stats.nan) : null],
    ["infinite", stats.inf ? share(stats.inf) : null],
  ]);
  if (stats.nan || stats.inf) table?.classList.add("alarming");
  return el("div", {}, histogram(stats, WIDTH), table);
}

function ownFacts(node: OpNode, payload: Payload): Fact[] {
  return ownMetrics(payload).map((metric, i) => {
    const value = node.metrics[i] ?? null;
    return [metric.title, value === null ? null : metric.write(value)];
  });
}

/** The parameters and buffers of an operation; a click on one shows what is known of its values. */
function params(node: OpNode, payload: Payload): HTMLElement | null {
  if (!node.params.length && !node.buffers.length) return null;
  const list = el("ul", { class: "params" });
  const add = (name: string, detail: string): void => {
    const head = [el("span", { class: "mono", text: name }), el("span", { class: "note", text: detail })];
    const weight = weightsOf(payload).get(name);
    const values = weight ? [weight.preview ? preview(weight.preview, WIDTH) : null, statistics(weight.stats)] : [];
    const unfolding = el("details", { class: "values" }, el("summary", {}, ...head), ...values);
    list.append(el("li", {}, ...(values.some(Boolean) ? [unfolding] : head)));
  };
  for (const param of node.params) {
    const size = `${format.shape(param.shape)} · ${param.dtype} · ${format.human(param.numel)}`;
    add(param.name, `${size}${param.trainable ? "" : " · frozen"}`);
  }
  for (const buffer of node.buffers) add(buffer, "buffer");
  return list;
}

function neighbours(guide: Guide, side: number, index: number, way: "into" | "out"): HTMLElement | null {
  const { payload, wires, unitOfNode } = guide.modelIndex(side).hierarchy;
  const unit = unitOfNode[index]!;
  const edges = wires[way][unit]!.flatMap((wire) => wires.edges[wire]!).map((edge) => payload.edges[edge]!);
  const own = edges.filter((edge) => (way === "into" ? edge.to : edge.from) === index);
  return rows(
    own.map((edge) => {
      const other = way === "into" ? edge.from : edge.to;
      const node = payload.nodes[other]!;
      const notes = [edge.positions.join(", "), edge.memory ? "through memory" : ""].filter(Boolean).join(" · ");
      return {
        title: node.num_passes > 1 ? node.key : node.label,
        note: notes,
        detail: format.shape(edge.shape),
        color: guide.theme.categories[categoryOf(node)].accent,
        onClick: () => guide.goToNode(side, other),
      };
    }),
  );
}

function modulePath(guide: Guide, side: number, node: OpNode): HTMLElement | null {
  const { payload, childOfModule } = guide.modelIndex(side).hierarchy;
  const path: number[] = [];
  for (let at = node.module; at >= 0; at = payload.modules[at]!.parent) path.push(at);
  if (!path.length) return null;
  const links = path.map((module) => {
    const { address, class: name, call, num_calls } = payload.modules[module]!;
    const child = childOfModule.get(module);
    const title = num_calls > 1 ? `${address}:${call}` : address;
    const note = node.exits.includes(module) ? `${name} · its output` : name;
    return row({ title, note, onClick: () => child !== undefined && guide.go(side, child) });
  });
  return el("div", { class: "rows" }, ...links);
}

function furtherFacts(node: OpNode): Fact[] {
  return node.rows.map(([title, text]): Fact => [title.toLowerCase(), text]);
}

/** What differs from the node it corresponds to in the other model. */
function differences(guide: Guide, side: number, index: number): HTMLElement | null {
  const { comparison, docs } = guide;
  if (!comparison) return null;
  const other = (side === 0 ? comparison.toRight : comparison.toLeft)[index]!;
  const cause = causeOf(docs[side]!.payload.nodes[index]!.cause || docs[1 - side]!.payload.nodes[other]?.cause);
  if (other < 0) return section("Compared", el("p", { text: `O${onlyIn(guide, side).slice(1)}.` }), cause);
  const [left, right] = side === 0 ? [index, other] : [other, index];
  const [one, two] = [docs[0]!.payload, docs[1]!.payload];
  const changes = changesBetween(one, left, two, right);
  const go = row({
    title: (side === 0 ? two : one).nodes[other]!.key,
    note: "its counterpart",
    onClick: () => guide.goToNode(1 - side, other),
  });
  if (!changes.length)
    return section("Compared", cause ?? el("p", { class: "note", text: "The same in both models." }), go);
  const heads = ["", sideName(guide, 0), sideName(guide, 1)].map((text) => el("th", { text: text.toLowerCase() }));
  const table = el("table", { class: "changes" }, el("tr", {}, ...heads));
  for (const change of changes) {
    const cells = [el("th", { text: change.name }), el("td", { text: change.left }), el("td", { text: change.right })];
    table.append(el("tr", {}, ...cells));
    if (change.amount) {
      const cell = el("td", { class: "note", text: change.amount });
      cell.colSpan = 2;
      table.append(el("tr", {}, el("td"), cell));
    }
  }
  return section("Compared", cause, table, go);
}

function causeOf(text = ""): HTMLElement | null {
  return text ? el("p", { class: "cause", text }) : null;
}
