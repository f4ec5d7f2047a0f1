"""`Watch` watches places while a model runs; `WatchedKeys` finds the places that keys mean, for `tap` and `intervene`.

Each watched module has hooks before and after its forward (`WatchedModule`). `ModuleHooks` puts them on the module itself; for
modules that must not have hooks, it uses global hooks. Places inside a module's code need a `FunctionWatch`. Modules without a
place run without hooks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from .._cleanup import Managed
from .._text import few
from .._torch.addresses import innermost
from .._torch.containers import tensors_in
from .._torch.internals import (
    current_graph_task,
    forward_hooks_of,
    forward_pre_hooks_of,
    global_module_hooks,
    run_uncompiled,
    untraced,
)
from .._torch.left_as_found import in_use
from .._torch.memory import version_of
from .._torch.source_code import MODULE_CALL
from .._torch.thread_state import thread_as_found
from ..capture import FUSING, decision_of, named_arguments
from ..errors import InvalidArgument, PlaceNotReached
from ..log.keys import parse_key
from ..log.records import is_kind_of
from ..log.run import HoldsRun, LoggedRun, run_of
from .function_watch import Copies, FunctionWatch, differ, given_to_change, is_state, refused, write
from .places import Act, ModelPlaces, Place, Spot, Stopped, counting, locate, outermost_calls, with_tensors

# a hook before forward: returns None, or the new positional and named arguments
Before = Callable[[Module, tuple[Any, ...], dict[str, Any]], Any]
# a hook after forward: gets the result (None if forward raised); returns None, or the new result
After = Callable[[Module, Any, Any], Any]


class _Hook(partial):  # type: ignore[type-arg]  # of a hook before or after
    """A hook of one model. Copies of the model that `deepcopy` or pickle make in the block get a hook that does nothing.

    The copies get `nullcontext().__exit__` as their hook, so that they can be loaded without torcheer.
    """

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return nullcontext().__exit__

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")


class ModuleHooks:
    """Hooks that are put on modules one by one, and taken off together."""

    def __init__(self) -> None:
        self._leave = ExitStack()
        self._global: dict[int, tuple[list[Before], list[After]]] = {}  # id of a module -> its hooks

    def before(self, module: Module, hook: Before) -> None:
        """Call `hook` before each forward of a module."""
        if _takes_hooks(module):
            self._leave.callback(module.register_forward_pre_hook(_Hook(hook), with_kwargs=True).remove)
            _go_first(forward_pre_hooks_of(module))
        else:
            self._globally(module)[0].append(hook)

    def after(self, module: Module, hook: After, *, always: bool) -> None:
        """Call `hook` after each forward of a module; with `always`, also after a forward that raised."""
        if _takes_hooks(module):
            self._leave.callback(module.register_forward_hook(_Hook(hook), always_call=always).remove)
            _go_first(forward_hooks_of(module))
        else:
            self._globally(module)[1].append(hook)

    def remove(self) -> None:
        """Remove all hooks."""
        self._leave.close()
        self._global.clear()

    def _globally(self, module: Module) -> tuple[list[Before], list[After]]:
        if not self._global:
            self._leave.enter_context(global_module_hooks(self._enter, self._exit))
        return self._global.setdefault(id(module), ([], []))

    def _enter(self, module: Module, args: tuple[Any, ...]) -> Any:
        new = None
        for hook in self._global.get(id(module), ((), ()))[0]:
            named: dict[Any, Any] = named_arguments(sys._getframe(1))  # the dictionary that forward is called with
            given = hook(module, args, named)
            if given is not None:
                new = args = given[0]
                named.update(given[1])
        return new

    def _exit(self, module: Module, args: tuple[Any, ...], *rest: Any) -> Any:
        new, result = None, rest[-1]
        for hook in self._global.get(id(module), ((), ()))[1]:
            changed = hook(module, args, result)
            if changed is not None:
                new = result = changed
        return new


def _go_first(hooks: dict[int, Any]) -> None:
    """Move our hooks before the model's own, so that they see the inputs and outputs that a log has: before its own hooks."""
    for key in [key for key, hook in hooks.items() if not isinstance(hook, _Hook)]:
        hooks[key] = hooks.pop(key)


def _takes_hooks(module: Module) -> bool:
    """False for modules that must not have hooks: hooks switch off a fused path, and TorchScript refuses them."""
    return decision_of(type(module)) is None and not isinstance(module, torch.jit.ScriptModule)


# Watches places while a model runs: by hooks on their modules, and by a function mode for places that are torch calls.


class Watch(Managed["Watch"]):
    """Watches places of one model, for the time of a `with` block.

    Args:
        model: the model, or a compiled or parallel wrapper of it. What is compiled runs uncompiled in the block.
        spots: the places, and what is done at each.
        logged_calls: maps the address of a module to the number of its logged calls.
        callees: maps the address of a module to the modules that it calls and for which its function mode is taken off.
        passes: the number of logged calls of the model. As many calls are one run, in which calls are numbered.
        stops: end the pass when every place was reached.
        lasts: True if the hooks stay on while other code runs. Compiled code then runs uncompiled in `one_pass` only.
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
        self.otherwise: dict[str, None] = {}  # texts about what did not run as logged
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
        self._caller: FrameType | None = None  # while the model runs: the frame that made its outermost call
        self._is_in_pass = False  # True while a block of `one_pass` runs
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
        """Remove all hooks. Returns True if this watch ended the block because every place was reached."""
        if error is None and self._runs > 1 and 0 < self._passed < self._passes:
            calls = (self._runs - 1) * self._passes + self._passed
            self.note(f"the model was called {calls} times, which is no multiple of the {self._passes} that were logged")
        self._reset()
        self._undo.__exit__(kind, error, trace)
        for watched in self._modules.values():
            if watched.mode is not None:
                watched.mode.close()
        self._modules.clear()  # references back to this object would keep the model and its values in cycles
        for spot in self._spots:
            del spot.act
        return self._has_raised(error)

    def _has_raised(self, error: BaseException | None) -> bool:
        return isinstance(error, Stopped) and error.args[0] is self

    def one_pass(self, *, stops: bool) -> OnePass:
        """A block that counts as one call of the model, even if the model or a part of it runs several times."""
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
        """A hook that calls `hook` on the watched threads only."""
        return lambda *given: hook(*given) if self._is_watched_thread() else None

    # Calls of the model -------------------------------------------------------------------------------------------

    def _model_called(self, module: Module, args: object, kwargs: object) -> None:
        """The hook before the model's forward. Call numbers start again, unless the model calls itself."""
        if self._is_in_pass or get_ident() != self._thread:
            return
        caller = caller_of_module()
        if self._caller is not None and self._caller is not caller and _is_running(self._caller, caller):
            return
        if is_in_backward() and self._passes == 1:  # a checkpointed model runs again in backward: its values are held already
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
        """Called when a call of the model begins."""
        self._reset()
        self._missing = len(self._spots)
        for spot in self._spots:
            spot.here = 0
        for act in self._acts:
            act.begin()

    def _reset(self) -> None:
        """Forget all running calls, including calls that an interrupt left without an end."""
        self._caller = None
        for watched in self._modules.values():
            watched.calls = 0
            watched.given.clear()
            if watched.mode is not None:
                watched.mode.reset()

    # Reaching a place ---------------------------------------------------------------------------------------------

    def _is_watched_thread(self) -> bool:
        """True on the thread of the block, and on autograd's threads, on which checkpointed modules run again."""
        return get_ident() == self._thread or is_in_backward()

    def is_here(self, address: str) -> bool:
        """True if a module runs on a watched thread. Remembers modules that do not."""
        if self._is_watched_thread():
            return True
        self.elsewhere.add(address)
        return False

    @property
    def is_model_running(self) -> bool:
        """True during a call of the model, between calls of one run, and in `one_pass`: module calls then belong to the run."""
        return self._is_in_pass or self._caller is not None or 0 < self._passed < self._passes

    def reach(self, spot: Spot, tensor: Tensor) -> Tensor | None:
        """Called when a place is reached: run its act. Returns the value to continue with, or None to leave it.

        If a module runs again in a backward pass (checkpointing), its values are changed again, but not counted or read.
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
        """Remember a text about something that did not run as logged."""
        self.otherwise[text] = None


class OnePass(Managed[None]):
    """A block inside a longer watch. Everything that runs in the block counts as one call of the model.

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
    """True if the frame `inside` is `frame`, or runs in a function that `frame` called."""
    while inside is not None and inside is not frame:
        inside = inside.f_back
    return inside is not None


# Watches the places that keys mean in one model, to read or to change their values.

_FEW = 2  # if an inner module runs at most this many operations, the mode stays on: removing it would take longer


class WatchedKeys:
    """Watches the places that several keys mean."""

    def __init__(
        self,
        model: Module,
        keys: Iterable[tuple[Any, Act]],
        like: HoldsRun | None,
        *,
        stops: bool = False,
        lasts: bool = False,
    ) -> None:
        if not isinstance(model, Module):
            raise InvalidArgument(
                f"values are read and changed by hooks on modules, so model must be an nn.Module; got {type(model).__name__}."
            )
        run = run_of(like, "like") if like is not None else None
        self.spots: list[tuple[Any, list[Spot]]] = []  # (key, the spots of its places)
        known = ModelPlaces(innermost(model))
        for key, act in keys:
            places = locate(run, key) if run is not None else known.places(key)
            if not places:
                raise InvalidArgument(f"{key!r} means no operation, so there is nothing to watch.")
            if stops:  # how often a module will be called is not known without a history
                places = [replace(place, call=1) if place.call is None else place for place in places]
            rank = len(places) if places[0].call is not None else math.inf
            self.spots.append((key, [Spot(place, act, rank) for place in places]))
        calls, callees = _called(run) if run is not None else ({}, {})
        spots = [spot for _, at_key in self.spots for spot in at_key]
        passes = len(outermost_calls(run.log)) if run is not None else 1
        self.watch = Watch(model, spots, calls, callees, passes=passes, stops=stops, lasts=lasts)

    def check(self, strict: bool, notes: list[str]) -> None:
        """Name the places that were not reached or did not run as logged: in an error if `strict`, else in `notes`."""
        said = [*self._not_reached(), *self.watch.otherwise]
        if said and strict:
            raise PlaceNotReached("; ".join(said) + ". strict=False makes this a note.")
        notes += said

    def _not_reached(self) -> list[str]:
        said = []
        for key, spots in self.spots:
            missing = [spot.place for spot in spots if not spot.reached and not spot.is_outranked]
            if missing and (len(missing) == len(spots) or spots[0].place.label or not parse_key(key).is_plural):
                threads = any(place.module in self.watch.elsewhere for place in missing)
                why = "; it ran on another thread, which is not watched" if threads else ""
                said.append(f"{key!r} was not reached ({few(missing, 1)}{why})")
        return said


def _called(run: LoggedRun) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Map module addresses to the number of calls, and to the inner modules for which the function mode is taken off.

    The mode is taken off for modules with a fused path, because they do not take it while a mode is on, and for modules with
    more than `_FEW` operations.
    """
    log = run.log
    counts: dict[str, int] = {}
    callees: dict[str, dict[str, None]] = {}
    for call in log.modules:
        counts[call.address] = counts.get(call.address, 0) + 1
        is_fusing = any(is_kind_of(log.registered[call.address].cls, known) for known in FUSING)
        if call.outer is not None and (call.end - call.first > _FEW or is_fusing):
            callees.setdefault(call.outer.address, {})[call.address] = None
    return counts, {address: list(inner) for address, inner in callees.items()}


def in_words(place: Place, key: Any) -> str:
    """The text for a place in an error: the key, and what the key means."""
    return f"{key!r} ({place})"


# Reaches the places in one module, by hooks before and after its forward.


class WatchedModule:
    """One module with the places in it, and the hooks before and after its forward."""

    def __init__(self, watch: Watch, address: str, module: Module, logged_calls: int | None) -> None:
        self.address = address
        self.module = module
        self.outputs: list[Spot] = []
        self.mode: FunctionWatch | None = None
        self.calls = 0  # number of calls of the module in this call of the model
        self.given: list[_Given] = []  # for each running call whose result is changed: its arguments
        self._watch = watch
        self._most_calls = logged_calls  # None: any number of calls is fine
        self._spots: list[Spot] = []
        self._inputs: list[Spot] = []
        # the only spot for outputs, if it reads the first tensor that the module returns
        self._only: Spot | None = None
        self._changes = False  # True if an output is changed
        self._writes = getattr(module, "inplace", False) is True  # True if the module is known to write into its input

    def add(self, spot: Spot) -> None:
        place = spot.place
        self._spots.append(spot)
        if place.kind == "input":
            self._inputs.append(spot)
        elif place.kind == "output":
            self.outputs.append(spot)
            self._changes = self._changes or spot.act.changes
            self._writes = self._writes or place.writes
            self._only = spot if len(self.outputs) == 1 and place.part in (0, None) and not spot.act.changes else None
        else:
            if self.mode is None:
                watch = self._watch
                forward = getattr(getattr(type(self.module), "forward", None), "__code__", None)
                self.mode = FunctionWatch(place.whose, forward, watch.reach, watch.stop_if_done, watch.note)
            self.mode.add(spot)

    @property
    def is_entered(self) -> bool:
        """True if the module needs a hook before its forward."""
        return bool(self._inputs) or self.mode is not None or self._changes

    @property
    def _changes_one_of_several(self) -> bool:
        """True if a module may be called several times and a change is for one of these calls only."""
        return self._most_calls != 1 and any(spot.act.changes and spot.place.call is not None for spot in self._spots)

    def enter(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The hook before the forward: counts the call, reaches its inputs, puts the mode on."""
        if not self._watch.is_here(self.address):
            return None
        self._count()
        given = None
        if self._inputs:
            given = self._reach(self._inputs, (args, kwargs))
            self._watch.stop_if_done()
        if self._changes:
            present = given or (args, kwargs)
            self.given.append(_Given(tensors_in(present), writes=self._writes))
            if self.given[-1].copies:
                given = self.given[-1].copies.put_in(present)
        if self.mode is not None:
            self.mode.begin(self.calls)
        return given

    def leave(self, module: Module, args: object, result: Any) -> Any:
        """The hook after the forward: takes the mode off, reaches the outputs. `result` is None where the forward raised."""
        watch = self._watch
        if not watch.is_here(self.address):
            return None
        if not self.is_entered:
            self._count()
        elif self.mode is not None:
            self.mode.end()
        given = self.given.pop() if self.given else None
        if result is None:
            if given is not None:
                given.copies.settle({}, None)
            return None
        only, new = self._only, None
        if only is not None and type(result) is Tensor:
            if only.place.call is None or only.place.call == self.calls:
                watch.reach(only, result)
        elif self.outputs:
            new = self._reach(self.outputs, result, given)
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

    def _reach(self, spots: list[Spot], value: Any, given: _Given | None = None) -> Any:
        """Reach the places among the tensors of `value`. Returns `value` with the changed tensors; None without changes."""
        due = [spot for spot in spots if spot.place.call is None or spot.place.call == self.calls]
        tensors = tensors_in(value) if due or given is not None else []
        by_part: dict[int, list[Spot]] = {}
        for spot in due:
            part = spot.place.part
            if part is not None and part >= len(tensors):
                verb = "returned" if spot.place.kind == "output" else "was given"
                self._watch.note(f"{spot.place.whose} {verb} {len(tensors)} tensors; tensor [{part}] was wanted")
            else:
                for at in range(len(tensors)) if part is None else [part]:
                    by_part.setdefault(at, []).append(spot)
        made: list[tuple[Spot, int, Tensor]] = []
        for at, here in by_part.items():
            before = tensors[at]
            for spot in counting(here):
                after = self._watch.reach(spot, given.to_change(before) if given is not None and spot.act.changes else before)
                if after is not None:
                    made.append((spot, at, after))
        are_others = [after is not tensors[at] and differ(tensors[at], after) for _, at, after in made]
        new = given.settle(made, tensors) if given is not None else {at: after for _, at, after in made}
        for (spot, at, _), is_other in zip(made, are_others, strict=True):
            spot.act.placed(spot, new.get(at, tensors[at]), at, is_other)
        return with_tensors(value, new) if new else None


class _Given:
    """The arguments of a module call whose result is changed. The module may write to them in place."""

    def __init__(self, tensors: list[Tensor], *, writes: bool) -> None:
        self.copies = Copies(tensors if writes else ())
        self._writes = writes  # True even if the module had nothing to write, as dropout in evaluation
        self._versions = [(one, version_of(one)) for one in tensors]

    def to_change(self, tensor: Tensor) -> Tensor:
        """Return the tensor that a change of a result gets."""
        return given_to_change(tensor) if self._is_written(tensor) else tensor

    def settle(self, made: list[tuple[Spot, int, Tensor]], results: list[Tensor]) -> dict[int, Tensor]:
        """Write new values into results that the module wrote in place. Returns the replacements of the other results."""
        exchanged: dict[int, Tensor] = {}
        in_copies: dict[int, Tensor] = {}
        for spot, at, after in made:
            tensor = results[at]
            if self.copies.original(tensor) is not None:
                in_copies[id(tensor)] = after
            elif self._is_written(tensor):
                if torch.is_grad_enabled() and tensor.grad_fn is not None:
                    raise refused(spot.place, _UNKNOWN)
                write(tensor, after, spot.place)
            else:
                exchanged[at] = after
        self.copies.settle(in_copies, made[0][0].place if made else None)
        if self.copies:
            exchanged = {at: exchanged.get(at, self.copies.home(tensor)) for at, tensor in enumerate(results)}
        return exchanged

    def _is_written(self, tensor: Tensor) -> bool:
        is_known = self._writes and not is_state(tensor)
        return any(one is tensor and (is_known or version_of(one) != version) for one, version in self._versions)


_UNKNOWN: Final = (
    "the module wrote to what it was given, and the backward pass may need what it wrote, which was not known beforehand. "
    "like=history, a history of the model, tells it"
)


def is_in_backward() -> bool:
    """True if a backward pass is running on this thread."""
    return current_graph_task() >= 0


def caller_of_module() -> FrameType | None:
    """The frame that called the module whose hook is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and id(frame.f_code) not in MODULE_CALL:
        frame = frame.f_back
    while frame is not None and id(frame.f_code) in MODULE_CALL:
        frame = frame.f_back
    return frame
