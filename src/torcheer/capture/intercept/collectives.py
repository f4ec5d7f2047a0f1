"""Counts the collectives that a process takes part in, and writes their arguments down.

Python functions of `torch.distributed` are seen as any torch function is. Collectives that are made elsewhere (by a process
group's own methods, inside DTensor) are noticed by the number of collectives that each process group counts.
"""

from __future__ import annotations

from typing import Any

import torch.distributed

from ...torch_internals import C_MODULE, DisableTorchFunction, count_collectives
from ..recorder import Recorder


def in_words(value: Any) -> Any:
    """A template of a collective's arguments that does not keep its process group alive."""
    if isinstance(value, (list, tuple)):
        return type(value)(in_words(item) for item in value)
    if hasattr(value, "group_name"):  # a process group
        return value.group_name
    return str(value) if type(value).__module__.startswith(C_MODULE) else value


class CollectiveWatch:
    """Counts the collectives that this process takes part in during a recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._first = self._known = count_collectives()

    @classmethod
    def where_possible(cls, recorder: Recorder) -> CollectiveWatch | None:
        """A watch; None where there are no other processes."""
        is_possible = torch.distributed.is_available() and torch.distributed.is_initialized()
        return cls(recorder) if is_possible else None

    def ran(self) -> bool:
        """Whether collectives ran since the last call of this method."""
        before, self._known = self._known, count_collectives()
        return self._known != before

    def note_unseen(self) -> None:
        """A call is about to run: collectives that ran since the last one were made by something that is not watched."""
        if self.ran():
            with DisableTorchFunction():
                self._recorder.unseen_collective()

    def finish(self) -> None:
        """The recording is over."""
        self._recorder.log.collectives += count_collectives() - self._first
