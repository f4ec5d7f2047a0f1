"""Which parameters and buffers of two histories differ, by how much, and which look transposed or permuted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ..state_records import AbsentTensor
from ..tensor_memory import is_freed
from ..torch_internals import DisableTorchFunction
from .alignment import Alignment
from .measures import Difference, absolute_values, difference, tolerance_of


@dataclass(frozen=True, slots=True)
class ParameterDifference:
    """A parameter or buffer that differs, or that only one of two models has (the name in the other is then None)."""

    name_a: str | None
    name_b: str | None
    shape_a: tuple[int, ...] | None
    shape_b: tuple[int, ...] | None
    difference: Difference | None  # None where the shapes differ, or the values are in no file
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


def state_pairs(alignment: Alignment) -> dict[int, int]:
    """The parameters and buffers that matched operations of one type use, by their numbers in the log of a."""
    a, b = alignment.a, alignment.b
    steps = {step.number: step for step in a.steps}
    found: dict[int, int] = {}
    for step in b.steps:
        partner = steps.get(alignment.of_b.get(step.number, -1))
        if partner is not None and partner.type == step.type and len(partner.states) == len(step.states):
            for ours, theirs in zip(partner.states, step.states, strict=True):
                found.setdefault(ours, theirs)
    return found


def parameter_differences(alignment: Alignment, pairs: dict[int, int], tolerance: float | None) -> list[ParameterDifference]:
    """The parameters and buffers that differ: matched by the operations that use them, and by name."""
    a, b = alignment.a, alignment.b
    ours, theirs = _named(alignment, of_a=True), _named(alignment, of_a=False)
    matched: dict[str, str] = {}
    for one, other in pairs.items():
        name_a = a.index.state_name(a.log.states[-1 - one])
        name_b = b.index.state_name(b.log.states[-1 - other])
        if name_a in ours and name_b in theirs:
            matched.setdefault(name_a, name_b)
    for name in ours:
        renamed = _renamed(name, alignment)
        if name not in matched and renamed in theirs and renamed not in matched.values():
            matched[name] = renamed
    contents = _by_content(alignment, ours, theirs, matched)
    matched.update(contents)
    compared = [_compared(name_a, name_b, ours[name_a], theirs[name_b], tolerance) for name_a, name_b in matched.items()]
    differing = [one for one in compared if one is not None and not _is_stored_transposed(one, contents)]
    found = _exchanged(differing, ours, theirs, tolerance)
    alone = [ParameterDifference(n, None, tuple(t.shape), None, None, "") for n, t in ours.items() if n not in matched]
    taken = set(matched.values())
    for name_a, name_b in _tied(alignment, ours, theirs, taken).items():
        taken.add(name_b)
        apart = _compared(name_a, name_b, ours[name_a], theirs[name_b], tolerance)
        found += [apart] if apart is not None else []
    alone += [ParameterDifference(None, n, None, tuple(t.shape), None, "") for n, t in theirs.items() if n not in taken]
    return found + alone


def _tied(alignment: Alignment, ours: dict[str, Tensor], theirs: dict[str, Tensor], taken: set[str]) -> dict[str, str]:
    """Parameters of b that stand where a uses one that has another counterpart already: a's are tied, b's are not."""
    a, b = alignment.a, alignment.b
    steps = {step.number: step for step in a.steps}
    found: dict[str, str] = {}
    for step in b.steps:
        partner = steps.get(alignment.of_b.get(step.number, -1))
        if partner is not None and partner.type == step.type and len(partner.states) == len(step.states):
            for one, other in zip(partner.states, step.states, strict=True):
                name_a, name_b = a.index.state_name(a.log.states[-1 - one]), b.index.state_name(b.log.states[-1 - other])
                if name_b not in taken and name_a in ours and name_b in theirs:
                    found.setdefault(name_a, name_b)
    return found


def _named(alignment: Alignment, *, of_a: bool) -> dict[str, Tensor]:
    """The parameters of a side, and the buffers that were read; those that were changed since are left out."""
    side = alignment.a if of_a else alignment.b
    named: dict[str, Tensor] = dict(side.index.all_parameters())
    for state in side.log.states:
        named[side.index.state_name(state)] = state.value
    return {name: tensor for name, tensor in named.items() if not is_lazy(tensor) and not is_freed(tensor)}


def _absent(tensor: Any) -> AbsentTensor | None:
    """A parameter of a loaded history whose values are not in the file."""
    return tensor if type(tensor) is AbsentTensor else None


def _renamed(name: str, alignment: Alignment) -> str:
    address, _, last = name.rpartition(".")
    address = alignment.a.rename(address)
    return f"{address}.{last}" if address else last


def _by_content(
    alignment: Alignment, ours: dict[str, Tensor], theirs: dict[str, Tensor], matched: dict[str, str]
) -> dict[str, str]:
    """Parameters that no name and no operation ties, but that hold the same values, also transposed."""
    taken = set(matched.values())
    groups: dict[object, tuple[list[str], list[str]]] = {}
    for names, place in (([n for n in ours if n not in matched], 0), ([n for n in theirs if n not in taken], 1)):
        for name in names:
            tensor = (ours, theirs)[place][name]
            if _absent(tensor) is None and tensor.is_floating_point() and tensor.numel() and not tensor.is_meta:
                groups.setdefault((tensor.numel(), _size(tensor)), ([], []))[place].append(name)
    return {one: other for a, b in groups.values() if len(a) == len(b) for one, other in zip(a, b, strict=True)}


def _compared(name_a: str, name_b: str, one: Tensor, other: Tensor, tolerance: float | None) -> ParameterDifference | None:
    absent = _absent(one), _absent(other)
    if absent[0] is not None and absent[1] is not None and absent[0].fingerprint != absent[1].fingerprint:
        return ParameterDifference(name_a, name_b, absent[0].shape, absent[1].shape, None, "")
    if absent != (None, None):
        return None
    with DisableTorchFunction(), torch.no_grad():
        one, other = one.detach(), other.detach().to(one.device)
        shapes = (tuple(one.shape), tuple(other.shape))
        allowed = tolerance if tolerance is not None else tolerance_of(one.dtype, other.dtype)
        if one.dtype == other.dtype and tolerance is None:
            allowed = 0.0
        apart = difference(one, other)
        if apart is not None and apart.relative <= allowed:
            return None
        return ParameterDifference(name_a, name_b, *shapes, apart, _looks(one, other, allowed))


def _looks(one: Tensor, other: Tensor, allowed: float) -> str:
    """Whether one tensor is the other transposed, or with its rows or columns in another order."""
    if one.dim() < 1 or not one.is_floating_point() or one.numel() != other.numel():
        return ""
    if one.dim() == 2 and one.shape == other.T.shape and _is_close(one, other.T, allowed):
        return "transposed"
    if one.shape != other.shape:
        return ""
    words = ("rows permuted", "columns permuted") if one.dim() > 1 else ("permuted",)
    for dim, word in enumerate(words):
        order = _order(one.movedim(dim, 0), other.movedim(dim, 0))
        if order is not None and _is_close(one.movedim(dim, 0)[order[0]], other.movedim(dim, 0)[order[1]], allowed):
            moved = int((order[0] != order[1]).sum())
            return f"{word} ({moved} of {one.shape[dim]})"
    return ""


def _exchanged(
    found: list[ParameterDifference], ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float | None
) -> list[ParameterDifference]:
    """Where a parameter that differs has the values of another one of a that differs too, say of which."""
    sizes: dict[object, list[str]] = {}
    for one in found:
        if one.difference is not None and one.name_a is not None:
            sizes.setdefault((one.shape_a, _size(ours[one.name_a])), []).append(one.name_a)
    said = []
    for one in found:
        name_b = one.name_b
        if one.difference is not None and not one.looks and name_b is not None:
            for name in sizes.get((one.shape_b, _size(theirs[name_b])), ()):
                if name != one.name_a and _compared(name, name_b, ours[name], theirs[name_b], tolerance) is None:
                    one = replace(one, looks=f"like {name} of a")
                    break
        said.append(one)
    return said


def _size(tensor: Tensor) -> str:
    """The sum of the absolute values, to four digits."""
    with DisableTorchFunction(), torch.no_grad():
        return f"{float(absolute_values(tensor).sum(dtype=torch.float64)):.4g}"


def _is_stored_transposed(one: ParameterDifference, contents: dict[str, str]) -> bool:
    """Whether other functions use a parameter in the two, as `addmm` and `linear`, which want it the other way round."""
    return one.looks == "transposed" and one.name_a in contents


def _order(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor] | None:
    """The rows of both, sorted by a projection that tells them apart."""
    flat_a, flat_b = one.reshape(len(one), -1).double(), other.reshape(len(other), -1).double()
    generator = torch.Generator().manual_seed(0)
    direction = torch.rand(flat_a.shape[1], generator=generator, dtype=torch.float64).to(flat_a.device)
    return (flat_a @ direction).argsort(), (flat_b @ direction).argsort()


def _is_close(one: Tensor, other: Tensor, allowed: float) -> bool:
    apart = difference(one, other)
    return apart is not None and apart.relative <= allowed
