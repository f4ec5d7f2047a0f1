import assert from "node:assert/strict";
import { test } from "node:test";
import { openBelow, openToDepth } from "../../graph/state/expansion";
import { buildHierarchy } from "../../graph/model/hierarchy";
import { type Layout, type Task, layoutBox } from "../../graph/layout/layout";
import { type FactName, Faces } from "../../graph/drawing/look";
import { Measures } from "../../graph/model/measures";
import type { Payload } from "../../graph/model/payload";
import { type PlanBox, Solver, mirrored } from "../../graph/layout/plan";
import { type Scene, draftScene, placeScene } from "../../graph/layout/scene";
import { sampled } from "../../graph/drawing/shapes";
import { type Openness, buildView } from "../../graph/layout/view";
import { blocks, chain, hub, loop } from "./making";

const FACTS = new Set<FactName>(["name", "shape"]);

function solved(plan: PlanBox[], cache = new Map<string, Layout>()): Layout[] {
  const solver = new Solver(plan, cache);
  solver.work(Infinity, () => 0);
  return solver.layouts;
}

function sceneOf(payload: Payload, rolled: boolean, openness?: Openness): Scene {
  const hierarchy = buildHierarchy(payload, rolled);
  const faces = new Faces(hierarchy, new Measures(hierarchy), FACTS, (text) => text.length * 6);
  const draft = draftScene(buildView(hierarchy, openness ?? openBelow(hierarchy, 0)), faces);
  return placeScene(draft, solved(draft.plan));
}

const SCENES: [string, () => Scene][] = [
  ["blocks, all open", () => sceneOf(blocks(6), false)],
  ["a hub, all open", () => sceneOf(hub(12), false)],
  ["a rolled loop", () => sceneOf(loop(4), true)],
  ["a long chain", () => sceneOf(chain(400), false)],
];

for (const [name, make] of SCENES) {
  test(`boxes lie inside their module and do not overlap: ${name}`, () => {
    const { view, x, y, w, h } = make();
    view.items.forEach((item, i) => {
      if (item.parent >= 0) {
        assert.ok(
          x[i]! >= x[item.parent]! && x[i]! + w[i]! <= x[item.parent]! + w[item.parent]!,
          `${item.key} sticks out sideways`,
        );
        assert.ok(y[i]! >= y[item.parent]! && y[i]! + h[i]! <= y[item.parent]! + h[item.parent]!, `${item.key} sticks out`);
      }
      for (const [n, one] of item.children.entries()) {
        for (const other of item.children.slice(n + 1)) {
          const isApart =
            x[one]! + w[one]! <= x[other]! ||
            x[other]! + w[other]! <= x[one]! ||
            y[one]! + h[one]! <= y[other]! ||
            y[other]! + h[other]! <= y[one]!;
          assert.ok(isApart, `${view.items[one]!.key} overlaps ${view.items[other]!.key}`);
        }
      }
    });
  });

  test(`data flows down, and no edge crosses a box: ${name}`, () => {
    const scene = make();
    const { view, x, y, w, h } = scene;
    for (const link of view.links) {
      if (!link.isFeedback && !link.isCut) assert.ok(y[link.from]! + h[link.from]! <= y[link.to]!, "an edge goes up");
    }
    for (const [item, layout] of scene.layouts) {
      const { children } = scene.locals.get(item)!;
      for (const route of layout.routes) {
        const points = sampled(route);
        for (let p = 0; p < points.length; p += 2) {
          const [px, py] = [points[p]! + x[item]!, points[p + 1]! + y[item]!];
          const hit = children.find(
            (child) =>
              px > x[child]! + 1 && px < x[child]! + w[child]! - 1 && py > y[child]! + 1 && py < y[child]! + h[child]! - 1,
          );
          assert.equal(hit, undefined, hit === undefined ? "" : `an edge crosses ${view.items[hit]!.key}`);
        }
      }
    }
  });
}

test("the parts of a link join up: it leaves a box where the outer part begins and arrives where it ends", () => {
  const scene = sceneOf(blocks(4), false);
  const { view, x, y, w, h } = scene;
  const begins = new Map<number, string[]>();
  const ends = new Map<number, string[]>();
  const put = (map: Map<number, string[]>, link: number, at: string): void =>
    void map.set(link, [...(map.get(link) ?? []), at]);
  for (const [item, layout] of scene.layouts) {
    const local = scene.locals.get(item)!;
    local.pieces.forEach((piece, p) => {
      const { points } = layout.routes[p]!;
      for (const link of piece.links) {
        put(begins, link, `${points[0]! + x[item]!}`);
        put(ends, link, `${points.at(-2)! + x[item]!}`);
      }
    });
  }
  view.links.forEach((link, l) => {
    const [from, to] = [begins.get(l)!, ends.get(l)!];
    const start = String(x[link.from]! + w[link.from]! / 2);
    assert.ok(from.includes(start), "it begins in the middle of its source");
    for (const at of from.filter((one) => one !== start)) assert.ok(to.includes(at), "every other part begins where one ends");
    assert.ok(y[link.to]! > y[link.from]! + h[link.from]!);
  });
});

test("from left to right everything lies as from top to bottom, turned", () => {
  const down = layoutBox(task(4, [[0, 1], [0, 2], [1, 3], [2, 3]]));
  const square = task(4, [[0, 1], [0, 2], [1, 3], [2, 3]], { widths: [40, 40, 40, 40], heights: [100, 100, 100, 100] });
  const across = layoutBox({ ...square, isAcross: true });
  assert.deepEqual([across.x, across.y], [down.y, down.x]);
  assert.deepEqual([across.width, across.height], [down.height, down.width]);
  across.routes.forEach((route, i) => {
    const { points } = down.routes[i]!;
    assert.deepEqual(route.points, points.map((_, at) => points[at ^ 1]));
  });
});

test("the title of a box stays above what is inside, also from left to right", () => {
  const { y, height } = layoutBox(task(2, [[0, 1]], { header: 32, minWidth: 500, isAcross: true }));
  const { width } = layoutBox(task(2, [[0, 1]], { header: 32, minWidth: 500, isAcross: true }));
  assert.ok(Math.min(...y) >= 32 && height > 72 && width >= 500);
});

test("a chain is straight", () => {
  const { view, x, w } = sceneOf(chain(30), false);
  const middles = new Set(view.items.slice(1).map((_, i) => x[i + 1]! + w[i + 1]! / 2));
  assert.equal(middles.size, 1);
});

/** A task of boxes of one size with these edges between them. */
function task(count: number, edges: [number, number][], more: Partial<Task> = {}): Task {
  const pieces = edges.map(([from, to]) => ({ from, to, fromX: -1, toX: -1, labelWidth: 0, isFeedback: false }));
  const same = (value: number): number[] => new Array<number>(count).fill(value);
  const anchored = same(0).map(() => true);
  return {
    widths: same(100),
    heights: same(40),
    anchored,
    ins: 0,
    outs: 0,
    pieces,
    header: 0,
    minWidth: 0,
    padding: 10,
    spacing: 28,
    ...more,
  };
}

test("boxes stand so that edges do not cross where they need not", () => {
  const edges: [number, number][] = [
    [0, 5],
    [1, 4],
    [2, 3],
  ];
  const { x } = layoutBox(task(6, edges));
  const isBefore = (one: number, other: number): boolean => x[one]! < x[other]!;
  assert.equal(isBefore(0, 1), isBefore(5, 4));
  assert.equal(isBefore(1, 2), isBefore(4, 3));
});

test("a chain with an edge that skips it stays straight, and the edge goes around it", () => {
  const edges: [number, number][] = [
    [4, 0],
    [0, 1],
    [1, 2],
    [2, 3],
    [0, 3],
    [3, 5],
  ];
  const { x, routes, ins, outs, width } = layoutBox(task(4, edges, { ins: 1, outs: 1 }));
  assert.equal(new Set(x).size, 1);
  const around = routes[4]!.points.filter((_, i) => i % 2 === 0);
  assert.ok(around.some((at) => at < x[0]! || at > x[0]! + 100));
  assert.deepEqual([ins[0], outs[0]], [x[0]! + 50, x[0]! + 50]);
  assert.equal(ins[0], width / 2);
});

test("boxes without an edge stand below the others, a few side by side", () => {
  const { y } = layoutBox(task(9, [[0, 1]], { anchored: [true, ...new Array<boolean>(8).fill(false)] }));
  assert.ok(y[1]! > y[0]!);
  const alone = y.slice(2);
  assert.ok(alone.every((top) => top > y[1]!));
  assert.equal(new Set(alone).size, 3);
});

test("a layout that is turned around twice is as it was", () => {
  const { x, ins, outs, ...rest } = layoutBox(
    task(
      3,
      [
        [3, 0],
        [0, 1],
        [0, 2],
        [1, 4],
        [2, 4],
      ],
      { ins: 1, outs: 1 },
    ),
  );
  const layout = { x, ins, outs, ...rest };
  const once = mirrored(layout, [100, 100, 100]);
  assert.deepEqual(
    once.x,
    x.map((left) => layout.width - left - 100),
  );
  assert.equal(mirrored(once, [100, 100, 100]), layout);
});

test("an edge back to an earlier box runs beside everything, from below to above", () => {
  const made = task(3, [
    [0, 1],
    [1, 2],
    [2, 0],
  ]);
  made.pieces[2] = { ...made.pieces[2]!, isFeedback: true, labelWidth: 40 };
  const { routes, x, y, width } = layoutBox(made);
  const { points, isLane } = routes[2]!;
  const lane = Math.max(...points.filter((_, i) => i % 2 === 0));
  assert.ok(isLane && lane > x[0]! + 100 && lane <= width);
  assert.deepEqual([points[1], points.at(-1)], [y[2]! + 40, y[0]]);
});

test("equal blocks are laid out once", () => {
  const hierarchy = buildHierarchy(blocks(50), false);
  const faces = new Faces(hierarchy, new Measures(hierarchy), new Set(), () => 50);
  const draft = draftScene(buildView(hierarchy, openBelow(hierarchy, 0)), faces);
  const cache = new Map<string, Layout>();
  solved(draft.plan, cache);
  assert.equal(draft.plan.length, 52);
  assert.ok(cache.size <= 6, `${cache.size} layouts for 50 equal blocks`);
});

test("work that is interrupted goes on where it was", () => {
  const hierarchy = buildHierarchy(hub(12), false);
  const faces = new Faces(hierarchy, new Measures(hierarchy), FACTS, (text) => text.length * 6);
  const draft = draftScene(buildView(hierarchy, openToDepth(hierarchy, 3)), faces);
  const solver = new Solver(draft.plan, new Map());
  let clock = 0;
  let turns = 0;
  while (!solver.work(clock, () => ++clock)) turns++;
  assert.ok(turns > 1, "it was not interrupted");
  assert.deepEqual(solver.layouts, solved(draft.plan));
});
