"""What is told of attention: its heads, and which part of a large one is worked out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...torch_internals import DisableTorchFunction


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """Queries, keys, values and outputs of attention, each (batch, heads, length, size), and the pattern that weighs values.

    Where queries share heads of keys and values, those have fewer heads. What cannot be told is None.
    """

    pattern: Tensor  # (batch, heads, queries, keys)
    queries: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None
    outputs: Tensor | None = None

    def __repr__(self) -> str:
        named = {name: getattr(self, name) for name in ("pattern", "queries", "keys", "values", "outputs")}
        return f"Heads({', '.join(f'{name} {tuple(value.shape)}' for name, value in named.items() if value is not None)})"


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of attention is worked out: everything, or the first sample of the batch and every so many queries."""

    is_first_only: bool = False
    step: int = 1  # of queries

    def samples(self, value: Tensor) -> Tensor:
        """Of a tensor whose first dimension is the batch."""
        return value[:1] if self.is_first_only else value

    def queries(self, value: Tensor) -> Tensor:
        """Of (batch, heads, queries, size)."""
        return self.samples(value)[..., :: self.step, :]

    def mask(self, mask: Tensor) -> Tensor:
        """Of a mask that broadcasts to (batch, heads, queries, keys)."""
        if mask.dim() == 4:
            mask = self.samples(mask)
        return mask[..., :: self.step, :] if mask.dim() > 1 else mask


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention, as it was taken from a log: what it needs is held, its heads are worked out when asked for."""

    shape: tuple[int, int, int, int]  # of the pattern: samples, heads, queries, keys
    work_out: Callable[[Part], Heads]

    def heads(self, part: Part = WHOLE) -> Heads:
        """Its heads."""
        with torch.no_grad(), DisableTorchFunction():
            return self.work_out(part)
