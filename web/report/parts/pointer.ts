// Tips of charts and pictures.

import type { Guide } from "../guide";

/** Shows a tip about what is under the pointer on a canvas, and hides it where there is nothing to say. */
export function followPointer(guide: Guide, canvas: HTMLCanvasElement, textAt: (event: PointerEvent) => string): void {
  const show = (event: PointerEvent): void => {
    const text = textAt(event);
    if (text) guide.showTip(text, event.clientX, event.clientY);
    else guide.hideTip();
  };
  canvas.addEventListener("pointermove", show);
  canvas.addEventListener("pointerdown", show);
  canvas.addEventListener("pointerleave", () => guide.hideTip());
}
