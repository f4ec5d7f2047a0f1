"""Reads and sets autocast, and restores torch's per-thread state after an interrupt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch

from .._cleanup import Managed, is_interrupt
from .internals import DisableTorchFunction, function_modes, pop_function_mode, push_function_mode

P = ParamSpec("P")
T = TypeVar("T")
_DEVICES = ("cpu", "cuda", "mps", "xpu")

# The devices for which autocast is enabled, each with its dtype.
Autocast = tuple[tuple[str, torch.dtype], ...]


def autocast_state() -> Autocast:
    """The devices for which autocast is enabled now, each with its dtype."""
    return tuple((d, torch.get_autocast_dtype(d)) for d in _DEVICES if torch.is_autocast_enabled(d))


def autocast_as(state: Autocast) -> contextlib.ExitStack:
    """Enter a block in which autocast has this state, and return it. Use it at once."""
    recorded = dict(state)
    with contextlib.ExitStack() as context:
        for device in _DEVICES:
            if device in recorded:
                context.enter_context(torch.autocast(device, dtype=recorded[device], cache_enabled=False))
            elif torch.is_autocast_enabled(device):
                context.enter_context(torch.autocast(device, enabled=False))
        return context.pop_all()


# Restores torch's per-thread state if an interrupt came between two lines of torch that change it.


class thread_as_found(Managed[None]):  # noqa: N801 - used as a function: `with thread_as_found():`
    """After an interrupt, restores the function modes, whether functions reach them, and the gradient mode.

    Recordings may overlap: if a recording began in the block and goes on, its mode stays; modes of ended recordings go.
    """

    def _begin(self) -> None:
        self._handing_on = DisableTorchFunction()
        self._handing_on.__enter__()
        self._handing_on.__exit__(None, None, None)  # `_end` calls it again
        self._modes = function_modes()
        self._follows_gradients = torch.is_grad_enabled()

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Restore the thread's state. The end of a program's mode may have removed our mode instead of its own."""
        chain = _chain(error)
        if not any(map(is_interrupt, chain)):
            return
        for one in chain:
            _end_left_blocks(one)
        self._handing_on.__exit__(None, None, None)
        now = function_modes()
        modes = [mode for mode in self._modes if not _is_over(mode)]
        modes += [mode for mode in now if _is_over(mode) is False and not any(mode is one for one in modes)]
        if list(map(id, now)) != list(map(id, modes)):
            for _ in now:
                pop_function_mode()
            for mode in modes:
                push_function_mode(mode)
        torch.set_grad_enabled(self._follows_gradients)


def thread_left_as_found(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: run the whole function inside `thread_as_found`."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_dynamo_compiling():  # torch cannot compile the block, and would warn of it
            return function(*args, **kwargs)
        with thread_as_found():
            return function(*args, **kwargs)

    return run


def _is_over(mode: Any) -> bool | None:
    """True if a function mode belongs to a recording that is over; None if it belongs to no recording."""
    return getattr(mode, "is_over_recording", None)


def _chain(error: BaseException | None) -> list[BaseException]:
    """List an error, and the errors that were its causes or were being handled when it was raised."""
    chain: list[BaseException] = []
    while error is not None and not any(error is one for one in chain):
        chain.append(error)
        error = error.__context__
    return chain


def _end_left_blocks(error: BaseException) -> None:
    """End the blocks of `contextlib.contextmanager` that an interrupt left unfinished.

    torch takes a mode off the stack in such a block, and would put the mode back when the traceback is dropped.
    """
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == contextlib.__file__:
            with contextlib.suppress(RuntimeError):  # the frame is running
                trace.tb_frame.clear()
        trace = trace.tb_next
