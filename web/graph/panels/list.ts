// A long list of which the page holds only the rows on the screen.

import { el } from "../../shared/dom";

interface ListOptions {
  rowHeight: number;
  role: string;
  label: string;
  row: (index: number) => HTMLElement;
  onKey?: (event: KeyboardEvent) => void;
}

const BEYOND = 6; // rows above and below what is seen
const TALLEST = 8_000_000; // pixels a browser can scroll

/** The index after another one, or before it, around the ends; from -1, the first or the last. */
export function stepped(at: number, by: number, count: number): number {
  return at < 0 ? (by > 0 ? 0 : count - 1) : (at + by + count) % count;
}

export class List {
  readonly element: HTMLElement;
  private readonly inner: HTMLElement;
  private count = 0;
  private first = -1;
  private last = -1;

  constructor(private readonly options: ListOptions) {
    this.inner = el("div", { class: "list-inner" });
    const { role, label } = options;
    this.element = el("div", { class: "list", role, label, tabIndex: 0 }, this.inner);
    this.element.addEventListener("scroll", () => this.render(false), { passive: true });
    if (options.onKey) this.element.addEventListener("keydown", options.onKey);
    new ResizeObserver(() => this.render(false)).observe(this.element);
  }

  /** Shows so many rows, made anew. */
  show(count: number): void {
    this.count = count;
    this.inner.style.height = `${Math.min(TALLEST, count * this.options.rowHeight)}px`;
    this.render(true);
  }

  refresh(): void {
    this.render(true);
  }

  scrollTo(index: number): void {
    const { rowHeight } = this.options;
    const at = index * rowHeight * this.squeeze();
    const { scrollTop, clientHeight } = this.element;
    if (at < scrollTop + rowHeight || at + 2 * rowHeight > scrollTop + clientHeight) {
      this.element.scrollTop = Math.max(0, at - clientHeight / 3);
    }
  }

  get pageRows(): number {
    return Math.max(1, Math.floor(this.element.clientHeight / this.options.rowHeight) - 1);
  }

  /** Lists taller than a browser can scroll move faster than they are scrolled. */
  private squeeze(): number {
    const { rowHeight } = this.options;
    const [full, most] = [this.count * rowHeight, Math.min(TALLEST, this.count * rowHeight)];
    const height = this.element.clientHeight;
    return full > most && full > height ? (most - height) / (full - height) : 1;
  }

  private render(isNew: boolean): void {
    const { rowHeight, row } = this.options;
    const height = this.element.clientHeight;
    if (!height) return;
    const top = this.element.scrollTop / this.squeeze();
    const first = Math.max(0, Math.floor(top / rowHeight) - BEYOND);
    const last = Math.min(this.count, Math.ceil((top + height) / rowHeight) + BEYOND);
    if (!isNew && first === this.first && last === this.last) return;
    this.first = first;
    this.last = last;
    const rows: HTMLElement[] = [];
    const shift = this.element.scrollTop - top;
    for (let i = first; i < last; i++) {
      const made = row(i);
      made.classList.add("row");
      made.style.transform = `translateY(${i * rowHeight + shift}px)`;
      made.style.height = `${rowHeight}px`;
      rows.push(made);
    }
    this.inner.replaceChildren(...rows);
  }
}
