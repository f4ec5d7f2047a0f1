"""Which models are in use in which thread: a model is put back as it was found, and not two threads can do so at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.nn import Module

from .._cleanup import Managed, cleaning
from ..errors import ModelInUse
from .containers import Arguments, shares_no_container
from .internals import DisableTorchFunction
from .randomness import random_as_found
from .restore_state import StateRestorer
from .thread_state import thread_as_found

_uses_lock = threading.RLock()  # what ends a block may run while another one begins, in the same thread
_uses: list[in_use] = []


class in_use(Managed[None]):  # noqa: N801 - used as a function: `with in_use(modules, "logged"):`
    """Inside, other threads may not use these modules in a way that does not go with this one: they get `ModelInUse`.

    Args:
        modules: the model and all modules inside it.
        use: what is done with them, in a word.
        restores: everything is put back at the end, also what another thread does to the modules meanwhile.
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
                            "A model is left as it was found, which two threads cannot do at once. Let them take turns, by "
                            "a threading.Lock around the calls, or give each thread a copy: copy.deepcopy(model)."
                        )
            _uses.append(self)

    def _end(self, *error: object) -> None:
        with _uses_lock:
            _uses.remove(self)
        self.modules.clear()


# Lets a model that nests its modules deeply be logged.
#
# Python allows 1,000 calls inside each other. A module call is three of them, and four while any hook watches it, so
# a model that nests 200 modules or more may fail only when it is watched. While any recording runs, half as many more
# are allowed.

_limit_lock = threading.RLock()  # what ends a block may run while another one begins, in the same thread
_running = 0
_before = _during = 0


@cleaning
def deeper_calls() -> Iterator[None]:
    """Inside, calls may nest more deeply. Recordings may nest and overlap in several threads."""
    global _running, _before, _during
    with _limit_lock:
        _running += 1
        if _running == 1:
            _before = sys.getrecursionlimit()
            _during = _before + _before // 2 + 200
            sys.setrecursionlimit(_during)
    yield
    with _limit_lock:
        _running -= 1
        if _running == 0 and sys.getrecursionlimit() == _during:  # else somebody else has set it meanwhile
            with suppress(RecursionError):  # another thread is deeper than that already
                sys.setrecursionlimit(_before)


# Runs a pass of a model and leaves everything as it was: used by logging, validation and the watching of modules.


told_before_restoring: list[Callable[[StateRestorer], None]] = []  # recordings, in which other passes may be run and undone


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
            for tell in [*told_before_restoring]:
                steps.callback(tell, self.restorer)
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
