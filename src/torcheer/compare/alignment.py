"""`Alignment`: the corresponding operations of two histories, and how far their values are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .._torch.internals import DisableTorchFunction
from ..graph.matching import Matching, match_steps
from ..history import Operation
from .measures import Difference, absolute_values, difference, is_close, tolerance_of
from .steps import Side


@dataclass(slots=True)
class Alignment(Matching[Side]):
    """The pairs of corresponding operations. Both operations of a match have the same shape."""

    ignored: dict[int, Tensor] = field(default_factory=dict)  # maps numbers in `b` to masks of elements that were never written

    def pair(self, b: int) -> tuple[Operation, Operation]:
        """The operation of `a` that matches operation `b`, and operation `b` itself."""
        return self.a.operation(self.of_b[b]), self.b.operation(b)

    def value_of_a(self, b: int) -> Tensor | None:
        """The value in `a` of the match of an operation of `b`; None if there is no match, or the value was not kept."""
        partner = self.of_b.get(b)
        return self.a.value(partner) if partner is not None else None

    def error(self, b: int) -> Difference | None:
        """The difference between the logged values of a match, without elements that were never written."""
        return difference(self.value_of_a(b), self.b.value(b), ignored=self.ignored.get(b))

    def finite_error(self, b: int) -> Difference | None:
        """The difference between the logged values of a match, of elements finite in both; None if there is no such element."""
        apart = self.error(b)
        one, other = self.value_of_a(b), self.b.value(b)
        if apart is None or math.isfinite(apart.relative) or one is None or other is None:
            return apart
        with DisableTorchFunction(), torch.no_grad():
            is_infinite = ~torch.isfinite(absolute_values(one)) | ~torch.isfinite(absolute_values(other)).to(one.device)
            is_infinite = is_infinite.reshape(*one.shape, -1).any(-1)  # complex numbers have a real and an imaginary part
        return difference(one, other, ignored=is_infinite)

    def tolerance(self, b: int) -> float:
        """The tolerance for a match, by its dtypes."""
        return tolerance_of(self.a.log.operations[self.of_b[b]].dtype, self.b.log.operations[b].dtype)

    def is_wired_alike(self, b: int) -> bool:
        """True if both operations of a match call the same function on matched operations."""
        one, other = self.a.log.operations[self.of_b[b]], self.b.log.operations[b]
        parents = [parent if parent < 0 else self.of_b.get(parent) for parent in other.parents]
        alike = [ours == theirs or (ours < 0 and (theirs or 0) < 0) for ours, theirs in zip(one.parents, parents, strict=False)]
        return one.function.type == other.function.type and len(alike) == len(one.parents) == len(parents) and all(alike)

    def has_same_values(self, a: int, b: int) -> bool:
        one, other = self.a.value(a), self.b.value(b)
        return one is not None and other is not None and is_close(one, other, tolerance_of(one.dtype, other.dtype))

    def is_doubtful(self, b: int) -> bool:
        return (apart := self.finite_error(b)) is not None and apart.relative > self.tolerance(b)

    def only_in(self, side: Side) -> list[int]:
        matched = self.of_a if side is self.a else self.of_b
        return [number for number in side.index.operations if number not in matched]


def align(a: Side, b: Side) -> Alignment:
    """Match the operations of two histories."""
    alignment = Alignment(a, b)
    match_steps(alignment)
    _drop_guesses(alignment)
    return alignment


def _drop_guesses(found: Alignment) -> None:
    """Drop matches of different functions if their values cannot be compared (sparse tensors): no value confirms the match."""
    for number, partner in list(found.of_b.items()):
        one, other = found.pair(number)
        if one.layer_type == other.layer_type or not (one.has_saved_activations and other.has_saved_activations):
            continue
        if found.a.value(partner) is None or found.b.value(number) is None:
            found.drop(number)
