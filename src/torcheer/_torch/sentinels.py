"""Sentinels: objects that stand for a missing value and are compared by identity."""

from __future__ import annotations

from typing import Final


class Sign:
    """Prints as a text. Copying returns the same object, so that `is` works."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def __copy__(self) -> Sign:
        return self

    def __deepcopy__(self, memo: object) -> Sign:
        return self


# Stands for a tensor in an argument template. Compared by identity, so that no argument can be mistaken for it. It is a
# string, because the garbage collector skips tuples of strings and numbers (a large log consists of such tuples).
TENSOR: Final = "".join(("<", "tensor", ">"))
