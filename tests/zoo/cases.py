"""What a case of the zoo is, and the list of all of them.

A family is one prefix of the names and one or more modules here, each with a function `cases()`. Listing the cases
builds nothing and imports nothing heavy; a model is made when its case is, always from the same seed.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

Mode = Literal["eval", "train"]
Built = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

BOTH: tuple[Mode, ...] = ("eval", "train")
EVAL: tuple[Mode, ...] = ("eval",)
TRAIN: tuple[Mode, ...] = ("train",)
FLOATS = (torch.float32, torch.bfloat16)
FLOAT32 = (torch.float32,)

MODULES = (
    "torchvision_classification",
    "torchvision_dense",
    "torchvision_detection",
    "transformers_encoders",
    "transformers_decoders",
    "transformers_experts",
    "transformers_seq2seq",
    "transformers_vision",
    "transformers_audio",
    "transformers_multimodal",
    "timm_models",
    "diffusers_models",
    "geometric_models",
    "segmentation_models",
    "x_transformers_models",
    "handwritten_recurrent",
    "handwritten_attention",
    "handwritten_generative",
    "handwritten_learning",
    "handwritten_structured",
    "handwritten_dynamics",
    "handwritten_tensors",
    "handwritten_weights",
)

TYPICAL = (  # one model of each common kind
    "torchvision/resnet18",
    "torchvision/mobilenet_v3_small",
    "transformers/gpt2",
    "transformers/bert-MaskedLM",
    "transformers/t5",
    "transformers/swin",
    "transformers/wav2vec2",
    "transformers/mixtral",
    "transformers/mamba",
    "transformers/clip",
    "handwritten/lstm",
    "handwritten/seq2seq_attention",
    "handwritten/message_passing",
    "handwritten/in_place",
)
QUICK = (
    *TYPICAL,
    "torchvision/raft_small",
    "transformers/llama-generate",
    "handwritten/diffusion_sampling",
    "handwritten/gradient_penalty",
    "handwritten/episode_of_a_policy",
    "handwritten/neural_ode_adaptive",
)


class Unavailable(Exception):
    """A case cannot be built here, for a reason that is not the model's: a package is not installed."""


@dataclass(frozen=True)
class Case:
    """One model, or any callable, with its arguments, and the ways in which it runs."""

    name: str
    """Unique, `family/model`."""
    build: Callable[[], Built]
    modes: tuple[Mode, ...] = BOTH
    dtypes: tuple[torch.dtype, ...] = FLOATS
    slow: bool = False
    note: str = ""

    @property
    def family(self) -> str:
        return self.name.split("/")[0]

    @property
    def runs(self) -> list[tuple[Mode, torch.dtype]]:
        """Every mode in every dtype."""
        return [(mode, dtype) for dtype in self.dtypes for mode in self.modes]

    def make(self, mode: Mode = "eval", dtype: torch.dtype = torch.float32) -> Built:
        """Build the model and its arguments from a fixed seed, in this mode and dtype."""
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        model, args, kwargs = self.build()
        if isinstance(model, nn.Module):
            model.train(mode == "train")
            if dtype != torch.float32:
                model.to(dtype)
        return model, cast(args, dtype), cast(kwargs, dtype)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """The same arguments, tensors of float32 in another dtype."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype == torch.float32 else value
    if type(value) in (list, tuple):
        return type(value)(cast(item, dtype) for item in value)
    if type(value) is dict:
        return {key: cast(item, dtype) for key, item in value.items()}
    return value


def all_cases() -> list[Case]:
    """Every case of every family, in a fixed order."""
    found = [case for module in MODULES for case in importlib.import_module(f"{__package__}.{module}").cases()]
    names = [case.name for case in found]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"names that are used twice: {sorted(twice)}"
    return found


def named(*names: str) -> list[Case]:
    """The cases with these names."""
    by_name = {case.name: case for case in all_cases()}
    return [by_name[name] for name in names]
