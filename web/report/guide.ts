// What the parts of the page share and can ask for. The application answers.

import type { Theme } from "../shared/color";
import type { Run, Series } from "./data/run";
import type { Album } from "./pictures/album";

export type ScaleName = "run" | "frame"; // colours fixed over the run, or fitting one step

/** What the reader has chosen. */
export interface State {
  layer: number;
  kind: string;
  at: number; // snapshot
  scale: ScaleName | null; // null until one is chosen
  measure: string; // of the map
  chart: string;
  metric: string; // over the slider; empty where there is none
}

export interface Guide {
  readonly run: Run;
  readonly album: Album;
  readonly theme: Theme;
  readonly state: Readonly<State>;
  readonly series: Series; // that is chosen
  choose(change: Partial<State>): void;
  pause(): void;
  redraw(): void;
  showTip(text: string, x: number, y: number): void;
  hideTip(): void;
  say(text: string): void; // to screen readers
}

/** Something on the page that shows the state. */
export interface Part {
  draw(): void;
}
