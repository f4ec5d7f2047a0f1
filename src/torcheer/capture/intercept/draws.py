"""Notices where a pass moves torch's random state other than by the calls that are watched."""

from __future__ import annotations

from ctypes import string_at
from typing import Any

import torch
from torch import Tensor

from ...records import Log, TorchFunction
from ...torch_internals import DisableTorchFunction
from ..restore.randomness import RandomState


class DrawWatch:
    """Checks at every watched random call whether torch's random state was changed since the one before.

    A model changes it by seeding, forking or setting the state, or by drawing in code that is not watched.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._moved: RandomState | None = None  # the state the latest call draws from, if the one before did not leave it
        self._left: Any = None  # what the last call that drew left behind
        self._first = b""  # the state of the processor's generator when the recording began
        self._is_alone = True  # whether nothing else moved the state by now
        self.drew = False

    def begins(self, function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call is about to draw random numbers."""
        if function.draws is None or not function.draws(args, kwargs):
            return False
        self.drew, self._moved = True, None
        if _fingerprint() != self._left:
            self._moved, self._is_alone = RandomState.now(), False
        return True

    def are_all(self, before: Tensor) -> bool:
        """Whether watched calls explain all that torch's state moved since it was `before`."""
        return self._is_alone and self._first == _bytes_of(before) and _fingerprint() == self._left

    def note(self, number: int) -> None:
        """A call drew, for operation `number`; note the state it drew from, if something else had moved it.

        A draw that a replay does not make again (of no operation, in a transform, around a collective) moves the state as
        seeding does.
        """
        log = self._log
        if number == len(log.rows):
            return
        if self._moved is not None:
            log.random_states[number] = self._moved
        details = log.details.get(number)
        if details is None or not (details.is_transformed or details.is_collective):
            self.end()

    def start(self) -> None:
        """A recording starts."""
        self.end()
        self._first = _bytes_of(torch.default_generator.get_state())

    def end(self) -> None:
        """A call drew."""
        self._left = _fingerprint()


def _bytes_of(state: Tensor) -> bytes:
    with DisableTorchFunction():
        return string_at(state.data_ptr(), state.nbytes)


def _fingerprint() -> Any:
    """Something that is equal where torch's random states are."""
    with DisableTorchFunction():
        state = torch.default_generator.get_state()
        ours = string_at(state.data_ptr(), state.nbytes)
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
            return ours
        return ours, [(one.initial_seed(), one.get_offset()) for one in torch.cuda.default_generators]
