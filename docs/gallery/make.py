"""Draws the gallery: `python docs/gallery/make.py`, after `make models` and with transformers installed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torcheer
from torcheer.demo import AlexNet, SimpleRecurrent

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "tests"))

import torchvision_operators  # noqa: E402 - lies with the tests

torchvision_operators.declare()

import torchvision  # noqa: E402 - needs the declarations above
import transformers  # noqa: E402

from zoo.handwritten_attention import TopKExperts  # noqa: E402
from zoo.handwritten_generative import Unet  # noqa: E402

Built = tuple[Callable[..., Any], tuple[Any, ...]]
IMAGE = (1, 3, 224, 224)


class Lstm(nn.Module):
    """An LSTM cell in a loop of a hundred steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, c = torch.zeros(2, 16), torch.zeros(2, 16)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        scores: Tensor = self.out(h)
        return scores


class Residual(nn.Sequential):
    """What its parts make of its input, and its input."""

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = super().forward(x)
        return x + changed


def thousands() -> nn.Module:
    """Ten thousand operations in thirty stages of blocks that differ."""
    return nn.Sequential(*(nn.Sequential(*(block(4 + stage, b % 7) for b in range(84))) for stage in range(30)))


def block(width: int, more: int) -> nn.Module:
    return Residual(nn.Linear(4, width + more), nn.ReLU(), nn.Linear(width + more, 4))


def gpt2() -> Built:
    """The small GPT-2, with random weights."""
    return transformers.GPT2LMHeadModel(transformers.GPT2Config()), (torch.arange(64)[None],)


PICTURES: dict[str, tuple[Callable[[], Built], dict[str, Any]]] = {
    "two_operations": (lambda: (nn.Sequential(nn.Linear(4, 8), nn.ReLU()), (torch.rand(1, 4),)), {}),
    "recurrent_unrolled": (lambda: (SimpleRecurrent(), (torch.rand(1, 5),)), {"rolled": False}),
    "recurrent_rolled": (lambda: (SimpleRecurrent(), (torch.rand(1, 5),)), {"rolled": True}),
    "alexnet": (lambda: (AlexNet(), (torch.rand(IMAGE),)), {}),
    "alexnet_time": (lambda: (AlexNet(), (torch.rand(IMAGE),)), {"color_by": "time", "nesting_depth": "all"}),
    "alexnet_paper": (lambda: (AlexNet(), (torch.rand(IMAGE),)), {"style": "paper", "width": "8.5cm"}),
    "resnet18": (lambda: (torchvision.models.resnet18(), (torch.rand(IMAGE),)), {}),
    "resnet18_layer3": (
        lambda: (torchvision.models.resnet18(), (torch.rand(IMAGE),)),
        {"style": "paper", "width": "8.5cm", "focus": "layer3"},
    ),
    "resnet152": (lambda: (torchvision.models.resnet152(), (torch.rand(IMAGE),)), {}),
    "resnet50_folded": (
        lambda: (torchvision.models.resnet50(), (torch.rand(IMAGE),)),
        {"nesting_depth": 9, "fold_repeats": True},
    ),
    "gpt2": (gpt2, {}),
    "gpt2_blocks": (gpt2, {"nesting_depth": 2, "fold_repeats": True, "theme": "dark"}),
    "lstm_100_steps": (lambda: (Lstm(), (torch.rand(2, 100, 8),)), {}),
    "unet": (lambda: (Unet(), (torch.randn(2, 3, 8, 8), torch.tensor([1, 3]))), {}),
    "inception": (
        lambda: (torchvision.models.inception_v3(init_weights=False, aux_logits=False), (torch.rand(1, 3, 299, 299),)),
        {},
    ),
    "experts": (lambda: (TopKExperts(), (torch.randn(10, 6),)), {}),
    "ten_thousand_operations": (lambda: (thousands(), (torch.rand(1, 4),)), {}),
}


def main(names: list[str]) -> None:
    """Draw the pictures of these names, or all."""
    for name in names or PICTURES:
        build, options = PICTURES[name]
        torch.manual_seed(0)
        model, args = build()
        if isinstance(model, nn.Module):
            model.eval()
        history = torcheer.log_forward_pass(model, args, layers_to_save="none")
        began = time.perf_counter()
        picture = history.draw(HERE / f"{name}.svg", **options)
        seconds = time.perf_counter() - began
        kilobytes = (HERE / f"{name}.svg").stat().st_size / 1024
        counts = f"{len(picture.graph.nodes)} nodes of {history.num_operations} operations"
        print(f"{name}: {counts}, {seconds:.2f} s, {kilobytes:.0f} KB")


if __name__ == "__main__":
    main(sys.argv[1:])
