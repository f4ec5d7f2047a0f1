"""What the writer of a log needs for its tensors: a layout of all of them, or a file that has most of them already."""

from __future__ import annotations

from typing import Any, Protocol


class TensorNames(Protocol):
    """Takes the tensors of a history in."""

    def add(self, name: str, tensor: Any, what: str) -> str:
        """Give a tensor a name in the file; `what` it is, for errors. Returns the name it is known by."""
        ...


class Written:
    """Stands for a tensor that is in the file already: what a recording holds that streams into it."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number
