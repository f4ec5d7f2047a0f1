"""Runs a pass of a model and leaves everything as it was: used by logging, validation and the watching of modules."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.nn import Module

from ...cleaning import Managed
from ...containers import Arguments, shares_no_container
from ...torch_internals import DisableTorchFunction
from .in_use import in_use
from .randomness import random_as_found
from .recursion import deeper_calls
from .restore_state import StateRestorer
from .thread_state import thread_as_found


class PassStopped(BaseException):
    """Ends a pass on purpose. No `except Exception` of the model catches it."""


class left_as_found(Managed["left_as_found"]):  # noqa: N801 - used as a function: `with left_as_found(…) as undone`
    """Inside, a pass may run; afterwards the modules, the inputs, the arguments and the random states are as they were.

    `inputs` are the tensors among the arguments. The pass is to be run with `args` and `kwargs`: the user's own, which are put
    back, since the model, or a variable of the program, may hold them as well. What cannot be put back (an iterator, a large
    array), and all containers and objects that lead to it, are copies, but for those that the model holds.
    Each step of restoring is taken whatever another one raises. What could not be restored is added to `notes`, and a warning
    names it unless the pass raised.
    """

    def __init__(
        self, model: Callable[..., Any], modules: list[Module], inputs: list[Tensor], arguments: Arguments, notes: list[str]
    ) -> None:
        with DisableTorchFunction():
            args, kwargs = arguments
            values = (*args, *kwargs.values())
            given = [inner for value in values if isinstance(value, Module) for inner in value.modules()]
            self._use = in_use([*modules, *given], "logged or run", restores=True)
            self.restorer = StateRestorer([*modules, *given], inputs, values, model)
            if self.restorer.puts_arguments_back:
                self.args, self.kwargs = args, kwargs
            else:
                self.args, self.kwargs = shares_no_container(arguments, self.restorer.not_copied())
        self.random = random_as_found()
        self.error: BaseException | None = None  # what the pass raised, while it is undone
        self.first = ExitStack()  # callbacks for the end of the pass, before anything is restored
        self.last = ExitStack()  # callbacks for when everything is restored
        self._notes = notes
        self._deeper = deeper_calls()
        self._thread = thread_as_found()

    def _begin(self) -> left_as_found:
        with ExitStack() as undo:
            for block in (self._use, self._deeper, self._thread, self.random):
                undo.enter_context(block)
            undo.pop_all()  # `_end` leaves them, each in its place
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.error = error
        self._thread.leave(kind, error, trace)
        with DisableTorchFunction(), ExitStack() as steps:  # the one that is added last is taken first
            steps.push(self._use)
            steps.push(self.last)
            steps.callback(self._restore_random)
            steps.callback(self.restorer.restore_counts)
            steps.callback(self.restorer.restore)
            steps.push(self.first)
            steps.push(self._deeper)
        self.error = None  # it leads to frames, and these to tensors
        self.restorer.finish(self._notes, error is not None and not isinstance(error, PassStopped))

    def _restore_random(self) -> None:
        self.random.leave(None, None, None)
        for name in self.random.left:
            what = f"the random state of {name}, which another thread may be drawing from"
            drew = self.random.draws.drew if self.random.draws is not None else None  # None: not known
            if drew:
                self.restorer.problems.append(what)
            elif drew is None or not name.startswith("torch"):
                self._notes.append(f"{what}, moved while the pass ran, and was left as it was then.")
