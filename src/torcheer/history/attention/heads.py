"""The heads of attention, and which part of them is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...torch_internals import DisableTorchFunction


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """Queries, keys, values and outputs of attention, each (batch, heads, length, size), and the pattern that weighs values.

    Where queries share heads of keys and values, those have fewer heads. What the log does not tell is None.
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
    """Which part of attention is computed: everything, or the first sample of the batch and every n-th query."""

    is_first_only: bool = False
    step: int = 1  # between queries

    def samples(self, value: Tensor) -> Tensor:
        """The part of a tensor whose first dimension is the batch."""
        return value[:1] if self.is_first_only else value

    def queries(self, value: Tensor) -> Tensor:
        """The part of a tensor (batch, heads, queries, size)."""
        return self.samples(value)[..., :: self.step, :]

    def mask(self, mask: Tensor) -> Tensor:
        """The part of a mask that broadcasts to (batch, heads, queries, keys)."""
        if mask.dim() == 4:
            mask = self.samples(mask)
        return mask[..., :: self.step, :] if mask.dim() > 1 else mask


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention of a log. It holds the tensors that its heads are computed from, when they are asked for."""

    shape: tuple[int, int, int, int]  # of the pattern: samples, heads, queries, keys
    work_out: Callable[[Part], Heads]

    def heads(self, part: Part = WHOLE) -> Heads:
        """Its heads."""
        with torch.no_grad(), DisableTorchFunction():
            return self.work_out(part)


def with_heads(value: Tensor, count: int) -> Tensor | None:
    """A tensor as (batch, heads, length, size); it may have no batch, several, or batch and `count` heads in one dimension.

    None where the dimension of batch and heads is no multiple of `count`.
    """
    if value.dim() < 3:
        return value[(None,) * (4 - value.dim())]
    if value.dim() > 3:
        return value.flatten(0, -4)
    return value.view(-1, count, *value.shape[1:]) if value.shape[0] % count == 0 else None
