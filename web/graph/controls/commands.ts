// The keys of the application.

import type { App } from "../app";
import { METRICS } from "../model/measures";
import type { Command } from "./keyboard";

const STEP = 80; // pixels that an arrow key moves

export function commandsOf(app: App): Command[] {
  const { actions } = app;
  const isComparing = (): boolean => app.docs.length > 1;
  const trace = (wanted: "ancestors" | "descendants"): void => {
    const other = wanted === "ancestors" ? "descendants" : "ancestors";
    const { trace: now } = app.state;
    const next = now === "both" ? other : now === other ? "both" : wanted;
    app.dispatch({ type: "trace", trace: now === wanted ? "none" : next });
  };
  const nextMetric = (by: number): void => {
    const at = METRICS.findIndex((metric) => metric.name === app.state.metric);
    const next = METRICS[(at + by + METRICS.length) % METRICS.length]!;
    app.say(`Coloured by ${next.title}`);
    app.dispatch({ type: "metric", metric: next.name });
  };
  return [
    { group: "Move", keys: ["←"], title: "left", run: () => actions.pan(STEP, 0) },
    { group: "Move", keys: ["→"], title: "right", run: () => actions.pan(-STEP, 0) },
    { group: "Move", keys: ["↑"], title: "up", run: () => actions.pan(0, STEP) },
    { group: "Move", keys: ["↓"], title: "down", run: () => actions.pan(0, -STEP) },
    { group: "Move", keys: ["+", "="], title: "zoom in", run: () => actions.zoom(1.25) },
    { group: "Move", keys: ["-"], title: "zoom out", run: () => actions.zoom(0.8) },
    { group: "Move", keys: ["0"], title: "everything in sight", run: () => actions.fit() },
    { group: "Move", keys: ["f"], title: "to what is selected", run: () => actions.focusSelected() },
    {
      group: "Open and close",
      keys: ["Enter", "Space"],
      title: "open or close what is selected",
      run: () => actions.toggleSelected(),
    },
    { group: "Open and close", keys: ["E"], title: "open everything below it", run: () => actions.openBelowSelected() },
    { group: "Open and close", keys: ["e"], title: "open everything", run: () => actions.openAll() },
    { group: "Open and close", keys: ["c"], title: "close everything", run: () => actions.toDepth(1) },
    {
      group: "Open and close",
      keys: [..."123456789"],
      written: ["1", "…", "9"],
      title: "open down to that depth",
      run: (event) => actions.toDepth(Number(event.key)),
    },
    {
      group: "Open and close",
      keys: ["[", "]"],
      title: "the block before or after, of equal blocks",
      run: (event) => actions.stepRun(event.key === "]" ? 1 : -1),
    },
    { group: "Open and close", keys: ["r"], title: "rolled or unrolled", run: () => actions.roll() },
    { group: "Find", keys: ["/", "Ctrl-F"], title: "search", run: () => app.parts.finder.focus() },
    { group: "Find", keys: ["n"], title: "next result", run: () => app.parts.finder.step(1) },
    { group: "Find", keys: ["N"], title: "result before", run: () => app.parts.finder.step(-1) },
    { group: "Select", keys: ["Shift-↓"], title: "what it leads to", run: () => actions.moveSelection("down") },
    { group: "Select", keys: ["Shift-↑"], title: "where it comes from", run: () => actions.moveSelection("up") },
    { group: "Select", keys: ["Shift-←"], title: "to its left", run: () => actions.moveSelection("left") },
    { group: "Select", keys: ["Shift-→"], title: "to its right", run: () => actions.moveSelection("right") },
    { group: "Select", keys: ["."], title: "next in order", run: () => actions.moveSelection(1) },
    { group: "Select", keys: [","], title: "before in order", run: () => actions.moveSelection(-1) },
    { group: "Select", keys: ["u"], title: "the module around it", run: () => actions.selectParent() },
    { group: "Select", keys: ["a"], title: "highlight its ancestors", run: () => trace("ancestors") },
    { group: "Select", keys: ["d"], title: "highlight its descendants", run: () => trace("descendants") },
    { group: "Select", keys: ["Esc"], title: "leave the highlight, the selection, the search", run: () => actions.escape() },
    { group: "Show", keys: ["m"], title: "outline", run: () => app.parts.toggleTree() },
    { group: "Show", keys: ["i"], title: "details", run: () => actions.togglePart("panel") },
    { group: "Show", keys: ["t"], title: "table", run: () => actions.togglePart("table") },
    { group: "Show", keys: ["b"], title: "colour by the next figure", run: () => nextMetric(1) },
    { group: "Show", keys: ["B"], title: "colour by the figure before", run: () => nextMetric(-1) },
    { group: "Show", keys: ["g"], title: "light or dark", run: () => actions.switchTheme() },
    { group: "Show", keys: ["s"], title: "save as SVG", run: () => void actions.save("svg", true) },
    { group: "Show", keys: ["S"], title: "save as PNG", run: () => void actions.save("png", true) },
    { group: "Show", keys: ["?"], title: "this list", run: () => actions.togglePart("help") },
    {
      group: "Compare",
      keys: ["v"],
      title: "next difference",
      run: () => app.parts.differences?.step(1),
      isActive: isComparing,
    },
    {
      group: "Compare",
      keys: ["V"],
      title: "difference before",
      run: () => app.parts.differences?.step(-1),
      isActive: isComparing,
    },
    {
      group: "Compare",
      keys: ["l"],
      title: "list of differences",
      run: () => actions.togglePart("differences"),
      isActive: isComparing,
    },
  ];
}
