"""`LoggedRun`: the log of one run, with its options, and the index and the lookup derived from the log.

Every folder between `log` and `history` takes a `LoggedRun`; `run_of(history)` gives it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from ..errors import InvalidArgument
from .copying import copy_of_log, twin_of_log
from .index import Index
from .labels import LayerTable
from .lookup import Lookup
from .options import Options
from .records import BackwardLog, Log


class LoggedRun:
    """A log with its options. The index is made on access, and made again after the log has grown."""

    # Makes the `ModelHistory` of a run. Set by `torcheer.history`, which this package cannot import.
    make_history: ClassVar[Callable[[LoggedRun], Any]]

    def __init__(self, log: Log, options: Options) -> None:
        self.options = options
        self._shown_by: weakref.ref[Any] | None = None
        self._take(log)

    @classmethod
    def begin(cls, title: str, options: Options) -> LoggedRun:
        """A run that is about to be recorded."""
        return cls(_empty_log(title, options), options)

    def begin_again(self) -> None:
        """Replace the log by an empty log, because the model is run once more."""
        self._take(_empty_log(self.log.title, self.options))

    def _take(self, log: Log) -> None:
        self.log = log
        self._growing = LayerTable(log, self.options.layer_label_format)
        self._index: Index | None = None
        self._lookup: Lookup | None = None

    @property
    def index(self) -> Index:
        """The index of the log as it is now."""
        index = self._index
        if index is None or not index.is_current:
            if self.log.is_complete:
                table = LayerTable(self.log, self.options.layer_label_format)
                table.complete(self.options.keep_orphans)
            else:
                table = self._growing
                table.catch_up()
            index = self._index = Index(self.log, table)
            self._lookup = None
        return index

    def index_so_far(self) -> Index:
        """An index without up-to-date labels, for facts that are final as soon as an operation ran."""
        return Index(self.log, self._growing)

    @property
    def lookup(self) -> Lookup:
        """Finds the operations that a key means."""
        index = self.index
        if self._lookup is None:
            self._lookup = Lookup(index)
        return self._lookup

    def copy(self, memo: dict[int, Any] | None = None) -> LoggedRun:
        """A second run that shares the kept tensors; with the `memo` of `deepcopy`, the kept tensors are copied."""
        log = twin_of_log(self.log) if memo is None else copy_of_log(self.log, memo)
        return LoggedRun(log, self.options)

    def shown_by(self, history: Any) -> None:
        """Remember, by a weak reference, the history of this run. `history` returns it while it exists."""
        self._shown_by = weakref.ref(history)

    @property
    def history(self) -> Any:
        """The `ModelHistory` of this run."""
        known = self._shown_by() if self._shown_by is not None else None
        return known if known is not None else LoggedRun.make_history(self)


def _empty_log(title: str, options: Options) -> Log:
    backward = None if options.save_gradients == "none" else BackwardLog()
    return Log(title, holds_tensors=options.activation_postfunc is None, backward=backward)


class HoldsRun(Protocol):
    """The protocol of `ModelHistory` for folders that cannot import it: an object with a run."""

    @property
    def _run(self) -> LoggedRun: ...


def run_of(history: HoldsRun, argument: str = "history") -> LoggedRun:
    """The run of a history. `argument` is the name of the user's argument, for errors."""
    run = getattr(history, "_run", None)
    if not isinstance(run, LoggedRun):
        raise InvalidArgument(
            f"{argument} is a history of the model, as log_forward_pass returns; got {type(history).__name__}."
        )
    return run
