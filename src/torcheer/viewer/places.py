"""Where things ran: call stacks, with files and lines by number, and the lines of code that they name."""

from __future__ import annotations

from typing import Any

from ..graph import Place
from ..records import ModuleCall
from ..source_places import Site, Sources, lines_near, stack_of

Frame = list[Any]  # file, line, function

_LONGEST = 400  # characters of a line


class Places:
    """The files and call stacks of one payload. Each site and each module call is looked up once."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._sources: list[Sources] = []
        self._lines: list[set[int]] = []
        self._is_torch: list[bool] = []
        self._handing_on: set[tuple[int, int]] = set()  # file and line of those that only hand a torch function's call on
        self._sites: dict[int, list[Frame]] = {}
        self._calls: dict[int, list[Frame]] = {}
        self._stacks: dict[Place, tuple[list[Frame], int]] = {}

    def stack(self, place: Place) -> tuple[list[Frame], int]:
        """The call stack, outermost first, and which of its lines is the program's own innermost one."""
        found = self._stacks.get(place)
        if found is None:
            frames = self._around(place.module) + self._at(place.site)
            found = self._stacks[place] = (frames, self._own(frames))
        return found

    def line(self, place: Place) -> list[int] | None:
        """File and line of the program's own innermost line."""
        frames, own = self.stack(place)
        return frames[own][:2] if own >= 0 else None

    def _own(self, frames: list[Frame]) -> int:
        last = len(frames) - 1
        own = (at for at in range(last, -1, -1) if not self._is_torch[frames[at][0]])
        calling = (at for at in range(last, -1, -1) if (frames[at][0], frames[at][1]) not in self._handing_on)
        return next(own, next(calling, last))

    def _around(self, call: ModuleCall | None) -> list[Frame]:
        """The stack up to the call of a module."""
        waiting: list[ModuleCall] = []
        while call is not None and call.number not in self._calls:
            waiting.append(call)
            call = call.outer
        frames = self._calls[call.number] if call is not None else []
        for inner in reversed(waiting):
            frames = self._calls[inner.number] = frames + self._at(inner.site)
        return frames

    def _at(self, site: Site | None) -> list[Frame]:
        if site is None:
            return []
        frames = self._sites.get(site.number)
        if frames is None:
            frames = self._sites[site.number] = []
            for line in stack_of(site, None):
                number = self._files.setdefault(line.file, len(self._files))
                if number == len(self._lines):
                    self._lines.append(set())
                    self._is_torch.append(line.is_torch)
                    self._sources.append(line.sources)
                self._lines[number].add(line.line)
                if line.hands_on:
                    self._handing_on.add((number, line.line))
                frames.append([number, line.line, line.function])
        return frames

    def files(self) -> list[dict[str, Any]]:
        """Every file that was named, with the lines around those that were."""
        return [{"path": path, "lines": self._code(path, number)} for path, number in self._files.items()]

    def _code(self, path: str, number: int) -> dict[str, str]:
        read = self._sources[number].line
        found = {line: read(path, line) for line in lines_near(self._lines[number])}
        return {str(line): text[:_LONGEST] for line, text in found.items() if text is not None}
