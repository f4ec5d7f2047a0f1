// Makes elements. Words are only ever set as text, so nothing in a payload can become markup.

type Child = Node | string | null | undefined | false;

const ATTRIBUTES = ["class", "id", "title", "type", "role", "value", "placeholder"] as const;

export type Options = Partial<Record<(typeof ATTRIBUTES)[number], string>> & {
  label?: string; // aria-label
  aria?: Record<string, string | number | boolean>; // other aria attributes, by the rest of their names
  text?: string;
  tabIndex?: number;
  hidden?: boolean;
  on?: Partial<{ [K in keyof HTMLElementEventMap]: (event: HTMLElementEventMap[K]) => void }>;
};

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  options: Options = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const name of ATTRIBUTES) if (options[name]) made.setAttribute(name, options[name]);
  if (options.label) made.setAttribute("aria-label", options.label);
  for (const [name, value] of Object.entries(options.aria ?? {})) made.setAttribute(`aria-${name}`, String(value));
  if (options.text !== undefined) made.textContent = options.text;
  if (options.hidden) made.hidden = true;
  if (options.tabIndex !== undefined) made.tabIndex = options.tabIndex;
  for (const [name, handler] of Object.entries(options.on ?? {})) made.addEventListener(name, handler as EventListener);
  made.append(...children.filter(isThere));
  return made;
}

function isThere(child: Child): child is Node | string {
  return Boolean(child);
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
  parent.replaceChildren(...children.filter(isThere));
}

/** Makes the element with an id say something, and more where the pointer rests on it. */
export function write(id: string, text: string, title?: string): void {
  byId(id).textContent = text;
  if (title !== undefined) byId(id).title = title;
}

/** The element of the page with an id. */
export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`The page has no element "${id}".`);
  return found as T;
}
