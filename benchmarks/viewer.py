"""Measures the viewer in a headless browser: `python -m benchmarks.viewer`. Prints a table against what is promised."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from playwright.sync_api import Browser, Page, sync_playwright
from torch import Tensor, nn

import torcheer
from torcheer.page import make_page

from .machine import describe_machine
from .models import ROOT
from .report import table

sys.path.insert(0, str(ROOT / "tests"))

from browser import BROWSERS, browser_path

LARGEST_PAGE = 60_000_000
REPEATS = 3
PATIENCE = 120  # seconds


# Models -------------------------------------------------------------------------------------------------------------


class Residual(nn.Sequential):
    """What its parts make of its input, and its input."""

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = super().forward(x)
        return x + changed


class Masked(nn.Module):
    """A block that reads a mask and a table."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x: Tensor, mask: Tensor, rotary: Tensor) -> Tensor:
        changed: Tensor = self.out(torch.relu(self.into((x @ mask) * rotary)))
        return x + changed


class Hub(nn.Module):
    """A mask and a table feed every one of 400 blocks, of which no two neighbours are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Masked(8 + i % 37) for i in range(400))

    def forward(self, x: Tensor) -> Tensor:
        mask, rotary = torch.tril(torch.ones(8, 8)), torch.sin(x).cos()
        for block in self.blocks:
            x = block(x, mask, rotary)
        return x


def nested(*counts: int, number: int = 0) -> nn.Module:
    """Blocks of four operations in groups of groups, of which no two neighbours are equal."""
    if not counts:
        width = 4 + number * number % 11
        return Residual(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 4))
    return nn.Sequential(*(nested(*counts[1:], number=number + i) for i in range(counts[0])))


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and how long things may take on its page, in milliseconds."""

    title: str
    build: Callable[[], tuple[nn.Module, Tensor]]
    budgets: dict[str, float]


QUICK = {"first paint": 1000, "open": 100, "close": 100, "search": 100, "select": 100, "pan": 1000 / 60}
LARGE = {"first paint": 6000, "open": 1000, "close": 1000, "search": 1000, "select": 1000, "pan": 1000 / 60}
CASES = [
    Case("10,000 operations", lambda: (nested(30, 84), torch.rand(1, 4)), QUICK),
    Case("hub", lambda: (Hub(), torch.rand(2, 8, 8)), QUICK),
    Case("100,000 operations", lambda: (nested(30, 10, 84), torch.rand(1, 4)), LARGE),
]

# What happens in the page ---------------------------------------------------------------------------------------------

# Runs something, and says how long it took until the picture of what it led to was drawn.
TIMED = """async ([what, value]) => {
  const hook = window.__torcheer;
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const key = (name) => document.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
  const acts = {
    key: () => key(value),
    twist: () => document.querySelectorAll(".tree .twist")[value].click(),
    search: () => {
      const field = document.querySelector("input[type=search]");
      field.value = value;
      field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
    },
  };
  await frame();
  const start = performance.now();
  const frames = hook.frames();
  acts[what]();
  while (hook.isWaiting() || hook.frames() === frames) await frame();
  return performance.now() - start;
}"""
PANNED = """async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const times = [];
  for (let i = 0; i < 60; i++) {
    const name = i % 20 < 10 ? "ArrowDown" : "ArrowUp";
    document.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
    await frame();
    times.push(window.__torcheer.lastDraw());
  }
  return times;
}"""
WATCH = """() => {
  window.longest = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
  }).observe({ entryTypes: ["longtask"] });
}"""


def settle(page: Page) -> None:
    until = time.monotonic() + PATIENCE
    while not page.evaluate("Boolean(window.__torcheer) && !window.__torcheer.isBusy()"):
        if time.monotonic() > until:
            raise TimeoutError(f"the page was still busy after {PATIENCE} seconds.")
        time.sleep(0.02)


def timed(page: Page, what: str, value: str | int) -> float:
    took = float(page.evaluate(TIMED, [what, value]))
    settle(page)
    return took


def measure(browser: Browser, path: Path, last: str) -> dict[str, float]:
    """Opens a page and works with it; `last` is the label of an operation deep inside."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(path.as_uri())
    settle(page)
    found: dict[str, float] = {"first paint": page.evaluate("window.__torcheer.firstDraw()")}
    found["boxes"] = page.evaluate("window.__torcheer.seen().filter((item) => !item.isOpen).length")
    page.evaluate("() => document.dispatchEvent(new KeyboardEvent('keydown', { key: '1', bubbles: true, cancelable: true }))")
    settle(page)
    found["open"], found["close"] = (timed(page, "twist", 0) for _ in range(2))
    found["search"] = timed(page, "search", f"label:{last}")
    found["select"] = timed(page, "key", ".")
    page.evaluate(WATCH)
    found["open all"] = timed(page, "key", "e")
    found["longest freeze"] = page.evaluate("window.longest")
    found["all boxes"] = page.evaluate("window.__torcheer.seen().filter((item) => item.kind === 'operation').length")
    found["pan"] = median(page.evaluate(PANNED))
    page.close()
    return found


# The table ------------------------------------------------------------------------------------------------------------


def run(case: Case, browser: Browser, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    model, x = case.build()
    history = torcheer.log_forward_pass(model.eval(), x, layers_to_save="none")
    start = time.perf_counter()
    path = make_page(history, max_bytes=LARGEST_PAGE).save(folder / "page.html")
    written = time.perf_counter() - start
    nodes = history.graph.nodes
    runs = [measure(browser, path, nodes[-5].label) for _ in range(REPEATS)]
    return {
        "operations": len(nodes),
        "megabytes": path.stat().st_size / 1e6,
        "written": written,
        **{name: median(one[name] for one in runs) for name in runs[0]},
    }


def report(results: dict[str, dict[str, Any]]) -> tuple[str, bool]:
    """The table, and whether every promise was kept."""
    rows, is_kept = [], True
    for case in CASES:
        found = results[case.title]
        is_whole = found["all boxes"] == found["operations"]
        is_kept &= is_whole and found["boxes"] <= 40
        rows.append([case.title, "page", "–", f"{found['megabytes']:.1f} MB, written in {found['written']:.1f} s", ""])
        rows.append(["", "boxes at first", "≤ 40", f"{found['boxes']:.0f}", "PASS" if found["boxes"] <= 40 else "MISS"])
        for name, budget in case.budgets.items():
            word = "PASS" if found[name] <= budget else "MISS"
            is_kept &= word == "PASS"
            rows.append(["", name, f"≤ {budget:.0f} ms", f"{found[name]:.1f} ms", word])
        whole = f"{found['all boxes']:,.0f} of {found['operations']:,} operations"
        said = f"{found['open all']:.0f} ms, {whole}, longest freeze {found['longest freeze']:.0f} ms"
        rows.append(["", "open all", "–", said, "PASS" if is_whole else "MISS"])
    return table("The viewer, medians", ["model", "", "must", "measured", ""], rows), is_kept


def main() -> int:
    program = browser_path()
    if program is None:
        print(f"There is no browser to measure in: install one of {', '.join(BROWSERS)}.", file=sys.stderr)
        return 1
    for name, value in describe_machine().items():
        print(f"{name.replace('_', ' ')}: {value}")
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for case in CASES:
            print(f"{case.title} …", file=sys.stderr, flush=True)
            results[case.title] = run(case, browser, Path(folder))
        browser.close()
    text, is_kept = report(results)
    print("\n" + text)
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
