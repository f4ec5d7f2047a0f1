"""Call sites in the user's program, stored as numbers, and the table that resolves them to files and lines.

A site is the chain of frames from a call up to the enclosing module's `forward`, as numbers of code objects and
instructions. The log's `CodeTable` resolves them to file, function and line when they are shown.
"""

from __future__ import annotations

import dis
import linecache
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, Protocol, cast

import torch

from .internals import is_of_custom_function, module_call_codes

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = (os.path.join(_PACKAGE, "_torch") + os.sep, os.path.join(_PACKAGE, "capture") + os.sep)

_AROUND = 3  # show this many lines before and after a line

# Source position: line and column of start and end; or the index of the instruction if columns are unknown (Python 3.10).
Span = tuple[int, int, int, int] | int


class CodeFacts(NamedTuple):
    """Identifies a function: equal for equal code."""

    file: str
    function: str
    first_line: int

    @classmethod
    def of(cls, code: CodeType) -> CodeFacts:
        return cls(code.co_filename, getattr(code, "co_qualname", code.co_name), code.co_firstlineno)


class Sources:
    """The files of the running program: their lines, and whether they belong to torch or torcheer."""

    def line(self, file: str, number: int) -> str | None:
        """A line of a file without its newline; None if the file has no such line."""
        lines = linecache.getlines(file)
        return lines[number - 1].rstrip() if 1 <= number <= len(lines) else None

    def is_torch(self, file: str) -> bool:
        """True if a file belongs to torch."""
        return file.startswith(_TORCH)

    def is_ours(self, file: str) -> bool:
        """True if a file belongs to torcheer and its code runs between the program and torch."""
        return file.startswith(_OURS)


RUNNING: Final = Sources()


class CodeTable:
    """The code objects of one log's sites, by number. They are the only data of a site that needs the running program."""

    sources: Sources = RUNNING  # the files of the code objects

    def __init__(self) -> None:
        self._codes: list[CodeType] = []
        self._numbers: dict[int, int] = {}  # id of a code object, which `_codes` keeps alive -> its number
        self._spans: dict[int, list[Any]] = {}  # number of a code object -> its spans, for code objects that were looked up
        # number of a code object -> the first instruction of each line, and these lines
        self._starts: dict[int, tuple[list[int], list[int]]] = {}
        self._calls: dict[int, dict[int, int]] = {}  # number of a code object -> the offsets of each PRECALL and its CALL

    def numbers(self, codes: list[CodeType]) -> tuple[int, ...]:
        """The numbers of code objects; a new code object gets the next number."""
        known = self._numbers
        try:
            return tuple([known[id(code)] for code in codes])
        except KeyError:
            for code in codes:
                if id(code) not in known:
                    known[id(code)] = len(self._codes)
                    self._codes.append(code)
            return tuple([known[id(code)] for code in codes])

    def __len__(self) -> int:
        return len(self._codes)

    def code(self, number: int) -> CodeType | None:
        """The code object with this number; None in a saved history."""
        return self._codes[number]

    def facts(self, code: int) -> CodeFacts:
        """The file, name and first line of a code object."""
        return CodeFacts.of(self._codes[code])

    def line(self, code: int, instruction: int) -> int:
        """The number of the source line that an instruction belongs to."""
        if code not in self._starts:
            first = self._codes[code].co_firstlineno
            ranges = [(start, line or first) for start, _, line in self._codes[code].co_lines()]
            self._starts[code] = [start for start, _ in ranges], [line for _, line in ranges]
        starts, lines = self._starts[code]
        place = bisect_right(starts, instruction)
        return lines[place - 1] if place else self._codes[code].co_firstlineno

    def span(self, code: int, instruction: int) -> Span:
        """The source position of an instruction."""
        if code not in self._spans:
            positions = getattr(self._codes[code], "co_positions", None)  # Python 3.11 and newer
            self._spans[code] = list(positions()) if positions is not None else _first_copies(self._codes[code])
        spans = self._spans[code]
        span = spans[instruction // 2] if instruction // 2 < len(spans) else None
        if span is None or (isinstance(span, tuple) and None in span):
            return instruction
        return cast(Span, span)

    def offset(self, code: int, instruction: int) -> int:
        """The offset of a site's instruction in its code; -1 if unknown."""
        if _PRECALL is None:
            return instruction
        if code not in self._calls:
            self._calls[code] = _calls_after_precalls(self._codes[code])
        return self._calls[code].get(instruction, instruction)


_PRECALL = dis.opmap.get("PRECALL")


def _calls_after_precalls(code: CodeType) -> dict[int, int]:
    """Maps the offset of each PRECALL to that of its CALL.

    Python 3.11 has two instructions for a call. After a few runs it makes some calls, such as `tuple(…)`, at the PRECALL.
    """
    steps = list(dis.get_instructions(code))
    return {one.offset: other.offset for one, other in pairwise(steps) if one.opcode == _PRECALL and other.opname == "CALL"}


def _first_copies(code: CodeType) -> list[int]:
    """Maps each instruction to its first copy: Python 3.10 compiles a `while` condition twice, before and after the body.

    The second copy ends with a jump back to the body, and the first lies right before the body. Both are followed backwards
    as long as they are equal, except for jump targets.
    """
    steps = list(dis.get_instructions(code))
    lines = [line for start, end, line in code.co_lines() for _ in range(start, end, 2)]

    def content(at: int) -> tuple[int, int | None, int | None]:
        jumps = steps[at].opcode in dis.hasjabs or steps[at].opcode in dis.hasjrel
        return steps[at].opcode, None if jumps else steps[at].arg, lines[at]

    firsts = [step.offset for step in steps]
    for end, step in enumerate(steps):
        if step.opname.startswith("POP_JUMP_IF") and step.argval < step.offset:
            second, first = end - 1, step.argval // 2 - 2  # the ends of both copies, without their final jumps
            while first >= 0 and content(first) == content(second):
                firsts[second] = firsts[first]
                second, first = second - 1, first - 1
    return firsts


@dataclass(slots=True, eq=False)  # not frozen: a frozen dataclass is four times as slow to create
class Site:
    """A place in the program: the chain of frames up to the enclosing module's forward, innermost first."""

    codes: tuple[int, ...]
    instructions: tuple[int, ...]
    number: int
    table: CodeTable

    @property
    def functions(self) -> list[CodeFacts]:
        """The function of each frame of the site."""
        return [self.table.facts(code) for code in self.codes]

    @property
    def lines(self) -> list[SourceLine]:
        """The source line of each frame of the site."""
        found = []
        for code, instruction in zip(self.codes, self.instructions, strict=True):
            facts = self.table.facts(code)
            found.append(SourceLine(facts.file, self.table.line(code, instruction), facts.function, self.table.sources))
        return found

    @property
    def spans(self) -> tuple[Span, ...]:
        """The source position of each frame of the site."""
        return tuple([self.table.span(code, at) for code, at in zip(self.codes, self.instructions, strict=True)])


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a program."""

    file: str
    line: int
    function: str
    sources: Sources = field(default=RUNNING, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The line itself, without indentation; empty when the source cannot be read."""
        return (self.sources.line(self.file, self.line) or "").strip()

    @property
    def is_torch(self) -> bool:
        return self.sources.is_torch(self.file)

    @property
    def hands_on(self) -> bool:
        """True if the line only passes a torch function's call to a mode, from inside that function."""
        return self.is_torch and "handle_torch_function(" in self.text

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f": {self.text}" if self.text else "")


def lines_near(lines: Iterable[int]) -> list[int]:
    """The numbers of these lines of a file and of the lines around them, as shown to the user."""
    return sorted({line for one in lines for line in range(one - _AROUND, one + _AROUND + 1)})


class Around(Protocol):
    """A module call: its call site, and its outer module call."""

    @property
    def site(self) -> Site | None: ...
    @property
    def outer(self) -> Around | None: ...


def stack_of(site: Site | None, module: Around | None) -> list[SourceLine]:
    """The whole call stack of a call made at `site` inside `module`, outermost first."""
    lines: list[SourceLine] = []
    call = module
    while True:
        if site is not None:
            lines += site.lines
        if call is None:
            break
        site, call = call.site, call.outer
    return [line for line in reversed(lines) if not line.sources.is_ours(line.file)]


def source_of(site: Site | None, module: Around | None) -> SourceLine | None:
    """The innermost line outside torch. If all lines are in torch, as in an `nn.Sequential`, the line with the call."""
    stack = stack_of(site, module)
    stack.reverse()
    own = next((line for line in stack if not line.is_torch), None)
    return own or next((line for line in stack if not line.hands_on), stack[0] if stack else None)


def same_positions(sites: list[Site]) -> list[int]:
    """Map each site to the number of the first site at the same source position. The last item is -1, for no site.

    Python compiles the condition of a `while` loop twice, and the body of a `finally`.
    """
    found = list(range(len(sites)))
    by_codes: dict[tuple[int, ...], list[Site]] = {}
    for site in sites:
        by_codes.setdefault(site.codes, []).append(site)
    for alike in by_codes.values():
        first: dict[tuple[Span, ...], int] = {}
        for site in alike if len(alike) > 1 else ():
            found[site.number] = first.setdefault(site.spans, site.number)
    return [*found, -1]


# Finds the site of an operation: the chain of frames up to the enclosing module's `forward`.
#
# Equal chains are the same site, known by its number, so "ran at the same place" is a comparison of numbers.

_LIMIT = 64
# torch's Python functions reach a mode through this function
_HANDLER = getattr(torch.overrides.handle_torch_function, "__code__", None)


# The frames of nn.Module's call machinery: they separate a module from its caller.
MODULE_CALL = frozenset(map(id, module_call_codes()))


def is_in_custom_function(frame: FrameType | None) -> bool:
    """True for a call inside the forward of a `torch.autograd.Function`, with no module call in between."""
    while frame is not None and id(frame.f_code) not in MODULE_CALL:
        if is_of_custom_function(frame.f_code, "forward"):
            return True
        frame = frame.f_back
    return False


# A call may pass through our other modes. If a mode makes the call again from inside, the inner frames belong to the same call.
# If it runs a copy of torch's Python function instead, the inner frames are new calls.
_HANDING_ON: set[int] = set()
_OPENING: set[int] = set()


def hand_on(mode: CodeType, opening: CodeType) -> None:
    """Register the code objects with which a mode hands calls on and runs copies of torch's Python functions."""
    _HANDING_ON.add(id(mode))
    _OPENING.add(id(opening))


class Forward:
    """The forward of a class of modules, and the known sites in it.

    Code objects are compared by `is`: if a library has set an audit hook, every call of `id` is slow.
    """

    __slots__ = ("code", "decides", "direct", "near")

    def __init__(self, code: CodeType | None, decides: Any = None) -> None:
        self.code = code
        self.decides = decides  # decides whether a module takes a fused path (`fused.py`); None for nearly all classes
        self.direct: dict[int, int] = {}  # instruction -> number of the site, for calls made in `forward` itself
        # maps an instruction of `forward` and one of a function it calls to (code of the function, number of the site)
        self.near: dict[tuple[int, int], tuple[CodeType, int]] = {}


class CallSites:
    """Assigns numbers to the sites of one recording."""

    def __init__(self, sites: list[Site], table: CodeTable, outermost: CodeType | None = None) -> None:
        self._sites = sites
        self._table = table
        self._numbers: dict[tuple[int, ...], int] = {}
        self.forward = Forward(None)  # the forward of the running module
        self.call: FrameType | None = None  # torch's outermost frame of the call of that module
        self.when_elsewhere: Callable[[FrameType], None] | None = None  # called with a frame that may lie outside `call`
        self._last = id(outermost) if outermost is not None else 0
        self._skipped: set[int] = {id(_HANDLER), *_HANDING_ON, *_OPENING}
        self._ends: set[int] = set(MODULE_CALL)
        self.when_new: Callable[[list[CodeType]], None] | None = None  # called with the code objects of each new site

    def skip(self, code: CodeType) -> None:
        """Leave frames of `code` out of the program."""
        self._skipped.add(id(code))

    def stop_before(self, code: CodeType) -> None:
        """Leave frames from `code` outwards out of the program."""
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
        place = (frame.f_lasti, outer.f_lasti)  # most other calls come from a function that forward calls
        known = forward.near.get(place)
        if known is None or known[0] is not code:
            known = forward.near[place] = (code, self._chain(frame))
        return known[1]

    def _chain(self, frame: FrameType | None) -> int:
        made = frame
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
        if self.call is not None and made is not None and self.when_elsewhere is not None:
            while frame is not None and frame is not self.call and id(frame.f_code) in MODULE_CALL:
                frame = frame.f_back
            if frame is not self.call:
                self.when_elsewhere(made)
        chain = tuple(key)
        site = self._numbers.get(chain)
        if site is None:
            if self.when_new is not None:
                self.when_new(codes)
            site = self._numbers[chain] = len(self._sites)
            self._sites.append(Site(self._table.numbers(codes), chain[1::2], site, self._table))
        return site

    def around(self, frame: FrameType | None) -> Site:
        """The site of a module call, from the frame of its caller or of the call machinery."""
        while frame is not None and id(frame.f_code) in MODULE_CALL:
            frame = frame.f_back
        return self._sites[self.at(frame)]

    def site(self, frame: FrameType | None) -> Site:
        """The site of a call made from `frame`."""
        return self._sites[self.at(frame)]
