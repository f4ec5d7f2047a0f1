"""Every key a person may type, and the layer it means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from ..errors import AmbiguousKey, LayerNotFound
from ..records import ModuleCall, Origin
from .index import Index
from .labels import DEFAULT_FORMAT, LayerEntry, split_turn

_FULL = re.compile(r"^(?P<type>[^_]+)_(?P<number>\d+)_\d+$")
_SHORT = re.compile(r"^(?P<type>[^_]+)_(?P<number>\d+)$")
_END = re.compile(r"^(?P<kind>input|output)_?(?P<number>\d+)?$")


@dataclass(frozen=True, slots=True)
class Found:
    """A layer, or one operation of it."""

    layer: LayerEntry
    number: int | None = None  # of the operation, where the key names a pass


class Lookup:
    """Resolves keys for one state of a history."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._table = index.table
        self._meanings: dict[str, Found | None] = {}

    @cached_property
    def _in_other_form(self) -> dict[str, LayerEntry]:
        """Layers by label, when labels have a form of the user's own."""
        return {self._table.label(layer): layer for layer in self._table.layers}

    def _full(self, label: str) -> LayerEntry | None:
        if self._table.label_format is not DEFAULT_FORMAT:
            return self._in_other_form.get(label)
        match = _FULL.match(label)
        layer = self._table.find(match["type"], int(match["number"])) if match else None
        return layer if layer is not None and self._table.label(layer) == label else None

    def _short(self, label: str) -> LayerEntry | None:
        match = _SHORT.match(label)
        return self._table.find(match["type"], int(match["number"])) if match else None

    def find(self, key: object) -> Found:
        """The layer or operation that `key` means."""
        if isinstance(key, bool) or not isinstance(key, (int, str)):
            raise LayerNotFound(
                f"a layer is looked up by a label, a module address, a position or a slice; got {type(key).__name__}: {key!r}."
            )
        return self._by_position(key) if isinstance(key, int) else self._by_name(key)

    def _by_position(self, key: int) -> Found:
        count = len(self._table)
        if not -count <= key < count:
            raise LayerNotFound(
                f"there is no layer {key}: this history has {count} layers, 0 to {count - 1} (or -{count} to -1 from the end)."
            )
        return Found(self._table.layer(key % count))

    def _by_name(self, key: str) -> Found:
        full = self._label(key, self._full)
        if full is not None:
            return full
        short, address = self._label(key, self._short), self._address(key)
        if short is not None and address is not None and short.layer != address.layer:
            raise AmbiguousKey(f"{key!r} is a short label and a module address: {self._names([short.layer, address.layer])}.")
        found = address or short or self._end(key)
        if found is None and self._first_address(split_turn(key)[0]) in self.index.log.registered:
            raise LayerNotFound(self._nothing_left(key))
        return found or self._part(key)

    def _first_address(self, address: str) -> str:
        """The first address of a module, by any of its addresses."""
        return self.index.first_addresses.get(address, address)

    def _nothing_left(self, key: str) -> str:
        if self._first_address(split_turn(key)[0]) not in self.index.calls:
            return f"module {key!r} was not called, so it has no output."
        return f"module {key!r} was called, but no tensor left it that was logged. history.modules[{key!r}] knows it."

    def _label(self, key: str, named: Callable[[str], LayerEntry | None]) -> Found | None:
        layer = named(key)
        if layer is not None:
            return Found(layer)
        name, number = split_turn(key)
        layer = named(name) if number is not None else None
        if layer is None or number is None:
            return None
        if not 1 <= number <= len(layer.passes):
            label = self.index.table.label(layer)
            passes = f"{len(layer.passes)} pass" + ("es" if len(layer.passes) > 1 else "")
            raise LayerNotFound(f"{label} has {passes}, so there is no {key!r}.")
        return Found(layer, layer.passes[number - 1])

    def _means(self, address: str) -> Found | None:
        """What a module's address means: what left its only call, or the layer whose passes left its calls; else None."""
        if address in self._meanings:
            return self._meanings[address]
        found = self._meanings[address] = self._work_out(address)
        return found

    def _work_out(self, address: str) -> Found | None:
        leaving = dict.fromkeys(n for n in map(_first_output, self.index.calls[address]) if self._table.shows(n))
        layers = list(dict.fromkeys(self._table.layer_of(n) for n in leaving))
        if len(leaving) == 1:
            return Found(layers[0], next(iter(leaving)))
        return Found(layers[0]) if len(layers) == 1 and len(layers[0].passes) == len(leaving) else None

    def _address(self, key: str) -> Found | None:
        calls = self.index.calls
        key = self._first_address(key)
        if key in calls:
            found = self._means(key)
            if found is None and any(self._table.shows(_first_output(call)) for call in calls[key]):
                options = ", ".join(f"{key}:{call.call} ({self._leaving(_first_output(call))})" for call in calls[key][:12])
                more = f" and {len(calls[key]) - 12} more" if len(calls[key]) > 12 else ""
                raise AmbiguousKey(f"module {key!r} was called {len(calls[key])} times: say which, by {options}{more}.")
            return found
        name, number = split_turn(key)
        if number is None or not name or self._first_address(name) not in calls:
            return None
        of_module = calls[self._first_address(name)]
        if not 1 <= number <= len(of_module):
            raise LayerNotFound(f"module {name!r} was called {len(of_module)} times, so there is no {key!r}.")
        outputs = [n for n in of_module[number - 1].outputs if self._table.shows(n)]
        return Found(self._table.layer_of(outputs[0]), outputs[0]) if outputs else None

    def _leaving(self, number: int) -> str:
        return self.index.label(number) if self._table.shows(number) else "nothing that was logged"

    def _end(self, key: str) -> Found | None:
        """`input`, `output`, `input_1`, `output2` and the like."""
        match = _END.match(key)
        if match is None:
            return None
        origin = Origin(match["kind"])
        ends = [layer for layer in self._table.layers if self.index.record(layer.passes[0]).origin is origin]
        if match["number"] is None:
            if len(ends) > 1:
                raise AmbiguousKey(f"there are {len(ends)} {key}s: {self._names(ends)}.")
            return Found(ends[0]) if ends else None
        number = int(match["number"])
        return Found(ends[number - 1]) if 1 <= number <= len(ends) else None

    def _part(self, key: str) -> Found:
        """An unambiguous part of a label or of a module address."""
        table = self.index.table
        labels = {layer.number: layer for layer in table.layers if key and key in table.label(layer)}
        found = list(labels.values())
        if not found and key:
            for address, calls in self.index.calls.items():
                if key in address:
                    for call in calls:
                        found += [table.layer_of(n) for n in call.outputs[:1] if table.shows(n)]
            found = list(dict.fromkeys(found))
        if len(found) == 1:
            return Found(found[0])
        if found:
            raise AmbiguousKey(f"{key!r} fits {len(found)} layers: {self._names(found)}. Use one of these labels.")
        raise LayerNotFound(self.not_found(key))

    def not_found(self, key: str) -> str:
        """What to say of a key that fits nothing."""
        count = len(self._table)
        near = difflib.get_close_matches(key, self.keys(), n=5, cutoff=0.5)
        hint = f" The nearest keys are {', '.join(map(repr, near))}." if near else ""
        return f"no layer fits {key!r}: this history has {count} layers.{hint}"

    def keys(self) -> list[str]:
        """Every label and every module address that can be typed."""
        table = self.index.table
        return [*(table.label(layer) for layer in table.layers), *(a for a in self.index.calls if a)]

    def _names(self, layers: list[LayerEntry], limit: int = 12) -> str:
        names = [self.index.table.label(layer) for layer in layers]
        shown = ", ".join(names[:limit])
        return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")

    def keys_of(self, number: int) -> list[int | str]:
        """The keys that find this operation."""
        index = self.index
        layer = index.layer(number)
        label = index.table.label(layer)
        total = len(index.table)
        found: list[int | str] = []
        if len(layer.passes) == 1:
            found += [layer.number - total, layer.number, label]
        found.append(f"{label}:{index.table.pass_number(number)}")
        for call in index.exits.get(number, ()):
            if call.address and call.outputs[0] == number and not self._clashes(call.address, layer):
                means = self._means(call.address)
                if means is not None and (means.number == number or len(layer.passes) == 1) and call.address not in found:
                    found.append(call.address)
                found.append(f"{call.address}:{call.call}")
        return found

    def keys_of_layer(self, layer: LayerEntry) -> list[int | str]:
        """The keys that find this layer, all its passes together."""
        if len(layer.passes) == 1:
            return self.keys_of(layer.passes[0])
        found: list[int | str] = [layer.number - len(self._table), layer.number, self._table.label(layer)]
        for number in layer.passes:
            for call in self.index.exits.get(number, ()):
                if call.address and call.address not in found and not self._clashes(call.address, layer):
                    means = self._means(call.address)
                    if means is not None and means.number is None and means.layer == layer:
                        found.append(call.address)
        return found

    def _clashes(self, address: str, layer: LayerEntry) -> bool:
        """Whether an address is also the short label of another layer."""
        return (self._short(address) or layer) != layer


def _first_output(call: ModuleCall) -> int:
    return call.outputs[0] if call.outputs else -1
