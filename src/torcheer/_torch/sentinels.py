"""Signs: objects that stand for something that is not there, known by identity."""

from __future__ import annotations

from typing import Final


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


# Stands in an argument template where a tensor was. Compared by identity, so no argument can be mistaken for it; a
# string, because tuples of strings and numbers are left alone by the garbage collector (a big log is all such tuples).
TENSOR: Final = "".join(("<", "tensor", ">"))
