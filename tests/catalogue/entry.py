"""What an entry of the catalogue is: how a model is made, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


def positive() -> Tensor:
    return torch.linspace(0.1, 0.9, 12).reshape(4, 3).clone()


def mixed() -> Tensor:
    return torch.linspace(-1, 1, 12).reshape(4, 3).clone()


def square() -> Tensor:
    return torch.linspace(-1, 1, 16).reshape(4, 4).clone()


@dataclass(frozen=True)
class Entry:
    """A model, by what makes it and its arguments: each use has new ones."""

    make: Callable[[], Any]
    give: Callable[[], Any] = mixed
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def given(self) -> tuple[Any, ...]:
        given = self.give()
        return given if isinstance(given, tuple) else (given,)
