"""One run of a model as the library reads it: the log, and the labels, the index and the lookup that follow from the log."""

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
    """A log with its options and its labels. The index is made when it is asked for, and again after the log has grown."""

    # What a user holds of a run. `torcheer.history`, which stands above this package, sets the function that makes one.
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
        """Forget what was logged: the model is run once more."""
        self._take(_empty_log(self.log.title, self.options))

    def _take(self, log: Log) -> None:
        self.log = log
        self._growing = LayerTable(log, self.options.layer_label_format)
        self._index: Index | None = None
        self._lookup: Lookup | None = None

    @property
    def index(self) -> Index:
        """What follows from the log as it is now."""
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
        """An index for what is final as soon as an operation ran, so without labels."""
        return Index(self.log, self._growing)

    @property
    def lookup(self) -> Lookup:
        """Finds the operations that a key means."""
        index = self.index
        if self._lookup is None:
            self._lookup = Lookup(index)
        return self._lookup

    def copy(self, memo: dict[int, Any] | None = None) -> LoggedRun:
        """A second run with the same kept tensors; with copies of the kept tensors where there is a `memo` of `deepcopy`."""
        log = twin_of_log(self.log) if memo is None else copy_of_log(self.log, memo)
        return LoggedRun(log, self.options)

    def shown_by(self, history: Any) -> None:
        """Note the history that shows this run; `history` returns it while it is in use."""
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
    """A `ModelHistory`, as the packages below `torcheer.history` know it."""

    @property
    def _run(self) -> LoggedRun: ...


def run_of(history: HoldsRun, argument: str = "history") -> LoggedRun:
    """The run that a history shows. `argument` is the name that the user knows it by, for errors."""
    run = getattr(history, "_run", None)
    if not isinstance(run, LoggedRun):
        raise InvalidArgument(
            f"{argument} is a history of the model, as log_forward_pass returns; got {type(history).__name__}."
        )
    return run
