"""Reads the state of autocast, and puts an earlier one back."""

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

# The devices autocast is enabled for, each with the type it casts to.
Autocast = tuple[tuple[str, torch.dtype], ...]


def autocast_state() -> Autocast:
    """What autocast does now."""
    return tuple((d, torch.get_autocast_dtype(d)) for d in _DEVICES if torch.is_autocast_enabled(d))


def autocast_as(state: Autocast) -> contextlib.ExitStack:
    """Returns a block inside of which autocast has this state. It has begun: no time is to pass before it is entered."""
    recorded = dict(state)
    with contextlib.ExitStack() as context:
        for device in _DEVICES:
            if device in recorded:
                context.enter_context(torch.autocast(device, dtype=recorded[device], cache_enabled=False))
            elif torch.is_autocast_enabled(device):
                context.enter_context(torch.autocast(device, enabled=False))
        return context.pop_all()


# What torch keeps for each thread, put back where an interrupt came between two lines that change it.


class thread_as_found(Managed[None]):  # noqa: N801 - used as a function: `with thread_as_found():`
    """Where an interrupt ends the block: the function modes, whether functions are handed to them, and the gradient mode.

    Recordings may overlap: the mode of one that began in the block and goes on stays, and that of one that is over stays away.
    """

    def _begin(self) -> None:
        self._handing_on = DisableTorchFunction()
        self._handing_on.__enter__()
        self._handing_on.__exit__(None, None, None)  # which `_end` calls again
        self._modes = function_modes()
        self._follows_gradients = torch.is_grad_enabled()

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Put all back. When an interrupt ends a program's mode, that may take off ours instead of itself."""
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
    """Make a function that runs wholly inside `thread_as_found`."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with thread_as_found():
            return function(*args, **kwargs)

    return run


def _is_over(mode: Any) -> bool | None:
    """Whether a function mode is that of a recording that is over; None where it is no recording's."""
    return getattr(mode, "is_over_recording", None)


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error, and those during which it was raised."""
    chain: list[BaseException] = []
    while error is not None and not any(error is one for one in chain):
        chain.append(error)
        error = error.__context__
    return chain


def _end_left_blocks(error: BaseException) -> None:
    """End the blocks of `contextlib.contextmanager` that an interrupt left while Python was about to end them.

    torch takes a mode off the stack in such a block. It would put the mode back when the traceback is dropped.
    """
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == contextlib.__file__:
            with contextlib.suppress(RuntimeError):  # it is running
                trace.tb_frame.clear()
        trace = trace.tb_next
