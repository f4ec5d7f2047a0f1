"""Kind: how containers of one class are read and built; and the steps that lead to their items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..torch_internals import DisableTorchFunction

Parts = tuple[list[Any], list[Any]]  # the steps to the items of a container, and the items


class Attribute(str):
    """A step of a path that is an attribute's name."""

    __slots__ = ()


class Nth(int):
    """A step of a path to an item without key, index or name, such as a set's member: its place in the order of reading."""

    __slots__ = ()


class Kind:
    """How containers of one kind are read and built.

    Mutable containers are built in two steps, `shell` and `pour`, so that one can be built that holds itself.
    """

    __slots__ = ("_build", "is_object", "pour", "read", "shell", "template")

    def __init__(
        self,
        read: Callable[[Any], Parts | None],
        build: Callable[[Any, list[Any], list[Any]], Any] | None = None,
        shell: Callable[[Any], Any] | None = None,
        pour: Callable[[Any, Any, list[Any], list[Any]], None] | None = None,
        template: Callable[[Any, list[Any]], Any] | None = None,
        is_object: bool = False,
    ) -> None:
        self.read = read  # None: it cannot be read
        self._build = build
        self.shell = shell
        self.pour = pour
        self.template = template  # makes the object that stands for such a container in a template; None: another container
        self.is_object = is_object

    def built(self, value: Any, steps: list[Any], items: list[Any]) -> Any:
        """A container like `value` that holds `items`."""
        if self._build is not None:
            return self._build(value, steps, items)
        assert self.shell is not None
        assert self.pour is not None
        made = self.shell(value)
        self.pour(made, value, steps, items)
        return made


def read_by_asking(shape: type) -> Callable[[Any], Parts | None]:
    """Reads mappings (`shape` is dict), sequences (list) or sets (set) of other classes by asking for their items."""

    def read(value: Any) -> Parts | None:
        try:
            with DisableTorchFunction():
                items: Any = list(value.items()) if shape is dict else list(value)
                if shape is dict:
                    return [key for key, _ in items], [item for _, item in items]
        except Exception:  # a user-defined method may raise anything
            return None
        return unordered(items) if shape is set else (list(range(len(items))), items)

    return read


def unordered(items: list[Any]) -> Parts:
    """The parts of a container that has no keys, indices or names."""
    return [*map(Nth, range(len(items)))], items
