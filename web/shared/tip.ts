// Places tips beside the pointer.

import { clamp } from "./scale";

/** Puts an element of fixed position beside a point of the window, on the side where there is room. */
export function placeBeside(element: HTMLElement, x: number, y: number): void {
  const { width, height } = element.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? x - 14 - width : x + 16;
  const top = y + 18 + height > innerHeight ? y - 14 - height : y + 18;
  element.style.left = `${Math.round(clamp(left, 4, innerWidth - width - 4))}px`;
  element.style.top = `${Math.round(Math.max(top, 4))}px`;
}
