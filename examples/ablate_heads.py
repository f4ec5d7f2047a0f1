"""Trains a small transformer to recall what followed a token, and finds the heads that do it by switching heads off.

    python examples/ablate_heads.py --figure ablation.png

Sequences are random tokens, and then the same tokens in another order; for each of those the model says what followed it the
first time. Two layers of attention are needed: in the first, each token looks at the one before it; in the second, a token
looks for the place that the first layer marked with it (an induction head).
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torcheer
from torcheer import changes

TOKENS, PAIRS, SIZE, HEADS = 16, 8, 32, 2


class Attention(nn.Module):
    """Causal attention, fused."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.qkv = nn.Linear(SIZE, 3 * SIZE)
        self.out = nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, SIZE))


class Model(nn.Module):
    """Two layers of attention and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, SIZE)
        self.positions = nn.Embedding(2 * PAIRS + 1, SIZE)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(SIZE) for _ in range(3))
        self.head = nn.Linear(SIZE, TOKENS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for norm, layer in zip(self.norms[:2], self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(self.norms[2](x))


def batch(size: int) -> tuple[Tensor, Tensor]:
    """Random tokens, the same ones in another order, and for each of those what followed it the first time."""
    first = torch.rand(size, TOKENS).argsort(1)[:, : PAIRS + 1]
    asked = torch.rand(size, PAIRS).argsort(1)
    return torch.cat([first, first.gather(1, asked)], 1), first.gather(1, asked + 1)


def train(steps: int) -> Model:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        ids, followed = batch(64)
        loss = F.cross_entropy(model(ids)[:, -PAIRS:].flatten(0, 1), followed.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def accuracy(model: Model, ids: Tensor, followed: Tensor) -> float:
    with torch.no_grad():
        return float((model(ids)[:, -PAIRS:].argmax(-1) == followed).float().mean())


def ablate(model: Model) -> tuple[dict[str, float], Tensor, Tensor]:
    """The accuracy with heads switched off, by what is off; the ids of one sequence, and its patterns in the second layer."""
    torch.manual_seed(1)
    ids, followed = batch(256)
    history = torcheer.log_forward_pass(model, ids)
    mixing = [layer.label for layer in history if layer.layer_type == "scaleddotproductattention"]
    found = {"nothing": accuracy(model, ids, followed)}
    for layer, label in enumerate(mixing):
        for heads in ([0], [1], [0, 1]):
            with torcheer.intervene(model, {label: changes.zero(heads=heads)}, like=history):
                found[f"layer {layer}, head {' and '.join(map(str, heads))}"] = accuracy(model, ids, followed)
    return found, ids[0], history.attention("layers.1")[0]


def draw(found: dict[str, float], ids: Tensor, pattern: Tensor, path: str) -> None:
    """The pattern of the second layer, its heads together, beside the accuracies."""
    from matplotlib.figure import Figure

    figure = Figure((9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.3])
    left.imshow(pattern.mean(0)[PAIRS + 1 :, : PAIRS + 1], cmap="Blues", vmin=0, vmax=1)
    left.set_xticks(range(PAIRS + 1), ids[: PAIRS + 1].tolist())
    left.set_yticks(range(PAIRS), ids[PAIRS + 1 :].tolist())
    left.set(title="layer 1 looks at what followed", xlabel="first part", ylabel="token asked for")
    names = list(found)
    right.barh(names, list(found.values()), color=["#888", *["#4878a8"] * (len(names) - 1)])
    right.axvline(1 / TOKENS, color="#c44", linewidth=1)
    right.set(xlim=(0, 1), xlabel="accuracy (red: guessing)", title="switched off")
    right.invert_yaxis()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--figure", help="where to draw what was found")
    options = parser.parse_args()
    found, ids, pattern = ablate(train(options.steps))
    for name, value in found.items():
        print(f"{name:24} {value:.2f}")
    if options.figure:
        draw(found, ids, pattern, options.figure)


if __name__ == "__main__":
    main()
