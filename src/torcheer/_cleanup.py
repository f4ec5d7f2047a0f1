"""Holds signals back for a moment, so that no handler raises between two lines that belong together.

Python runs the handlers of signals between any two instructions of the main thread, and most handlers raise:
`KeyboardInterrupt`, the `SystemExit` of a handler of SIGTERM, the time limit of SIGALRM.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial, wraps
from time import monotonic
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

LONGEST: Final = 10.0  # seconds; a signal that comes after that is handled at once: leaving may wait for something
# `signal` makes enumerations of the numbers that these return, which takes ten times as long
_plain: Any = sys.modules.get("_signal", signal)
_handler_of: Callable[[int], Any] = _plain.getsignal
_handle: Callable[[int, Any], Any] = _plain.signal
_NUMBERS: Final = tuple(sorted(map(int, signal.valid_signals())))

_holding: list[held_signals] = []  # the block of the main thread in which signals are held back now, if any


class held_signals:  # noqa: N801 - used as a function: `with held_signals():`
    """Inside, handlers written in Python do not run. Those whose signals came run when the block is over. Blocks may nest.

    Handlers run in the main thread only, so in other threads nothing is to be done. No code of the user's belongs inside.
    """

    __slots__ = ("_came", "_handlers", "_holds", "_left", "_note", "_since")

    def __enter__(self) -> None:
        self._holds = not _holding and threading.get_ident() == threading.main_thread().ident
        if not self._holds:
            return
        self._came: dict[int, FrameType | None] = {}
        self._since = monotonic()
        self._note = self._noted
        pairs = zip(_NUMBERS, map(_handler_of, _NUMBERS), strict=True)
        self._handlers = {number: handler for number, handler in pairs if callable(handler)}
        self._left = list(self._handlers)
        try:
            for number in self._handlers:
                _handle(number, self._note)
            _holding.append(self)
        except BaseException as error:  # of a handler that was not replaced yet
            self._end()
            del self._note
            self._holds = False
            if not isinstance(error, ValueError):  # as in an interpreter that is not the main one
                raise

    def __exit__(self, *error: object) -> None:
        if self._holds:
            try:
                self._end()
            finally:  # again, where a handler that was back raised
                self._end()
                del self._note  # which leads here
                self._run(list(self._came))

    def _noted(self, number: int, frame: FrameType | None) -> None:
        """Stands in for a handler."""
        if self in _holding and monotonic() - self._since < LONGEST:
            self._came[number] = frame
        else:  # a program that got this handler as the one before its own put it back
            self._handlers[number](number, frame)

    def _end(self) -> None:
        """Put the handlers back, but for those that somebody replaced meanwhile."""
        while self._left:
            number = self._left[-1]
            if _handler_of(number) is self._note:
                _handle(number, self._handlers[number])
            self._left.pop()
        if self in _holding:
            _holding.remove(self)

    def _run(self, numbers: list[int]) -> None:
        """Run the handlers whose signals came, each of them whatever the others raise."""
        if numbers:
            try:
                self._handlers[numbers[0]](numbers[0], self._came[numbers[0]])
            finally:
                self._run(numbers[1:])


def is_interrupt(error: BaseException) -> bool:
    """True where an error came between two lines: a signal's handler raised it, as for a time limit; or it is no Exception."""
    if not isinstance(error, _NO_INTERRUPTS):
        return True
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_argcount >= 2 or code.co_flags & inspect.CO_VARARGS:  # a handler is given the number and the frame
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 1]
            values = trace.tb_frame.f_locals
            if any(_is_frame(values.get(name)) for name in names):
                return True
        trace = trace.tb_next
    return False


# They come where the code waits (at a `yield`, an `await`), so never between two lines of torch.
_NO_INTERRUPTS = (Exception, GeneratorExit, asyncio.CancelledError)


def _is_frame(value: Any) -> bool:
    return isinstance(value, FrameType) or (type(value) is tuple and any(isinstance(one, FrameType) for one in value))


def pass_interrupts_on(error: Exception) -> None:
    """In a block that handles any error of the user's code: raise an error that is a signal's, such as that of a time limit."""
    if is_interrupt(error):
        raise error


# Context managers around a user's code that end in any case, and leave the user's exceptions alone.
#
# `contextlib.contextmanager` sets attributes of an exception that passes through it. For an exception that is a
# frozen dataclass that fails, and the user gets a `FrozenInstanceError` instead of the model's own error.

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


# Ends processes that this library started, in a time that is known before.

_PATIENCE = 5.0  # seconds until a process that was killed is gone; one that the system holds back (a dead disk) never is


def end_process(process: subprocess.Popen[bytes], patience: float = 0.0) -> None:
    """Wait `patience` seconds for a process to end, then kill it. Return also where the system cannot end it."""
    if process.stdin is not None:
        with contextlib.suppress(OSError, ValueError):  # it is gone, and reads no more
            process.stdin.close()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        kill_process(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None and sys.platform != "win32":  # where a thread of `communicate` may be reading it for ever
            pipe.close()


def kill_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, stopped or not, and, where it leads a group of its own, what it started: that may hold its pipes."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            if process.returncode is None and os.getpgid(process.pid) == process.pid:  # nobody else has that number yet
                os.killpg(process.pid, signal.SIGKILL)
                return
    with contextlib.suppress(OSError):
        process.kill()
