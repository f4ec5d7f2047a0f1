"""Watches places while a model runs: by hooks on their modules, and by a function mode where a place is a function call.

Modules without a place run as always.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any

from torch import Tensor
from torch.nn import Module

from ..capture.addresses import innermost
from ..capture.restore.in_use import in_use
from ..capture.restore.thread_state import thread_as_found
from ..cleaning import Managed
from ..errors import InvalidArgument
from ..torch_internals import run_uncompiled, untraced
from .model_places import ModelPlaces
from .module_hooks import ModuleHooks
from .spots import Spot, Stopped
from .watched_module import WatchedModule, caller_of_module, is_in_backward


class Watch(Managed["Watch"]):
    """Watches places of one model, for the time of a `with` block.

    Args:
        model: the model, or a compiled or parallel wrapper of it. What is compiled runs uncompiled in the block.
        spots: the places, and what is done at each.
        logged_calls: by address, how often a module was called when it was logged.
        callees: by address, the modules that a module calls and for which its function mode steps aside.
        passes: how often the model was called when it was logged. As many calls are one run, in which calls are numbered.
        stops: end the pass when every place was reached.
        lasts: the hooks stay on while other code runs. Compiled code then runs uncompiled in `one_pass` only.
    """

    def __init__(
        self,
        model: Module,
        spots: list[Spot],
        logged_calls: dict[str, int],
        callees: dict[str, list[str]],
        *,
        passes: int = 1,
        stops: bool = False,
        lasts: bool = False,
    ) -> None:
        self.otherwise: dict[str, None] = {}  # what did not run as logged, in words
        self.elsewhere: set[str] = set()  # modules that ran on another thread, which is not watched
        self._spots = spots
        self._acts = list(dict.fromkeys(spot.act for spot in spots))
        self._model = innermost(model)
        self._places = ModelPlaces(self._model)
        self._passes = passes
        self._passed = 0  # how many calls of the model began in this run
        self._runs = 0
        self._stops = stops
        self._lasts = lasts
        self._missing = len(spots)  # places that this call of the model has not reached yet
        self._modules: dict[str, WatchedModule] = {}
        self._callees = callees
        self._hooks = ModuleHooks()
        self._undo = ExitStack()
        self._caller: FrameType | None = None  # while the model runs: the frame that its outermost call is made from
        self._is_in_pass = False  # whether a block of `one_pass` runs
        self._thread = 0
        for spot in spots:
            self._add(spot, logged_calls)

    def _add(self, spot: Spot, logged_calls: dict[str, int]) -> None:
        place = spot.place
        module = self._places.modules.get(place.module)
        if module is None:
            raise InvalidArgument(f"this model has no module {place.module!r}, which {place.label or 'a place'} is in.")
        spot.module = module
        watched = self._modules.get(place.module)
        if watched is None:
            watched = self._modules[place.module] = WatchedModule(self, place.module, module, logged_calls.get(place.module))
        watched.add(spot)

    # The block ----------------------------------------------------------------------------------------------------

    def _begin(self) -> Watch:
        if self._thread:
            raise InvalidArgument("this block was entered already; call tap() or intervene() again for another one.")
        self._thread = get_ident()
        with ExitStack() as undo:
            undo.enter_context(in_use(self._model.modules(), "tapped or changed", restores=False))
            undo.enter_context(thread_as_found())
            if not self._lasts:
                undo.enter_context(run_uncompiled(has_wrappers=True))
            undo.callback(self._hooks.remove)
            self._hook()
            self._undo = undo.pop_all()
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        """Take everything off the model. Returns whether this watch ended the block because every place was reached."""
        if error is None and self._runs > 1 and 0 < self._passed < self._passes:
            calls = (self._runs - 1) * self._passes + self._passed
            self.note(f"the model was called {calls} times, which is no multiple of the {self._passes} that were logged")
        self._reset()
        self._undo.__exit__(kind, error, trace)
        for watched in self._modules.values():
            if watched.mode is not None:
                watched.mode.close()
        self._modules.clear()  # what leads back would keep the model and its values in cycles
        for spot in self._spots:
            del spot.act
        return self._has_raised(error)

    def _has_raised(self, error: BaseException | None) -> bool:
        return isinstance(error, Stopped) and error.args[0] is self

    def one_pass(self, *, stops: bool) -> OnePass:
        """A block in which everything that runs is one call of the model, also where the model or a part runs several times."""
        return OnePass(self, stops)

    def _hook(self) -> None:
        hooks = self._hooks
        hooks.before(self._model, self._model_called)
        for watched in self._modules.values():
            module, mode = watched.module, watched.mode
            if watched.is_entered:
                hooks.before(module, watched.enter)
            if mode is not None:
                for address in self._callees.get(watched.address, ()):
                    child = self._places.modules.get(address)
                    if child is not None and child is not module:
                        hooks.before(child, self._here(mode.step_aside))
                        hooks.after(child, self._here(mode.step_back), always=True)
            if watched.outputs or mode is not None:
                hooks.after(module, watched.leave, always=watched.is_entered)
        hooks.after(self._model, self._model_returned, always=True)

    def _here(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """The hook, for the watched threads only."""
        return lambda *given: hook(*given) if self._is_watched_thread() else None

    # Calls of the model -------------------------------------------------------------------------------------------

    def _model_called(self, module: Module, args: object, kwargs: object) -> None:
        """The hook before the model's forward. Call numbers start again, unless the model calls itself."""
        if self._is_in_pass or get_ident() != self._thread:
            return
        caller = caller_of_module()
        if self._caller is not None and self._caller is not caller and _is_running(self._caller, caller):
            return
        if is_in_backward() and self._passes == 1:  # a checkpointed model runs again: its values are held already
            self._reset()
        else:
            if not 0 < self._passed < self._passes:
                self._begin_call()
                self._runs, self._passed = self._runs + 1, 0
            self._passed += 1
        self._caller = caller

    def _model_returned(self, module: Module, args: object, result: object) -> None:
        if self._caller is not None and get_ident() == self._thread and caller_of_module() is self._caller:
            self._caller = None
            if result is None and sys.exc_info()[1] is not None and not is_in_backward():  # forward raised: the run is over
                self._passed = 0

    def _begin_call(self) -> None:
        """A call of the model begins."""
        self._reset()
        self._missing = len(self._spots)
        for spot in self._spots:
            spot.here = 0
        for act in self._acts:
            act.begin()

    def _reset(self) -> None:
        """No call is running, also where an interrupt left some without an end."""
        self._caller = None
        for watched in self._modules.values():
            watched.calls = 0
            watched.given.clear()
            if watched.mode is not None:
                watched.mode.reset()

    # What a place does --------------------------------------------------------------------------------------------

    def _is_watched_thread(self) -> bool:
        """Whether this is the thread of the block, or one of autograd's, on which checkpointed modules run again."""
        return get_ident() == self._thread or is_in_backward()

    def is_here(self, address: str) -> bool:
        """Whether a module runs on a watched thread. Modules that do not are remembered."""
        if self._is_watched_thread():
            return True
        self.elsewhere.add(address)
        return False

    @property
    def is_model_running(self) -> bool:
        """Whether a call of the model runs, or a run of several, so that modules are not called by themselves."""
        return self._is_in_pass or self._caller is not None or 0 < self._passed < self._passes

    def reach(self, spot: Spot, tensor: Tensor) -> Tensor | None:
        """Do what is to be done at a place that was reached. Returns the value to go on with, or None for the same one.

        What runs again in a backward pass is changed again, but neither counted nor read.
        """
        if is_in_backward():
            return spot.act(spot, tensor) if spot.act.changes else None
        spot.reached += 1
        spot.is_alone = not self.is_model_running
        spot.here = 1 if spot.is_alone else spot.here + 1
        if spot.here == 1:
            self._missing -= 1
        if spot.act.changes:
            return spot.act(spot, tensor)
        with untraced():
            return spot.act(spot, tensor)

    def stop_if_done(self) -> None:
        """End the pass if every place was reached."""
        if self._stops and not self._missing:
            self._reset()
            raise Stopped(self)

    def note(self, text: str) -> None:
        """Remember what did not run as logged."""
        self.otherwise[text] = None


class OnePass(Managed[None]):
    """A block in a watch that lasts: everything that runs inside is one call of the model.

    With `stops` the block ends when every place was reached. Other code that runs the hooked model is not stopped.
    """

    def __init__(self, watch: Watch, stops: bool) -> None:
        self._watch = watch
        self._stops = stops
        self._uncompiled = run_uncompiled(has_wrappers=True)

    def _begin(self) -> None:
        self._watch._begin_call()
        self._uncompiled.__enter__()
        self._watch._is_in_pass, self._watch._stops = True, self._stops

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        self._watch._is_in_pass = self._watch._stops = False
        self._watch._reset()
        self._uncompiled.__exit__(None, None, None)
        return self._watch._has_raised(error)


def _is_running(frame: FrameType, inside: FrameType | None) -> bool:
    """Whether the frame `inside` is `frame`, or runs in a function that it called."""
    while inside is not None and inside is not frame:
        inside = inside.f_back
    return inside is not None
