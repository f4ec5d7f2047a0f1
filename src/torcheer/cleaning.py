"""Context managers around a user's code that clean up and leave the user's exceptions alone.

`contextlib.contextmanager` sets attributes of an exception that passes through it. For an exception that is a frozen dataclass
that fails, and the user gets a `FrozenInstanceError` instead of the model's own error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Cleaning(Generic[T]):
    """Runs a generator to its `yield` and, when the block is over, whatever way it ended, to its end."""

    def __init__(self, steps: Iterator[T]) -> None:
        self._steps = steps

    def __enter__(self) -> T:
        return next(self._steps)

    def __exit__(self, *raised: object) -> None:
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
