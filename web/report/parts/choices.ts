// Groups of radio buttons.

import { byId, el } from "../../shared/dom";

const drawn = new Map<string, string>(); // by group: what it offers

/** A radio button of a group. */
export function radio<T extends string>(name: string, value: T, choose: (value: T) => void): HTMLInputElement {
  const input = el("input", { type: "radio", value, on: { change: () => choose(value) } });
  input.name = name;
  return input;
}

/** Fills the group with an id, where it offers something else than before: a value, a text and a title each. */
export function choices<T extends string>(
  id: string,
  options: [value: T, text: string, title: string][],
  chosen: string,
  choose: (value: T) => void,
): void {
  const group = byId(id);
  const key = JSON.stringify(options);
  if (drawn.get(id) !== key) {
    const hadFocus = group.contains(document.activeElement);
    group.replaceChildren(
      ...options.map(([value, text, title]) => el("label", { title }, radio(id, value, choose), text)),
    );
    drawn.set(id, key);
    if (hadFocus) group.querySelector<HTMLInputElement>(`[value="${chosen}"]`)?.focus();
  }
  for (const input of group.querySelectorAll("input")) input.checked = input.value === chosen;
}
