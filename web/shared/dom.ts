// Makes elements. Words are only ever set as text, so nothing in a payload can become markup.

type Child = Node | string | null | undefined | false;

export interface Options {
  class?: string;
  id?: string;
  title?: string;
  type?: string;
  role?: string;
  label?: string; // aria-label
  text?: string;
  value?: string;
  placeholder?: string;
  tabIndex?: number;
  hidden?: boolean;
  disabled?: boolean;
  pressed?: boolean;
  expanded?: boolean;
  on?: Partial<{ [K in keyof HTMLElementEventMap]: (event: HTMLElementEventMap[K]) => void }>;
  data?: Record<string, string>;
}

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  options: Options = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (options.class) made.className = options.class;
  if (options.id) made.id = options.id;
  if (options.title) made.title = options.title;
  if (options.text !== undefined) made.textContent = options.text;
  if (options.hidden) made.hidden = true;
  if (options.tabIndex !== undefined) made.tabIndex = options.tabIndex;
  for (const name of ["type", "role", "value", "placeholder"] as const) {
    const value = options[name];
    if (value !== undefined) made.setAttribute(name, value);
  }
  if (options.label) made.setAttribute("aria-label", options.label);
  if (options.pressed !== undefined) made.setAttribute("aria-pressed", String(options.pressed));
  if (options.expanded !== undefined) made.setAttribute("aria-expanded", String(options.expanded));
  if (options.disabled) made.setAttribute("disabled", "");
  for (const [name, value] of Object.entries(options.data ?? {})) made.dataset[name] = value;
  for (const [name, handler] of Object.entries(options.on ?? {})) made.addEventListener(name, handler as EventListener);
  made.append(...children.filter((child): child is Node | string => child !== null && child !== undefined && child !== false));
  return made;
}

export function button(
  text: string,
  label: string,
  onClick: (event: MouseEvent) => void,
  options: Options = {},
): HTMLButtonElement {
  return el("button", { type: "button", text, label, title: label, ...options, on: { click: onClick, ...options.on } });
}

export function replace(parent: Element, ...children: Child[]): void {
  parent.replaceChildren(...children.filter((child): child is Node | string => Boolean(child)));
}

/** The element of the page with an id. */
export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`The page has no element "${id}".`);
  return found as T;
}
