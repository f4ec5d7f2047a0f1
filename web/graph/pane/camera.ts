// Which part of the plane is on the screen. Screen = plane × scale + (x, y).

import type { Rect } from "../drawing/picture";

export interface Camera {
  scale: number;
  x: number;
  y: number;
}

const SMALLEST = 0.0005;
const LARGEST = 4;
const MARGIN = 24;
const COMFORTABLE = 0.62; // below this the words on boxes are not drawn
export const READABLE = 0.7; // the smallest scale of a first look, where the model can be closed far enough
export const TITLES = 0.3; // below this not even the titles can be read
const ENLARGED = 2.2; // of a very small model
const SPANNED = 0.62; // of the height, by a small model

export function toPlane(camera: Camera, x: number, y: number): [number, number] {
  return [(x - camera.x) / camera.scale, (y - camera.y) / camera.scale];
}

/** The part of the plane that a screen of some size shows. */
export function areaOf(camera: Camera, width: number, height: number): Rect {
  return { x: -camera.x / camera.scale, y: -camera.y / camera.scale, w: width / camera.scale, h: height / camera.scale };
}

export function panned(camera: Camera, dx: number, dy: number): Camera {
  return { scale: camera.scale, x: camera.x + dx, y: camera.y + dy };
}

/** Zoomed by a factor, with one point of the screen staying where it is. */
export function zoomed(camera: Camera, factor: number, x: number, y: number): Camera {
  const scale = Math.min(LARGEST, Math.max(SMALLEST, camera.scale * factor));
  const part = scale / camera.scale;
  return { scale, x: x - (x - camera.x) * part, y: y - (y - camera.y) * part };
}

/** All of something on the screen, in the middle; larger than life only where it is small. */
export function fitting(rect: Rect, width: number, height: number): Camera {
  const tall = Math.max(40, height - 2 * MARGIN);
  const room = Math.min(Math.max(40, width - 2 * MARGIN) / Math.max(1, rect.w), tall / Math.max(1, rect.h));
  const wanted = Math.min(ENLARGED, Math.max(1, (SPANNED * height) / Math.max(1, rect.h)));
  const scale = Math.min(room, wanted);
  return { scale, x: width / 2 - (rect.x + rect.w / 2) * scale, y: height / 2 - (rect.y + rect.h / 2) * scale };
}

/** A first look: all of it if that can be read, or at least its titles; otherwise the top, as wide as can be read. */
export function opening(rect: Rect, width: number, height: number, least = COMFORTABLE): Camera {
  const whole = fitting(rect, width, height);
  if (whole.scale >= least) return whole;
  const wide = Math.min(1, (width - 2 * MARGIN) / Math.max(1, rect.w));
  const scale = Math.max(COMFORTABLE, Math.min(0.9, wide));
  const isTall = rect.h * scale > height;
  const y = isTall ? 2 * MARGIN - rect.y * scale : height / 2 - (rect.y + rect.h / 2) * scale;
  const isWide = rect.w * scale > width && rect.w > 2 * rect.h;
  return { scale, x: isWide ? 2 * MARGIN - rect.x * scale : width / 2 - (rect.x + rect.w / 2) * scale, y };
}

/** Moved, and zoomed if it has to be, so that something can be seen and read. */
export function showing(camera: Camera, rect: Rect, width: number, height: number, always = false): Camera {
  const scale = camera.scale < COMFORTABLE ? 0.9 : camera.scale;
  const [left, top] = [rect.x * camera.scale + camera.x, rect.y * camera.scale + camera.y];
  const [w, h] = [rect.w * camera.scale, Math.min(rect.h * camera.scale, height * 0.6)];
  const isSeen = left >= MARGIN && top >= MARGIN && left + w <= width - MARGIN && top + h <= height - MARGIN;
  if (!always && isSeen && scale === camera.scale) return camera;
  const isLarge = rect.h * scale > height * 0.8;
  const y = isLarge ? height * 0.12 - rect.y * scale : height / 2 - (rect.y + rect.h / 2) * scale;
  return { scale, x: width / 2 - (rect.x + rect.w / 2) * scale, y };
}

export function between(one: Camera, other: Camera, part: number): Camera {
  const scale = one.scale * (other.scale / one.scale) ** part;
  // What moves evenly is the point of the plane that is scaled about, so that zooming and moving end together.
  const mix = one.scale === other.scale ? part : (scale - one.scale) / (other.scale - one.scale);
  return { scale, x: one.x + (other.x - one.x) * mix, y: one.y + (other.y - one.y) * mix };
}
