"""Signs: objects that stand for something that is not there, known by identity."""

from __future__ import annotations


class Sign:
    """Prints as a text. Copies are the same object, so that it can be compared by `is`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def __copy__(self) -> Sign:
        return self

    def __deepcopy__(self, memo: object) -> Sign:
        return self
