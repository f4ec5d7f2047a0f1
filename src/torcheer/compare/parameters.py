"""Finds parameters and buffers that differ between two histories, by how much, and whether they look transposed or permuted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from .._torch.internals import DisableTorchFunction
from .._torch.memory import is_freed
from ..log.records import AbsentTensor
from .alignment import Alignment
from .measures import Difference, difference_of_any, is_close, is_measurable, tolerance_of
from .steps import Side, signature_of


@dataclass(frozen=True, slots=True)
class ParameterDifference:
    """A parameter or buffer that differs, or that only one model has: then its name in the other model is None."""

    name_a: str | None
    name_b: str | None
    shape_a: tuple[int, ...] | None
    shape_b: tuple[int, ...] | None
    difference: Difference | None  # None if the shapes differ, or if no file has the values
    looks: str  # "transposed", "rows permuted (16 of 32)", "like blocks.5.up.weight of a", or ""

    @property
    def name(self) -> str:
        both = [name for name in (self.name_a, self.name_b) if name is not None]
        return both[0] if len(set(both)) == 1 else " / ".join(both)

    @property
    def is_in_both(self) -> bool:
        return self.name_a is not None and self.name_b is not None

    def __str__(self) -> str:
        if self.name_a is None or self.name_b is None:
            return f"{self.name}: only in {'b' if self.name_a is None else 'a'}"
        if self.difference is None and self.shape_a == self.shape_b:
            how = "has other values"
        elif self.difference is None:
            how = f"{self.shape_a} in a, {self.shape_b} in b"
        else:
            how = f"differs by {self.difference.largest:.2g} ({self.difference.relative:.1e} of its scale)"
        return f"{self.name}: {how}{f', looks {self.looks}' if self.looks else ''}"


def _used_alike(alignment: Alignment) -> Iterator[tuple[int, int]]:
    """Pairs of parameters and buffers that matched operations of one type use at the same position, by number."""
    for step in alignment.b.steps:
        partner = alignment.a.every.get(alignment.of_b.get(step.number, -1))
        if partner is not None and partner.type == step.type and len(partner.states) == len(step.states):
            yield from zip(partner.states, step.states, strict=True)


def state_pairs(alignment: Alignment) -> dict[int, int]:
    """Maps parameters and buffers of `a` to their first counterpart in `b`, by the matched operations that use them."""
    found: dict[int, int] = {}
    for ours, theirs in _used_alike(alignment):
        found.setdefault(ours, theirs)
    return found


def parameter_differences(alignment: Alignment, tolerance: float | None) -> list[ParameterDifference]:
    """The parameters and buffers that differ: matched by the operations that use them, by name, and by values."""
    a, b = alignment.a, alignment.b
    ours, theirs = _named(a), _named(b)
    used = [(a.state_name(one), b.state_name(other)) for one, other in _used_alike(alignment)]
    used = [(name_a, name_b) for name_a, name_b in used if name_a in ours and name_b in theirs]
    matched: dict[str, str] = {}
    for name_a, name_b in used:
        matched.setdefault(name_a, name_b)
    for name in ours:
        renamed = _renamed(name, a)
        if name not in matched and renamed in theirs and renamed not in matched.values():
            matched[name] = renamed
    contents = _by_content(ours, theirs, matched)
    matched.update(contents)
    taken = set(matched.values())
    tied: dict[str, str] = {}  # maps the name of a parameter that is tied in `a` only to the name of its second match in `b`
    for name_a, name_b in used:
        if name_b not in taken:
            tied.setdefault(name_a, name_b)
    compared = [_compared(*pair, ours, theirs, tolerance) for pair in matched.items()]
    differing = [one for one in compared if one is not None]
    # `addmm` and `linear` use a parameter transposed to each other: that is no difference
    differing = [one for one in differing if one.looks != "transposed" or one.name_a not in contents]
    found = _exchanged(differing, ours, theirs, tolerance)
    found += [one for pair in tied.items() if (one := _compared(*pair, ours, theirs, tolerance)) is not None]
    taken.update(tied.values())
    found += [ParameterDifference(n, None, tuple(t.shape), None, None, "") for n, t in ours.items() if n not in matched]
    found += [ParameterDifference(None, n, None, tuple(t.shape), None, "") for n, t in theirs.items() if n not in taken]
    return found


def _named(side: Side) -> dict[str, Tensor]:
    """The parameters of a history, and the buffers it read, without those whose memory was freed.

    If the history was loaded without parameters, they are `AbsentTensor`s.
    """
    named: dict[str, Tensor] = dict(side.index.all_parameters())
    for state in side.log.states:
        named[side.index.state_name(state)] = state.value
    return {name: tensor for name, tensor in named.items() if not is_lazy(tensor) and not is_freed(tensor)}


def _renamed(name: str, side: Side) -> str:
    address, _, last = name.rpartition(".")
    address = side.rename(address)
    return f"{address}.{last}" if address else last


def _by_content(ours: dict[str, Tensor], theirs: dict[str, Tensor], matched: dict[str, str]) -> dict[str, str]:
    """Match the parameters that neither names nor operations match, by equal values, also if transposed."""
    taken = set(matched.values())
    groups: dict[object, tuple[list[str], list[str]]] = {}
    for place, (named, known) in enumerate(((ours, matched), (theirs, taken))):
        for name, tensor in named.items():
            if name not in known and is_measurable(tensor) and tensor.is_floating_point() and tensor.numel():
                groups.setdefault(signature_of(tensor), ([], []))[place].append(name)
    return {one: other for a, b in groups.values() if len(a) == len(b) for one, other in zip(a, b, strict=True)}


def _compared(
    name_a: str, name_b: str, ours: dict[str, Any], theirs: dict[str, Any], tolerance: float | None
) -> ParameterDifference | None:
    """The difference of two parameters; None if they are equal, or if it is unknown."""
    one, other = ours[name_a], theirs[name_b]
    shapes = tuple(one.shape), tuple(other.shape)
    if isinstance(one, AbsentTensor) or isinstance(other, AbsentTensor):
        is_known = isinstance(one, AbsentTensor) and isinstance(other, AbsentTensor)
        is_other = is_known and one.fingerprint != other.fingerprint
        return ParameterDifference(name_a, name_b, *shapes, None, "") if is_other else None
    with DisableTorchFunction(), torch.no_grad():
        one, other = one.detach(), other.detach().to(one.device)
        allowed = tolerance
        if allowed is None:
            allowed = 0.0 if one.dtype == other.dtype else tolerance_of(one.dtype, other.dtype)
        apart = difference_of_any(one, other) if shapes[0] == shapes[1] else None
        if shapes[0] == shapes[1] and (apart is None or apart.relative <= allowed):
            return None
        return ParameterDifference(name_a, name_b, *shapes, apart, _looks(one, other, allowed))


def _looks(one: Tensor, other: Tensor, allowed: float) -> str:
    """Says if one tensor is the other transposed, or with permuted rows or columns; empty if neither."""
    if not is_measurable(one) or not is_measurable(other) or not one.is_floating_point():
        return ""
    if one.dim() == other.dim() == 2 and one.shape == other.T.shape and is_close(one, other.T, allowed):
        return "transposed"
    if one.shape != other.shape or one.dim() < 1:
        return ""
    words = ("rows permuted", "columns permuted") if one.dim() > 1 else ("permuted",)
    for dim, word in enumerate(words):
        rows, others = one.movedim(dim, 0), other.movedim(dim, 0)
        order, other_order = _order(rows), _order(others)
        if is_close(rows[order], others[other_order], allowed):
            moved = int((order != other_order).sum())
            return f"{word} ({moved} of {one.shape[dim]})"
    return ""


def _exchanged(
    found: list[ParameterDifference], ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float | None
) -> list[ParameterDifference]:
    """Return the differences; `looks` says if a parameter of `b` has the values of another differing parameter of `a`."""
    sizes: dict[object, list[str]] = {}
    for one in found:
        if one.difference is not None and one.name_a is not None and is_measurable(ours[one.name_a]):
            sizes.setdefault((one.shape_a, signature_of(ours[one.name_a])), []).append(one.name_a)
    said = []
    for one in found:
        name_b = one.name_b
        if one.difference is not None and not one.looks and name_b is not None and is_measurable(theirs[name_b]):
            for name in sizes.get((one.shape_b, signature_of(theirs[name_b])), ()):
                if name != one.name_a and _compared(name, name_b, ours, theirs, tolerance) is None:
                    one = replace(one, looks=f"like {name} of a")
                    break
        said.append(one)
    return said


def _order(rows: Tensor) -> Tensor:
    """Sort rows by their product with a random direction. Returns the order."""
    flat = rows.reshape(len(rows), -1).double()
    direction = torch.rand(flat.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (flat @ direction.to(flat.device)).argsort()
