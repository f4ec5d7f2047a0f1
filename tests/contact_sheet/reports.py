"""The report of an Xray: of a small network, and of one layer, on a laptop and a telephone, as a whole page."""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from torcheer import Xray

from .sheet import Sheet

ROOT = Path(__file__).resolve().parent.parent.parent
SIZES = {"laptop": (1440, 900), "telephone": (390, 844)}


def stripes(folder: Path) -> Path:
    """The report of the example."""
    before = sys.argv
    sys.argv = ["train_xray.py", "--steps", "60", "--folder", str(folder)]
    try:
        runpy.run_path(str(ROOT / "examples" / "train_xray.py"), run_name="__main__")
    finally:
        sys.argv = before
    return folder / "report.html"


def one_layer(folder: Path) -> Path:
    """The report of one linear layer, with two metrics."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 1)), torch.rand(32, 8)
    target = x.sum(1, keepdim=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    xray = Xray(model, x[:4], ["0"], folder=folder / "run", every=1)
    for step in range(20):
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        xray.take_graphs(step, metrics={"loss": loss, "learning rate": 0.1 * 0.9**step})
        optimizer.step()
    xray.close()
    return xray.report(folder / "report.html")


def add_to(sheet: Sheet, only: str = "") -> None:
    """Take the pictures."""
    for name, make in {"a small network": stripes, "one layer": one_layer}.items():
        if only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            report = make(Path(folder))
            for title, size in SIZES.items():
                sheet.shoot(report, "The report of an Xray", f"{name}, {title}", size, is_whole=True)
