"""Where the writer of a log puts its tensors: into a layout, or into a file that has most of them already."""

from __future__ import annotations

from typing import Any, Protocol


class TensorNames(Protocol):
    """Takes the tensors of a history and names them."""

    def add(self, name: str, tensor: Any, what: str) -> str:
        """Give a tensor a name in the file; `what` it is, for errors. Returns the name it is known by."""
        ...


class Written:
    """Stands for a tensor that is in the file already, in a recording that streams into the file."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number
