// The application: one state, shown by several parts. A change of the state asks for one drawing at the next frame of the screen.

import type { Theme } from "../shared/color";
import { byId, write } from "../shared/dom";
import { type ThemeChoice, applyTheme, asChoice, remember, remembered, screenScheme, themeFor } from "../shared/theme";
import { placeBeside } from "../shared/tip";
import { CHARTS, linesText } from "./charts/lines";
import { gridsOf } from "./data/measures";
import type { Run, Series } from "./data/run";
import type { Guide, Part, State } from "./guide";
import { Charts } from "./parts/charts";
import { Gallery } from "./parts/gallery";
import { Head } from "./parts/head";
import { Inspector } from "./parts/inspector";
import { Overview } from "./parts/overview";
import { TimeBar, firstMetric } from "./parts/time";
import { Album } from "./pictures/album";
import { scaleOf } from "./pictures/limits";

const THEME_KEY = "torcheer-theme";

/** The theme before anything is drawn. */
export function startTheme(): Theme {
  const theme = themeFor(asChoice(remembered(THEME_KEY)), screenScheme().matches);
  applyTheme(theme);
  return theme;
}

/** What is shown first: the last step, and an activation if there is one. */
function firstState(run: Run, measure: string): State {
  const { layer, kind } = run.series.find((series) => series.kind === "activation") ?? run.series[0]!;
  const metric = firstMetric(Object.keys(run.facts.metrics));
  return { layer, kind, at: run.count - 1, scale: null, measure, chart: CHARTS[0]!.id, metric };
}

export class App implements Guide {
  readonly album: Album;
  readonly state: State;
  private readonly time: TimeBar;
  private readonly overview: Overview;
  private readonly inspector: Inspector;
  private readonly parts: Part[];
  private isAsked = false; // for a drawing
  private saying = 0;

  constructor(
    readonly run: Run,
    public theme: Theme,
    textOf: (id: string) => string,
  ) {
    const grids = gridsOf(run);
    this.album = new Album(textOf, () => this.redraw());
    this.state = firstState(run, grids[0]?.measure.id ?? "");
    const head = new Head(this);
    this.time = new TimeBar(this);
    this.overview = new Overview(this, grids);
    this.inspector = new Inspector(this);
    this.parts = [head, this.time, this.overview, this.inspector, new Charts(this), new Gallery(this)];
    this.listen();
    this.useTheme(theme);
  }

  get series(): Series {
    return this.run.find(this.state.layer, this.state.kind)!;
  }

  choose(change: Partial<State>): void {
    Object.assign(this.state, change);
    if (!this.run.find(this.state.layer, this.state.kind)) this.state.kind = this.run.kindsOf(this.state.layer)[0]!;
    this.redraw();
    if (!this.time.isPlaying) this.saySoon();
  }

  pause(): void {
    this.time.play(false);
  }

  redraw(): void {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => {
      this.isAsked = false;
      for (const part of this.parts) part.draw();
    });
  }

  showTip(text: string, x: number, y: number): void {
    const tip = byId("tip");
    tip.textContent = text;
    tip.hidden = false;
    placeBeside(tip, x, y);
  }

  hideTip(): void {
    byId("tip").hidden = true;
  }

  say(text: string): void {
    write("said", text);
  }

  private saySoon(): void {
    const { run, state } = this;
    clearTimeout(this.saying);
    this.saying = window.setTimeout(() => {
      const what = `${run.name(state.layer, 60)}, ${run.words(this.series)}, step ${run.stepText(state.at)}`;
      this.say(`${what}: ${linesText(run, this.series, CHARTS[0]!, state.at)}`);
    }, 400);
  }

  private useTheme(theme: Theme): void {
    this.theme = theme;
    applyTheme(theme);
    const isDark = theme.name === "dark";
    const button = byId("theme");
    button.setAttribute("aria-pressed", String(isDark));
    button.textContent = isDark ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark ? "Light colours" : "Dark colours");
    this.redraw();
  }

  private turnTheme(): void {
    const chosen: ThemeChoice = this.theme.name === "dark" ? "light" : "dark";
    remember(THEME_KEY, chosen);
    this.useTheme(themeFor(chosen, false));
  }

  private listen(): void {
    byId("theme").addEventListener("click", () => this.turnTheme());
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const target = event.target as HTMLElement;
      if (!target.matches("select, input, summary") && this.pressed(event.key, event.shiftKey, target.id))
        event.preventDefault();
    });
    new ResizeObserver(() => this.redraw()).observe(byId("main"));
    screenScheme().addEventListener("change", (event) => {
      const choice = asChoice(remembered(THEME_KEY));
      if (choice === "auto") this.useTheme(themeFor(choice, event.matches));
    });
    addEventListener("scroll", () => this.hideTip(), { passive: true });
  }

  /** What a key does at an element; whether it does something. */
  private pressed(key: string, isShift: boolean, place: string): boolean {
    const { run, state } = this;
    const inMap: Record<string, () => void> = {
      ArrowUp: () => this.choose({ layer: Math.max(state.layer - 1, 0) }),
      ArrowDown: () => this.choose({ layer: Math.min(state.layer + 1, run.facts.layers.length - 1) }),
      Enter: () => this.overview.open(state),
    };
    const anywhere: Record<string, () => void> = {
      ArrowLeft: () => this.time.move(isShift ? -10 : -1),
      ArrowRight: () => this.time.move(isShift ? 10 : 1),
      Home: () => this.time.move(-run.count),
      End: () => this.time.move(run.count),
      p: () => this.time.play(),
      s: () => this.choose({ scale: scaleOf(state.kind, state.scale) === "run" ? "frame" : "run" }),
      d: () => this.turnTheme(),
    };
    if (place === "picture" && this.inspector.moveCursor(key)) return true;
    const kind = run.kindsOf(state.layer)[Number(key) - 1];
    const act =
      (place === "map" ? inMap[key] : undefined) ??
      anywhere[key.length === 1 ? key.toLowerCase() : key] ??
      (kind ? (): void => this.choose({ kind }) : undefined);
    act?.();
    return act !== undefined;
  }
}
