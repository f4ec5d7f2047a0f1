"""Finds the site an operation was called from: the chain of frames up to the enclosing module's `forward`.

The same chain is the same site, known by a number, so "ran at the same place" is a comparison of numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

from ...source_places import CodeTable, Site
from ...torch_internals import is_of_custom_function, module_call_codes

_LIMIT = 64
_HANDLER = getattr(
    torch.overrides.handle_torch_function, "__code__", None
)  # through it torch's Python functions come to a mode


# The frames of nn.Module's own call machinery: they mark where one module ends and its caller begins.
MODULE_CALL = frozenset(map(id, module_call_codes()))


def is_in_custom_function(frame: FrameType | None) -> bool:
    """True for a call from inside the forward of a `torch.autograd.Function`, with no module call in between."""
    while frame is not None and id(frame.f_code) not in MODULE_CALL:
        if is_of_custom_function(frame.f_code, "forward"):
            return True
        frame = frame.f_back
    return False


# Other modes of ours, which a call may pass through on its way here. A call that such a mode hands on is made again from
# inside it, so the frames inside are the call once more. Where it runs a copy of torch's Python function instead, they are new.
_HANDING_ON: set[int] = set()
_OPENING: set[int] = set()


def hand_on(mode: CodeType, opening: CodeType) -> None:
    """Make known the codes of a mode that hands calls on, and by which it runs copies of torch's Python functions."""
    _HANDING_ON.add(id(mode))
    _OPENING.add(id(opening))


class Forward:
    """The forward of a class of modules, and the numbers of the sites in it that are known.

    Codes are compared by `is`: where a library has set an audit hook, every call of `id` is slow.
    """

    __slots__ = ("code", "decides", "direct", "near")

    def __init__(self, code: CodeType | None, decides: Any = None) -> None:
        self.code = code
        self.decides = decides  # whether a module is about to take a fused path (`fused.py`); None for nearly all classes
        self.direct: dict[int, int] = {}  # by instruction
        self.near: dict[tuple[int, int], tuple[CodeType, int]] = {}  # in functions it calls, by the instructions of both


class CallSites:
    """Interns the sites of one recording, and knows them by number."""

    def __init__(self, sites: list[Site], table: CodeTable, outermost: CodeType | None = None) -> None:
        self._sites = sites
        self._table = table
        self._numbers: dict[tuple[int, ...], int] = {}
        self.forward = Forward(None)  # that of the running module
        self._last = id(outermost) if outermost is not None else 0
        self._skipped: set[int] = {id(_HANDLER), *_HANDING_ON, *_OPENING}
        self._ends: set[int] = set(MODULE_CALL)
        self.when_new: Callable[[list[CodeType]], None] | None = None  # called with the codes of a site when it is first met

    def skip(self, code: CodeType) -> None:
        """Frames of `code` are not part of the program."""
        self._skipped.add(id(code))

    def stop_before(self, code: CodeType) -> None:
        """Frames from `code` outwards are not part of the program."""
        self._ends.add(id(code))

    def at(self, frame: FrameType | None) -> int:
        """The number of the site of a call made from `frame`."""
        if frame is None:
            return self._chain(frame)
        forward, code = self.forward, frame.f_code
        if code is forward.code:  # most calls come straight from a module's forward
            number = forward.direct.get(frame.f_lasti)
            if number is None:
                number = forward.direct[frame.f_lasti] = self._chain(frame)
            return number
        if code is _HANDLER and frame.f_back is not None:
            frame = frame.f_back
            code = frame.f_code
        outer = frame.f_back
        if outer is None or outer.f_code is not forward.code:
            return self._chain(frame)
        place = (frame.f_lasti, outer.f_lasti)  # most others from a function that it calls
        known = forward.near.get(place)
        if known is None or known[0] is not code:
            known = forward.near[place] = (code, self._chain(frame))
        return known[1]

    def _chain(self, frame: FrameType | None) -> int:
        key: list[int] = []
        codes: list[CodeType] = []
        skipped, ends, last = self._skipped, self._ends, self._last
        inside = None
        while frame is not None:
            code = frame.f_code
            number = id(code)
            if number in ends or len(codes) > _LIMIT:
                break
            if number not in skipped:
                key += (number, frame.f_lasti)
                codes.append(code)
                if number == last:
                    break
            elif number in _HANDING_ON and inside not in _OPENING:
                key.clear()
                codes.clear()
            inside = number
            frame = frame.f_back
        chain = tuple(key)
        site = self._numbers.get(chain)
        if site is None:
            if self.when_new is not None:
                self.when_new(codes)
            site = self._numbers[chain] = len(self._sites)
            self._sites.append(Site(self._table.numbers(codes), chain[1::2], site, self._table))
        return site

    def around(self, frame: FrameType | None) -> Site:
        """The site of a module call, given the frame of its caller or one of the machinery in between."""
        while frame is not None and id(frame.f_code) in MODULE_CALL:
            frame = frame.f_back
        return self._sites[self.at(frame)]

    def site(self, frame: FrameType | None) -> Site:
        """The site of a call made from `frame`."""
        return self._sites[self.at(frame)]
