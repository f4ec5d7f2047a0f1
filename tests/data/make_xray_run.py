"""Made `xray_run_v1`, when a run had an index of its snapshots: `python tests/data/make_xray_run.py FOLDER`.

A run of each version stays here, and stays readable; it is not made again.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from torcheer import Xray


def main(folder: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Xray(model, torch.ones(2, 4), ["0"], folder=folder, optimizer=optimizer) as xray:
        for step in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            xray.take_graphs(step, metrics={"loss": loss})


if __name__ == "__main__":
    main(sys.argv[1])
