"""Context managers around a user's code that end in any case, and leave the user's exceptions alone.

`contextlib.contextmanager` sets attributes of an exception that passes through it. For an exception that is a frozen dataclass
that fails, and the user gets a `FrozenInstanceError` instead of the model's own error.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from .signals import held_signals

P = ParamSpec("P")
T = TypeVar("T")


class _Leave:
    """The `__exit__` of a `Managed`.

    Python may run the handler of a signal when it has called `__exit__`, before the first line of that: then nothing is undone.
    So what a `with` statement calls at its end also undoes everything when it is dropped without having been called.
    """

    def __get__(self, manager: Managed[Any] | None, cls: type) -> Any:
        if manager is None:
            return self
        leave = partial(type(manager).leave, manager)  # a frame of `leave` refers to `manager`, and not to the net
        if not manager.has_begun:
            vars(leave)["net"] = net = _net(manager)
            next(net)
            manager._net = weakref.ref(net)
        return leave

    def __call__(self, manager: Managed[Any], *error: Any) -> bool | None:
        return manager.leave(*error)  # as `contextlib.ExitStack` calls it


def _net(manager: Managed[Any]) -> Iterator[None]:
    """A generator that, dropped at its `yield`, ends a `with` block that nobody ended.

    Not a class with a `__del__`, which Python calls in any case: what the handler of a signal raises there is lost.
    """
    try:
        yield
    finally:
        if manager.has_begun:
            manager.leave(KeyboardInterrupt, KeyboardInterrupt(), None)


class Managed(Generic[T]):
    """A context manager that no signal interrupts while it begins and ends, and that ends in any case.

    Subclasses say what is done, in `_begin` and `_end`. Where `_begin` raises, it undoes what it did.
    """

    has_begun = False
    _net: Callable[[], Any] | None = None  # leads to the net below a `with` statement

    def _begin(self) -> T:
        raise NotImplementedError

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        raise NotImplementedError

    def __enter__(self) -> T:
        was_begun = self.has_begun
        try:
            with held_signals():
                value = self._begin()
                self.has_begun = True
                return value
        except BaseException as error:
            if not was_begun:  # a signal came meanwhile, and its handler raised
                self.leave(type(error), error, error.__traceback__)
            raise

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> bool | None: ...

    else:
        __exit__ = _Leave()

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        """End the block, unless that was done."""
        with held_signals():
            if not self.has_begun:
                return None
            self.has_begun = False
            net = self._net() if self._net is not None else None
            if net is not None:
                net.close()
            return self._end(kind, error, trace)


class undoing(Managed[ExitStack]):  # noqa: N801 - used as a function: `with undoing() as undo:`
    """What is given to `undo.callback` in the block is called when the block is over, the last one first."""

    def _begin(self) -> ExitStack:
        self._undo = ExitStack()
        return self._undo

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._undo.__exit__(kind, error, trace)


class Cleaning(Managed[T]):
    """Runs a generator to its `yield` and, when the block is over, whatever way it ended, to its end."""

    def __init__(self, steps: Iterator[T]) -> None:
        self._steps = steps

    def _begin(self) -> T:
        return next(self._steps)

    def _end(self, *raised: object) -> None:
        next(self._steps, None)


def cleaning(function: Callable[P, Iterator[T]]) -> Callable[P, Cleaning[T]]:
    """Make a context manager of a generator function that yields once; what follows the `yield` always runs.

    >>> @cleaning
    ... def telling():
    ...     yield
    ...     print("over")
    >>> with telling():
    ...     print("inside")
    inside
    over
    """

    @wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> Cleaning[T]:
        return Cleaning(function(*args, **kwargs))

    return made
