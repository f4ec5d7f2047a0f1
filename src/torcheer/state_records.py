"""The parameters and buffers that operations read. They are held by reference, so they may change after the recording."""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import Parameter

from .record_views import Views
from .tensor_marks import Mark, is_counted, is_same_sample, marks_of

_BESIDE: Final = 8  # how many others of its kind are asked whether they were changed, where one is not watched as a whole


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
        is_near = all(tensor.is_cpu for tensor in self.tensors)
        sampled = () if is_near else {place for kind in self._kinds().values() for place in _spread(kind)}
        self._marks = marks_of(self.tensors, sampled)

    def is_changed(self, place: int) -> bool:
        """Whether torch counted a write since the recording, the memory is another, or a sample of the elements is."""
        return bool(self._marks) and bool(self._changes([place])[0])

    def may_be_changed(self, place: int) -> bool:
        """Whether one may have been changed where nobody looks, as others of its kind were.

        A fused optimizer changes all parameters that it was given, but of an embedding only the rows that were used.
        """
        if not self._marks or self._marks[place].is_whole:
            return False
        kind = _kind(self.tensors[place])
        if kind == "frozen" or (kind == "buffer" and self._marks[place].sample is not None):
            return False
        sampled = [other for other in self._kinds()[kind] if self._marks[other].sample is not None]
        beside = sorted(sampled, key=lambda other: abs(other - place))[:_BESIDE]
        return "uncounted" in self._changes(beside)

    def _changes(self, places: list[int]) -> list[str]:
        """How each of these changed: `"counted"` by torch, `"uncounted"`, or not at all."""
        marks = marks_of([self.tensors[place] for place in places], range(len(places)))
        found = []
        for before, now in zip([self._marks[place] for place in places], marks, strict=True):
            is_same = is_same_sample(before, now)
            found.append("counted" if is_counted(before, now) else "" if is_same else "uncounted")
        return found

    def _kinds(self) -> dict[str, list[int]]:
        """The places of trainable parameters, of frozen ones and of buffers."""
        found: dict[str, list[int]] = {}
        for place, tensor in enumerate(self.tensors):
            found.setdefault(_kind(tensor), []).append(place)
        return found

    def __copy__(self) -> States:
        new = States()
        new.tensors, new.before, new._marks = list(self.tensors), dict(self.before), list(self._marks)
        return new


def _kind(tensor: torch.Tensor) -> str:
    if not isinstance(tensor, Parameter):
        return "buffer"
    return "trainable" if tensor.requires_grad else "frozen"


def _spread(places: list[int]) -> list[int]:
    """A few of these, from the first to the last."""
    return places[:: -(-len(places) // _BESIDE)]
