"""Trains a small network to tell the direction of stripes, and watches its layers learn.

    python examples/train_xray.py --steps 300 --folder xray_demo

The pictures are made here, nothing is downloaded. It takes some ten seconds on one core and leaves a report to open in a
browser, an animation of the first filters, and a figure of the last step.
"""

from __future__ import annotations

import argparse
import math
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torcheer import Xray

DIRECTIONS = 6
SIDE = 24


class Stripes(nn.Module):
    """Two convolutions and a head: functions and modules, as they come in real code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 7, padding=3, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        nn.init.normal_(self.conv1.weight, std=0.02)  # small, so that what is learned is seen
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(32 * 6 * 6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, DIRECTIONS)
        )

    def forward(self, pictures: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(pictures))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        scores: Tensor = self.head(x)
        return scores


def make_pictures(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noisy stripes in one of six directions, of any width and place, and which direction it is."""
    labels = torch.randint(DIRECTIONS, (count,), generator=generator)
    angle = (labels + 0.6 * (torch.rand(count, generator=generator) - 0.5)) * math.pi / DIRECTIONS
    waves = 2 + 2 * torch.rand(count, generator=generator)
    phase = 2 * math.pi * torch.rand(count, generator=generator)
    rows, columns = torch.meshgrid(torch.linspace(0, 1, SIDE), torch.linspace(0, 1, SIDE), indexing="ij")
    across = columns * angle.cos().view(-1, 1, 1) + rows * angle.sin().view(-1, 1, 1)
    stripes = (2 * math.pi * waves.view(-1, 1, 1) * across + phase.view(-1, 1, 1)).sin()
    noise = 2 * torch.randn(count, SIDE, SIDE, generator=generator)
    return (stripes + noise).unsqueeze(1), labels


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network and watch its layers learn.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=Path("xray_demo"))
    options = parser.parse_args()

    run_folder = options.folder / "run"
    if (run_folder / "run.json").exists():
        shutil.rmtree(run_folder)  # of an earlier time; an Xray would go on with it

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    pictures, labels = make_pictures(512, generator)
    model = Stripes()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    # The first line: what to watch, and with what. The loss gives the gradients of the layers' outputs.
    xray = Xray(
        model,
        pictures[:16],
        ["conv1", "conv2", "head.1"],
        folder=run_folder,
        loss_fn=F.cross_entropy,
        target=labels[:16],
        optimizer=optimizer,
        every=max(1, options.steps // 50),
    )

    for step in range(options.steps):
        batch, answers = make_pictures(64, generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), answers)
        loss.backward()
        xray.take_graphs(step)  # the second line; here the gradients are those of this batch
        optimizer.step()

    model.eval()
    with torch.no_grad():
        accuracy = float((model(pictures).argmax(1) == labels).float().mean())
    print(f"{options.steps} steps, {accuracy:.0%} of {len(labels)} new pictures are told right\n")
    print(xray.saved())
    print(f"\nwatching took {xray.cost['share']:.0%} of the time")
    xray.close()

    print("\nReport:", xray.report(options.folder / "report.html"))
    print("Animation:", xray.gif("conv1", "weight", options.folder / "conv1_weight.gif"))
    xray.show_last_graphs()  # prints where the figure is


if __name__ == "__main__":
    main()
