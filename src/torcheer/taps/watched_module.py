"""One module with the places in it, and the hooks before and after its forward that reach them."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from ..capture.intercept.call_sites import MODULE_CALL
from ..capture.keep.keeper import version_of
from ..containers import tensors_in
from ..torch_internals import current_graph_task
from .function_watch import FunctionWatch
from .in_place import Copies, differ, given_to_change, is_state, refused, write
from .spots import Spot, counting, with_tensors

if TYPE_CHECKING:
    from .watch import Watch


class WatchedModule:
    """One module with the places in it, and the hooks before and after its forward."""

    def __init__(self, watch: Watch, address: str, module: Module, logged_calls: int | None) -> None:
        self.address = address
        self.module = module
        self.outputs: list[Spot] = []
        self.mode: FunctionWatch | None = None
        self.calls = 0  # in this call of the model
        self.given: list[_Given] = []  # for each running call that is changed
        self._watch = watch
        self._most_calls = logged_calls  # None: any number is fine
        self._spots: list[Spot] = []
        self._inputs: list[Spot] = []
        self._only: Spot | None = None  # the only output, if it is read and is the first tensor that the module returns
        self._changes = False  # whether an output is changed
        self._writes = getattr(module, "inplace", False) is True  # whether it is known to write to what it is given

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
        """Whether something is to be done before its forward."""
        return bool(self._inputs) or self.mode is not None or self._changes

    @property
    def _changes_one_of_several(self) -> bool:
        """Whether a change is for one numbered call of the module, and it may be called several times."""
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
        """Reach the places that are tensors of `value`. Returns `value` with the changed ones in it; None without changes."""
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
    """What a module was given for one call, where the result of the call is changed: a module may write to that in place."""

    def __init__(self, tensors: list[Tensor], *, writes: bool) -> None:
        self.copies = Copies(tensors if writes else ())
        self._writes = writes  # also where there was nothing to write, as in dropout in evaluation
        self._versions = [(one, version_of(one)) for one in tensors]

    def to_change(self, tensor: Tensor) -> Tensor:
        """What a change of a result gets."""
        return given_to_change(tensor) if self._is_written(tensor) else tensor

    def settle(self, made: list[tuple[Spot, int, Tensor]], results: list[Tensor]) -> dict[int, Tensor]:
        """Put the new values of results into what the module wrote in place. Returns what takes the place of other results."""
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
    """Whether a backward pass is running on this thread."""
    return current_graph_task() >= 0


def caller_of_module() -> FrameType | None:
    """The frame that called the module whose hook is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and id(frame.f_code) not in MODULE_CALL:
        frame = frame.f_back
    while frame is not None and id(frame.f_code) in MODULE_CALL:
        frame = frame.f_back
    return frame
