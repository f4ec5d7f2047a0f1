"""Context managers that always run their cleanup, even if a signal interrupts, and the ending of child processes.

Python runs signal handlers between any two instructions of the main thread, and most handlers raise: `KeyboardInterrupt`,
the `SystemExit` of a handler of SIGTERM, the time limit of SIGALRM. `held_signals` delays handlers for a moment, `Managed`
builds context managers on it.
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

# a signal that comes later than this many seconds is handled at once, because leaving a block may wait for something
LONGEST: Final = 10.0
# `signal` converts the results of these functions to enumerations, which takes ten times as long
_plain: Any = sys.modules.get("_signal", signal)
_handler_of: Callable[[int], Any] = _plain.getsignal
_handle: Callable[[int, Any], Any] = _plain.signal
_NUMBERS: Final = tuple(sorted(map(int, signal.valid_signals())))

_holding: list[held_signals] = []  # the block that is delaying signals now; empty if there is none


class held_signals:  # noqa: N801 - used as a function: `with held_signals():`
    """Inside this block, Python signal handlers are delayed until its end. Blocks may nest.

    Handlers run only in the main thread, so in other threads nothing happens. Never call the user's code inside.
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
        except BaseException as error:  # a handler that was not replaced yet may raise
            self._end()
            del self._note
            self._holds = False
            if not isinstance(error, ValueError):  # a ValueError is raised in a subinterpreter
                raise

    def __exit__(self, *error: object) -> None:
        if self._holds:
            try:
                self._end()
            finally:  # repeated if a restored handler raised
                self._end()
                del self._note  # the bound method refers to this object
                self._run(list(self._came))

    def _noted(self, number: int, frame: FrameType | None) -> None:
        """Called in place of the handler of a signal while the block runs: notes the signal."""
        if self in _holding and monotonic() - self._since < LONGEST:
            self._came[number] = frame
        else:  # the block lasts too long, or other code that saved this handler restored it after the block
            self._handlers[number](number, frame)

    def _end(self) -> None:
        """Restore the handlers, except those that other code replaced meanwhile."""
        while self._left:
            number = self._left[-1]
            if _handler_of(number) is self._note:
                _handle(number, self._handlers[number])
            self._left.pop()
        if self in _holding:
            _holding.remove(self)

    def _run(self, numbers: list[int]) -> None:
        """Run the handlers of the signals that came, even if one raises."""
        if numbers:
            try:
                self._handlers[numbers[0]](numbers[0], self._came[numbers[0]])
            finally:
                self._run(numbers[1:])


def is_interrupt(error: BaseException) -> bool:
    """True if an error may come between any two lines: a signal's handler raised it (a time limit), or it is no `Exception`."""
    if not isinstance(error, _NO_INTERRUPTS):
        return True
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        # a handler takes two arguments: the number and the frame
        if code.co_argcount >= 2 or code.co_flags & inspect.CO_VARARGS:
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 1]
            values = trace.tb_frame.f_locals
            if any(_is_frame(values.get(name)) for name in names):
                return True
        trace = trace.tb_next
    return False


# These exceptions come where the code waits (at a `yield`, an `await`), so never between two lines of torch.
_NO_INTERRUPTS = (Exception, GeneratorExit, asyncio.CancelledError)


def _is_frame(value: Any) -> bool:
    return isinstance(value, FrameType) or (type(value) is tuple and any(isinstance(one, FrameType) for one in value))


def pass_interrupts_on(error: Exception) -> None:
    """Called in a block that handles any error of the user's code: raise an error that a signal (a time limit) caused."""
    if is_interrupt(error):
        raise error


# Context managers around a user's code that end in any case, and leave the user's exceptions alone.
#
# `contextlib.contextmanager` sets attributes of an exception that passes through it. For an exception that is a frozen
# dataclass this fails, and the user gets a `FrozenInstanceError` instead of the model's own error.

P = ParamSpec("P")
T = TypeVar("T")


class _Leave:
    """The callable that a `with` statement gets as the `__exit__` of a `Managed`.

    Python may run a signal handler after calling `__exit__`, but before its first line: then nothing is undone. So the bound
    `__exit__` that a `with` statement holds also ends the block when it is dropped without having been called.
    """

    def __get__(self, manager: Managed[Any] | None, cls: type) -> Any:
        if manager is None:
            return self
        leave = partial(type(manager).leave, manager)  # a frame of `leave` refers to `manager`, not to the generator
        if not manager.has_begun:
            vars(leave)["net"] = net = _net(manager)
            next(net)
            manager._net = weakref.ref(net)
        return leave

    def __call__(self, manager: Managed[Any], *error: Any) -> bool | None:
        return manager.leave(*error)  # called like this by `contextlib.ExitStack`


def _net(manager: Managed[Any]) -> Iterator[None]:
    """A generator that ends a `with` block: if it is deleted at its `yield`, it ends the block unless the block has ended.

    A class with `__del__` would not do: an exception raised there by a signal handler is lost.
    """
    try:
        yield
    finally:
        if manager.has_begun:
            manager.leave(KeyboardInterrupt, KeyboardInterrupt(), None)


class Managed(Generic[T]):
    """A context manager that signals do not interrupt while it begins and ends, and that always ends.

    Subclasses define `_begin` and `_end`. A `_begin` that raises must undo what it did.
    """

    has_begun = False
    _net: Callable[[], Any] | None = None  # returns the generator that `_net` made for a `with` statement

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
        """End the block, unless it has ended already."""
        with held_signals():
            if not self.has_begun:
                return None
            self.has_begun = False
            net = self._net() if self._net is not None else None
            if net is not None:
                net.close()
            return self._end(kind, error, trace)


class Cleaning(Managed[T]):
    """Runs a generator to its `yield`, and from there to its end when the block ends, even after an error."""

    def __init__(self, steps: Iterator[T]) -> None:
        self._steps = steps

    def _begin(self) -> T:
        return next(self._steps)

    def _end(self, *raised: object) -> None:
        next(self._steps, None)


def cleaning(function: Callable[P, Iterator[T]]) -> Callable[P, Cleaning[T]]:
    """Turn a generator function that yields once into a context manager. The code after the `yield` always runs.

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


@cleaning
def undoing() -> Iterator[ExitStack]:
    """At the end of the block, call the functions that were registered by `undo.callback`, the last one first."""
    with ExitStack() as undo:
        yield undo


def shared(function: Callable[[], Iterator[None]]) -> Callable[[], Cleaning[None]]:
    """Like `cleaning`, for a setting of the whole process. Blocks may nest, and overlap in several threads: the first block
    runs the generator to its `yield`, and the last block to end runs it to its end.
    """
    lock = threading.RLock()  # reentrant: the end of a block may run while another begins on the same thread
    blocks: list[Iterator[None]] = []  # the same generator for each block

    @cleaning
    def made() -> Iterator[None]:
        with lock:
            steps = blocks[0] if blocks else function()
            if not blocks:
                next(steps)
            blocks.append(steps)
        yield
        with lock:
            blocks.pop()
            if not blocks:
                next(steps, None)

    return made


# Ends child processes within a known time.

_PATIENCE = 5.0  # number of seconds to wait for a killed process; a process stuck in the kernel (a dead disk) never ends


def end_process(process: subprocess.Popen[bytes], patience: float = 0.0) -> None:
    """Wait `patience` seconds for a process to end, then kill it. Returns even if the system cannot end it."""
    if process.stdin is not None:
        with contextlib.suppress(OSError, ValueError):  # the process is gone
            process.stdin.close()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        kill_process(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None and sys.platform != "win32":  # on Windows a thread of `communicate` may read the pipe for ever
            pipe.close()


def kill_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, stopped or not. If it leads a process group, kill the group: its children may hold its pipes."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            if process.returncode is None and os.getpgid(process.pid) == process.pid:  # the process id is not reused yet
                os.killpg(process.pid, signal.SIGKILL)
                return
    with contextlib.suppress(OSError):
        process.kill()
