"""The models that are measured: from one where torch's own dispatch is nearly everything to one where it is nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Case:
    """A model and the input it is run with. Weights are random: no measurement depends on their values."""

    title: str
    build: Callable[[], tuple[Module, Tensor]]


def make_torchvision_importable() -> None:
    """Must run before anything imports torchvision, and transformers does."""
    sys.path.insert(0, str(ROOT / "tests"))
    import torchvision_operators

    torchvision_operators.declare()


def _gpt2(tokens: int, **config: Any) -> tuple[Module, Tensor]:
    make_torchvision_importable()
    from transformers import GPT2Config, GPT2Model

    settings = GPT2Config(**config)
    return GPT2Model(settings), torch.randint(settings.vocab_size, (1, tokens))


def _gpt2_tiny() -> tuple[Module, Tensor]:
    return _gpt2(16, n_layer=12, n_embd=48, n_head=4, vocab_size=1000, bos_token_id=0, eos_token_id=0)


def _gpt2_small() -> tuple[Module, Tensor]:
    return _gpt2(128)


def _torchvision(name: str) -> tuple[Module, Tensor]:
    make_torchvision_importable()
    from torchvision import models

    return getattr(models, name)(weights=None), torch.randn(1, 3, 224, 224)


CASES = {
    "gpt2_tiny": Case("GPT-2 12×48, 16 tokens", _gpt2_tiny),
    "gpt2_small": Case("GPT-2 small, 1×128", _gpt2_small),
    "resnet50": Case("ResNet-50, 1×224²", lambda: _torchvision("resnet50")),
    "alexnet": Case("AlexNet, 1×224²", lambda: _torchvision("alexnet")),
}


def build(key: str) -> tuple[Module, Tensor]:
    """The model, in evaluation mode, and its input. The same weights in every process."""
    torch.manual_seed(0)
    model, x = CASES[key].build()
    return model.eval(), x


def tiny_loop(operations: int) -> Callable[[Tensor], Tensor]:
    """A function of so many operations with next to no work in them, so that all the time is overhead."""

    def loop(x: Tensor) -> Tensor:
        for _ in range(operations):
            x = x + 1
        return x

    return loop
