"""The program position an operation was called from.

A site is the chain of frames from the call up to the enclosing module's `forward` (or the start of the recording),
stored as code objects and instruction offsets. The same chain is the same site, known by a number, so "ran at the same
place" is a comparison of numbers. Lines and text are looked up only when somebody asks.
"""

from __future__ import annotations

import linecache
import os
import types
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn import Module

from ...records import ModuleCall, Site

_LIMIT = 64
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # capture/
_HANDLER = torch.overrides.handle_torch_function.__code__  # through it torch's Python functions come to a mode


def _with_inner(code: CodeType) -> list[CodeType]:
    return [code, *(c for c in code.co_consts if isinstance(c, types.CodeType))]


# The frames of nn.Module's own call machinery: they mark where one module ends and its caller begins.
MODULE_CALL = frozenset(
    id(code)
    for name in ("_call_impl", "_wrapped_call_impl", "_slow_forward")
    for code in _with_inner(getattr(Module, name).__code__)
)


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

    def __init__(self, sites: list[Site], outermost: CodeType | None = None) -> None:
        self._sites = sites
        self._numbers: dict[tuple[int, ...], int] = {}
        self.forward = Forward(None)  # that of the running module
        self._last = id(outermost) if outermost is not None else 0
        self._skipped: set[int] = {id(_HANDLER)}
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
        while frame is not None:
            code = frame.f_code
            if id(code) in ends or len(codes) > _LIMIT:
                break
            if id(code) not in skipped:
                key += (id(code), frame.f_lasti)
                codes.append(code)
                if id(code) == last:
                    break
            frame = frame.f_back
        chain = tuple(key)
        number = self._numbers.get(chain)
        if number is None:
            if self.when_new is not None:
                self.when_new(codes)
            number = self._numbers[chain] = len(self._sites)
            self._sites.append(Site(tuple(codes), chain[1::2], number))
        return number

    def around(self, frame: FrameType | None) -> Site:
        """The site of a module call, given the frame of its caller or one of the machinery in between."""
        while frame is not None and id(frame.f_code) in MODULE_CALL:
            frame = frame.f_back
        return self._sites[self.at(frame)]

    def site(self, frame: FrameType | None) -> Site:
        """The site of a call made from `frame`."""
        return self._sites[self.at(frame)]


def same_positions(sites: list[Site]) -> list[int]:
    """By site: the number of the first site at the same position of the source, with -1 (no site) at the end.

    Python compiles the condition of a `while` loop twice, and the body of a `finally`.
    """
    found = list(range(len(sites)))
    by_codes: dict[tuple[int, ...], list[Site]] = {}
    for site in sites:
        by_codes.setdefault(tuple(map(id, site.codes)), []).append(site)
    spans: dict[int, list[Any]] = {}
    for alike in by_codes.values():
        if len(alike) == 1:
            continue
        first: dict[tuple[Any, ...], int] = {}
        for code in alike[0].codes:
            if id(code) not in spans:
                spans[id(code)] = list(code.co_positions()) if hasattr(code, "co_positions") else []
        for site in alike:
            position = tuple([_position(spans[id(code)], at) for code, at in zip(site.codes, site.instructions, strict=True)])
            found[site.number] = first.setdefault(position, site.number)
    return [*found, -1]


def _position(spans: list[Any], instruction: int) -> Any:
    """Where in the source an instruction is, or the instruction itself where that is not known."""
    at = spans[instruction // 2] if instruction // 2 < len(spans) else (None,)
    return instruction if None in at else at


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a program."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The line itself, without indentation; empty when the source cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def is_torch(self) -> bool:
        return self.file.startswith(_TORCH)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f": {self.text}" if self.text else "")


def stack_of(site: Site | None, module: ModuleCall | None) -> list[SourceLine]:
    """The whole call stack of something that ran at `site` inside `module`, outermost first."""
    lines: list[SourceLine] = []
    call = module
    while True:
        if site is not None:
            lines += [_line(code, at) for code, at in zip(site.codes, site.instructions, strict=True)]
        if call is None:
            break
        site, call = call.site, call.outer
    return [line for line in reversed(lines) if not line.file.startswith(_OURS)]


def source_of(site: Site | None, module: ModuleCall | None) -> SourceLine | None:
    """The innermost line that is not torch's own."""
    stack = stack_of(site, module)
    return next((line for line in reversed(stack) if not line.is_torch), stack[-1] if stack else None)


def _line(code: CodeType, instruction: int) -> SourceLine:
    line = next((at for start, end, at in code.co_lines() if start <= instruction < end and at), code.co_firstlineno)
    return SourceLine(code.co_filename, line, getattr(code, "co_qualname", code.co_name))
