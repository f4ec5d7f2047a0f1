"""Calls user-given predicates of an operation while the model still runs.

Shape, type, module and arguments of an operation are final as soon as it ran. Its label, its children and its distance from
an output are not: a predicate that read one of these is called again when the pass is over, and until then the tensor is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from ...records import OperationRecord
from ..index import Index
from ..operation import Operation

if TYPE_CHECKING:
    from ..history import History

# The attributes of an index that are final while a recording grows.
_FINAL = frozenset({"tensor_bytes", "state", "state_behind", "state_name", "state_names"})


class _EarlyIndex:
    """The index of an unfinished recording. It notes when it is asked for something that is decided at the end of the pass."""

    def __init__(self, history: History) -> None:
        self.log = history._log
        self.is_unsure = False
        self._history = history
        self._so_far = Index(history._log, history._growing, history._makers)

    def record(self, number: int) -> OperationRecord:
        return self.log.operations[number]

    def __getattr__(self, name: str) -> Any:
        if name in _FINAL:
            return getattr(self._so_far, name)
        self.is_unsure = True
        return getattr(self._history._index, name)


class EarlyAnswers:
    """The answers that predicates gave while the model ran."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._index: _EarlyIndex | None = None
        self._answers: dict[int, dict[int, bool]] = {}  # by id of the function, which the key keeps alive

    def ask(self, predicate: Callable[[Any], Any], number: int) -> bool:
        """Whether to keep an operation. True also where the predicate must be asked again at the end."""
        index = self._index
        if index is None:
            index = self._index = _EarlyIndex(self._history)
        index.is_unsure = False
        try:
            answer = bool(predicate(Operation(cast(Index, index), number)))
        except Exception:
            if index.is_unsure:  # what it needs may be there at the end
                return True
            raise
        if index.is_unsure:
            return True
        self._answers.setdefault(id(predicate), {})[number] = answer
        return answer

    def settled(self, predicate: Callable[[Any], Any]) -> Callable[[Any], bool]:
        """The predicate with its final answers: it is called again only where it gave none."""
        known = self._answers.get(id(predicate), {})
        self._index = None

        def settled(operation: Operation) -> bool:
            answer = known.get(operation._number)
            return bool(predicate(operation)) if answer is None else answer

        return settled
