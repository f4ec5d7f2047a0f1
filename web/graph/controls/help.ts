// The overlay that lists the keys.

import { button, el } from "../../shared/dom";
import type { Command } from "./keyboard";

const POINTER: [string[], string][] = [
  [["click"], "open or close a box; details of an operation or an edge"],
  [["Ctrl-click"], "select a box without opening it"],
  [["Shift-click"], "path from what is selected to this"],
  [["drag"], "move"],
  [["wheel, pinch"], "zoom"],
  [["Shift-wheel"], "move sideways"],
];
const SEARCH =
  "Words that must all be there: label, address, function, class, shape (1×64×56×56 or 1,64,56,56), dtype, source. /…/ is a regular expression. class:, type:, shape:, dtype:, address:, source: and the like look in one place only.";

export class Help {
  readonly element: HTMLDialogElement;

  constructor(commands: Command[], onClose: () => void) {
    const groups = [...new Set(commands.map((command) => command.group))].map((group) =>
      keyList(
        group,
        commands.filter((command) => command.group === group).map(({ keys, title }) => [keys, title]),
      ),
    );
    const search = el("section", {}, el("h3", { text: "Search" }), el("p", { class: "note", text: SEARCH }));
    const close = button("×", "Close (Esc)", onClose, { class: "close" });
    this.element = el(
      "dialog",
      { class: "help", label: "Help" },
      close,
      el("h2", { text: "Keys" }),
      el("div", { class: "help-groups" }, ...groups, keyList("Pointer", POINTER), search),
    );
    this.element.addEventListener("cancel", (event) => {
      event.preventDefault();
      onClose();
    });
    this.element.addEventListener("click", (event) => {
      if (event.target === this.element) onClose();
    });
  }

  show(isOpen: boolean): void {
    if (isOpen === this.element.open) return;
    if (isOpen) this.element.showModal();
    else this.element.close();
  }
}

function keyList(title: string, keys: [string[], string][]): HTMLElement {
  const rows = keys.flatMap(([names, text]) => [el("dt", {}, ...written(names)), el("dd", { text })]);
  return el("section", {}, el("h3", { text: title }), el("dl", {}, ...rows));
}

function written(keys: string[]): Node[] {
  const shown = keys.length > 4 ? [keys[0]!, "…", keys.at(-1)!] : keys;
  return shown.flatMap((key, i) => [...(i ? [document.createTextNode(" ")] : []), el("kbd", { text: key })]);
}
