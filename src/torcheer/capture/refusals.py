"""Raises or warns if nothing can be logged: inside `vmap` or compiled code, if the model did not run, if the log is empty."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Awaitable, Coroutine, Generator, Iterator
from typing import Any

from .._torch.containers import find_leaves
from .._torch.functions.facts import Origin
from .._torch.internals import is_inside_compiled_code, is_inside_vmap
from ..errors import EmptyLogWarning, InvalidArgument, UnseenWorkWarning
from ..log.records import Log


def refuse_inside_vmap() -> None:
    """Raise inside `vmap`, where a tensor has the shape of one sample but its memory holds the whole batch."""
    if is_inside_vmap():
        raise InvalidArgument(
            "a recording cannot begin inside torch.vmap, nor inside jacfwd or hessian, which use it: there a tensor has the "
            "shape of one sample, but its memory holds the whole batch. Log from outside: "
            "torcheer.log_forward_pass(torch.vmap(model), inputs)."
        )


def refuse_inside_compiled_code() -> None:
    """Raise where torch.compile would compile the recording together with the model."""
    if is_inside_compiled_code():
        raise InvalidArgument(
            "a recording cannot begin inside a function that torch.compile compiles, because the operations "
            "are compiled away there. Log from outside; a compiled function can be logged itself: "
            "torcheer.log_forward_pass(compiled, inputs); or put @torch.compiler.disable on the function that logs."
        )


def refuse_unrun(result: Any, log: Log) -> None:
    """Raise if a model returned a generator or coroutine that has computed nothing yet; warn if part of it ran."""
    unrun = find_leaves(result, _is_unrun)
    if not unrun:
        return
    cls = type(unrun[0])
    for one in unrun:
        if issubclass(type(one), (Generator, Coroutine)):
            one.close()  # avoids Python's warning about a coroutine that was never awaited
    has_run = any(record.origin is Origin.OPERATION for record in log.operations)
    message = (
        f"the model returned a {cls.__name__}, which computes nothing until it is used, so {'some' if has_run else 'all'} of "
        f"its work is missing from this log. Record its use: with torcheer.recording(model) as history: {_use_of(cls)}"
    )
    if not has_run:
        raise InvalidArgument(message)
    log.notes.append(message)
    warnings.warn(message, UnseenWorkWarning, stacklevel=2)


def _is_unrun(value: Any) -> bool:
    return issubclass(type(value), (Iterator, Awaitable, AsyncIterator))


def _use_of(cls: type) -> str:
    if issubclass(cls, Coroutine):
        return "asyncio.run(model(x))"
    if issubclass(cls, (Awaitable, AsyncIterator)):
        return "asyncio.run(use(model(x))), where use() is an async function that awaits its argument"
    return "outputs = list(model(x))"


def warn_if_empty(log: Log) -> None:
    """Warn if nothing was computed and the model returned no tensor."""
    if all(record.origin is Origin.INPUT for record in log.operations):
        message = "this log is empty: no torch operation was seen, and the model returned no tensor."
        log.notes.append(message)
        warnings.warn(message, EmptyLogWarning, stacklevel=2)
