// Every key and what it does; the help is made from the same list.

export interface Command {
  keys: string[]; // as they are written in the help
  title: string;
  group: "Move" | "Open and close" | "Find" | "Select" | "Show" | "Compare";
  run: (event: KeyboardEvent) => void;
}

const NAMES: Record<string, string> = {
  "←": "ArrowLeft",
  "→": "ArrowRight",
  "↑": "ArrowUp",
  "↓": "ArrowDown",
  Esc: "Escape",
  Space: " ",
};

/** Whether an event is what a text such as `Ctrl-F`, `Shift-↑`, `N` or `?` means. */
export function isKey(
  event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "shiftKey" | "altKey">,
  written: string,
): boolean {
  const parts = written.split("-");
  const last = written.endsWith("-") ? "-" : parts.at(-1)!;
  const modifiers = written.endsWith("-") ? parts.slice(0, -2) : parts.slice(0, -1);
  const name = NAMES[last] ?? last;
  const isCommand = event.ctrlKey || event.metaKey;
  if (isCommand !== modifiers.includes("Ctrl") || event.altKey !== modifiers.includes("Alt")) return false;
  if (name.length === 1 && !modifiers.includes("Shift") && !isCommand) return event.key === name;
  if (event.shiftKey !== modifiers.includes("Shift")) return false;
  return event.key.toLowerCase() === name.toLowerCase();
}

/** Runs the command of a key, unless something that takes text has the focus. */
export function listen(commands: Command[]): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented) return;
    const target = event.target as HTMLElement;
    const takesText =
      target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
    const isPressed = (event.key === "Enter" || event.key === " ") && target.closest("button, summary, a") !== null;
    const command = commands.find((one) => one.keys.some((key) => isKey(event, key)));
    if (!command || isPressed) return;
    if (takesText && !event.ctrlKey && !event.metaKey && event.key !== "Escape") return;
    event.preventDefault();
    command.run(event);
  });
}
