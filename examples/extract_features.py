"""Trains two small networks that differ in their seed, and compares their layers; shows the pictures that units like best.

    python examples/extract_features.py --figures figures

The pictures are made here: circles, squares, triangles and crosses in six colours, of any size, at any place, on noise. A
network has to say which shape it is and which colour.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torcheer as tl
from torcheer.reducers import Mean, TopK

SHAPES, SIZE, DEPTH, WIDTH = 4, 24, 6, 24
COLORS = torch.tensor([[0.9, 0.2, 0.2], [0.2, 0.8, 0.2], [0.3, 0.4, 1.0], [0.9, 0.8, 0.2], [0.8, 0.3, 0.9], [0.9, 0.9, 0.9]])
LAYERS = [f"body.{depth}" for depth in range(DEPTH)]


def pictures(count: int, seed: int) -> TensorDataset:
    """Pictures, count × 3 × 24 × 24, the number of their shape, and that of their colour."""
    draw = torch.Generator().manual_seed(seed)
    shape = torch.randint(0, SHAPES, (count,), generator=draw)
    color = torch.randint(0, len(COLORS), (count,), generator=draw)
    radius = 4 + 4 * torch.rand(count, 1, 1, generator=draw)
    middle = 8 + (SIZE - 16) * torch.rand(2, count, 1, 1, generator=draw)
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    down, across = (rows - middle[0]) / radius, (columns - middle[1]) / radius
    inside = torch.stack(
        [
            down.square() + across.square() < 1,
            (down.abs() < 0.85) & (across.abs() < 0.85),
            (down < 0.8) & (down > 2 * across.abs() - 1),
            ((down.abs() < 0.3) | (across.abs() < 0.3)) & (down.abs() < 1) & (across.abs() < 1),
        ]
    )[shape, torch.arange(count)]
    noise = 0.35 * torch.rand(count, 3, SIZE, SIZE, generator=draw)
    return TensorDataset(torch.where(inside[:, None], COLORS[color][..., None, None], noise), shape, color)


class Network(nn.Module):
    """Convolutions, one after the other, and two answers."""

    def __init__(self) -> None:
        super().__init__()
        steps = []
        for depth in range(DEPTH):
            stride = 2 if depth in (0, 3) else 1
            convolution = nn.Conv2d(WIDTH if depth else 3, WIDTH, 3, stride, padding=1, bias=False)
            steps.append(nn.Sequential(convolution, nn.BatchNorm2d(WIDTH), nn.ReLU()))
        self.body = nn.Sequential(*steps)
        self.head = nn.Linear(WIDTH, SHAPES + len(COLORS))

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.body(pictures).mean((2, 3)))


def train(seed: int, steps: int) -> Network:
    torch.manual_seed(seed)
    model, data = Network(), pictures(2048, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(steps):
        batch, shape, color = data[torch.randint(0, len(data), (64,))]
        answer = model(batch)
        loss = F.cross_entropy(answer[:, :SHAPES], shape) + F.cross_entropy(answer[:, SHAPES:], color)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=Path("features"), help="where features are written")
    parser.add_argument("--figures", type=Path, help="a folder to draw what was found into")
    options = parser.parse_args()

    new = pictures(400, seed=1)
    loader = DataLoader(new, batch_size=50)
    features = []
    for seed in (1, 2):
        model = train(seed, options.steps)
        kept = {"body.*": ["activations", Mean(), TopK(10, positions="max")]}
        features.append(tl.extract(model, loader, "body.*", to=options.folder / f"seed {seed}", keep=kept, progress=False))
        with torch.no_grad():
            right = (model(new.tensors[0])[:, :SHAPES].argmax(1) == new.tensors[1]).float().mean()
        print(f"seed {seed}: {right:.0%} of {len(new)} new shapes named")

    found = tl.similarity(*features, debiased=True)
    print(found)
    same = found.matrix.diagonal().mean()
    other = found.matrix[~np.eye(DEPTH, dtype=bool)].mean()
    print(f"layers of the same depth {same:.2f}, others {other:.2f}")

    top = features[0].top(LAYERS[-1], unit=0)
    print(f"unit 0 of {LAYERS[-1]} likes samples {', '.join(map(str, top.numbers.tolist()))} best")
    print(f"nearest to sample 0: {', '.join(map(str, features[0][LAYERS[-1]].nearest(0, 5).numbers.tolist()))}")

    if options.figures:
        options.figures.mkdir(parents=True, exist_ok=True)
        found.draw(options.figures / "similarity.png")
        features[0].top(LAYERS[-1], unit=range(4), k=7, pictures=new).save(options.figures / "units.png")


if __name__ == "__main__":
    main()
