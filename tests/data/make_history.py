"""Made `history_v1.safetensors`, when version 1 of the format was new: `python tests/data/make_history.py PATH`.

A file of each version stays here, and stays readable; it is not made again.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import torcheer


class Small(nn.Module):
    """A loop, views, a write in place, several outputs, a read by Python, sparse and reduced types."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor, scale: float = 2.0) -> dict[str, Tensor]:
        y = torch.relu_(self.norm(self.conv(x))).flatten(1)
        for _ in range(3):
            y = torch.tanh(self.fc(y)) * scale
        left, right = y.chunk(2, -1)
        if bool(left.sum() > -1e6):
            right = right.bfloat16()
        values, places = y.max(-1)
        sparse = torch.eye(2).to_sparse()
        return {"left": left, "right": right, "values": values, "places": places, "sparse": torch.sparse.mm(sparse, y)}


def main(path: str) -> None:
    torch.manual_seed(0)
    history = torcheer.log_forward_pass(Small(), torch.rand(2, 1, 4, 4), {"scale": 1.5}, save_gradients=True, random_seed=7)
    history.log_backward(history["output_1"].activation.sum())
    history.save(path, params=True, sources=False)


if __name__ == "__main__":
    main(sys.argv[1])
