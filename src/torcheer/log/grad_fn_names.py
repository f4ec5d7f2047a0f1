"""Reads the names of autograd nodes, for a limited number of nodes.

Reading `tensor.grad_fn` creates a Python object for the node. torch then frees the node and its graph by recursion instead of
in a loop, and a chain of some ten thousand such nodes overflows the stack. So only the nodes of the first operations of a
recording are read. After that, a function's node is assumed to have the same name as the earlier nodes of that function, and
is read only if their names differ.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .records import FUNCTION, NODE, Row

READ = 4_000  # the nodes of this many operations are always read


class NodeNames:
    """Gives the name of the autograd node of each tensor in one recording."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows
        self._names: dict[type, str] = {}
        self._of_function: dict[int, set[str]] | None = None
        self._left = READ

    def read(self, tensor: Tensor) -> str | None:
        """The name of a tensor's node, from the node itself."""
        try:
            node = tensor.grad_fn
        except RuntimeError:  # a view made in no_grad whose base was written to
            return None
        if node is None:
            return None
        cls = type(node)
        return self._names.get(cls) or self._names.setdefault(cls, cls.__name__)

    def name(self, tensor: Tensor, function: int) -> str | None:
        """The name of the autograd node of a tensor; `function` is the number, in the log, of the function that made it."""
        if len(self._rows) < READ:
            return self.read(tensor)
        if not tensor.requires_grad or tensor.is_leaf:
            return None
        if self._of_function is None:
            self._of_function = {}
            for row in self._rows:
                if row[NODE] is not None:
                    self._of_function.setdefault(row[FUNCTION], set()).add(row[NODE])
        known = self._of_function.setdefault(function, set())
        if len(known) == 1 or (known and self._left <= 0):
            return next(iter(known))
        self._left -= 1
        name = self.read(tensor)
        if name is not None:
            known.add(name)
        return name


def node_of(tensor: Tensor) -> Any:
    """`tensor.grad_fn`; None if torch cannot give it."""
    try:
        return tensor.grad_fn
    except RuntimeError:  # a view made in no_grad whose base was written to
        return None
