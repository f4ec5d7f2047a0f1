// Draws a scene with a painter: only what lies inside an area, and only as much as can be seen at a scale.

import type { Theme } from "../../shared/color";
import * as format from "../../shared/format";
import type { Paint } from "./coloring";
import { controlsWidth, runControls } from "../pane/controls";
import { EDGE_WIDTHS, edgeLines, endsAtChild } from "./edge_lines";
import { isBox } from "../model/hierarchy";
import { CHIP_HEIGHT, HEADER, LINE } from "./look";
import type { Line, Painter } from "./paint";
import { type Motion, type Picture, type Places, type Rect, rectOf } from "./picture";
import { Shape, addHead, addRoute } from "./shapes";
import type { LocalGraph } from "../layout/wiring";

const READABLE_SCALE = 0.55; // below this only titles, larger
const DIMMED = 0.22;
const SMALL_HEADER = 10; // pixels: a lower header has no room for a title that can be read
const SMALL_TITLE = 9; // pixels

export function drawScene(painter: Painter, picture: Picture, area: Rect, scale: number, motion: Motion | null): void {
  new Drawer(painter, picture, area, scale, motion).item(0);
}

class Drawer {
  private readonly places: Places;

  constructor(
    private readonly painter: Painter,
    private readonly picture: Picture,
    private readonly area: Rect,
    private readonly scale: number,
    private readonly motion: Motion | null,
  ) {
    this.places = motion ?? picture.scene;
  }

  /** Where an item is now. */
  private rect(i: number): Rect {
    return rectOf(this.places, i);
  }

  item(i: number): void {
    const { area, picture } = this;
    const { x, y, w, h } = this.rect(i);
    const isBelow = y > area.y + area.h || y + h < area.y;
    if (isBelow || x > area.x + area.w || x + w + 120 < area.x) return; // a loop may stand out at the right
    if (!picture.scene.view.items[i]!.isOpen) this.closed(i);
    else this.open(i);
  }

  // Open boxes ------------------------------------------------------------------------------------------------------

  private open(i: number): void {
    const { scene } = this.picture;
    const item = scene.view.items[i]!;
    if (i > 0) this.frame(i);
    if (this.rect(i).h * this.scale < 4) return;
    this.edges(i);
    for (const child of item.children) this.item(child);
    if (i > 0) this.header(i);
    this.painter.opacity(1);
  }

  private frame(i: number): void {
    const { theme, scene } = this.picture;
    const { child, block, depth } = scene.view.items[i]!;
    const isDashed = block < 0 && scene.view.hierarchy.boxes[~child]!.kind !== "module";
    const { x, y, w, h } = this.rect(i);
    this.painter.opacity(this.opacity(i, true));
    const line: Line = { color: theme.insideBorder, width: Math.max(1.2, 0.7 / this.scale), dash: isDashed ? [6, 4] : [] };
    for (const offset of block >= 0 ? [8, 4] : []) {
      this.painter.box(x + offset, y + offset, w, h, 12, headerFill(theme, depth), line);
    }
    this.painter.box(x, y, w, h, 12, insideFill(theme, depth), line);
    this.rings(i, 12);
  }

  private header(i: number): void {
    const { theme, scene, marks } = this.picture;
    const face = scene.faces[i]!;
    const { x, y, w } = this.rect(i);
    this.painter.opacity(this.opacity(i, true));
    if (HEADER * this.scale < SMALL_HEADER) {
      this.title(i);
      return;
    }
    const fill = marks.hovered === i ? theme.chip : headerFill(theme, scene.view.items[i]!.depth);
    this.painter.box(x + 0.6, y + 0.6, w - 1.2, HEADER - 1, 11, fill, null);
    this.painter.box(x + 0.6, y + HEADER / 2, w - 1.2, HEADER / 2, 0, fill, null);
    this.matchBadge(i, x + w - 4, y - 6);
    const middle = y + HEADER / 2;
    const size = this.scale < READABLE_SCALE ? Math.min(HEADER * 0.8, Math.max(16, 10 / this.scale)) : 13;
    const controls = controlsWidth(scene, i) + (face.badgeWidth ? face.badgeWidth + 10 : 0);
    const titleWidth = face.titleWidth * (size / 13);
    const left = this.inSight(x, w - controls - 36 - titleWidth);
    const room = x + w - left - 36 - controls;
    this.chevron(left + 14, middle, true, theme.faint);
    this.painter.words(fitted(face.title, titleWidth, room), left + 24, middle + 0.5, size, 600, theme.ink);
    if (this.scale < 0.3) return;
    if (face.kind && titleWidth + 8 + face.kind.length * 6 < room) {
      this.painter.words(face.kind, left + 24 + titleWidth + 8, middle + 1, 11, 400, theme.faint);
    }
    const right = x + w - 10 - controlsWidth(scene, i);
    if (face.badge) this.badge(face.badge, right - face.badgeWidth, middle, face.badgeWidth);
    for (const control of runControls(scene, i, x, y, w)) {
      this.painter.box(control.x, control.y, control.w, control.h, 5, theme.box, { color: theme.insideBorder, width: 1 });
      const [middleX, middleY] = [control.x + control.w / 2, control.y + control.h / 2 + 0.5];
      this.painter.words(control.text, middleX, middleY, 11, 600, theme.ink, "center");
    }
  }

  /** The title of an open box that is far away: on the screen as large as ever, where the box has room for it. */
  private title(i: number): void {
    const { theme, scene } = this.picture;
    const face = scene.faces[i]!;
    const { x, y, w, h } = this.rect(i);
    const size = SMALL_TITLE / this.scale;
    const shown = fitted(face.title, (face.titleWidth * size) / 13, w - size);
    if (shown.length < Math.min(3, face.title.length) || h < 2.5 * size) return;
    const width = (face.titleWidth * size * shown.length) / (13 * face.title.length);
    this.painter.box(x, y, Math.min(w, width + size), 1.5 * size, 0.4 * size, headerFill(theme, scene.view.items[i]!.depth), null);
    this.painter.words(shown, x + size / 2, y + 0.78 * size, size, 600, theme.ink);
  }

  /** The left side of a title: that of its box, or of the screen when the box begins left of it. */
  private inSight(x: number, most: number): number {
    return x + Math.max(0, Math.min(this.area.x - x, most));
  }

  // Edges -----------------------------------------------------------------------------------------------------------

  private edges(i: number): void {
    const { scene, theme, marks } = this.picture;
    const local = scene.locals.get(i)!;
    const { x: dx, y: dy, w } = this.rect(i);
    if (w * this.scale < 24 || !local.pieces.length) return;
    const moving = this.motion && this.motion.isRearranged(i) ? Math.max(0, this.motion.progress * 2 - 1) : 1;
    if (moving === 0) return;
    const lines = edgeLines(scene, local);
    const isDimmed = marks.bright !== null;
    this.painter.opacity(moving);
    const color = isDimmed ? theme.edgeFaint : theme.edge;
    const thin = this.scale < 0.25 ? 0.35 / this.scale : 0;
    lines.plain.forEach((shape, size) => {
      if (!shape.isEmpty) this.painter.stroke(shape, dx, dy, { color, width: Math.max(EDGE_WIDTHS[size]!, thin) });
    });
    if (!lines.dashed.isEmpty) this.painter.stroke(lines.dashed, dx, dy, { color, width: Math.max(1.4, thin), dash: [5, 4] });
    if (this.scale > 0.2) this.painter.fill(lines.heads, dx, dy, color);
    if (marks.links.size) this.coloredEdges(local, dx, dy);
    if (this.scale >= READABLE_SCALE) this.edgeLabels(i, local, dx, dy);
  }

  private coloredEdges(local: LocalGraph, dx: number, dy: number): void {
    const { scene, theme, marks } = this.picture;
    const colors = { in: theme.into, out: theme.outOf, on: theme.accent };
    const layout = scene.layouts.get(local.item)!;
    local.pieces.forEach((piece, p) => {
      const found = piece.links.find((link) => marks.links.has(link));
      if (found === undefined) return;
      const color = colors[marks.links.get(found)!];
      const [shape, heads] = [new Shape(), new Shape()];
      const isLast = endsAtChild(local, piece);
      addRoute(shape, layout.routes[p]!, isLast);
      if (isLast) addHead(heads, layout.routes[p]!);
      const width = Math.max(2.4, 1 / this.scale);
      this.painter.stroke(shape, dx, dy, { color, width, dash: piece.isFeedback ? [6, 4] : [] });
      if (isLast) this.painter.fill(heads, dx, dy, color);
    });
  }

  private edgeLabels(i: number, local: LocalGraph, dx: number, dy: number): void {
    const { scene, theme } = this.picture;
    const layout = scene.layouts.get(i)!;
    const depth = scene.view.items[i]!.depth;
    const back = i === 0 ? theme.page : insideFill(theme, depth);
    local.pieces.forEach((piece, p) => {
      if (!piece.label) return;
      const { labelX, labelY } = layout.routes[p]!;
      const width = piece.label.length * 5.6 + 8;
      this.painter.box(dx + labelX - width / 2, dy + labelY - 8, width, 16, 8, back, null);
      this.painter.words(piece.label, dx + labelX, dy + labelY + 0.5, 10.5, 400, theme.faint, "center");
    });
  }

  private loop(i: number): void {
    const { theme, scene } = this.picture;
    const { loop } = scene.view.items[i]!;
    if (loop === null) return;
    const { x: left, y, w, h } = this.rect(i);
    const x = left + w;
    const shape = new Shape();
    shape.move(x, y + h * 0.72);
    shape.curve(x + 26, y + h * 0.8, x + 26, y + h * 0.2, x + 6, y + h * 0.28);
    this.painter.stroke(shape, 0, 0, { color: theme.edge, width: 1.4, dash: [5, 4] });
    const head = new Shape();
    head.move(x + 1, y + h * 0.28);
    head.line(x + 8, y + h * 0.28 - 3.6);
    head.line(x + 8, y + h * 0.28 + 3.6);
    head.close();
    this.painter.fill(head, 0, 0, theme.edge);
    if (loop && this.scale >= READABLE_SCALE) this.painter.words(loop, x + 25, y + h / 2, 10.5, 400, theme.faint);
  }

  // Closed boxes and operations -------------------------------------------------------------------------------------

  private closed(i: number): void {
    const { scene, coloring, palette, marks } = this.picture;
    const item = scene.view.items[i]!;
    const { x, y, w, h } = this.rect(i);
    const isModule = isBox(item.child);
    const kind = isModule ? scene.view.hierarchy.boxes[~item.child]!.kind : null;
    const { theme } = this.picture;
    const isQuiet = kind === "chip";
    const colored = coloring.of(scene.view, i);
    const paint = isQuiet ? { ...colored, fill: theme.page, ink: theme.faint } : colored;
    this.painter.opacity(this.opacity(i, false));
    if (w * this.scale < 3 || h * this.scale < 3) {
      const isByType = coloring.legend.metric.name === "type";
      this.painter.box(x, y, w, h, 0, isByType ? paint.accent : paint.fill, null);
      return;
    }
    const category = palette.common(item.child);
    const radius = category === "input" || category === "output" ? Math.min(22, h / 2) : isModule ? 9 : 7;
    const solid = this.border(category, paint, isModule, marks.hovered === i);
    const line = isQuiet ? { color: solid.color === theme.accent ? theme.accent : theme.insideBorder, width: 1, dash: [3, 3] } : solid;
    const isStack = kind === "run" || kind === "ports";
    if (isStack) for (const offset of [8, 4]) this.painter.box(x + offset, y + offset, w, h, radius, paint.fill, line);
    this.painter.box(x, y, w, h, radius, paint.fill, line);
    this.rings(i, radius);
    const isFull = h > 0.8 * scene.faces[i]!.height; // while it grows there is no room for words
    if (isFull && this.scale < READABLE_SCALE) this.largeTitle(i, paint);
    else if (isFull) this.face(i, paint);
    if (category === null && !isQuiet && coloring.legend.metric.name === "type" && h * this.scale > 14) this.composition(i);
    this.loop(i);
    this.matchBadge(i, x + w - 4, y);
  }

  private border(category: string | null, paint: Paint, isModule: boolean, isHovered: boolean): Line {
    const { theme } = this.picture;
    const width = Math.max(isHovered ? 2 : isModule ? 1.4 : 1, 0.6 / this.scale);
    if (category === "failed") return { color: theme.categories.failed.accent, width: 3 };
    if (isModule || this.picture.coloring.legend.metric.name !== "type")
      return { color: isHovered ? theme.accent : theme.boxBorder, width };
    return { color: isHovered ? theme.accent : `${paint.accent}99`, width, dash: category === "constant" ? [4, 3] : [] };
  }

  private face(i: number, paint: Paint): void {
    const { scene, theme } = this.picture;
    const item = scene.view.items[i]!;
    const face = scene.faces[i]!;
    const { x, y, w, h } = this.rect(i);
    const isModule = isBox(item.child);
    if (isModule) this.chevron(x + 13, y + 18, false, paint.faint);
    else this.painter.box(x + 6, y + 8, 4, h - 16, 2, paint.accent, null);
    const left = x + (isModule ? 23 : 17);
    const room = w - (left - x) - 8 - (face.badgeWidth ? face.badgeWidth + 8 : 0);
    this.painter.words(fitted(face.title, face.titleWidth, room), left, y + 18, 13, 600, paint.ink);
    if (face.kind && face.titleWidth + 8 < room) {
      const kind = fitted(face.kind, face.kind.length * 5.8, room - face.titleWidth - 8);
      this.painter.words(kind, left + face.titleWidth + 8, y + 18.5, 11, 400, paint.faint);
    }
    if (face.badge) this.badge(face.badge, x + w - 8 - face.badgeWidth, y + 18, face.badgeWidth);
    let at = y + 34;
    for (const line of face.lines) {
      this.painter.words(line, left, at, 11, 400, paint.faint);
      at += LINE;
    }
    for (const chip of face.chips) {
      this.painter.box(left - 2, at - 6, chip.width, CHIP_HEIGHT, 8, theme.chip, { color: theme.boxBorder, width: 0.8 });
      this.painter.words(chip.text, left + 5, at + 2.5, 11, 400, theme.ink);
      at += CHIP_HEIGHT + 3;
    }
  }

  /** A title as large as the box allows, for when the rest could not be read. */
  private largeTitle(i: number, paint: Paint): void {
    const face = this.picture.scene.faces[i]!;
    const { x, y, w, h } = this.rect(i);
    const wanted = Math.min(10 / this.scale, h * 0.45);
    const widest = (13 * (w - 12)) / Math.max(1, face.titleWidth);
    const size = Math.min(wanted, Math.max(widest, 0.75 * wanted));
    if (size * this.scale < 5) return;
    const width = (face.titleWidth * size) / 13;
    const badge = face.badge && width + (face.badgeWidth * size) / 11 < w - 12 ? `  ${face.badge}` : "";
    this.painter.words(fitted(face.title, width, w - 8) + badge, x + w / 2, y + h / 2, size, 600, paint.ink, "center");
  }

  /** What kinds of operations are inside, as a strip along the bottom. */
  private composition(i: number): void {
    const { scene, theme, palette } = this.picture;
    const { x, y, w, h } = this.rect(i);
    const height = Math.max(4, 2 / this.scale);
    let at = x + 10;
    for (const [category, part] of palette.composition(~scene.view.items[i]!.child)) {
      const width = part * (w - 20);
      this.painter.box(at, y + h - 4 - height, Math.max(width - 0.5, 0.5), height, 0, theme.categories[category].accent, null);
      at += width;
    }
  }

  // Small parts -----------------------------------------------------------------------------------------------------

  private badge(text: string, x: number, y: number, width: number): void {
    const { theme } = this.picture;
    this.painter.box(x, y - 8, width, 16, 8, theme.chip, { color: theme.boxBorder, width: 0.8 });
    this.painter.words(text, x + width / 2, y + 0.5, 11, 600, theme.ink, "center");
  }

  private chevron(x: number, y: number, isOpen: boolean, color: string): void {
    const shape = new Shape();
    if (isOpen) {
      shape.move(x - 4, y - 2);
      shape.line(x, y + 2.5);
      shape.line(x + 4, y - 2);
    } else {
      shape.move(x - 2, y - 4);
      shape.line(x + 2.5, y);
      shape.line(x - 2, y + 4);
    }
    this.painter.stroke(shape, 0, 0, { color, width: 1.6 });
  }

  /** Lines around what is selected, found, or different. */
  private rings(i: number, radius: number): void {
    const { marks, theme } = this.picture;
    const isOpen = this.picture.scene.view.items[i]!.isOpen;
    const width = Math.max(2.5, 2 / this.scale);
    const { x, y, w, h } = this.rect(i);
    const ring = (distance: number, color: string, wide: number, dash: number[] = []): void => {
      const out = distance + wide / 2;
      this.painter.box(x - out, y - out, w + 2 * out, h + 2 * out, radius + out, null, { color, width: wide, dash });
    };
    const mark = marks.differences?.[i] ?? "";
    if (mark && !(isOpen && mark === "changed")) {
      const color = { left: theme.onlyLeft, right: theme.onlyRight, changed: theme.changed }[mark];
      ring(0.5, color, width, mark === "changed" ? [7, 4] : []);
    }
    if (marks.matches && marks.matches[i]! > 0 && !isOpen)
      ring(0.5, theme.match, i === marks.focusedMatch ? width * 1.5 : width);
    if (i === marks.selected || i === marks.other) ring(1.5, theme.accent, i === marks.other ? width : width * 1.1);
  }

  private matchBadge(i: number, x: number, y: number): void {
    const { marks, theme, scene } = this.picture;
    if (!isBox(scene.view.items[i]!.child)) return;
    const found = marks.matches?.[i] ?? 0;
    const differences = marks.hiddenDifferences?.[i] ?? "";
    const size = Math.min(Math.max(11, 9 / this.scale), 40);
    if (size * this.scale < 5) return;
    let right = x;
    const pill = (text: string, fill: string): void => {
      const width = (text.length * 6.4 * size) / 11 + size;
      this.painter.box(right - width, y - size * 0.8, width, size * 1.6, size * 0.8, fill, null);
      this.painter.words(text, right - width / 2, y + 0.5, size, 700, theme.name === "dark" ? "#16181D" : "#FFFFFF", "center");
      right -= width + 4;
    };
    if (found) pill(format.count(found), theme.match);
    if (differences) pill(differences, theme.changed);
  }

  private opacity(i: number, isFrame: boolean): number {
    const { marks } = this.picture;
    const appearing = this.motion && this.motion.isNew[i] ? this.motion.progress : 1;
    const isDim = marks.bright !== null && !marks.bright[i] && !isFrame;
    return appearing * (isDim ? DIMMED : 1);
  }
}

/** Text cut to a width, when its whole width is known. */
function fitted(text: string, width: number, room: number): string {
  if (width <= room) return text;
  const count = Math.floor((text.length * room) / width) - 1;
  return count > 0 ? `${text.slice(0, count)}…` : "";
}

function insideFill(theme: Theme, depth: number): string {
  return depth % 2 ? theme.insideOdd : theme.inside;
}

function headerFill(theme: Theme, depth: number): string {
  return depth % 2 ? theme.headerOdd : theme.header;
}
