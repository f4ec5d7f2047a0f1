// Light and dark: what the reader chose, or else what the screen prefers; and what the browser remembers.

import { THEMES, type Theme } from "./color";

export type ThemeChoice = "auto" | Theme["name"];

/** Says when the screen turns dark or light. */
export const screenScheme = (): MediaQueryList => matchMedia("(prefers-color-scheme: dark)");

export function themeFor(choice: ThemeChoice, isScreenDark: boolean): Theme {
  return THEMES[choice === "auto" ? (isScreenDark ? "dark" : "light") : choice];
}

export function applyTheme(theme: Theme): void {
  document.documentElement.dataset["theme"] = theme.name;
}

export function asChoice(value: unknown): ThemeChoice {
  return value === "light" || value === "dark" ? value : "auto";
}

/** What was remembered under a key; null where there is nothing, or the browser keeps nothing for this page. */
export function remembered(key: string): unknown {
  try {
    return JSON.parse(localStorage.getItem(key) ?? "null");
  } catch {
    return null;
  }
}

export function remember(key: string, value: unknown): void {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // it lasts until the page is closed
  }
}
