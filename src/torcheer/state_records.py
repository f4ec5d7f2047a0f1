"""The parameters and buffers that operations read. They are held by reference, so they may change after the recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import torch
from torch.nn import Parameter

from .record_views import Views
from .shapes import elements_of
from .tensor_marks import Marks

_is_near: Final[Callable[[torch.Tensor], bool]] = attrgetter("is_cpu")
_BESIDE: Final = 8  # how many others of its kind are asked whether they were changed, where one is not watched as a whole


@dataclass(slots=True, eq=False)
class AbsentTensor:
    """A parameter or buffer of a saved history whose values are not in the file: what can be told without reading it.

    It has the attributes of a tensor that tell shape, type and place. `States.bind` puts the tensor in its place.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_parameter: bool
    layout: torch.layout = torch.strided
    fingerprint: str = ""  # of the values it had (store/fingerprints.py); empty where these were gone
    is_uninitialized: bool = False  # of a lazy module that did not run

    @property
    def is_nested(self) -> bool:
        return False

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def numel(self) -> int:
        return elements_of(self.shape)


def is_parameter(tensor: Any) -> bool:
    """Whether it is a parameter, not a buffer; also of one that is absent."""
    return bool(tensor.is_parameter) if type(tensor) is AbsentTensor else isinstance(tensor, Parameter)


class StateRecord:
    """A parameter or buffer that an operation read. Held by reference: its value belongs to the model."""

    __slots__ = ("_states", "number", "tensor")

    def __init__(self, states: States, place: int) -> None:
        self._states = states
        self.tensor = states.tensors[place]
        self.number = -1 - place

    @property
    def before(self) -> torch.Tensor | None:
        """Its earlier value, if the recording overwrote it and did not restore it."""
        return self._states.before.get(self.number)

    @property
    def is_changed(self) -> bool:
        """Whether it certainly differs from what the operations read: it was written to, or given other memory, since then."""
        return self.before is None and self._states.is_changed(-1 - self.number)

    @property
    def may_be_changed(self) -> bool:
        """Whether it may differ: only a sample of it is compared, and others were changed without torch counting it."""
        return self.before is None and self._states.may_be_changed(-1 - self.number)

    @property
    def value(self) -> torch.Tensor:
        """The value that the operations read. Must not be asked for if it is absent."""
        before = self.before
        return self.tensor if before is None else before

    @property
    def is_absent(self) -> bool:
        """Whether its values are not there: the history was saved without them, and no model is bound."""
        value: Any = self.value
        return type(value) is AbsentTensor

    @property
    def is_parameter(self) -> bool:
        return is_parameter(self.tensor)


class States(Views[StateRecord]):
    """The parameters and buffers that operations read, in the order they were met."""

    __slots__ = ("_marks", "before", "tensors")

    def __init__(self) -> None:
        self.tensors: list[Any] = []  # tensors; in a saved history also `AbsentTensor`s
        self.before: dict[int, torch.Tensor] = {}  # by (negative) number, where the recording overwrote one for good
        self._marks: Marks | None = None  # marks that show whether one changed since the recording ended

    def __len__(self) -> int:
        return len(self.tensors)

    def _view(self, place: int) -> StateRecord:
        return StateRecord(self, place)

    def mark(self) -> None:
        """The recording is over: notice changes from now on."""
        is_near = all(map(_is_near, self.tensors))
        sampled = () if is_near else {place for kind in self._kinds().values() for place in _spread(kind)}
        self._marks = Marks(self.tensors, sampled)

    def is_changed(self, place: int) -> bool:
        """Whether torch counted a write since the recording, the memory is another, or a sample of the elements is."""
        return self._marks is not None and bool(self._changes(self._marks, [place])[0])

    def may_be_changed(self, place: int) -> bool:
        """Whether one may have changed outside of the compared sample, as others of its kind did.

        A fused optimizer changes all parameters that it was given, but of an embedding only the rows that were used.
        """
        marks = self._marks
        if marks is None or marks.is_whole(place):
            return False
        kind = _kind(self.tensors[place])
        if kind == "frozen" or (kind == "buffer" and marks.samples[place] is not None):
            return False
        sampled = [other for other in self._kinds()[kind] if marks.samples[other] is not None]
        beside = sorted(sampled, key=lambda other: abs(other - place))[:_BESIDE]
        return "uncounted" in self._changes(marks, beside)

    def _changes(self, before: Marks, places: list[int]) -> list[str]:
        """How each of these changed: `"counted"` by torch, `"uncounted"`, or not at all."""
        now = Marks([self.tensors[place] for place in places], range(len(places)))
        found = []
        for its_place, place in enumerate(places):
            is_same = before.is_same_sample(place, now, its_place)
            is_counted = before.is_counted(place, now, its_place, self.tensors[place])
            found.append("counted" if is_counted else "" if is_same else "uncounted")
        return found

    def _kinds(self) -> dict[str, list[int]]:
        """The places of trainable parameters, of frozen ones and of buffers."""
        found: dict[str, list[int]] = {}
        for place, tensor in enumerate(self.tensors):
            found.setdefault(_kind(tensor), []).append(place)
        return found

    def __copy__(self) -> States:
        new = States()
        new.tensors, new.before, new._marks = list(self.tensors), dict(self.before), self._marks
        return new


def _kind(tensor: torch.Tensor) -> str:
    if not is_parameter(tensor):
        return "buffer"
    return "trainable" if tensor.requires_grad else "frozen"


def _spread(places: list[int]) -> list[int]:
    """A few of these, from the first to the last."""
    return places[:: -(-len(places) // _BESIDE)]
