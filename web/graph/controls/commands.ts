// The keys of the application.

import type { App } from "../app";
import type { Command } from "./keyboard";

const STEP = 80; // pixels that an arrow key moves

export function commandsOf(app: App): Command[] {
  const { actions } = app;
  const groups: Record<Command["group"], [keys: string, title: string, run: (event: KeyboardEvent) => void][]> = {
    Move: [
      ["←", "left", () => actions.pan(STEP, 0)],
      ["→", "right", () => actions.pan(-STEP, 0)],
      ["↑", "up", () => actions.pan(0, STEP)],
      ["↓", "down", () => actions.pan(0, -STEP)],
      ["+ =", "zoom in", () => actions.zoom(1.25)],
      ["-", "zoom out", () => actions.zoom(0.8)],
      ["0", "everything in sight", () => actions.fit()],
      ["f", "to what is selected", () => app.reveal(true)],
    ],
    "Open and close": [
      ["Enter Space", "open or close what is selected", () => actions.toggleSelected()],
      ["o", "open the next level", () => actions.deeper(1)],
      ["O", "close the last level", () => actions.deeper(-1)],
      ["E", "open everything below it", () => actions.openBelowSelected()],
      ["e", "open everything", () => actions.openAll()],
      ["c", "close everything", () => actions.toDepth(1)],
      ["1 2 3 4 5 6 7 8 9", "open down to that depth", (event) => actions.toDepth(Number(event.key))],
      ["[ ]", "previous or next of equal blocks", (event) => actions.stepRun(event.key === "]" ? 1 : -1)],
      ["r", "rolled or unrolled", () => actions.roll()],
      ["p", "with or without plumbing: shape functions, masks, positions", () => actions.plumbing()],
      ["h", "from left to right, or from top to bottom", () => actions.turn()],
    ],
    Find: [
      ["/ Ctrl-F", "search", () => app.parts.finder.focus()],
      ["n", "next result", () => app.parts.finder.step(1)],
      ["N", "previous result", () => app.parts.finder.step(-1)],
    ],
    Select: [
      ["Shift-↓", "what it leads to", () => actions.moveSelection("down")],
      ["Shift-↑", "where it comes from", () => actions.moveSelection("up")],
      ["Shift-←", "to its left", () => actions.moveSelection("left")],
      ["Shift-→", "to its right", () => actions.moveSelection("right")],
      [".", "next in order", () => actions.moveSelection(1)],
      [",", "previous in order", () => actions.moveSelection(-1)],
      ["u", "the module around it", () => actions.selectParent()],
      ["a", "highlight its ancestors", () => actions.trace("ancestors")],
      ["d", "highlight its descendants", () => actions.trace("descendants")],
      ["Esc", "end the highlight, the selection, the search", () => actions.escape()],
    ],
    Show: [
      ["m", "outline", () => app.parts.toggleTree()],
      ["i", "details", () => actions.togglePart("panel")],
      ["t", "table", () => actions.togglePart("table")],
      ["b", "colour by the next figure", () => actions.nextMetric(1)],
      ["B", "colour by the previous figure", () => actions.nextMetric(-1)],
      ["g", "light or dark", () => actions.switchTheme()],
      ["s", "save as SVG", () => void actions.save("svg", true)],
      ["S", "save as PNG", () => void actions.save("png", true)],
      ["?", "this list", () => actions.togglePart("help")],
    ],
    Compare: [
      ["v", "next difference", () => app.parts.differences?.step(1)],
      ["V", "previous difference", () => app.parts.differences?.step(-1)],
      ["l", "list of differences", () => actions.togglePart("differences")],
    ],
  };
  if (app.docs.length < 2) groups.Compare = [];
  return (Object.keys(groups) as Command["group"][]).flatMap((group) =>
    groups[group].map(([keys, title, run]) => ({ group, keys: keys.split(" "), title, run })),
  );
}
