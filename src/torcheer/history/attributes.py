"""Base classes of the objects that a history returns: they hold one record of the log, and help with unknown names."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .._text import Shown

if TYPE_CHECKING:
    from ..log.run import Index


Record = TypeVar("Record")

# Names that other libraries have for our attributes.
_OTHER_NAMES = {
    "activation": "tensor output out value values data numpy",
    "shape": "size",
    "grad": "gradient",
    "params": "weight weights parameters",
    "layer_type": "type",
    "func_applied_name": "op",
    "func_applied": "function",
    "creation_args": "args",
    "creation_kwargs": "kwargs",
    "func_time_elapsed": "time",
    "tensor_fsize": "bytes nbytes memory",
    "module": "address",
    "source": "code",
}
_OUR_NAMES = {other: ours for ours, others in _OTHER_NAMES.items() for other in others.split()}


class OfRecord(Generic[Record]):
    """An object of a history that stands for one record of its log."""

    __slots__ = ("_index", "_record")

    def __init__(self, index: Index, record: Record) -> None:
        self._index = index
        self._record = record

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and other._record is self._record

    def __hash__(self) -> int:
        return id(self._record)


class Helpful(Shown):
    """An object with a notebook display whose unknown attributes raise an error that names the nearest attributes."""

    __slots__ = ()

    if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name as an attribute

        def __getattr__(self, name: str) -> Any:
            return _unknown_attribute(self, name)


def _unknown_attribute(holder: object, name: str) -> Any:
    """Raise an error that names the nearest attributes.

    Python also calls `__getattr__` when a property raised an `AttributeError`, such as `SeveralPasses`. In this case the
    property is read again, so that its own error is raised.
    """
    found = getattr(type(holder), name, None)
    if isinstance(found, property):
        return found.__get__(holder)
    kind = type(holder).__name__
    article = "an" if kind[0] in "AEIOU" else "a"
    known = [one for one in dir(type(holder)) if not one.startswith("_")]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    other = _OUR_NAMES.get(name.lower())
    if other in known and other not in near:
        near.insert(0, other)
    hint = f" Did you mean {' or '.join(near)}?" if near and not name.startswith("_") else ""
    # with obj=holder, Python would add its own suggestion
    raise AttributeError(f"{article} {kind} has no attribute {name!r}.{hint}", name=name, obj=None)
