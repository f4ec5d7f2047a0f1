"""Reduces a tensor to an entry with statistics, and the part of its values that is kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from .._torch.inputs import is_whole
from .._torch.measure import dense, finite, magnitudes, statistics_of
from .._torch.shapes import shape_of
from ..errors import InvalidArgument, TorcheerError
from .records import Entry, Kind, Layout
from .selectors import CONVOLUTION, Choices

_Numbers = tuple[int, ...]  # numbers of rows or columns
_EDGE = 0.01  # colours span the values between this quantile and the quantile 1 - `_EDGE`


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a tensor is kept. Smaller tensors are kept whole; for larger tensors a selector chooses."""

    channels: int = 32  # for a convolution: number of feature maps and filters
    inputs: int = 16  # for a filter: number of input channels
    units: int = 256  # for a fully connected layer: number of rows and columns of the weight, and of units of the output
    samples: int = 32  # for an output that is a matrix: number of rows
    side: int = 128  # for a feature map: number of pixels down and across

    def __post_init__(self) -> None:
        for one in fields(self):
            if not is_whole(value := getattr(self, one.name), 1):
                raise InvalidArgument(f"limits: {one.name} must be a whole number from 1 on; got {value!r}.")


@dataclass(slots=True)
class Measured:
    """A whole tensor that was taken, with facts about it. No other code writes to it."""

    layer: str
    kind: Kind
    source: str
    tensor: Tensor
    dimensions: int = 0  # for a convolution: 2 for pictures; 0 for other layers
    # for a weight: True if inputs come before units, as in a transposed convolution or an embedding
    has_inputs_first: bool = False
    notes: list[str] = field(default_factory=list)
    update_ratio: float | None = None
    input_channels: int = 0  # for a convolution: number of channels of its input
    can_die: bool = True  # for an activation: True if a unit that is never above zero is dead
    make: Callable[[], Tensor] | None = None  # computes the tensor, if that takes time


@dataclass(slots=True)
class _Part:
    """The kept part of a tensor, with the facts about it that its entry gets."""

    tensor: Tensor
    layout: Layout
    rows: _Numbers
    columns: _Numbers | None
    axes: tuple[str, str]  # names of rows and columns
    totals: tuple[int, int]  # numbers of rows and columns of the whole tensor
    notes: list[str]


def keep(measured: Measured, choices: Choices, limits: Limits, dead: int | None = None) -> tuple[Entry, Tensor]:
    """Reduce a tensor: returns its entry, and the part of the tensor to write."""
    notes = list(measured.notes)
    tensor, statistics = _shown(measured.tensor, notes), statistics_of(measured.tensor)
    if tensor is None or statistics is None:
        raise TorcheerError(f"{measured.source} has no values to read: it is on the meta device, or a large sparse tensor.")
    shape, dtype = tuple(shape_of(measured.tensor)), str(measured.tensor.dtype).removeprefix("torch.")
    if tensor.is_complex():
        tensor = magnitudes(tensor)
        notes.append("magnitudes of complex numbers")
    is_weight = measured.kind in ("weight", "grad")
    part = _of_weight(measured, tensor, choices, limits) if is_weight else _of_output(measured, tensor, choices, limits)
    kept = part.tensor.detach().cpu().float()
    low, high = _range(kept)
    entry = Entry(
        layer=measured.layer,
        kind=measured.kind,
        source=measured.source,
        shape=shape,
        dtype=dtype,
        layout=part.layout,
        rows=part.rows,
        columns=part.columns,
        axes=part.axes,
        totals=part.totals,
        low=low,
        high=high,
        statistics=statistics,
        update_ratio=measured.update_ratio,
        dead=dead,
        units=units_of(measured) if measured.kind == "activation" else None,
        is_color=part.layout == "filters" and _is_color(measured),
        note="; ".join([*notes, *part.notes]),
    )
    return entry, kept


def _shown(tensor: Tensor, notes: list[str]) -> Tensor | None:
    """The values of a tensor in its shape; for a nested tensor, the first sample in a batch of one."""
    if not tensor.is_nested:
        return dense(tensor)
    parts = tensor.unbind()
    if len(parts) > 1:
        notes.append(f"the first of {len(parts)} samples")
    return dense(parts[0].unsqueeze(0)) if parts else dense(tensor)


def _is_color(measured: Measured) -> bool:
    """True for filters over red, green and blue: a 2-d convolution's filters over all three channels of its input."""
    shape = measured.tensor.shape
    return (
        measured.kind == "weight"
        and measured.dimensions == 2
        and not measured.has_inputs_first
        and len(shape) == 4
        and shape[1] == measured.input_channels == 3
    )


def _of_weight(measured: Measured, tensor: Tensor, choices: Choices, limits: Limits) -> _Part:
    """The kept part of a weight or its gradient: filters of a convolution, or a matrix."""
    notes: list[str] = []
    if tensor.dim() < 3:
        matrix = tensor.reshape(1, -1) if tensor.dim() < 2 else tensor
        axes = ("unit", "input") if tensor.dim() == 2 else ("", "unit")
        names = (measured.layer, f"{measured.layer}/inputs")
        if measured.has_inputs_first:
            axes, names = ("input", "unit"), (names[1], names[0])
        rows = choices.choose(names[0], matrix.shape[0], limits.units, matrix)
        columns = choices.choose(names[1], matrix.shape[1], limits.units, matrix.t())
        return _cut(matrix, "matrix", rows, columns, axes, notes)
    if measured.has_inputs_first:
        tensor = tensor.transpose(0, 1)
    while tensor.dim() > 4:
        notes.append(f"the middle of {tensor.shape[2]} slices in depth")
        tensor = tensor.select(2, tensor.shape[2] // 2)
    if tensor.dim() == 3:
        tensor = tensor.unsqueeze(2)
    rows = choices.choose(measured.layer, tensor.shape[0], limits.channels, tensor, CONVOLUTION)
    columns = choices.choose(f"{measured.layer}/inputs", tensor.shape[1], limits.inputs, tensor.transpose(0, 1), CONVOLUTION)
    return _cut(tensor, "filters", rows, columns, ("filter", "input channel"), notes)


def _of_output(measured: Measured, tensor: Tensor, choices: Choices, limits: Limits) -> _Part:
    """The kept part of an output, an activation, a pattern or their gradients: maps of the first sample, or samples × units."""
    notes: list[str] = []
    axis = channel_axis(measured)
    if axis is None:  # the tensor is samples × units, or tokens × units of the first sample
        matrix = tensor.reshape(1, -1) if tensor.dim() < 2 else tensor
        axes = ("sample" if tensor.dim() == 2 else "position" if tensor.dim() > 2 else "", "unit")
        if matrix.dim() > 2:
            if math.prod(matrix.shape[:-2]) > 1:
                notes.append(f"the first of {math.prod(matrix.shape[:-2])} samples")
            matrix = matrix.reshape(-1, *matrix.shape[-2:])[0] if matrix.numel() else matrix.reshape(0, matrix.shape[-1])
        rows = tuple(range(min(matrix.shape[0], limits.samples)))
        columns = choices.choose(measured.layer, matrix.shape[1], limits.units, matrix.t())
        return _cut(matrix, "matrix", rows, columns, axes, notes)
    if axis == 1:
        if tensor.shape[0] > 1:
            notes.append(f"the first of {tensor.shape[0]} samples")
        tensor = tensor[0] if tensor.shape[0] else tensor.new_zeros(tensor.shape[1:])
    rows = choices.choose(measured.layer, tensor.shape[0], limits.channels, tensor, CONVOLUTION)
    maps = _picked(tensor, 0, rows)
    while maps.dim() > 3:
        notes.append(f"the middle of {maps.shape[1]} slices in depth")
        maps = maps.select(1, maps.shape[1] // 2)
    if maps.dim() == 2:
        stride = -(-maps.shape[1] // (limits.side * 4))
        columns = tuple(range(0, maps.shape[1], max(stride, 1)))
        if stride > 1:
            notes.append(f"every {_nth(stride)} position")
        sizes = (tensor.shape[0], maps.shape[1])
        return _Part(maps[:, :: max(stride, 1)], "matrix", rows, columns, ("channel", "position"), sizes, notes)
    stride = max(1, -(-max(maps.shape[1:]) // limits.side))
    if stride > 1:
        notes.append(f"every {_nth(stride)} pixel")
    word = "head" if measured.kind == "attention" else "channel"
    return _Part(maps[:, ::stride, ::stride], "maps", rows, None, (word, ""), (tensor.shape[0], 1), notes)


def channel_axis(measured: Measured) -> int | None:
    """The dimension of the channels, if an output is made of maps: 1, or 0 without a batch; else None."""
    dims = measured.tensor.dim()
    if measured.dimensions and dims == measured.dimensions + 1:
        return 0
    return 1 if dims >= 4 or (measured.dimensions and dims == measured.dimensions + 2) else None


def units_of(measured: Measured) -> int | None:
    """Return the number of units of an activation: channels of a convolution, features of a fully connected layer.

    None where the samples of a nested tensor have different numbers of them.
    """
    shape = shape_of(measured.tensor)
    axis = channel_axis(measured)
    units = shape[axis if axis is not None else -1] if shape else 1
    return units if units >= 0 else None


def lives_and_unknown(measured: Measured) -> tuple[Tensor, Tensor]:
    """For each unit: True if it was above zero anywhere in the batch; and True if it was NaN there and never above zero."""
    tensor, axis = measured.tensor.detach(), channel_axis(measured)
    axis = axis if axis is not None else -1
    if not tensor.is_nested and (
        tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex() or tensor.dim() == 0
    ):
        count = units_of(measured) or 0
        return torch.ones(count, dtype=torch.bool, device="cpu"), torch.zeros(count, dtype=torch.bool, device="cpu")
    parts = [part.unsqueeze(0) for part in tensor.unbind()] if tensor.is_nested else [tensor]
    rows = [part.movedim(axis, 0) for part in parts]
    above = [(one.reshape(one.shape[0], -1) > 0).any(dim=1).cpu() for one in rows]
    nan = [one.reshape(one.shape[0], -1).isnan().any(dim=1).cpu() for one in rows]
    lives = torch.stack(above).any(dim=0) if above else torch.zeros(units_of(measured) or 0, dtype=torch.bool, device="cpu")
    return lives, (torch.stack(nan).any(dim=0) if nan else torch.zeros_like(lives)) & ~lives


def as_written(tensor: Tensor, kind: Kind, dtype: torch.dtype) -> Tensor:
    """Convert maps to the dtype that the user asked for, if their values fit. Weights and gradients are returned unchanged."""
    if kind not in ("layer", "activation", "attention") or dtype is torch.float32:
        return tensor.contiguous()
    largest = tensor.nan_to_num(0.0, 0.0, 0.0).abs().max() if tensor.numel() else torch.zeros((), device="cpu")
    return tensor.to(dtype).contiguous() if float(largest) <= torch.finfo(dtype).max else tensor.contiguous()


def _cut(tensor: Tensor, layout: Layout, rows: _Numbers, columns: _Numbers, axes: tuple[str, str], notes: list[str]) -> _Part:
    kept = _picked(_picked(tensor, 0, rows), 1, columns)
    return _Part(kept, layout, rows, columns, axes, (tensor.shape[0], tensor.shape[1]), notes)


def _picked(tensor: Tensor, axis: int, numbers: _Numbers) -> Tensor:
    if numbers == tuple(range(tensor.shape[axis])):
        return tensor
    return tensor.index_select(axis, torch.tensor(numbers, device=tensor.device, dtype=torch.int64))


def _range(kept: Tensor) -> tuple[float | None, float | None]:
    """The range in which most of the finite values lie: its lower and upper end."""
    values: Any = kept.numpy().reshape(-1)
    known = values[abs(values) < float("inf")]
    if not len(known):
        return None, None
    known.sort()
    last = len(known) - 1
    return finite(float(known[round(last * _EDGE)])), finite(float(known[round(last * (1 - _EDGE))]))


def _nth(number: int) -> str:
    return {2: "2nd", 3: "3rd"}.get(number, f"{number}th")
