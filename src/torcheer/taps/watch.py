"""Watches places while a model runs: hooks on the modules they are in, and a function mode where a function call is meant.

Nothing else is touched: a module that no place is in runs as always.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from threading import get_ident
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module

from ..capture.addresses import innermost
from ..capture.intercept.call_sites import MODULE_CALL
from ..containers import tensors_in
from ..errors import InvalidArgument
from ..torch_internals import (
    current_graph_task,
    function_modes,
    pop_function_mode,
    push_function_mode,
    run_uncompiled,
)
from .function_watch import FunctionWatch
from .model_places import ModelPlaces
from .module_hooks import ModuleHooks
from .spots import Spot, Stopped, counting, put_back, with_tensors


class Watch:
    """Watches places of one model, for the time of a `with` block.

    Args:
        model: the model. Compiled and parallel wrappers are looked through; what is compiled runs uncompiled in the block.
        spots: the places, and what is done at each.
        logged_calls: by address, how often a module was called when it was logged.
        callees: by address, the modules that it called and for which a function mode steps aside.
        stops: end the pass when every place was reached.
    """

    def __init__(
        self,
        model: Module,
        spots: list[Spot],
        logged_calls: dict[str, int],
        callees: dict[str, list[str]],
        *,
        stops: bool = False,
    ) -> None:
        self.spots = spots
        self.otherwise: dict[str, None] = {}  # what went otherwise than logged, in words
        self.elsewhere: set[str] = set()  # modules that ran on another thread, which is not watched
        self.when_called: Callable[[], None] | None = None  # called when the model is
        self._model = innermost(model)
        self._places = ModelPlaces(self._model)
        self.stops = stops  # may be switched between passes
        self.is_lasting = (
            False  # hooks stay on while other things run: who calls `begin` sees to it that compiled code does not
        )
        self._missing = len(spots)
        self._modules: dict[str, _WatchedModule] = {}
        self._callees = callees
        self._hooks = ModuleHooks()
        self._leave = ExitStack()
        self._caller: FrameType | None = None  # the frame that the outermost call of the model is made from, while it runs
        self._thread = 0
        self._modes: list[Any] = []  # the stack of function modes when the block began
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
            watched = self._modules[place.module] = _WatchedModule(self, place.module, module, logged_calls.get(place.module))
        watched.add(spot)

    # The block ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Watch:
        if self._thread:
            raise InvalidArgument("this block was entered already; call tap() or intervene() again for another one.")
        self._thread = get_ident()
        try:
            self._modes = function_modes()
            if not self.is_lasting:
                self._leave.enter_context(run_uncompiled(has_wrappers=True))
            self._leave.callback(self._hooks.remove)
            self._hook()
        except BaseException:
            self._leave.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        """Take everything off the model. Returns whether the block was ended by this watch, because all was reached."""
        self._reset()
        self._leave.close()
        is_stopped = isinstance(error, Stopped) and error.args[0] is self
        if error is not None and not isinstance(error, Exception) and not is_stopped:
            _put_modes(self._modes)
        return is_stopped

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
        """The hook, for this thread and those of autograd only."""
        return lambda *given: hook(*given) if get_ident() == self._thread or is_in_backward() else None

    # Calls of the model -------------------------------------------------------------------------------------------

    def _model_called(self, module: Module, args: object, kwargs: object) -> None:
        """Call numbers start anew, unless the model calls itself."""
        if get_ident() != self._thread:
            return
        caller = _caller_of_module()
        if self._caller is not None and self._caller is not caller and _is_running(self._caller, caller):
            return
        self.begin(caller)

    def begin(self, caller: FrameType | None) -> None:
        """A call of the model begins, made from the frame `caller`. All that runs inside is that call, until `end`.

        Without it each call of the model is one. With it the model may also be called several times, or only parts of it.
        """
        self._reset()
        self._caller = caller
        self._missing = len(self.spots)
        for spot in self.spots:
            spot.here = 0
        if self.when_called is not None:
            self.when_called()

    def end(self) -> None:
        """The call that began is over."""
        self._reset()

    def _model_returned(self, module: Module, args: object, result: object) -> None:
        if self._caller is not None and get_ident() == self._thread and _caller_of_module() is self._caller:
            self._caller = None

    def _reset(self) -> None:
        """No call is running, also where an interrupt left some without an end."""
        self._caller = None
        for watched in self._modules.values():
            watched.calls = 0
            watched.given.clear()
            if watched.mode is not None:
                watched.mode.reset()

    # What a place does --------------------------------------------------------------------------------------------

    def is_here(self, address: str) -> bool:
        """Whether this is the thread that is watched, or one of autograd's, on which checkpointed modules run again."""
        if get_ident() == self._thread or is_in_backward():
            return True
        self.elsewhere.add(address)
        return False

    @property
    def is_model_running(self) -> bool:
        """Whether a call of the model runs, so that modules are not called by themselves."""
        return self._caller is not None

    def reach(self, spot: Spot, tensor: Tensor) -> Tensor | None:
        """A place was reached: do what is to be done there. Returns the value that the model goes on with, if it is another.

        What runs again in a backward pass is changed again, but neither counted nor read.
        """
        if current_graph_task() >= 0:
            return spot.act(spot, tensor) if spot.act.changes else None
        spot.reached += 1
        spot.here = spot.here + 1 if self._caller is not None else 1
        if spot.here == 1:
            self._missing -= 1
        return spot.act(spot, tensor)

    def stop_if_done(self) -> None:
        """End the pass if nothing is left to be reached."""
        if self.stops and not self._missing:
            self._reset()
            raise Stopped(self)

    def note(self, text: str) -> None:
        """Something went otherwise than logged."""
        self.otherwise[text] = None


class _WatchedModule:
    """One module with the places in it, and the hooks before and after its forward."""

    def __init__(self, watch: Watch, address: str, module: Module, logged_calls: int | None) -> None:
        self.address = address
        self.module = module
        self.outputs: list[Spot] = []
        self.mode: FunctionWatch | None = None
        self.calls = 0  # in this call of the model
        self.given: list[list[tuple[Tensor, int]]] = []  # by call that is running: what it was given, and versions
        self._watch = watch
        self._most_calls = logged_calls  # None: any number is fine
        self._inputs: list[Spot] = []
        self._only: Spot | None = None  # the only place, if it is the first tensor that the module returns
        self._changes = False  # whether what it returns is changed

    def add(self, spot: Spot) -> None:
        place = spot.place
        if place.kind == "input":
            self._inputs.append(spot)
        elif place.kind == "output":
            self.outputs.append(spot)
            self._changes = self._changes or spot.act.changes
            self._only = spot if len(self.outputs) == 1 and place.part in (0, None) and not spot.act.changes else None
        else:
            if self.mode is None:
                watch = self._watch
                forward = getattr(getattr(type(self.module), "forward", None), "__code__", None)
                self.mode = FunctionWatch(place.whose, forward, watch.reach, watch.stop_if_done, watch.note)
            self.mode.add(spot)

    @property
    def is_entered(self) -> bool:
        """Whether something is to be done before it runs."""
        return bool(self._inputs) or self.mode is not None or self._changes

    @property
    def _changes_one_of_several(self) -> bool:
        """Whether a change is of one call of it, and there may be others."""
        spots = [*self._inputs, *self.outputs, *(self.mode.spots() if self.mode is not None else ())]
        return self._most_calls != 1 and any(spot.act.changes and spot.place.call is not None for spot in spots)

    def enter(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The hook before the forward: counts the call, looks at what it is given, puts the mode on."""
        if not self._watch.is_here(self.address):
            return None
        self._count()
        given = None
        if self._inputs:
            given = self._reach(self._inputs, (args, kwargs))
            self._watch.stop_if_done()
        if self._changes:
            self.given.append([(one, _version(one)) for one in (*args, *kwargs.values()) if type(one) is Tensor])
        if self.mode is not None:
            self.mode.begin(self.calls)
        return given

    def leave(self, module: Module, args: object, result: Any) -> Any:
        """The hook after the forward: takes the mode off, looks at what the module returned; None where it raised."""
        watch = self._watch
        if not watch.is_here(self.address):
            return None
        if not self.is_entered:
            self._count()
        elif self.mode is not None:
            self.mode.end()
        written = self._written() if self.given else None
        if result is None:
            return None
        only, new = self._only, None
        if only is not None and type(result) is Tensor:
            if only.place.call is None or only.place.call == self.calls:
                watch.reach(only, result)
        elif self.outputs:
            new = self._reach(self.outputs, result, written)
        watch.stop_if_done()
        return new

    def _count(self) -> None:
        self.calls = self.calls + 1 if self._watch.is_model_running else 1
        if is_in_backward():
            if self._changes_one_of_several:
                self._watch.note(f"{self.address!r} ran again in a backward pass, where its calls cannot be numbered")
            return
        if self._most_calls is not None and self.calls > self._most_calls:
            name = repr(self.address) if self.address else "the model"
            times = "once that was" if self._most_calls == 1 else f"{self._most_calls} times that were"
            self._watch.note(f"{name} was called more often than the {times} logged")

    def _written(self) -> list[Tensor]:
        """Which of the tensors it was given were written to since."""
        return [one for one, version in self.given.pop() if _version(one) != version]

    def _reach(self, spots: list[Spot], value: Any, written: list[Tensor] | None = None) -> Any:
        """Reach the places that are tensors of `value`. Returns `value` with the new tensors in it; None if there are none."""
        due = [spot for spot in spots if spot.place.call is None or spot.place.call == self.calls]
        tensors = tensors_in(value) if due else []
        by_part: dict[int, list[Spot]] = {}
        for spot in due:
            part = spot.place.part
            if part is not None and part >= len(tensors):
                verb = "returned" if spot.place.kind == "output" else "was given"
                self._watch.note(f"{spot.place.whose} {verb} {len(tensors)} tensors; tensor [{part}] was wanted")
            else:
                for at in range(len(tensors)) if part is None else [part]:
                    by_part.setdefault(at, []).append(spot)
        new: dict[int, Tensor] = {}
        for at, here in by_part.items():
            for spot in counting(here):
                after = self._reach_one(spot, new.get(at, tensors[at]), at, written or [])
                if after is not None:
                    new[at] = after
        return with_tensors(value, new) if new else None

    def _reach_one(self, spot: Spot, before: Tensor, part: int, written: list[Tensor]) -> Tensor | None:
        """Reach one place. Returns the tensor to put there, if it is another one."""
        after = self._watch.reach(spot, before)
        if after is None:
            return None
        if any(one is before for one in written):
            after = put_back(before, after, _caller_of_module())
        spot.act.placed(spot, after, part)
        return None if after is before else after


def is_in_backward() -> bool:
    """Whether a backward pass is running on this thread."""
    return current_graph_task() >= 0


def _version(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # inference tensors do not count versions
        return -1


def _put_modes(modes: list[Any]) -> None:
    """Make the stack of function modes what it was: after an interrupt a program's mode may have taken off ours, not itself."""
    now = function_modes()
    if len(now) != len(modes) or any(one is not other for one, other in zip(now, modes, strict=True)):
        for _ in now:
            pop_function_mode()
        for mode in modes:
            push_function_mode(mode)


def _caller_of_module() -> FrameType | None:
    """The frame that the module was called from whose hook is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and id(frame.f_code) not in MODULE_CALL:
        frame = frame.f_back
    while frame is not None and id(frame.f_code) in MODULE_CALL:
        frame = frame.f_back
    return frame


def _is_running(frame: FrameType, inside: FrameType | None) -> bool:
    """Whether a frame is one of those around another."""
    while inside is not None and inside is not frame:
        inside = inside.f_back
    return inside is not None
