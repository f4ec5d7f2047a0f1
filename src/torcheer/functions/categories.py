"""The category of a function: what kind of step it is in a model. Pictures have a colour for each."""

from __future__ import annotations

from typing import Literal

import torch

from . import groups
from .properties import is_view, makes_constants
from .schemas import has_tag

Category = Literal[
    "layer", "attention", "normalisation", "activation", "pooling", "arithmetic", "reduction", "shape", "random", "constant"
]

# In this order: the first group that has a function decides.
_GROUPS: tuple[tuple[Category, frozenset[str]], ...] = (
    ("attention", groups.ATTENTION),
    ("normalisation", groups.NORMALISATIONS),
    ("activation", groups.ACTIVATIONS),
    ("layer", groups.CONVOLUTIONS | groups.QUANTIZED_LINEAR | groups.LOOK_UPS | groups.RECURRENT),
    ("layer", frozenset({"linear", "bilinear", "addmm", "baddbmm", "im2col", "col2im"})),
    ("pooling", groups.POOLING | groups.RESAMPLING),
    ("random", groups.DROPOUTS | groups.SAMPLING),
    ("reduction", groups.LOSSES | groups.REDUCTIONS),
    ("constant", groups.CONSTRUCTORS),
    ("shape", groups.CONVERSIONS | groups.RESHAPES | groups.UNSCHEMED_VIEWS | groups.COPIES | groups.ARRANGEMENTS),
    ("shape", groups.SELECTIONS | groups.OVERWRITES | groups.ONE_FOR_EACH),
)


def category_of(name: str) -> Category:
    """The category of a function by its plain name. Backward and `_copy` forms are of the category of their function."""
    base = name.removesuffix("_copy").removesuffix("_backward")
    for category, members in _GROUPS:
        if base in members:
            return category
    if has_tag(base, torch.Tag.nondeterministic_seeded):
        return "random"
    if is_view(base):
        return "shape"
    return "constant" if makes_constants(base) else "arithmetic"
