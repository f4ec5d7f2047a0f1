// Starts the viewer in a page; the same script, run as a worker, serves layouts.

import { App } from "./app";
import { el } from "../shared/dom";
import { applyTheme, screenScheme, themeFor } from "../shared/theme";
import { inflate } from "../shared/unpacking";
import { serve } from "./layout/engine";
import { Doc } from "./model/model_index";
import { readPayload } from "./model/payload";
import { hookOf } from "./hook";
import { loadChoices } from "./state/choices";

async function start(source: string): Promise<void> {
  const root = document.getElementById("app") ?? document.body.appendChild(el("div", { id: "app" }));
  root.replaceChildren(el("p", { class: "loading", text: "Reading the model …" }));
  try {
    const texts = ["payload", "payload-2"].flatMap((id) => document.getElementById(id)?.textContent ?? []);
    if (!texts.length) throw new Error("This page holds no model.");
    const measure = measurer();
    const docs: Doc[] = [];
    for (const text of texts) docs.push(new Doc(readPayload(await inflate(text).text()), docs.length, measure));
    const app = new App(docs, source, window.self !== window.top);
    root.replaceChildren(app.parts.element);
    app.start();
    Object.defineProperty(window, "__torcheer", { value: hookOf(app) });
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    root.replaceChildren(el("p", { class: "loading error", text: `The model cannot be shown. ${text}` }));
    throw error;
  }
}

/** How wide words are on the canvas. */
function measurer(): (text: string, font: string) => number {
  const context = el("canvas").getContext("2d")!;
  let last = "";
  return (text, font) => {
    if (font !== last) context.font = last = font;
    return context.measureText(text).width;
  };
}

if (typeof document === "undefined") serve(self as unknown as Parameters<typeof serve>[0]);
else {
  const source = document.currentScript?.textContent ?? "";
  applyTheme(themeFor(loadChoices().theme ?? "auto", screenScheme().matches)); // before anything is seen
  document.addEventListener("DOMContentLoaded", () => void start(source));
}
