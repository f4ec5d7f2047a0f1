// Starts the report in its page.

import { byId } from "../shared/dom";
import { App, startTheme } from "./app";
import { readRun } from "./data/run";

const theme = startTheme();
document.addEventListener("DOMContentLoaded", () => void start());

async function start(): Promise<void> {
  const textOf = (id: string): string => byId(id).textContent ?? "";
  try {
    const app = new App(await readRun(textOf), theme, textOf);
    byId("main").hidden = false;
    app.redraw();
  } catch (error) {
    const isOld = typeof DecompressionStream === "undefined";
    byId("trouble").textContent = isOld
      ? "This browser is too old for the report: it needs one from 2023 or newer."
      : `The report could not be read: ${error instanceof Error ? error.message : String(error)}`;
    byId("trouble").hidden = false;
    throw error;
  }
}
