// Starts the report in its page.

import { byId, write } from "../shared/dom";
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
    const said = error instanceof Error ? error.message : String(error);
    const old = "This browser is too old for the report: it needs one from 2023 or newer.";
    write("trouble", isOld ? old : `The report could not be read: ${said}`);
    byId("trouble").hidden = false;
    throw error;
  }
}
