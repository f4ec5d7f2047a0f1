// What the parts of the page can ask for. The application answers.

import type { Anchor } from "./pane/canvas";
import type { Theme } from "../shared/color";
import type { Comparison } from "./model/compare";
import type { Doc, ModelIndex } from "./model/model_index";
import type { Stage } from "./pane/stage";
import type { FirstView } from "./state/first_view";
import type { Action, Selection, State } from "./state/state";

export interface Guide {
  readonly state: State;
  readonly docs: Doc[];
  readonly stages: Stage[];
  readonly comparison: Comparison | null;
  readonly theme: Theme;
  readonly isAnimated: boolean;
  /** The side the reader works on. */
  side: number;
  modelIndex(side: number): ModelIndex;
  dispatch(action: Action, anchor?: Anchor | null): void;
  /** Several changes at once; `then` runs when the picture is there. */
  apply(actions: Action[], anchor: Anchor | null, then?: () => void): void;
  /** Selects a unit, or a box by its complement; opens the boxes around it and brings it into sight. */
  go(side: number, child: number): void;
  goToNode(side: number, node: number): void;
  /** Opens or closes a box. */
  toggle(side: number, child: number, anchor?: Anchor | null): void;
  /** What a window of this size shows first. */
  firstView(): FirstView;
  select(selection: Selection | null): void;
  selectedChild(): number | null;
  /** What is selected on a side: the selection, or its counterpart. */
  selectedOn(side: number): Selection | null;
  /** Brings what is selected into sight, in the middle if `always`. */
  reveal(always: boolean): void;
  /** What stays in place when boxes open or close elsewhere: the selection, if it is in the picture. */
  anchor(): Anchor | null;
  copy(text: string): void;
  /** Tells a screen reader; `isSeen` shows it to everyone for a moment. */
  say(text: string, isSeen?: boolean): void;
}
