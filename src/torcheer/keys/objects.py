"""Keys that are objects: positions, slices, classes, functions, lists; and `parse_key`, which makes a key of anything."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, SupportsIndex, TypeVar, get_args

import torch

from ..display import few
from ..errors import InvalidArgument, LayerNotFound
from ..records import ModuleCall, is_kind_of
from ..torch_internals import OpOverload, OpOverloadPacket
from .meaning import Key, Labelled, Meaning, Names, of_calls, once
from .text import Text

_WHAT_A_KEY_IS = (
    "a key is a label, a module address (also with *), a position, a slice, a module class, a torch function, "
    "a function of an operation, or a list of these"
)


class Keyed(Protocol):
    """Layers, operations and modules of a history, which are keys, too."""

    @property
    def _key(self) -> str: ...


OneKey = str | SupportsIndex | slice | type | types.UnionType | Callable[..., object] | Key | Keyed
AnyKey = OneKey | Iterable[OneKey]  # what a person may give as a key
KeyType = TypeVar("KeyType", bound=AnyKey)  # of a dictionary, so that it may have keys of one kind


def parse_key(value: Any) -> Key:
    """The key that a text or an object is."""
    if isinstance(value, Key):
        return value
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, slice):
        return Range(value)
    named = getattr(type(value), "_key", None)  # layers, operations and modules of a history
    if isinstance(named, property):
        return Text(str(value._key))
    if isinstance(value, type):
        return OfClass(value)
    if isinstance(value, types.UnionType):
        return Several(tuple(parse_key(one) for one in get_args(value)))
    if isinstance(value, torch.nn.Module):
        raise InvalidArgument(
            f"a module is named by its address or its class ({type(value).__name__}); got the {type(value).__name__} itself."
        )
    if callable(value):
        return OfFunction(value) if is_torch_function(value) else Where(value)
    position = _position(value)
    if position is not None:
        return Position(position)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, torch.Tensor)):
        return Several(tuple(parse_key(one) for one in value))
    raise InvalidArgument(f"{_WHAT_A_KEY_IS}; got {type(value).__name__}: {value!r:.80}.")


def _position(value: Any) -> int | None:
    if isinstance(value, (bool, torch.Tensor)):
        return None
    try:
        return operator.index(value)  # also NumPy's
    except TypeError:
        return None


def is_torch_function(function: Any) -> bool:
    """Whether a callable is a function of torch, or an operator such as `operator.add`, not a function of the user."""
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        return True
    if isinstance(function, (types.FunctionType, types.BuiltinFunctionType)):
        return str(function.__module__).partition(".")[0] in ("torch", "_operator", "operator")
    read = getattr(function, "__self__", None) if isinstance(function, types.MethodWrapperType) else None  # Tensor.T.__get__
    if isinstance(read, property):
        return is_torch_function(read.fget)
    owner = getattr(function if read is None else read, "__objclass__", None)  # of a method such as Tensor.relu
    return isinstance(owner, type) and issubclass(torch.Tensor, owner)


@dataclass(frozen=True, slots=True)
class Position(Key):
    """The layer at a position, from 0, or from the end below 0."""

    position: int

    def __str__(self) -> str:
        return str(self.position)

    def meaning(self, names: Names) -> Meaning:
        count = len(names)
        if not -count <= self.position < count:
            raise LayerNotFound(
                f"there is no layer {self.position}: this history has {count} layers, 0 to {count - 1} "
                f"(or -{count} to -1 from the end)."
            )
        at = self.position % count
        return Meaning(Labelled(chain.from_iterable(names.layers(slice(at, at + 1))), names), False)


@dataclass(frozen=True, slots=True)
class Range(Key):
    """The layers at a slice of positions."""

    which: slice

    def __str__(self) -> str:
        return str(self.which)

    def meaning(self, names: Names) -> Meaning:
        try:
            layers = list(names.layers(self.which))
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"{self.which} is no slice of positions: {error}.") from None
        return Meaning(Labelled(chain.from_iterable(layers), names))


@dataclass(frozen=True, slots=True)
class OfClass(Key):
    """The modules that are instances of a class."""

    cls: type

    def __str__(self) -> str:
        return f"the class {self.cls.__name__}"

    def modules(self, names: Names) -> list[ModuleCall]:
        fitting = [address for address, cls in names.classes.items() if is_kind_of(cls, self.cls)]
        calls = [call for address in fitting for call in names.calls(address)]
        if calls:
            return calls
        if fitting:
            raise LayerNotFound(f"no {self.cls.__name__} was called: {few(map(repr, fitting), 5)} did not run.")
        known = list(dict.fromkeys(cls.__name__ for address, cls in names.classes.items() if names.calls(address)))
        said = f"the modules that ran are {few(known, 12)}" if known else "no module ran"
        raise LayerNotFound(f"no module is a {self.cls.__name__}: {said}.{names.hint(self.cls.__name__)}")

    def meaning(self, names: Names) -> Meaning:
        matches = of_calls(self.modules(names), names)
        if not matches:
            raise LayerNotFound(f"no tensor that was logged left a {self.cls.__name__}.")
        return Meaning(sorted(matches, key=lambda match: match.number))


@dataclass(frozen=True, slots=True)
class OfFunction(Key):
    """All operations of a torch function's layer type."""

    function: Callable[..., Any]

    def __str__(self) -> str:
        return str(getattr(self.function, "__name__", self.function))

    def meaning(self, names: Names) -> Meaning:
        numbers = names.of_function(self.function)
        if not numbers:
            raise LayerNotFound(names.not_found(str(self)))
        return Meaning(Labelled(numbers, names))


@dataclass(frozen=True, slots=True)
class Where(Key):
    """The operations for which a function returns true. There may be none."""

    predicate: Callable[[Any], Any]

    def __str__(self) -> str:
        return f"the function {getattr(self.predicate, '__name__', self.predicate)}"

    def meaning(self, names: Names) -> Meaning:
        return Meaning(Labelled([number for number, one in names.operations() if self.predicate(one)], names))


@dataclass(frozen=True, slots=True)
class Several(Key):
    """Everything that any of several keys means."""

    keys: tuple[Key, ...]

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.keys))}]"

    def meaning(self, names: Names) -> Meaning:
        return Meaning(once(match for key in self.keys for match in key.meaning(names).matches))

    def modules(self, names: Names) -> list[ModuleCall]:
        return list({id(call): call for key in self.keys for call in key.modules(names)}.values())
