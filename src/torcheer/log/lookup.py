"""Finds operations by key in one log. `Lookup` implements `history[…]`, `numbers_that_fit` implements `history.filter(…)`.

An unknown key raises `LayerNotFound` with the nearest names; a key with several meanings raises `AmbiguousKey`.
"""

from __future__ import annotations

import copy
import difflib
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from .._text import few, nearest
from .._torch.functions import facts, groups
from .._torch.functions.facts import Origin
from .._torch.functions.names import label_type
from ..errors import AmbiguousKey, InvalidArgument, LayerNotFound
from ..log.keys import AnyKey, Key, Meaning, Position, Several, Text, end_of, is_torch_function, of_calls, parse_key
from ..log.labels import LayerEntry, LayerTable
from .index import Index
from .records import FUNCTION, ClassNames, Log, ModuleCall, is_kind_of


class IndexNames:
    """Implements `torcheer.log.keys.Names`, against which keys are matched, for one index."""

    def __init__(self, index: Index) -> None:
        self._table: LayerTable = index.table
        self._index = weakref.ref(index)
        self._numbers = range(index.length)
        self._calls = index.calls
        self._registered = index.log.registered
        self.first_addresses: Mapping[str, str] = index.first_addresses

    def without_tensors(self) -> IndexNames:
        """A copy that refers to no tensor, for objects that live longer than the history."""
        light = copy.copy(self)
        light.__dict__ |= {"classes": self.classes, "_named_ends": self._named_ends}
        light._registered = {}
        log = self._table.log
        light._table = copy.copy(self._table)
        light._table.log = Log(log.title, rows=log.rows, functions=log.functions)
        return light

    # Layers ---------------------------------------------------------------------------------------------------------

    def labelled(self, label: str, *, short: bool = False) -> Sequence[int] | None:
        entry = self._table.labelled(label, short=short)
        return entry.passes if entry is not None else None

    def label_of(self, number: int) -> str:
        return self._table.label_of(number)

    def layers(self, which: slice) -> list[Sequence[int]]:
        return [self._table.layer(number).passes for number in range(len(self._table))[which]]

    def __len__(self) -> int:
        return len(self._table)

    def labels(self) -> Iterator[tuple[str, Sequence[int]]]:
        return ((self._table.label(layer), layer.passes) for layer in self._table.layers)

    def ends(self, kind: str) -> list[Sequence[int]]:
        origin, log = Origin(kind), self._table.log
        return [layer.passes for layer in self._table.layers if log.function_of(layer.passes[0]).origin is origin]

    @cached_property
    def _named_ends(self) -> dict[str, Sequence[int]]:
        """The passes of inputs and outputs by the names that people call them; outputs win over inputs."""
        log, found = self._table.log, {}
        for kind in ("input", "output"):
            for passes in self.ends(kind):
                for name in log.port_names(passes[0]):
                    found[name] = found[f"{kind}.{name}"] = passes
        return found

    def named_end(self, name: str) -> Sequence[int] | None:
        return self._named_ends.get(name)

    def shows(self, number: int) -> bool:
        return self._table.shows(number)

    # Modules ----------------------------------------------------------------------------------------------------------

    @cached_property
    def classes(self) -> Mapping[str, type | ClassNames]:
        return {address: module.cls for address, module in self._registered.items()}

    def calls(self, address: str) -> Sequence[ModuleCall]:
        return self._calls.get(address, ())

    # Operations -------------------------------------------------------------------------------------------------------

    def of_function(self, function: Callable[..., Any]) -> list[int]:
        log, kind = self._table.log, layer_type_of(function)
        fitting = {number for number, known in enumerate(log.functions) if known.type == kind}
        return [n for n in self._numbers if log.rows[n][FUNCTION] in fitting and self.shows(n)]

    def operations(self) -> Iterator[tuple[int, Any]]:
        index = self._index()
        if index is None:
            raise InvalidArgument(
                "a function of an operation needs the history that this graph was made from, which is gone. "
                "Keep the history, or use another key."
            )
        return ((number, Index.operation(index, number)) for number in index.operations)

    # What can be typed ------------------------------------------------------------------------------------------------

    def known(self) -> list[str]:
        """Every label and every module address that can be typed."""
        return [*(label for label, _ in self.labels()), *(address for address in self._calls if address)]

    def not_found(self, what: str) -> str:
        others = [other for other, first in self.first_addresses.items() if first in self._calls]
        known = [*self.known(), *others]
        some = [address for address in self._calls if address][:3] + known[1:3]
        hint = nearest(what, known, "keys")
        if not hint and known:
            hint = f" Keys are, for example, {', '.join(map(repr, dict.fromkeys(some)))}."
        return f"no layer fits {what!r}: this history has {len(self)} layers.{hint}{self.hint(what)}"

    def hint(self, what: str) -> str:
        kind = what.replace("_", "").lower()
        if kind in {known.type for known in self._table.log.functions}:
            return f" {kind!r} is a type of layers: '{kind}_*' means all of them."
        if "softmax" not in kind:
            return ""
        fused = [label for label, passes in self.labels() if self._table.log.function_of(passes[0]).is_in(groups.ATTENTION)]
        if not fused:
            return ""
        computes = "compute" if len(fused) > 1 else "computes"
        return (
            f" Attention is fused here: {few(fused, 3)} {computes} it as one function, inside which there is no softmax to "
            "see. To see inside, use attn_implementation='eager' (models of transformers); need_weights=True and "
            "torch.backends.mha.set_fastpath_enabled(False) (nn.MultiheadAttention); or write "
            "softmax(q @ k.transpose(-2, -1) * scale, -1) @ v."
        )


def layer_type_of(function: Callable[..., Any]) -> str:
    """The layer type of a torch function's operations. `operator.truediv` counts as `/`, and so on."""
    name = getattr(function, "__name__", "")
    if getattr(operator, name, None) is function:
        function = getattr(Tensor, f"__{name.strip('_')}__", function)
    return facts(function).type


# `history[key]`: a text or a position means one layer or operation; any other key means a list of them.

_SHOWN = 12  # at most this many layers are listed in an error


@dataclass(frozen=True, slots=True)
class Found:
    """A layer, or one of its operations."""

    layer: LayerEntry
    number: int | None = None  # the operation's number; None for the whole layer


class Lookup:
    """Resolves keys for one state of a history."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.names = IndexNames(index)
        self._table = index.table

    def meaning(self, key: Any) -> Meaning:
        """The operations that a key means. `history[…]` uses `find_any` instead, which also accepts parts of names."""
        return parse_key(key).meaning(self.names)

    def find(self, key: Any) -> Found:
        """The one layer or operation that a key means. Raises `AmbiguousKey` if there are several."""
        parsed = _parsed(key)
        meaning = self._meaning(parsed)
        if meaning.is_plural and len(meaning.matches) != 1:
            raise AmbiguousKey(f"{parsed} means {len(meaning.matches)} operations here; one is wanted.")
        return self._one(parsed, meaning)

    def find_any(self, key: Any) -> Found | list[Found]:
        """The one layer or operation that a text or a position means; a list for every other kind of key."""
        parsed = _parsed(key)
        if isinstance(parsed, Several):
            return list(dict.fromkeys(found for one in parsed.keys for found in self._all(self._meaning(one))))
        meaning = self._meaning(parsed)
        return self._all(meaning) if meaning.is_plural else self._one(parsed, meaning)

    def _meaning(self, key: Key) -> Meaning:
        """The meaning of a key. A text may also be an unambiguous part of a name."""
        try:
            return key.meaning(self.names)
        except LayerNotFound:
            found = self._part(key.text) if isinstance(key, Text) and not key.is_known(self.names) else None
            if found is None:
                raise
            return found

    def _one(self, key: Key, meaning: Meaning) -> Found:
        numbers = meaning.numbers
        layers = list(self._table.by_layer(numbers))
        if isinstance(key, Text) and meaning.matches[0].call is not None:
            self._refuse_clash(key, layers)
        if len(numbers) == 1:
            return Found(layers[0], numbers[0])
        if len(layers) == 1 and len(layers[0].passes) == len(numbers):
            return Found(layers[0])
        raise AmbiguousKey(self._several(key, meaning))

    def _all(self, meaning: Meaning) -> list[Found]:
        """Whole layers if all their passes are meant, else single operations."""
        found: list[Found] = []
        for layer, numbers in self._table.by_layer(meaning.numbers).items():
            is_whole = len(numbers) == len(layer.passes)
            found += [Found(layer)] if is_whole else [Found(layer, number) for number in numbers]
        return found

    def _refuse_clash(self, key: Text, layers: list[LayerEntry]) -> None:
        """Raise if a module's address is also the short label of another layer, because either may be meant."""
        short = key.short_label(self.names)
        other = self._table.layer_of(short[0]) if short else None
        if other is not None and layers != [other]:
            both = self._list([other, *layers])
            raise AmbiguousKey(
                f"{key} is a short label and a module address: {both}. "
                f"{self._table.label(other)!r} is the layer, {key.text + '[0]'!r} what the module returned."
            )

    def _several(self, key: Key, meaning: Meaning) -> str:
        matches = meaning.matches
        call = matches[0].call
        if call is not None and isinstance(key, Text):
            options = few((f"{match.name} ({self.index.label(match.number)})" for match in matches), _SHOWN)
            times = len(self.names.calls(call.address))
            return f"module {key} was called {times} times: say which, by {options}."
        layers = list(self._table.by_layer(meaning.numbers))
        end = end_of(key.text) if isinstance(key, Text) else None
        if end is not None:
            name = end[0]
            return f"there are {len(layers)} {name}s: {self._list(layers)}. Use one of these labels, or {name}1, {name}2, …"
        return f"{key} fits {len(layers)} layers: {self._list(layers)}. Use one of these labels."

    def _part(self, text: str) -> Meaning | None:
        """The meaning of a text that is part of a label or of a module address. None if no layer fits; raises if several do."""
        names = self.names
        fitting = [layer for layer in self._table.layers if text and text in self._table.label(layer)]
        if not fitting and text:
            calls = [call for address in names.classes if text in address for call in names.calls(address)]
            numbers = (number for call in calls for number in call.outputs[:1] if names.shows(number))
            fitting = list(self._table.by_layer(numbers))
        if len(fitting) > 1:
            if (several := Text(text).several_addresses(names)) and not any(
                text in names.label_of(n.passes[0]) for n in fitting
            ):
                raise AmbiguousKey(several)
            raise AmbiguousKey(f"{text!r} fits {len(fitting)} layers: {self._list(fitting)}. Use one of these labels.")
        return Position(fitting[0].number).meaning(names) if fitting else None

    def _list(self, layers: Sequence[LayerEntry]) -> str:
        return few(map(self._table.label, layers), _SHOWN)

    # The keys of a layer ------------------------------------------------------------------------------------------

    def keys_of(self, number: int) -> list[int | str]:
        """The keys that find this operation."""
        layer = self.index.layer(number)
        label = self._table.label(layer)
        found: list[int | str] = [f"{label}:{self._table.pass_number(number)}"]
        if len(layer.passes) == 1:
            found[:0] = [layer.number - len(self._table), layer.number, label]
        for call in self.index.exits.get(number, ()):
            names = (call.address, f"{call.address}:{call.call}") if call.outputs[0] == number and call.address else ()
            found += [name for name in names if name not in found and self._finds(name, [number])]
        return found

    def keys_of_layer(self, layer: LayerEntry) -> list[int | str]:
        """The keys that find this layer with all its passes."""
        if len(layer.passes) == 1:
            return self.keys_of(layer.passes[0])
        found: list[int | str] = [layer.number - len(self._table), layer.number, self._table.label(layer)]
        calls = (call for number in layer.passes for call in self.index.exits.get(number, ()))
        for address in dict.fromkeys(call.address for call in calls if call.address):
            if address not in found and self._finds(address, layer.passes):
                found.append(address)
        return found

    def _finds(self, name: str, numbers: Sequence[int]) -> bool:
        """True if a name means exactly these operations."""
        try:
            found = self._one(Text(name), Text(name).meaning(self.names))
        except LayerNotFound:
            return False
        return list(numbers) == ([found.number] if found.number is not None else list(found.layer.passes))


def _parsed(key: Any) -> Key:
    try:
        return parse_key(key)
    except InvalidArgument as error:
        raise LayerNotFound(f"a layer is looked up by a key: {error}") from None


# `history.filter(…)`: the operations that fit a key, a type, a module and a function of an operation.

_LayerType = str | type | Callable[..., object]  # the name of a layer type, a module class, or a torch function
LayerTypes = _LayerType | Iterable[_LayerType]


def numbers_that_fit(lookup: Lookup, key: AnyKey | None, type_: LayerTypes | None, module: AnyKey | None) -> list[int]:
    """The numbers of the operations that fit every criterion that is not None, in execution order."""
    index, names = lookup.index, lookup.names
    numbers = sorted(lookup.meaning(key).numbers) if key is not None else index.operations
    if type_ is not None:
        of_type = _of_type(type_, lookup)
        numbers = [n for n in numbers if n in of_type]
    if module is not None:
        calls = parse_key(module).modules(names)
        inside = {n for call in calls for n in range(call.first, call.end if call.end >= 0 else index.length)}
        numbers = [n for n in numbers if n in inside]
    return numbers


def check_where(where: Any) -> None:
    """Raise if `where` is not a function of an operation."""
    if where is not None and (not callable(where) or isinstance(where, type) or is_torch_function(where)):
        raise InvalidArgument(
            "where is a function of an operation, such as lambda operation: operation.flops > 1e6; got "
            f"{type(where).__name__}: {where!r:.60}. Classes of modules go into module=, torch functions and types into type=."
        )


def _of_type(given: Any, lookup: Lookup) -> set[int]:
    """The operations of a layer type or torch function, or returned by modules of a class. A list means any of its items."""
    if isinstance(given, type):
        names = lookup.names
        calls = [call for address, cls in names.classes.items() if is_kind_of(cls, given) for call in names.calls(address)]
        return _or_hint({match.number for match in of_calls(calls, names)}, given.__name__, names)
    if isinstance(given, str):
        return _of_name(given, lookup)
    if callable(given) and is_torch_function(given):
        return _of_name(layer_type_of(given), lookup)
    if isinstance(given, Iterable):
        return {number for one in given for number in _of_type(one, lookup)}
    raise InvalidArgument(
        f"type is a layer type such as 'relu', a torch function, a class of modules, or a list of these; got {given!r:.80}."
    )


def _of_name(name: str, lookup: Lookup) -> set[int]:
    kind = name.replace("_", "").lower()
    log = lookup.index.log
    functions = {place for place, function in enumerate(log.functions) if function.type == kind}
    if not functions and kind not in _types_of_torch():
        ran = list(dict.fromkeys(function.type for function in log.functions))
        near = difflib.get_close_matches(kind, ran, n=3) or difflib.get_close_matches(kind, _types_of_torch(), n=3)
        hint = f"The nearest are {', '.join(map(repr, near))}." if near else f"Those that ran are {few(ran, 12)}."
        raise LayerNotFound(f"no type of layers is called {name!r}. {hint}")
    return _or_hint({n for n in lookup.index.operations if log.rows[n][FUNCTION] in functions}, kind, lookup.names)


def _or_hint(numbers: set[int], what: str, names: IndexNames) -> set[int]:
    """`numbers`. Raises if it is empty and a hint explains why, such as a fused call; the error has the hint."""
    if not numbers and (hint := names.hint(what)):
        raise LayerNotFound(f"no operation is a {what}.{hint}")
    return numbers


@cache
def _types_of_torch() -> frozenset[str]:
    """The layer types of torch's functions, and of inputs, outputs and sources."""
    spaces: list[Any] = [torch, torch.Tensor, torch.nn.functional, torch.special, torch.fft, torch.linalg, torch.nn]
    found = [name for space in spaces for name in dir(space)]
    found += [f"{space.__name__.rpartition('.')[2]}_{name}" for space in spaces for name in dir(space)]  # linalg_norm
    return frozenset(map(label_type, found)) | {origin.value for origin in Origin}
