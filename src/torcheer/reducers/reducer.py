"""Reducer: the base of all statistics. Each computes the state of a piece of the values, and merges two states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from ..display import few
from ..errors import InvalidArgument, UnreadableFile
from ..measure import dense
from ..torch_internals import DisableTorchFunction
from .units import UnitDim, Units, check_unit_dim, units_of

State = dict[str, Tensor]  # what was found so far; empty before the first values
Form = tuple[torch.dtype, tuple[int, ...]]  # dtype and shape of a tensor

_PIECE = 1 << 19  # values that are measured together: in double precision they fit a processor's cache
_PIECE_ON_DEVICE = 1 << 26
UNITS = "units"


@dataclass(frozen=True, repr=False)
class Reducer(ABC):
    """A statistic of the units of a layer.

    Units are the last dimension of values with up to three dimensions (features; tokens and features) and dimension 1 of others
    (channels of a convolution). `unit_dim` names another dimension, such as 1 for a one-dimensional convolution and -1 for
    channels that come last, or is `"all"` where every element of a sample is a unit.
    """

    unit_dim: UnitDim = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_unit_dim(self.unit_dim)

    def begin(self) -> State:
        """The state before any values."""
        return {}

    def update(self, state: State, values: Tensor, sample_numbers: Tensor) -> None:
        """Add values whose first dimension counts samples. The state stays on the device of the values."""
        with DisableTorchFunction(), torch.no_grad():
            read = dense(values)
            if read is None:
                raise InvalidArgument(f"{self} cannot read values of a {values.layout} tensor on device {values.device}.")
            if read.device.type == "mps":  # which has no double precision
                read = read.cpu()
            units = units_of(read, self.unit_dim)
            if UNITS not in state:
                state[UNITS] = units.to_tensor()
            elif (before := units_in(state)) != units:
                raise InvalidArgument(
                    f"{self} was given values of shape {tuple(values.shape)} after others with {before}: all batches need the "
                    "same units. transform= can make them so; unit_dim= says which dimension counts units."
                )
            for piece, numbers in _pieces(read, sample_numbers):
                self._absorb(state, piece, numbers, units)

    def _absorb(self, state: State, values: Tensor, numbers: Tensor, units: Units) -> None:
        found = self._measured(values, numbers, units)
        if len(state) > 1:
            found = self._merged(state, found)
        state.update(found)

    def merge(self, left: State, right: State) -> State:
        """The state of two parts of the data, `left` before `right`. Neither is changed. The last bits depend on the order."""
        if len(left) < 2 or len(right) < 2:
            return dict(left if len(left) >= len(right) else right)
        ours, theirs = units_in(left), units_in(right)
        if ours != theirs:
            raise InvalidArgument(f"{self} of {ours} cannot be merged with one of {theirs}: all blocks need the same units.")
        with DisableTorchFunction(), torch.no_grad():
            return {UNITS: left[UNITS], **self._merged(left, right)}

    def to_tensors(self, state: State) -> dict[str, Tensor]:
        """The state as it is written to a file, in main memory."""
        return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> State:
        """The state that was written; raises UnreadableFile where the tensors are no state of this reducer."""
        if not tensors:
            return {}
        try:
            given = tensors[UNITS]
            if given.dtype is not torch.int64 or given.dim() != 1:
                raise ValueError
            units = Units.from_tensor(given)
            others = {name: tensor for name, tensor in tensors.items() if name != UNITS}
            if others and not self._is_state(others, units):
                raise ValueError
        except (KeyError, ValueError):
            forms = few((f"{name} {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in tensors.items()), 8)
            raise UnreadableFile(f"these tensors are no state of {self}: {forms}.") from None
        return dict(tensors)

    def _is_state(self, tensors: Mapping[str, Tensor], units: Units) -> bool:
        forms = self._forms(units, tensors)
        return tensors.keys() == forms.keys() and all(
            (tensor.dtype, tuple(tensor.shape)) == forms[name] for name, tensor in tensors.items()
        )

    @abstractmethod
    def _forms(self, units: Units, tensors: Mapping[str, Tensor]) -> dict[str, Form]:
        """The dtypes and shapes of the tensors of a state."""

    @abstractmethod
    def _measured(self, values: Tensor, numbers: Tensor, units: Units) -> State:
        """The state of one piece of the values, with at least one element."""

    @abstractmethod
    def _merged(self, left: State, right: State) -> State: ...

    @abstractmethod
    def _result(self, state: State, units: Units) -> Any: ...

    def finish(self, state: State) -> Any:
        """The result, in main memory. Raises InvalidArgument where there were no values."""
        if len(state) < 2:
            raise InvalidArgument(f"{self} was given no values, so there is nothing to tell.")
        return self._result({name: tensor.cpu() for name, tensor in state.items()}, units_in(state))

    def describe(self) -> dict[str, Any]:
        """The reducer as JSON values, from which `reducers.reducer_from` makes it again."""
        return {"reducer": type(self).__name__, **{one.name: getattr(self, one.name) for one in fields(self)}}

    def __repr__(self) -> str:
        values = [(one, getattr(self, one.name)) for one in fields(self)]
        given = [f"{one.name}={value!r}" for one, value in values if value != one.default]
        return f"{type(self).__name__}({', '.join(given)})"


def units_in(state: Mapping[str, Tensor]) -> Units:
    return Units.from_tensor(state[UNITS])


def _pieces(values: Tensor, numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Values and numbers in pieces of as many samples as are measured together."""
    if not values.numel():
        return
    largest = _PIECE if values.device.type == "cpu" else _PIECE_ON_DEVICE
    together = max(1, largest // (values.numel() // len(values)))
    yield from zip(torch.split(values, together), torch.split(numbers, together), strict=True)
