"""`FunctionWatch`: the function mode that reads and changes results of chosen torch calls in the code of one module.

If a call writes its result in place, a change is written into the tensor, so that every later reader sees the new value. With
gradients on, autograd may need the value that the call itself wrote. So the call gets a copy to write to (`Copies`), and the
new value is written into the original tensor afterwards.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.overrides import TorchFunctionMode

from .._cleanup import pass_interrupts_on
from .._torch.containers import Path, get_path, replace_tensors, tensors_in
from .._torch.functions import Kind, TorchFunction, facts, groups
from .._torch.internals import DisableTorchFunction, base_of, function_modes, push_function_mode, take_off_function_mode
from .._torch.memory import copy_of, may_overlap, version_of
from .._torch.source_code import CallSites, CodeTable, Site, hand_on
from ..errors import InvalidArgument
from .places import Frame, Place, Spot, counting, frames_of, with_tensors, within_forward


class Copies:
    """Copies of tensors for a call or module to write to. Made only for tensors that autograd follows."""

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        self._of: dict[int, tuple[Tensor, Tensor, int]] = {}  # id of a tensor -> the tensor, its copy, and the copy's version
        if not torch.is_grad_enabled():
            return
        for tensor in tensors:
            if id(tensor) not in self._of and _can_be_followed(tensor):
                copied = followed_copy(tensor)
                self._of[id(tensor)] = tensor, copied, version_of(copied)

    def __len__(self) -> int:
        return len(self._of)

    def put_in(self, value: Any) -> Any:
        """Replace the originals in `value` by their copies."""
        if not self._of:
            return value
        return replace_tensors(value, lambda tensor: self._of[id(tensor)][1] if id(tensor) in self._of else tensor)

    def original(self, tensor: Tensor) -> Tensor | None:
        """Return the tensor from which `tensor` was copied; None if it is no copy."""
        return next((one for one, copied, _ in self._of.values() if copied is tensor), None)

    def home(self, tensor: Tensor) -> Tensor:
        """Return the tensor that the program has: the original if `tensor` is a copy, else `tensor` itself."""
        original = self.original(tensor)
        return tensor if original is None else original

    def settle(self, new: dict[int, Tensor], place: Place | None) -> None:
        """Write the values of the copies into the original tensors. `new` maps ids of copies to values to write instead."""
        for tensor, copied, version in self._of.values():
            value = new.get(id(copied), copied)
            if value is not copied or version_of(copied) != version:
                write(tensor, value, place)


def followed_copy(tensor: Tensor) -> Tensor:
    """Copy a tensor with its strides. Gradients flow through the copy."""
    copied = copy_of(tensor)
    return copied.detach().copy_(tensor) if tensor.requires_grad and not copied.requires_grad else copied


def is_state(tensor: Tensor) -> bool:
    """True for a parameter or a view of one, to which autograd forbids in-place writes."""
    base = base_of(tensor)
    return any(one is not None and one.requires_grad and one.is_leaf for one in (tensor, base))


def _can_be_followed(tensor: Tensor) -> bool:
    """True if a call that writes to a tensor can get a copy instead. Where torch refuses the write, it gets the original."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_inference():
        return False
    return type(tensor) in (Tensor, Parameter) and not is_state(tensor) and not may_overlap(tensor)


def given_to_change(tensor: Tensor) -> Tensor:
    """Return the tensor that a change gets. With gradients on it is a copy: autograd may save it, and the original changes."""
    if not torch.is_grad_enabled():
        return tensor
    return tensor.detach() if is_state(tensor) else followed_copy(tensor)


def write(tensor: Tensor, new: Tensor, place: Place | None) -> None:
    """Write a new value into a tensor. Raises an error that names the place if torch refuses."""
    if may_overlap(tensor):
        raise refused(place, "several elements of the tensor are at one place of its memory")
    state = torch.is_grad_enabled() and is_state(tensor)
    if state and new.requires_grad:
        raise refused(place, "gradients of the change cannot flow through a tensor that is a leaf of the autograd graph")
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not state):
            tensor.copy_(new)
    except (RuntimeError, TypeError, ValueError) as error:
        raise refused(place, f"torch says: {error}") from error


def write_as(function: TorchFunction, tensor: Tensor, new: Tensor, place: Place) -> None:
    """Give a new value to a tensor that a call of the function has just changed.

    `detach_`, `set_` and `p.data = …` write no elements: they change what the tensor is, so the tensor gets other memory. The
    memory it has now may belong to other tensors too.
    """
    if function.name not in _EXCHANGE or new.requires_grad:
        write(tensor, new, place)
        return
    try:
        tensor.data = new
    except (RuntimeError, TypeError) as error:
        raise refused(place, f"torch says: {error}") from error


def differ(one: Tensor, other: Tensor) -> Tensor | bool:
    """True if two tensors have different values; on an accelerator a tensor, so that the CPU does not wait for the device."""
    with DisableTorchFunction(), torch.no_grad():
        try:
            if one.is_meta or other.is_meta:
                return one is not other
            return not torch.equal(one, other) if one.is_cpu and other.is_cpu else (one != other).any()
        except Exception as error:  # torch does not compare some layouts and dtypes; a class may raise anything
            pass_interrupts_on(error)
            return one is not other


_EXCHANGE = frozenset({"detach_", "set_", "set_data"})


def written_by(function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that a call changes in place."""
    if function.name == "detach_":
        return [tensor for tensor in args[:1] if isinstance(tensor, Tensor)]
    return [tensor for tensor in function.writes(args, kwargs) if isinstance(tensor, Tensor)]


def writes_elements(function: TorchFunction) -> bool:
    """True if an in-place function writes elements; False for `t_` or `resize_`, which change shape or memory."""
    return function.name not in _EXCHANGE and not function.is_view and not function.is_in(groups.RESIZING)


def refused(place: Place | None, why: str) -> InvalidArgument:
    """Make the error for a value that a call wrote in place and that cannot be changed there."""
    return InvalidArgument(
        f"{place or 'a change'}: the value is written in place, and another one cannot be written into the tensor: {why}. "
        "Change what the model makes of the tensor afterwards."
    )


# The function mode that sees chosen calls of torch functions in the code of one module.

_PASS, _LOOK, _OPEN = range(3)  # how calls of a function are handled: ignore, watch, run with the mode on inside


class FunctionWatch(TorchFunctionMode):
    """Sees chosen calls of torch functions while one module runs its own code. It is off while inner modules run.

    Args:
        module: the module in words, for notes.
        forward: the code of its class's forward.
        reach: called at a place with its spot and value; returns the value to continue with, or None to leave it.
        stop_if_done: called where the pass may be stopped, which is never inside a function: torch takes the mode off during
            the function, and would put it on again after cleanup.
        note: called with a text about something that did not run as logged.
    """

    def __init__(
        self,
        module: str,
        forward: CodeType | None,
        reach: Callable[[Spot, Tensor], Tensor | None],
        stop_if_done: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._module = module
        self._forward = forward
        self._reach = reach
        self._stop_if_done = stop_if_done
        self._note = note
        self._spots: dict[tuple[Frame, ...], list[Spot]] = {}
        self._functions: set[str] = set()
        self._composites: set[str] = set()
        self._ways: dict[Any, int] = {}  # maps a torch function to the way its calls are handled
        self._sites: list[Site] = []
        self._callsites = CallSites(self._sites, CodeTable())
        self._at: dict[tuple[int, str], list[Spot]] = {}  # (number of the site, function) -> the spots there
        self._places: dict[tuple[Frame, ...], int] = {}  # site within the forward -> its number
        self._place_of: dict[int, int] = {}  # number of the whole site -> number of the site within the forward
        self._turns: dict[tuple[int, str], int] = {}  # (site, function) -> how often it was reached in this call of the module
        self._call = 0
        # for each running call of the module: turns and number of the call around it, and whether it put the mode on
        self._outer: list[tuple[dict[tuple[int, str], int], int, bool]] = []
        self._open: list[Any] = []  # composites that are running
        self._aside: list[bool] = []  # for each running inner module: True if the mode was on when it was called

    def add(self, spot: Spot) -> None:
        """Watch one more place."""
        place = spot.place
        self._spots.setdefault(within_forward(place.site, self._forward), []).append(spot)
        self._functions.add(place.function)
        self._composites.update(place.composites)

    # When it is on ------------------------------------------------------------------------------------------------

    def begin(self, call: int) -> None:
        """Called when the module is called."""
        is_put_on = not self._outer or not any(one is self for one in function_modes())  # a module may call itself
        self._outer.append((self._turns, self._call, is_put_on))
        self._turns, self._call = {}, call
        if is_put_on:
            push_function_mode(self)

    def end(self) -> None:
        """Called when the module returned, or raised."""
        if self._outer:
            self._turns, self._call, is_put_on = self._outer.pop()
            if is_put_on:
                take_off_function_mode(self)

    def step_aside(self, module: Module, args: object, kwargs: object) -> None:
        """The hook before an inner module: takes the mode off."""
        self._stop_if_done()
        self._aside.append(take_off_function_mode(self))

    def step_back(self, module: Module, args: object, result: object) -> None:
        """The hook after an inner module, also after it raised: puts the mode on again."""
        if self._aside and self._aside.pop():
            push_function_mode(self)

    def close(self) -> None:
        """Called when the block ends: ignore all calls from now on, even if torch puts the mode back."""
        self.reset()
        self._ways = _Over()

    def reset(self) -> None:
        """Forget calls that an interrupt left without an end, and take the mode off."""
        while take_off_function_mode(self):
            pass
        self._outer.clear()
        self._aside.clear()
        self._open.clear()

    # Calls that it sees -------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            way = self._ways[func]
        except (KeyError, TypeError):
            way = self._meet(func)
        if way == _PASS:
            return func(*args, **kwargs) if kwargs else func(*args)
        if way == _OPEN and func not in self._open:
            return self._run_open(func, args, kwargs or {})
        function = facts(func)
        at_place, spots = self._spots_at(function.name, sys._getframe(1))
        if not spots:
            return _call(func, args, kwargs or {})
        return self._reach_in(_Call(func, function, args, kwargs or {}), at_place, spots)

    def _meet(self, func: Any) -> int:
        """Called for a function's first call: decide how its calls are handled."""
        function = facts(func)
        if function.kind is Kind.COMPOSITE and function.name in self._composites and function.opened is not None:
            way = _OPEN
        else:
            way = _LOOK if function.name in self._functions else _PASS
        with contextlib.suppress(TypeError):  # an unhashable callable
            self._ways[func] = way
        return way

    def _run_open(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a Python function of torch with the mode on, so that the calls inside are seen."""
        opened = facts(func).opened
        assert opened is not None
        self._open.append(func)
        push_function_mode(self)
        try:
            return opened(*args, **kwargs)
        finally:
            take_off_function_mode(self)
            self._open.pop()

    def _spots_at(self, name: str, frame: FrameType) -> tuple[tuple[int, str], list[Spot]]:
        """Return the key by which turns at the site of a call are counted, and the spots there, for all turns."""
        number = self._callsites.at(frame)
        spots = self._at.get((number, name))
        if spots is None:
            frames = within_forward(frames_of(self._sites[number]), self._forward)
            self._place_of[number] = self._places.setdefault(frames, len(self._places))
            at_site = self._spots.get(frames, [])
            spots = self._at[number, name] = [spot for spot in at_site if spot.place.function == name]
        return (self._place_of[number], name), spots

    def _due(self, spots: list[Spot], turn: int) -> dict[Path, list[Spot]]:
        """Return the spots to reach in this call, by path in the result."""
        due: dict[Path, list[Spot]] = {}
        for spot in spots:
            place = spot.place
            if place.call is not None and place.call != self._call:
                continue
            if turn > place.turns:
                times = f"the {place.turns} times that were logged ({place})"
                self._note(f"{place.function} in {self._module} ran more often than {times}")
            elif place.turn == turn:
                due.setdefault(place.path, []).append(spot)
        return due

    def _reach_in(self, call: _Call, at_place: tuple[int, str], spots: list[Spot]) -> Any:
        """Make a call at a site with places, and reach the places that this call has. Returns the result for the program."""
        turn = self._turns.get(at_place, 0) + 1
        due = self._due(spots, turn)
        is_changed = any(spot.act.changes and spot.place.writes for at_path in due.values() for spot in at_path)
        result = call.make(writes_to_copies=is_changed)
        if call.values is None:
            return None
        self._turns[at_place] = turn
        for path, at_path in due.items():
            tensor = call.at(path)
            if tensor is None:
                continue
            for spot in counting(at_path):
                new = self._reach(spot, call.given_to_change(tensor) if spot.act.changes else call.now(tensor))
                if new is not None:
                    call.change(tensor, new, spot)
        return call.settle(result)


class _Over(dict[Any, int]):
    """A table of functions for the time after the block: all calls are ignored."""

    def __missing__(self, func: Any) -> int:
        return _PASS


class _Call:
    """One call of a torch function with results that are read or changed."""

    def __init__(self, func: Any, function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._func = func
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._written: list[Tensor] = []
        self._copies = Copies()
        # maps the id of a result to the result, the tensor that replaces it, and the spot
        self._new: dict[int, tuple[Tensor, Tensor, Spot]] = {}
        self.values: Any = None  # what the call returned, or what it wrote if it returned nothing

    def make(self, *, writes_to_copies: bool) -> Any:
        """Make the call. `x[0] = 1` returns nothing and writes to x."""
        self._written = written_by(self._function, self._args, self._kwargs)
        if writes_to_copies and writes_elements(self._function):
            self._copies = Copies(self._written)
        result = _call(self._func, self._copies.put_in(self._args), self._copies.put_in(self._kwargs))
        self.values = result
        if result is None and self._written:
            written = self._copies.put_in(tuple(self._written))
            self.values = written[0] if len(written) == 1 else written
        return result

    def at(self, path: Path) -> Tensor | None:
        """The result at a path; None if the result there is not as logged."""
        try:
            found = get_path(self.values, path)
        except (AttributeError, IndexError, KeyError, TypeError):
            return None
        return found if isinstance(found, Tensor) else None

    def now(self, tensor: Tensor) -> Tensor:
        """Return the current value of a result, after the changes so far."""
        return self._new[id(tensor)][1] if id(tensor) in self._new else tensor

    def given_to_change(self, tensor: Tensor) -> Tensor:
        """Return the tensor that a change of a result gets."""
        return given_to_change(tensor) if self._is_written(tensor) else self.now(tensor)

    def change(self, tensor: Tensor, new: Tensor, spot: Spot) -> None:
        """Replace a result, or its value if the call wrote it in place."""
        self._new[id(tensor)] = tensor, new, spot

    def settle(self, result: Any) -> Any:
        """Apply the changes. Returns the result of the call for the program."""
        changed = [(tensor, new, spot, differ(tensor, new)) for tensor, new, spot in self._new.values()]
        self._copies.settle({id(tensor): new for tensor, new, _, _ in changed}, changed[0][2].place if changed else None)
        final: dict[int, Tensor] = {}  # id of a result -> its last value
        for tensor, new, spot, is_other in changed:
            put = self._copies.original(tensor)
            if put is None and self._is_written(tensor):
                write_as(self._function, tensor, new, spot.place)
                put = tensor
            final[id(tensor)] = put = new if put is None else put
            spot.act.placed(spot, put, 0, is_other)
        if not final and not self._copies:
            return result
        results = enumerate(tensors_in(result))
        return with_tensors(result, {at: final[id(one)] if id(one) in final else self._copies.home(one) for at, one in results})

    def _is_written(self, tensor: Tensor) -> bool:
        return any(one is tensor for one in self._written)


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function. One line for all calls of a function: `torch.jit.trace` compares the lines of two runs."""
    return func(*args, **kwargs)


hand_on(FunctionWatch.__torch_function__.__code__, opening=FunctionWatch._run_open.__code__)
