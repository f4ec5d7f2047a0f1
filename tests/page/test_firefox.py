"""The page and the report work in Firefox as they do in Chromium, where all else is tested."""

from __future__ import annotations

import pytest
import torch

from firefox import Firefox
from models import log
from torcheer.demo import AlexNet
from torcheer.xray.report import write_report
from xray_runs import make_entry, write_run

IS_DRAWN = """(() => {
    const canvas = document.querySelector(%r);
    if (!canvas || !canvas.width) return false;
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const seen = new Set();
    for (let i = 0; i < data.length; i += 64) seen.add(data.slice(i, i + 3).join());
    return seen.size > 8;
})()"""


def find(firefox: Firefox, key: str) -> dict[str, float]:
    return firefox.ask(f"page.__torcheer.find({key!r})")


def settle(firefox: Firefox) -> None:
    firefox.until("Boolean(page.__torcheer) && page.__torcheer.frames() > 0 && !page.__torcheer.isBusy()")


@pytest.mark.parametrize("size", [(1440, 900), (500, 844)], ids=["laptop", "narrow"])
def test_a_page_opens_whole_and_its_modules_open(firefox, tmp_path, size):
    torch.manual_seed(0)
    path = log(AlexNet(num_classes=10).eval(), torch.rand(1, 3, 64, 64)).to_html(tmp_path / "page.html")
    firefox.open(path, size)
    settle(firefox)
    assert firefox.ask(IS_DRAWN % ".graph")
    frame = firefox.ask("document.querySelector('[data-canvas]').getBoundingClientRect()")
    seen = firefox.ask("page.__torcheer.seen()")
    top, bottom = min(item["y"] for item in seen), max(item["y"] + item["h"] for item in seen)
    assert frame["top"] <= top <= bottom <= frame["bottom"]
    assert bottom - top >= frame["height"] / 2
    item = find(firefox, "features:1")
    firefox.click(item["x"] + item["w"] / 2, item["y"] + 16)
    settle(firefox)
    assert find(firefox, "features:1")["isOpen"]
    assert find(firefox, "conv2d_1_1:1") is not None
    firefox.press("c")
    settle(firefox)
    assert not find(firefox, "features:1")["isOpen"]
    firefox.press("h")
    settle(firefox)
    assert find(firefox, "classifier:1")["x"] > find(firefox, "features:1")["x"]


def test_a_report_draws_its_pictures(firefox, tmp_path):
    kept = torch.randn(6, 3, 5, 5)
    entries = [(make_entry("conv", "weight", kept, "filters"), kept)]
    run = write_run(tmp_path / "run", dict.fromkeys(range(4), entries), metrics=[{"loss": 1.0 / (1 + at)} for at in range(4)])
    firefox.open(write_report(run, tmp_path / "report.html"), (1440, 900))
    firefox.until("!document.querySelector('#main').hidden")
    firefox.until(IS_DRAWN % "#picture")
    firefox.until(IS_DRAWN % "#gallery canvas")
    assert firefox.ask("document.querySelector('#metric-value').textContent") == "0.25"
