"""Runs the plain model once more, from the random state of a logged pass, and watches it by plain forward hooks.

Afterwards the model, its inputs and the random states are as they were.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module

from .._torch.addresses import roots_of, without_parallelism, wrapped_module
from .._torch.containers import Arguments
from .._torch.functions import groups
from .._torch.internals import global_module_hooks, is_functorch_wrapped, run_uncompiled, untraced, without_modes
from .._torch.left_as_found import left_as_found
from .._torch.memory import FREED, cloned, has_memory, is_freed
from .._torch.tensor_table import unwrap
from ..log.records import Log, ModuleCall, OperationRecord
from .comparison import Agreement, difference, same_bits
from .report import Check
from .walk import holds_set, tensors_of


def run_plainly(model: Callable[..., Any], arguments: Arguments, log: Log) -> list[Any]:
    """Run the model from the random state of a log and return its output tensors. Restores everything afterwards.

    `FREED` stands for a tensor whose memory the model freed.
    """
    given = tensors_of(arguments, into_objects=True)
    modules = [inner for root, _ in roots_of(model) for inner in root.modules()]
    with left_as_found(model, modules, given, arguments, []) as undone:
        undone.restorer.back_up_everything([source for one in log.source_tensors if (source := one()) is not None])
        if log.random_state is not None:
            undone.random.start_from(log.random_state, draws=log.draws())
        with run_uncompiled():
            result = without_parallelism(model)(*undone.args, **undone.kwargs)
        returned = tensors_of(result, into_objects=True)
        return [cloned(tensor.detach()) if has_memory(tensor) else FREED for tensor in returned]


class HookWatch:
    """Compares the inputs and outputs of modules, as plain hooks see them, with the inputs and outputs in a log."""

    def __init__(self, log: Log, check: Check, agrees: Agreement, addresses: dict[int, str]) -> None:
        self._agrees = agrees
        self._addresses = addresses  # id of a module with one name -> its address
        self._log = log
        self._check = check
        self._begun = 0
        self._thread = get_ident()
        self._running: list[tuple[FrameType, ModuleCall | None, int]] = []  # by the frame that calls the hooks

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """A context in which every module call of this thread is watched."""
        return global_module_hooks(self._enter, self._exit, always=False)

    def finish(self) -> None:
        """Called after the pass: check that the hooks saw as many calls as were logged."""
        self._running.clear()
        if self._begun != len(self._log.modules):
            self._check.disagree(
                "the module calls", f"{len(self._log.modules)} were logged, plain hooks saw {self._begun}", None
            )

    def _enter(self, module: Module, args: tuple[Any, ...]) -> None:
        with untraced():  # a model that traces itself would trace the comparison
            self._begin(module, args, sys._getframe(1))

    def _begin(self, module: Module, args: tuple[Any, ...], frame: FrameType) -> None:
        if get_ident() != self._thread or wrapped_module(module) is not None:
            return  # a log has no modules that ran on other threads
        call = self._log.modules[self._begun] if self._begun < len(self._log.modules) else None
        self._begun += 1
        given = _each(args)
        self._running.append((frame, call, len(given)))
        if call is not None:
            address = self._addresses.get(id(module), call.address)
            if address != call.address:
                self._check.disagree(f"{call.address}:{call.call}", f"plain hooks see module {address!r} run here")
            self._compare(call, "input", call.inputs[: len(given)], given, holds_set(args))

    def _exit(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        frame = sys._getframe(1)
        if get_ident() != self._thread or all(frame is not begun for begun, *_ in self._running):
            return
        while self._running[-1][0] is not frame:
            self._running.pop()  # a call that raised has no end
        _, call, positional = self._running.pop()
        with untraced():
            self._end(call, positional, kwargs, result)

    def _end(self, call: ModuleCall | None, positional: int, kwargs: dict[str, Any], result: Any) -> None:
        if call is not None:
            named = _each(tuple(kwargs.values()))
            self._compare(call, "named input", call.inputs[positional:], named, holds_set(kwargs))
            self._compare(call, "output", call.outputs, tensors_of(result), holds_set(result))

    def _compare(
        self, call: ModuleCall, side: str, numbers: tuple[int, ...], tensors: list[Tensor], in_any_order: bool
    ) -> None:
        label = f"{call.address or call.class_name}:{call.call}"
        if len(numbers) != len(tensors):
            self._check.disagree(label, f"{len(numbers)} {side}s were logged, plain hooks saw {len(tensors)}")
        if in_any_order:
            tensors = self._in_order_of(numbers, tensors)
        for position, (number, tensor) in enumerate(zip(numbers, tensors, strict=False)):
            kept = self._kept(number)
            if not isinstance(kept, Tensor) or is_freed(kept) or is_freed(tensor):
                continue
            self._check.count += 1
            with without_modes():
                if is_functorch_wrapped(tensor):
                    tensor = unwrap(tensor)  # a slice of a batch: the log has the whole batch
                if not self._agrees(self._check, kept, tensor):
                    self._check.disagree(label, f"{side} {position}: {difference(kept, tensor)}")

    def _kept(self, number: int) -> Any:
        return self._log.values[number] if number >= 0 else self._log.states[-1 - number].value

    def _in_order_of(self, numbers: tuple[int, ...], tensors: list[Tensor]) -> list[Tensor]:
        """Put tensors in the order of the records: each record takes a tensor of the same value, else the first one left."""
        left = list(tensors)
        ordered = []
        for number in numbers[: len(tensors)]:
            kept = self._kept(number)
            same = (n for n, tensor in enumerate(left) if isinstance(kept, Tensor) and same_bits(kept, tensor.detach()))
            ordered.append(left.pop(next(same, 0)))
        return ordered


def _each(values: tuple[Any, ...]) -> list[Tensor]:
    """The tensors in several arguments; each argument is searched on its own."""
    return [tensor for value in values for tensor in tensors_of(value)]


def addresses_of(model: Callable[..., Any]) -> dict[int, str]:
    """Map the id of every module with exactly one address to that address; empty for wrapped models."""
    names: dict[int, list[str]] = {}
    for root, prefix in roots_of(without_parallelism(model)):
        for name, module in root.named_modules(remove_duplicate=False):
            if wrapped_module(module) is not None:
                return {}
            names.setdefault(id(module), []).append(".".join(part for part in (prefix, name) if part))
    return {key: found[0] for key, found in names.items() if len(found) == 1}


# Some functions write several values to one place at once, as `max_unpool2d` does where windows overlap.
#
# On an accelerator it is undefined which value stays. A model with such a function can give other values in each run, so a
# disagreement with its log proves nothing: it is exempt if the model, or the call, gave two different results when run twice.

_TRIES = 8


def is_on_accelerator(record: OperationRecord) -> bool:
    return record.device.type not in ("cpu", "meta")


def may_race(record: OperationRecord) -> bool:
    """True if a call may write several values to one place, with an undefined result."""
    return record.function.is_in(groups.RACING) and is_on_accelerator(record)


def why_unsteady(
    model: Callable[..., Any], arguments: Arguments, log: Log, expected: list[Any], agrees: Agreement
) -> str | None:
    """Run the model again from the same state. If it returns other values, returns the reason for that; else None."""
    names = sorted({record.function.name for record in log.operations if may_race(record)})
    ignored = Check("")
    for _ in range(_TRIES if names else 1):
        again = run_plainly(model, arguments, log)
        pairs = zip(expected, again, strict=False)
        if len(again) == len(expected) and all(agrees(ignored, one, other) for one, other in pairs if isinstance(one, Tensor)):
            continue
        if names:
            return f"the plain model gives other values each time; {', '.join(names)} wrote several values to one place"
        return (
            "the plain model gives other values each time it runs from the same random state; it depends on something that is "
            "not put back, such as torch.seed(), the time or a variable that a function closes over"
        )
    return None
