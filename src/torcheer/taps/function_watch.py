"""The function mode that sees chosen calls of torch functions in the code of one module."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from ..capture.intercept.call_sites import CallSites, hand_on
from ..containers import get_path, tensors_in
from ..functions import Kind, facts
from ..source_places import CodeTable, Site
from ..torch_internals import count_function_modes, function_modes, pop_function_mode, push_function_mode
from .places import Frame, frames_of, within_forward
from .spots import Spot, counting, put_back, with_tensors

_PASS, _LOOK, _OPEN = range(3)  # what becomes of the calls of a function


class FunctionWatch(TorchFunctionMode):
    """Sees chosen calls of torch functions while one module runs its own code. It is off while inner modules run.

    Args:
        module: the module in words, for notes.
        forward: the code of its class's forward.
        reach: called at a place with its spot and value; returns the value to go on with, or None for the same one.
        stop_if_done: called where the pass may be stopped. That is not while a function runs: torch takes a mode off for that
            time, and would put it on again after everything was cleaned up.
        note: called with what did not run as logged, in words.
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
        self._ways: dict[Any, int] = {}  # torch function -> what becomes of its calls
        self._sites: list[Site] = []
        self._callsites = CallSites(self._sites, CodeTable())
        self._at: dict[tuple[int, str], list[Spot]] = {}  # by the number of the site and the function
        self._places: dict[tuple[Frame, ...], int] = {}  # sites within the forward, numbered
        self._place_of: dict[int, int] = {}  # by the number of the whole site
        self._turns: dict[tuple[int, str], int] = {}  # how often each place was reached in this call of the module
        self._call = 0
        # for each running call of the module: turns and number of the call around it, and whether it put the mode on
        self._outer: list[tuple[dict[tuple[int, str], int], int, bool]] = []
        self._open: list[Any] = []  # composites that are running
        self._aside: list[bool] = []  # for each running inner module: whether the mode was on when it was called

    def add(self, spot: Spot) -> None:
        """Watch one more place."""
        place = spot.place
        self._spots.setdefault(within_forward(place.site, self._forward), []).append(spot)
        self._functions.add(place.function)
        self._composites.update(place.composites)

    # When it is on ------------------------------------------------------------------------------------------------

    def begin(self, call: int) -> None:
        """The module is called."""
        is_put_on = not self._outer or not any(one is self for one in function_modes())  # a module may call itself
        self._outer.append((self._turns, self._call, is_put_on))
        self._turns, self._call = {}, call
        if is_put_on:
            push_function_mode(self)

    def end(self) -> None:
        """The module returned, or raised."""
        if self._outer:
            self._turns, self._call, is_put_on = self._outer.pop()
            if is_put_on:
                take_off(self)

    def step_aside(self, module: Module, args: object, kwargs: object) -> None:
        """The hook before an inner module."""
        self._stop_if_done()
        self._aside.append(take_off(self))

    def step_back(self, module: Module, args: object, result: object) -> None:
        """The hook after an inner module, also where it raised."""
        if self._aside and self._aside.pop():
            push_function_mode(self)

    def reset(self) -> None:
        """Forget calls that an interrupt left without an end, and take the mode off."""
        while take_off(self):
            pass
        self._outer.clear()
        self._aside.clear()
        self._open.clear()

    # What it sees -------------------------------------------------------------------------------------------------

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
        result = func(*args, **(kwargs or {}))
        function = facts(func)
        if result is not None:
            return self._look(function.name, result, sys._getframe(1))
        written = function.writes(args, kwargs or {})  # `x[0] = 1` returns nothing and writes to x
        if written:
            self._look(function.name, tuple(written) if len(written) > 1 else written[0], sys._getframe(1), is_written=True)
        return None

    def _meet(self, func: Any) -> int:
        """Decide what becomes of the calls of a function that is called for the first time."""
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
            take_off(self)
            self._open.pop()

    def _look(self, name: str, result: Any, frame: FrameType, *, is_written: bool = False) -> Any:
        """Reach the places that are this call of a function: it returned `result`, or wrote to it and returned nothing."""
        number = self._callsites.at(frame)
        key = (number, name)
        spots = self._at.get(key)
        if spots is None:
            frames = within_forward(frames_of(self._sites[number]), self._forward)
            self._place_of[number] = self._places.setdefault(frames, len(self._places))
            at_site = self._spots.get(frames, [])
            spots = self._at[key] = [spot for spot in at_site if spot.place.function == name]
        if not spots:
            return result
        at_place = (self._place_of[number], name)
        turn = self._turns[at_place] = self._turns.get(at_place, 0) + 1
        due: dict[tuple[Any, ...], list[Spot]] = {}  # by path
        for spot in spots:
            place = spot.place
            if place.call is not None and place.call != self._call:
                continue
            if turn > place.turns:
                self._note(f"{name} in {self._module} ran more often than the {place.turns} times that were logged ({place})")
            elif place.turn == turn:
                due.setdefault(place.path, []).append(spot)
        for at_path in due.values():
            for spot in counting(at_path):
                result = self._reach_in(spot, result, None if is_written else frame)
        return result

    def _reach_in(self, spot: Spot, result: Any, frame: FrameType | None) -> Any:
        """Reach a place in what a function returned to `frame`. Returns what the program gets instead."""
        place = spot.place
        tensor = get_path(result, place.path)
        new = self._reach(spot, tensor)
        if new is None or new is tensor:
            return result
        placed = put_back(tensor, new, frame) if place.writes else new
        if placed is not tensor:
            result = with_tensors(result, {at: placed for at, one in enumerate(tensors_in(result)) if one is tensor})
        spot.act.placed(spot, placed, 0)
        return result


def take_off(mode: TorchFunctionMode) -> bool:
    """Take the last entry of a mode off the stack of function modes; others stay. Returns whether it was on the stack."""
    above, is_found = [], False
    while not is_found and count_function_modes():
        above.append(pop_function_mode())
        is_found = above[-1] is mode
    for one in reversed(above[:-1] if is_found else above):
        push_function_mode(one)
    return is_found


hand_on(FunctionWatch.__torch_function__.__code__, opening=FunctionWatch._run_open.__code__)
