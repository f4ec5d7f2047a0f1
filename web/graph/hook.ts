// A window for tests and measurements: what is seen, where it is, and how long drawing took. It changes nothing.

import type { App } from "./app";
import { type Box, isBox } from "./model/hierarchy";
import type { Rect } from "./drawing/picture";

interface SeenItem extends Rect {
  key: string; // of the node or the module, run, step or segment
  kind: "operation" | Box["kind"];
  isOpen: boolean;
  references: number;
}

export function hookOf(app: App): object {
  const seen = (side = 0): SeenItem[] => {
    const stage = app.stages[side];
    const view = stage?.view;
    if (!stage || !view) return [];
    return view.items.slice(1).map((item, i) => {
      const { boxes, units } = view.hierarchy;
      const box = isBox(item.child) ? boxes[~item.child]! : null;
      return {
        key: box ? box.key : units[item.child]!.key,
        kind: box ? box.kind : "operation",
        isOpen: item.isOpen,
        references: item.references.length,
        ...stage.pane.onScreen(i + 1),
      };
    });
  };
  return Object.freeze({
    seen,
    find: (key: string, side = 0) => seen(side).find((item) => item.key === key) ?? null,
    links: (side = 0) =>
      (app.stages[side]?.view?.links ?? []).map((link) => {
        const { items } = app.stages[side]!.view!;
        return {
          from: items[link.from]!.key,
          to: items[link.to]!.key,
          isCut: link.isCut,
          isFeedback: link.isFeedback,
          label: link.label,
        };
      }),
    camera: (side = 0) => ({ ...app.stages[side]!.pane.camera }),
    isWaiting: () => app.stages.some((stage) => stage.isWaiting),
    isBusy: () => app.stages.some((stage) => stage.isWaiting || stage.pane.isMoving || stage.pane.frames === 0),
    firstDraw: (side = 0) => app.stages[side]!.pane.firstDraw,
    frames: (side = 0) => app.stages[side]!.pane.frames,
    lastDraw: (side = 0) => app.stages[side]!.pane.lastDraw,
    selectedOn: (side: number) => app.selectedOn(side),
    blocks: (side = 0) => (app.stages[side]?.view?.items ?? []).flatMap((item) => (item.block < 0 ? [] : [item.block])),
    differences: () => app.comparison?.counts ?? null,
    state: () => {
      const { rolled, selection, other, trace, query, match, metric, theme, open, parts } = app.state;
      return { rolled, selection, other, trace, query, match, metric, theme, open: [...open], parts: [...parts] };
    },
  });
}
