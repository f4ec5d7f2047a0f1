// Two ways to draw: on a canvas, and as SVG. What is drawn knows only the painter.

import { FAMILY } from "./look";
import type { Shape } from "./shapes";

type Align = "left" | "center" | "right";

export interface Line {
  color: string;
  width: number;
  dash?: number[];
}

export interface Painter {
  /** A box with round corners; without a fill or without a line when that is null. */
  box(x: number, y: number, w: number, h: number, radius: number, fill: string | null, line: Line | null): void;
  /** Words whose middle line is at y. `size` in pixels. */
  words(text: string, x: number, y: number, size: number, weight: number, color: string, align?: Align): void;
  /** A shape, moved to a place. */
  stroke(shape: Shape, dx: number, dy: number, line: Line): void;
  fill(shape: Shape, dx: number, dy: number, color: string): void;
  /** From here on, how opaque everything is. */
  opacity(value: number): void;
}

export class CanvasPainter implements Painter {
  private font = "";

  constructor(private readonly context: CanvasRenderingContext2D) {
    context.textBaseline = "middle";
    context.lineJoin = "round";
  }

  box(x: number, y: number, w: number, h: number, radius: number, fill: string | null, line: Line | null): void {
    const { context } = this;
    if (radius <= 0 && fill && !line) {
      context.fillStyle = fill;
      context.fillRect(x, y, w, h);
      return;
    }
    context.beginPath();
    context.roundRect(x, y, w, h, Math.max(0, Math.min(radius, w / 2, h / 2)));
    if (fill) {
      context.fillStyle = fill;
      context.fill();
    }
    if (line) {
      this.use(line);
      context.stroke();
    }
  }

  words(text: string, x: number, y: number, size: number, weight: number, color: string, align: Align = "left"): void {
    const { context } = this;
    const font = `${weight} ${size}px ${FAMILY}`;
    if (font !== this.font) context.font = this.font = font;
    context.textAlign = align;
    context.fillStyle = color;
    context.fillText(text, x, y);
  }

  stroke(shape: Shape, dx: number, dy: number, line: Line): void {
    const { context } = this;
    this.use(line);
    context.translate(dx, dy);
    context.stroke(shape.asPath());
    context.translate(-dx, -dy);
  }

  fill(shape: Shape, dx: number, dy: number, color: string): void {
    const { context } = this;
    context.fillStyle = color;
    context.translate(dx, dy);
    context.fill(shape.asPath());
    context.translate(-dx, -dy);
  }

  opacity(value: number): void {
    this.context.globalAlpha = value;
  }

  private use(line: Line): void {
    this.context.strokeStyle = line.color;
    this.context.lineWidth = line.width;
    this.context.setLineDash(line.dash ?? []);
  }
}

/** Collects SVG elements. Every text is escaped. */
export class SvgPainter implements Painter {
  private readonly parts: string[] = [];
  private opaque = 1;

  box(x: number, y: number, w: number, h: number, radius: number, fill: string | null, line: Line | null): void {
    const place = `x="${number(x)}" y="${number(y)}" width="${number(w)}" height="${number(h)}" rx="${number(radius)}"`;
    this.parts.push(`<rect ${place} fill="${fill ?? "none"}"${stroked(line)}${this.seen()}/>`);
  }

  words(text: string, x: number, y: number, size: number, weight: number, color: string, align: Align = "left"): void {
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    const place = `x="${number(x)}" y="${number(y)}" dy="0.35em" font-size="${number(size)}" font-weight="${weight}"`;
    this.parts.push(`<text ${place} fill="${color}" text-anchor="${anchor}"${this.seen()}>${escaped(text)}</text>`);
  }

  stroke(shape: Shape, dx: number, dy: number, line: Line): void {
    this.parts.push(`<path d="${shape.asSvg()}" fill="none"${moved(dx, dy)}${stroked(line)}${this.seen()}/>`);
  }

  fill(shape: Shape, dx: number, dy: number, color: string): void {
    this.parts.push(`<path d="${shape.asSvg()}" fill="${color}"${moved(dx, dy)}${this.seen()}/>`);
  }

  opacity(value: number): void {
    this.opaque = value;
  }

  /** A whole document that shows a part of the plane. */
  document(x: number, y: number, w: number, h: number, title: string): string {
    const view = [x, y, w, h].map(number).join(" ");
    const size = `width="${number(w)}" height="${number(h)}" viewBox="${view}"`;
    const head = `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="${escaped(FAMILY)}">`;
    return `${head}\n<title>${escaped(title)}</title>\n${this.parts.join("\n")}\n</svg>\n`;
  }

  private seen(): string {
    return this.opaque < 1 ? ` opacity="${number(this.opaque)}"` : "";
  }
}

function stroked(line: Line | null): string {
  if (!line) return "";
  const dash = line.dash?.length ? ` stroke-dasharray="${line.dash.join(" ")}"` : "";
  return ` stroke="${line.color}" stroke-width="${number(line.width)}" stroke-linejoin="round"${dash}`;
}

function moved(dx: number, dy: number): string {
  return dx || dy ? ` transform="translate(${number(dx)} ${number(dy)})"` : "";
}

function number(value: number): string {
  return String(Math.round(value * 100) / 100);
}

const ESCAPES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

/** Text for XML: special characters escaped, those XML has no place for left out. */
function escaped(text: string): string {
  return text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "")
    .replace(/[&<>"']/g, (found) => ESCAPES[found]!);
}
