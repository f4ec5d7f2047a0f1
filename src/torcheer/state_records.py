"""The parameters and buffers that operations read. They are held by reference, so they may change after the recording."""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import Parameter

from .record_views import Views
from .tensor_marks import Mark, is_counted, is_same_sample, marks_of

_BESIDE: Final = 8  # how many parameters are asked whether they were changed together with one


class StateRecord:
    """A parameter or buffer that an operation read. Held by reference: its value belongs to the model."""

    __slots__ = ("_states", "number", "tensor")

    def __init__(self, states: States, place: int) -> None:
        self._states = states
        self.tensor = states.tensors[place]
        self.number = -1 - place

    @property
    def before(self) -> torch.Tensor | None:
        """What it was, if the recording overwrote it for good."""
        return self._states.before.get(self.number)

    @property
    def is_changed(self) -> bool:
        """Whether it is seen not to be what the operations read: it was written to, or given other memory, since then."""
        return self.before is None and self._states.is_changed(-1 - self.number)

    @property
    def may_be_changed(self) -> bool:
        """Whether it cannot be vouched for: not all of it is watched, and parameters beside it were changed uncounted."""
        return self.before is None and self._states.may_be_changed(-1 - self.number)

    @property
    def value(self) -> torch.Tensor:
        """What the operations that name this record read."""
        before = self.before
        return self.tensor if before is None else before

    @property
    def is_parameter(self) -> bool:
        return isinstance(self.tensor, Parameter)


class States(Views[StateRecord]):
    """The parameters and buffers that operations read, in the order they were met."""

    __slots__ = ("_marks", "before", "tensors")

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.before: dict[int, torch.Tensor] = {}  # by (negative) number, where the recording overwrote one for good
        self._marks: list[Mark] = []  # by which it is seen whether one changed since the recording ended

    def __len__(self) -> int:
        return len(self.tensors)

    def _view(self, place: int) -> StateRecord:
        return StateRecord(self, place)

    def mark(self) -> None:
        """The recording is over: what changes from now on is noticed."""
        self._marks = marks_of(self.tensors)

    def is_changed(self, place: int) -> bool:
        """Whether torch counted a write since the recording, the memory is another, or a sample of the elements is."""
        if not self._marks:
            return False
        (now,) = marks_of([self.tensors[place]])
        return is_counted(self._marks[place], now) or not is_same_sample(self._marks[place], now)

    def may_be_changed(self, place: int) -> bool:
        """Whether a parameter may have been changed where nobody looks, as those met next to it were.

        A fused optimizer changes all parameters that it was given, but of an embedding only the rows that were used.
        """
        if not self._marks or self._marks[place].is_whole or not self._is_trainable(place):
            return False
        others = filter(self._is_trainable, range(len(self.tensors)))
        beside = sorted(others, key=lambda other: abs(other - place))[: _BESIDE + 1]
        marks = marks_of([self.tensors[other] for other in beside])
        before = [self._marks[other] for other in beside]
        return any(not is_counted(then, now) and not is_same_sample(then, now) for then, now in zip(before, marks, strict=True))

    def _is_trainable(self, place: int) -> bool:
        tensor = self.tensors[place]
        return isinstance(tensor, Parameter) and tensor.requires_grad

    def __copy__(self) -> States:
        new = States()
        new.tensors, new.before, new._marks = list(self.tensors), dict(self.before), list(self._marks)
        return new
