"""`history[key]`: the layer or operation that a text or position means, or the list of those that another key means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..display import few
from ..errors import AmbiguousKey, InvalidArgument, LayerNotFound
from ..keys import Key, Meaning, Position, Several, Text, end_of, parse_key
from .index import Index
from .layers.labels import LayerEntry
from .names import IndexNames

_SHOWN = 12  # of the layers a key fits, in an error


@dataclass(frozen=True, slots=True)
class Found:
    """A layer, or one operation of it."""

    layer: LayerEntry
    number: int | None = None  # of the operation, where the key names one


class Lookup:
    """Resolves keys for one state of a history."""

    def __init__(self, index: Index, operation: Callable[[Index, int], Any] | None = None) -> None:
        self.index = index
        self.names = IndexNames(index, operation)
        self._table = index.table

    def meaning(self, key: Any) -> Meaning:
        """The operations a key means, as everywhere but in `history[…]`."""
        return parse_key(key).meaning(self.names)

    def find(self, key: Any) -> Found:
        """The one layer or operation a key means."""
        parsed = _parsed(key)
        meaning = self._meaning(parsed)
        if meaning.is_plural and len(meaning.matches) != 1:
            raise AmbiguousKey(f"{parsed} means {len(meaning.matches)} operations here; one is wanted.")
        return self._one(parsed, meaning)

    def find_any(self, key: Any) -> Found | list[Found]:
        """The one layer a text or a position means; for every other kind of key a list."""
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
        """The layers of which all passes are meant, and single operations of the other layers."""
        found: list[Found] = []
        for layer, numbers in self._table.by_layer(meaning.numbers).items():
            is_whole = len(numbers) == len(layer.passes)
            found += [Found(layer)] if is_whole else [Found(layer, number) for number in numbers]
        return found

    def _refuse_clash(self, key: Text, layers: list[LayerEntry]) -> None:
        """Raise where a module's address is also the short label of another layer: either may be meant."""
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
        """The meaning of an unambiguous part of a label or of a module address; None where no layer fits."""
        names = self.names
        fitting = [layer for layer in self._table.layers if text and text in self._table.label(layer)]
        if not fitting and text:
            calls = [call for address in names.classes if text in address for call in names.calls(address)]
            numbers = (number for call in calls for number in call.outputs[:1] if names.shows(number))
            fitting = list(self._table.by_layer(numbers))
        if len(fitting) > 1:
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
        """The keys that find this layer, all its passes together."""
        if len(layer.passes) == 1:
            return self.keys_of(layer.passes[0])
        found: list[int | str] = [layer.number - len(self._table), layer.number, self._table.label(layer)]
        calls = (call for number in layer.passes for call in self.index.exits.get(number, ()))
        for address in dict.fromkeys(call.address for call in calls if call.address):
            if address not in found and self._finds(address, layer.passes):
                found.append(address)
        return found

    def _finds(self, name: str, numbers: Sequence[int]) -> bool:
        """Whether a name means exactly these operations, unambiguously."""
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
