"""Runs a pass of a model and restores everything afterwards.

`left_as_found` restores modules, inputs, arguments and random states. `in_use` prevents two threads from using a model at
once, `deeper_calls` raises Python's recursion limit.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.nn import Module

from .._cleanup import Managed, shared
from ..errors import ModelInUse
from .containers import Arguments, shares_no_container
from .internals import DisableTorchFunction
from .randomness import random_as_found
from .restore_state import StateRestorer
from .thread_state import thread_as_found

_uses_lock = threading.RLock()  # reentrant: the end of a block may run while another begins on the same thread
_uses: list[in_use] = []


class in_use(Managed[None]):  # noqa: N801 - used as a function: `with in_use(modules, "logged"):`
    """Inside this block, other threads get `ModelInUse` if their use of these modules conflicts with this one.

    Args:
        modules: the model and all modules inside it.
        use: a word for what is done with the modules: "logged".
        restores: True if everything is restored at the end, which would also undo changes by other threads.
    """

    def __init__(self, modules: Iterable[Module], use: str, *, restores: bool) -> None:
        self.modules = {id(module): module for module in modules}
        self._use = use
        self._restores = restores
        self._thread = threading.get_ident()
        self.thread_name = threading.current_thread().name

    def _begin(self) -> None:
        with _uses_lock:
            for other in _uses:
                if other._thread != self._thread and (self._restores or other._restores):
                    shared = next((one for key, one in self.modules.items() if key in other.modules), None)
                    if shared is not None:
                        raise ModelInUse(
                            f"thread {other.thread_name!r} uses this model (it is being {other._use} there), and thread "
                            f"{self.thread_name!r} wants to have it {self._use}; both have the same {type(shared).__name__}. "
                            "Its state is restored afterwards, which two threads cannot do at once. Let them take turns, by "
                            "a threading.Lock around the calls, or give each thread a copy: copy.deepcopy(model)."
                        )
            _uses.append(self)

    def _end(self, *error: object) -> None:
        with _uses_lock:
            _uses.remove(self)
        self.modules.clear()


# Raises Python's recursion limit, so that deeply nested models can be logged.
#
# Python allows 1,000 nested calls. A module call takes three of them, and four if any hook watches it, so a model that nests
# 200 modules or more may fail only when it is watched. So while any recording runs, the limit is raised by half.


@shared
def deeper_calls() -> Iterator[None]:
    """Inside this block, Python's recursion limit is higher."""
    before = sys.getrecursionlimit()
    during = before + before // 2 + 200
    sys.setrecursionlimit(during)
    yield
    if sys.getrecursionlimit() == during:  # otherwise other code has changed it
        with suppress(RecursionError):  # another thread already nests deeper than the limit
            sys.setrecursionlimit(before)


# Callbacks for code that runs a pass and restores everything: logging, validation and the watching of modules.


# functions to call before a pass is undone: recordings around the pass add theirs
told_before_restoring: list[Callable[[StateRestorer], None]] = []


class PassStopped(BaseException):
    """Ends a pass on purpose. A model's `except Exception` does not catch it."""


class left_as_found(Managed["left_as_found"]):  # noqa: N801 - used as a function: `with left_as_found(…) as undone`
    """A block for one pass of a model; afterwards modules, inputs, arguments and random states are restored.

    `inputs` are the tensors among the arguments. Run the pass with the attributes `args` and `kwargs`. They are the user's own
    objects, which are restored, because the model or the program may hold them too. Objects that cannot be restored (an
    iterator, a large array), and containers and objects around them, are copies, unless the model holds them. If one step of
    restoring raises, the others still run. What could not be restored is added to `notes` and, unless the pass raised, named
    in a warning.
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
        self.error: BaseException | None = None  # the error of the pass, while it is undone
        self.first = ExitStack()  # callbacks that run at the end of the pass, before anything is restored
        self.last = ExitStack()  # callbacks that run after everything is restored
        self._notes = notes
        self._deeper = deeper_calls()
        self._thread = thread_as_found()

    def _begin(self) -> left_as_found:
        with ExitStack() as undo:
            for block in (self._use, self._deeper, self._thread, self.random):
                undo.enter_context(block)
            undo.pop_all()  # `_end` leaves them one by one
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.error = error
        self._thread.leave(kind, error, trace)
        with DisableTorchFunction(), ExitStack() as steps:  # the step pushed last is run first
            steps.push(self._use)
            steps.push(self.last)
            steps.callback(self._restore_random)
            steps.callback(self.restorer.restore_counts)
            steps.callback(self.restorer.restore)
            for tell in [*told_before_restoring]:
                steps.callback(tell, self.restorer)
            steps.push(self.first)
            steps.push(self._deeper)
        self.error = None  # the error refers to frames, which hold tensors
        self.restorer.finish(self._notes, error is not None and not isinstance(error, PassStopped))

    def _restore_random(self) -> None:
        self.random.leave(None, None, None)
        for name in self.random.left:
            what = f"the random state of {name}, which another thread may be drawing from"
            drew = self.random.draws.drew if self.random.draws is not None else None  # None: unknown
            if drew:
                self.restorer.problems.append(what)
            elif drew is None or not name.startswith("torch"):
                self._notes.append(f"{what}, changed during the pass, and was not restored.")
