"""Trains a small classifier, and makes it call one class the other by adding a vector to a hidden layer.

    python examples/steer.py --figure steering.png

The vector is the difference between the mean hidden values of the two classes. The control is a random one of that length.
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torcheer
from torcheer import changes

STRENGTHS = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0]
LAYER = "3"


def two_moons(count: int) -> tuple[Tensor, Tensor]:
    """Points on two half circles that reach into one another, and which of the two each is on."""
    side = torch.arange(count) % 2
    angle = torch.rand(count) * math.pi
    x = torch.where(side == 0, angle.cos(), 1 - angle.cos())
    y = torch.where(side == 0, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x, y], 1) + 0.1 * torch.randn(count, 2), side


def train(steps: int) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        points, side = two_moons(256)
        loss = F.cross_entropy(model(points), side)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def steer(model: nn.Sequential) -> tuple[float, list[float], list[float]]:
    """The accuracy; and by strength, how many points of class 0 are called class 1, with the vector and with a random one."""
    torch.manual_seed(1)
    points, side = two_moons(1000)
    with torch.no_grad():
        hidden = torcheer.activation(model, points, LAYER)
        vector = hidden[side == 1].mean(0) - hidden[side == 0].mean(0)
        other = torch.randn_like(vector)
        other *= vector.norm() / other.norm()

        def flipped(along: Tensor, strength: float) -> float:
            with torcheer.intervene(model, {LAYER: changes.add(strength * along)}):
                return float((model(points[side == 0]).argmax(1) == 1).float().mean())

        right = float((model(points).argmax(1) == side).float().mean())
        return right, [flipped(vector, s) for s in STRENGTHS], [flipped(other, s) for s in STRENGTHS]


def draw(steered: list[float], control: list[float], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure((5, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(STRENGTHS, steered, "o-", label="difference of the means", color="#4878a8")
    axes.plot(STRENGTHS, control, "o--", label="random, as long", color="#888")
    axes.set(xlabel="strength", ylabel="class 0 called class 1", ylim=(-0.03, 1.03))
    axes.legend()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--figure", help="where to draw what was found")
    options = parser.parse_args()
    right, steered, control = steer(train(options.steps))
    print(f"accuracy {right:.2f}")
    for strength, one, other in zip(STRENGTHS, steered, control, strict=True):
        print(f"strength {strength:4.2f}: {one:.2f} called class 1, random vector {other:.2f}")
    if options.figure:
        draw(steered, control, options.figure)


if __name__ == "__main__":
    main()
