"""Makes the two screenshots of the README: `python docs/gallery/screenshots.py`, with Playwright and a Chromium or Chrome."""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from playwright.sync_api import sync_playwright

import torcheer
from torcheer.demo import Gpt2

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from browser import browser_path  # noqa: E402 - lies with the tests

SELECTED = "softmax_1_18:1"  # an attention map


def main() -> None:
    """Make both."""
    with tempfile.TemporaryDirectory() as folder:
        shoot_viewer(Path(folder))
        shoot_xray(Path(folder))


def shoot_viewer(folder: Path) -> None:
    """The viewer with a decoder in it and an attention map selected."""
    torch.manual_seed(0)
    with torch.no_grad():
        history = torcheer.log_forward_pass(Gpt2(), torch.randint(50257, (1, 32)))
    page_file = history.to_html(folder / "gpt2.html")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        page = browser.new_context(offline=True, viewport={"width": 1400, "height": 860}).new_page()
        page.goto(f"{page_file.as_uri()}#node={SELECTED}")
        page.wait_for_timeout(2500)
        page.screenshot(path=folder / "viewer.png")
        browser.close()
    save_small(folder / "viewer.png", HERE / "viewer.png")


def shoot_xray(folder: Path) -> None:
    """What `show_last_graphs` shows of the example."""
    sys.argv = ["train_xray.py", "--steps", "120", "--folder", str(folder / "xray")]
    runpy.run_path(str(ROOT / "examples" / "train_xray.py"), run_name="__main__")
    last = max((folder / "xray" / "run" / "figures").glob("*.png"))
    save_small(last, HERE / "xray.png")


def save_small(source: Path, target: Path) -> None:
    """At most 1,400 pixels wide, with few colours."""
    picture = Image.open(source).convert("RGB")
    if picture.width > 1400:
        picture = picture.resize((1400, round(picture.height * 1400 / picture.width)), Image.Resampling.LANCZOS)
    picture.quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
