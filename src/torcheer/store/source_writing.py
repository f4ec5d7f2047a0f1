"""Sites as they are written down: files, functions and lines, with the text of the lines and of those around them."""

from __future__ import annotations

import os
from types import CodeType
from typing import Any

from ..source_places import CodeFacts, CodeTable, Site, Sources, Span, lines_near
from .checking import column, each, fields, items, lists, number, numbers, refuse, split, text

_OF_PROGRAM, _OF_TORCH, _OURS = range(3)  # whose a file is

Json = Any


def write_sites(sites: list[Site], *, with_texts: bool) -> Json:
    """The sites of a log. Without texts, files are known by their names alone, without the folders they are in."""
    if not sites:
        return {"files": [], "codes": [], "places": [[], [], []], "frames": [], "counts": []}
    table = sites[0].table
    pairs = dict.fromkeys((code, at) for site in sites for code, at in zip(site.codes, site.instructions, strict=True))
    codes = {code: place for place, code in enumerate(dict.fromkeys(code for code, _ in pairs))}
    numbers = {pair: place for place, pair in enumerate(pairs)}
    facts = {code: table.facts(code) for code in codes}
    lines = [table.line(code, at) for code, at in pairs]
    named: dict[str, set[int]] = {one.file: set() for one in facts.values()}  # by file: its lines that are in a site
    for (code, _), line in zip(pairs, lines, strict=True):
        named[facts[code].file].add(line)
    files = {file: place for place, file in enumerate(named)}
    return {
        "files": _written_files(named, table, with_texts),
        "codes": [[files[one.file], one.function, one.first_line] for one in facts.values()],
        "places": [[codes[code] for code, _ in pairs], lines, [at for _, at in pairs]],
        "frames": [numbers[pair] for site in sites for pair in zip(site.codes, site.instructions, strict=True)],
        "counts": [len(site.codes) for site in sites],
    }


def _written_files(named: dict[str, set[int]], table: CodeTable, with_texts: bool) -> Json:
    found: list[Json] = []
    taken: set[str] = set()
    for file, lines in named.items():
        owner = _OF_TORCH if table.sources.is_torch(file) else _OURS if table.sources.is_ours(file) else _OF_PROGRAM
        texts = {line: table.sources.line(file, line) for line in lines_near(lines)} if with_texts else {}
        name = file if with_texts else _bare(file, taken)
        found.append([name, owner, [[line, said] for line, said in texts.items() if said is not None]])
    return found


def _bare(file: str, taken: set[str]) -> str:
    """The name of a file without its folders, with a number if another file has it."""
    bare = name = os.path.basename(file.replace("\\", "/")) or file
    turn = 1
    while name in taken:
        turn += 1
        name = f"{bare} ({turn})"
    taken.add(name)
    return name


class SavedSources(Sources):
    """The source files of a saved history, of which some lines are known."""

    def __init__(self) -> None:
        self.owners: dict[str, int] = {}
        self.texts: dict[str, dict[int, str]] = {}

    def line(self, file: str, number: int) -> str | None:
        return self.texts.get(file, {}).get(number)

    def is_torch(self, file: str) -> bool:
        return self.owners.get(file) == _OF_TORCH

    def is_ours(self, file: str) -> bool:
        return self.owners.get(file) == _OURS


class SavedCodes(CodeTable):
    """The codes of a saved history. In place of an instruction, a site has the number of a code and a line here."""

    def __init__(self, sources: SavedSources, facts: list[CodeFacts], lines: list[int], offsets: list[int]) -> None:
        self.sources = sources
        self._facts = facts
        self._lines = lines
        self._offsets = offsets  # of the instructions; empty in files of earlier versions

    def __len__(self) -> int:
        return len(self._facts)

    def code(self, number: int) -> CodeType | None:
        return None

    def facts(self, code: int) -> CodeFacts:
        return self._facts[code]

    def line(self, code: int, instruction: int) -> int:
        return self._lines[instruction]

    def span(self, code: int, instruction: int) -> Span:
        return instruction

    def offset(self, instruction: int) -> int:
        return self._offsets[instruction] if self._offsets else -1


def read_sites(written: Any) -> list[Site]:
    """The sites of a saved history."""
    found = fields(written, "the sites")
    sources, paths = SavedSources(), []
    for path, owner, texts in lists(found.get("files"), "the files", "a file"):
        paths.append(text(path, "a file"))
        sources.owners[path] = number(owner, "the owner of a file", 0, 3)
        pairs = lists(texts, "the lines of a file", "a line")
        sources.texts[path] = {number(line, "a line"): text(said, "a line") for line, said in pairs}
    facts = each(found.get("codes"), "the codes", lambda one, what: _code(one, paths))
    codes, lines, *offsets = items(found.get("places"), "the places")
    codes = numbers(codes, "the codes of places", 0, len(facts))
    lines = column(lines, "the lines of places", len(codes))
    frames = numbers(found.get("frames"), "the frames", 0, len(codes))
    at = column(offsets[0], "the instructions of places", len(codes)) if offsets else []
    table = SavedCodes(sources, facts, lines, at)
    chains = split(frames, numbers(found.get("counts"), "the lengths of sites"), "the frames of sites")
    return [Site(tuple([codes[frame] for frame in chain]), chain, place, table) for place, chain in enumerate(chains)]


def _code(one: Any, paths: list[str]) -> CodeFacts:
    file, function, line = items(one, "a code")
    if not paths:
        refuse("a code is in no file")
    return CodeFacts(
        paths[number(file, "the file of a code", 0, len(paths))], text(function, "a function"), number(line, "a line")
    )
