"""How the text of a key is read: `input:cell[1]:2` is the second tensor that the second call of `cell` was given.

Names of modules are free text: `relu_1`, `a:2`, `x[0]` and `*` are possible. So a text has several readings, from the most
literal to the one without `input:`, `[1]` and `:2`, and the first reading whose name is known counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

INPUT = "input:"
ALL = -1  # as the part of a reading: every tensor, `address[*]`

_SUFFIX = re.compile(r"^(?P<name>.*)(?:\[(?P<part>\d{1,9}|\*)\]|:(?P<turn>\d{1,9}))$", re.DOTALL)
_END = re.compile(r"^(?P<kind>input|output)(_?(?P<number>\d{1,9}))?$")


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a text."""

    name: str  # a label, an address or a glob
    part: int | None = None  # which of the tensors a module returned (or was given); `ALL` for every one
    turn: int | None = None  # which pass or call, from 1
    is_input: bool = False

    @property
    def is_glob(self) -> bool:
        return "*" in self.name

    @property
    def can_be_label(self) -> bool:
        return self.part is None and not self.is_input


def readings(text: str) -> list[Reading]:
    """Every way to read a text, the most literal first.

    >>> [(one.name, one.part, one.turn, one.is_input) for one in readings("input:cell:2")]
    [('input:cell:2', None, None, False), ('input:cell', None, 2, False), ('cell:2', None, None, True), ('cell', None, 2, True)]
    """
    found = [Reading(text)]
    while (match := _SUFFIX.match(found[-1].name)) is not None:
        before = found[-1]
        if match["part"] is not None and before.part is None:
            part = ALL if match["part"] == "*" else int(match["part"])
            found.append(replace(before, name=match["name"], part=part))
        elif match["turn"] is not None and before.turn is None:
            found.append(replace(before, name=match["name"], turn=int(match["turn"])))
        else:
            break
    given = [one for one in found if one.name.startswith(INPUT)]
    return found + [replace(one, name=one.name.removeprefix(INPUT), is_input=True) for one in given]


def end_of(name: str) -> tuple[str, int | None] | None:
    """The kind and the number in `input`, `output`, `input_2` or `output2`; None for any other name."""
    match = _END.match(name)
    return None if match is None else (match["kind"], int(match["number"]) if match["number"] else None)


def split_turn(text: str) -> tuple[str, int | None]:
    """The name and the number of a label with its pass, or an address with its call; None where there is no number.

    >>> split_turn("conv2d_3_7:2"), split_turn("features.6")
    (('conv2d_3_7', 2), ('features.6', None))
    """
    name, colon, number = text.rpartition(":")
    return (name, int(number)) if colon and number.isdecimal() and len(number) < 10 else (text, None)


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A glob as a regular expression: `*` stays within one part of an address, `**` crosses dots; nothing else is special.

    >>> [bool(glob_pattern("blocks.*.mlp").fullmatch(one)) for one in ("blocks.0.mlp", "blocks.0.1.mlp")]
    [True, False]
    >>> [bool(glob_pattern("**.mlp").fullmatch(one)) for one in ("mlp", "blocks.0.mlp", "xmlp")]
    [True, True, False]
    """
    pieces = re.split(r"((?:(?<=\.)|^)\*\*\.|\*\*+|\*)", glob)
    meant = {"**.": r"(?:[^.]+\.)*", "*": "[^.]*"}
    return re.compile("".join(meant.get(p, ".*" if p.startswith("**") else re.escape(p)) for p in pieces), re.DOTALL)
