"""Objects that stand in a template for a set, and for an object that cannot be read from a file."""

from __future__ import annotations

from typing import Any


class Members:
    """Stands for a set in a template, in which two tensors, being the same placeholder, would be one member."""

    __slots__ = ("items", "like")

    def __init__(self, like: Any, items: list[Any]) -> None:
        self.like = like  # an empty set of the same class
        self.items = items

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self.items))}}}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Members) and type(self.like) is type(other.like) and self.items == other.items

    __hash__ = None  # type: ignore[assignment]  # compared by its items, which are in a list


class SavedObject:
    """Stands for an object of any class in a template that was read from a file.

    It prints as the object did, and holds the tensors that were found in it.
    """

    __slots__ = ("items", "printed", "steps", "type_name")

    def __init__(self, type_name: str, printed: str, steps: list[Any], items: list[Any]) -> None:
        self.type_name, self.printed, self.steps, self.items = type_name, printed, steps, items

    def __repr__(self) -> str:
        return self.printed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SavedObject) and (self.type_name, self.printed) == (other.type_name, other.printed)

    def __hash__(self) -> int:
        return hash((self.type_name, self.printed))
