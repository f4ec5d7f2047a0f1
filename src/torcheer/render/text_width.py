"""How wide text is in Helvetica, and in Arial and Liberation Sans, which have the same widths."""

from __future__ import annotations

import unicodedata

# Widths in thousandths of the font size. Characters that are not listed are as wide as a digit.
_DIGIT = 556
_REGULAR = {
    191: "'",
    222: "ijl",
    260: "|",
    278: " !,./:;I[\\]ft·\u00a0",
    333: "()-`r",
    334: "{}",
    355: '"',
    389: "*",
    469: "^",
    500: "Jcksvxyz",
    584: "+<=>~×",
    611: "FTZ",
    667: "&ABEKPSVXY",
    722: "CDHNRUw",
    778: "GOQ",
    833: "Mm",
    889: "%",
    944: "W",
    1000: "…→—",
    1015: "@",
}
_BOLD = {
    238: "'",
    278: " ,./I\\ijl·\u00a0",
    280: "|",
    333: "!()-:;[]`ft",
    389: "*r{}",
    474: '"',
    500: "z",
    584: "+<=>^~×",
    611: "?FLTZbdghnopqu",
    667: "EPSVXY",
    722: "&ABCDHKNRU",
    778: "GOQw",
    833: "M",
    889: "%m",
    944: "W",
    975: "@",
    1000: "…→—",
}


def _by_character(widths: dict[int, str]) -> dict[str, int]:
    return {character: width for width, characters in widths.items() for character in characters}


_WIDTHS = {False: _by_character(_REGULAR), True: _by_character(_BOLD)}


def text_width(text: str, size: float, *, is_bold: bool = False) -> float:
    """The width of a line of text, in the unit of its font size.

    >>> text_width("relu", 10), text_width("relu", 10, is_bold=True)
    (16.67, 18.34)
    """
    known = _WIDTHS[is_bold]
    total = sum(known[character] if character in known else _unlisted(character) for character in text)
    return round(total * size / 1000, 2)


def _unlisted(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0
    return 1000 if unicodedata.east_asian_width(character) in "WF" else _DIGIT
