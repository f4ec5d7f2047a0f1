// The selection in the address of the page, so that a link leads to a node and the browser's back button works.

import type { Selection } from "./state";

const KINDS = { unit: "node", box: "module" } as const;

/** `node=relu_1_2:1`, `module=features.6:1`, `edge=a&to=b`; with `side=2` for the second of two models. */
export function writeHash(selection: Selection | null): string {
  if (!selection) return "";
  const parts: Record<string, string> =
    selection.kind === "edge" ? { edge: selection.from, to: selection.to } : { [KINDS[selection.kind]]: selection.key };
  if (selection.side) parts["side"] = String(selection.side + 1);
  return Object.entries(parts)
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
    .join("&");
}

export function readHash(hash: string): Selection | null {
  const found = new URLSearchParams(hash.replace(/^#/, "").replaceAll("+", "%2B")); // a plus is a plus here
  const side = found.get("side") === "2" ? 1 : 0;
  const [node, module, edge, to] = ["node", "module", "edge", "to"].map((name) => found.get(name));
  if (node) return { kind: "unit", key: node, side };
  if (module) return { kind: "box", key: module, side };
  return edge && to ? { kind: "edge", from: edge, to, side } : null;
}

/** Keeps the address and the selection in step. In a frame the history belongs to the page around it and is left alone. */
export class Address {
  private written = "";

  constructor(
    private readonly isFrame: boolean,
    onChange: (selection: Selection | null) => void,
  ) {
    if (isFrame) return;
    this.written = location.hash.replace(/^#/, "");
    window.addEventListener("hashchange", () => {
      const now = location.hash.replace(/^#/, "");
      if (now === this.written) return;
      this.written = now;
      onChange(readHash(now));
    });
  }

  get selection(): Selection | null {
    return this.isFrame ? null : readHash(location.hash);
  }

  write(selection: Selection | null): void {
    const hash = writeHash(selection);
    if (this.isFrame || hash === this.written) return;
    this.written = hash;
    location.hash = hash;
    this.written = location.hash.replace(/^#/, ""); // as the browser spells it
  }
}
