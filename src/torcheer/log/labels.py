"""`LayerTable` numbers layers and makes their labels: `conv2d_3_7` is the third conv2d, with number 7 overall (from 0).

Layers are numbered by first execution, so the table can grow while the model runs. When the pass is complete, orphans
(operations connected to neither an input nor an output) are left out.
"""

from __future__ import annotations

import string
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..errors import InvalidArgument
from .layers import Recurrence, connected_operations, nothing_repeats
from .records import FUNCTION, Log

DEFAULT_FORMAT = "{type}_{type_number}_{number}"
_FIELDS = {"type", "type_number", "number"}


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """One layer: its type, its number among layers of that type and overall, and the operations that are its passes."""

    type: str
    type_number: int
    number: int
    passes: Sequence[int] = field(compare=False)

    @property
    def short_label(self) -> str:
        return f"{self.type}_{self.type_number}"


class LayerTable:
    """Maps operations to layers and passes. Stores columns; a `LayerEntry` is made on access."""

    def __init__(self, log: Log, label_format: str = DEFAULT_FORMAT) -> None:
        self.log = log
        self.label_format = check_format(label_format)
        self.connected: bytearray | None = None  # which operations are shown; None: all of them
        self._recurrence: Recurrence | None = None
        self._layer_of: list[int] = []  # by operation: the number of its layer, or -1 for an orphan
        self._first: list[int] = []  # by layer: the operation that is its first pass
        self._of_type: dict[str, list[int]] = {}  # the layers of each type
        self._passes: dict[int, list[int]] = {}  # the passes of each layer with more than one pass
        self._later_passes: dict[int, int] = {}  # the pass number of each operation that is not the first pass
        self._in_other_form: tuple[int, dict[str, LayerEntry]] | None = (
            None  # cache of `_by_label`, and its number of operations
        )

    def __len__(self) -> int:
        """The number of layers."""
        return len(self._first)

    def catch_up(self) -> None:
        """Process operations recorded since the last call."""
        if self.log.first_passes is not None:
            self._number(self.log.first_passes)
            return
        if self._recurrence is None:
            self._recurrence = Recurrence(self.log)
        self._recurrence.extend()
        self._number(self._recurrence.first)

    def complete(self, keep_orphans: bool) -> None:
        """Process a complete log. Orphans get no layer, unless `keep_orphans`."""
        firsts = self.log.first_passes
        if firsts is not None:  # a saved history: its file refers to layers by label, so labels must stay the same
            self.connected = bytearray(first >= 0 for first in firsts) if -1 in firsts else None
            self._number(firsts)
            return
        self.connected = None if keep_orphans else connected_operations(self.log)
        if nothing_repeats(self.log):
            if self.connected is None:
                self._number_all()
            else:
                self._number(range(len(self.log.rows)))
        else:
            recurrence = Recurrence(self.log)
            recurrence.extend(self.connected)
            recurrence.settle()
            self._number(recurrence.first)

    @property
    def first_passes(self) -> list[int]:
        """By operation: the first pass of its layer; -1 for an orphan."""
        return [self._first[layer] if layer >= 0 else -1 for layer in self._layer_of]

    def _number_all(self) -> None:
        """Number the layers of a log in which every operation is a layer of its own."""
        of_function: list[list[int]] = [[] for _ in self.log.functions]
        for number, row in enumerate(self.log.rows):
            of_function[row[FUNCTION]].append(number)
        for function, numbers in zip(self.log.functions, of_function, strict=True):
            same = self._of_type.get(function.type)
            if same is not None:
                self._of_type[function.type] = sorted(same + numbers)
            elif numbers:
                self._of_type[function.type] = numbers
        self._first = list(range(len(self.log.rows)))
        self._layer_of = self._first

    def _number(self, firsts: Sequence[int]) -> None:
        """Number the layers. `firsts` maps each operation to the first pass of its layer."""
        types = [function.type for function in self.log.functions]
        rows, connected = self.log.rows, self.connected
        layer_of, first, of_type = self._layer_of, self._first, self._of_type
        for number in range(len(layer_of), len(rows)):
            if connected is not None and not connected[number]:
                layer_of.append(-1)
                continue
            earliest = firsts[number]
            if earliest != number:
                self._add_pass(layer_of[earliest], number)
                continue
            kind = types[rows[number][FUNCTION]]
            same = of_type.get(kind)
            if same is None:
                same = of_type[kind] = []
            same.append(len(first))
            layer_of.append(len(first))
            first.append(number)

    def _add_pass(self, layer: int, number: int) -> None:
        passes = self._passes.get(layer)
        if passes is None:
            passes = self._passes[layer] = [self._first[layer]]
        passes.append(number)
        self._later_passes[number] = len(passes)
        self._layer_of.append(layer)

    def shows(self, number: int) -> bool:
        """True if a number is an operation with a layer: False for orphans and parameters (negative numbers)."""
        return 0 <= number < len(self._layer_of) and self._layer_of[number] >= 0

    def layer(self, number: int) -> LayerEntry:
        """The layer with this number."""
        first = self._first[number]
        kind = self.log.function_of(first).type
        type_number = bisect_left(self._of_type[kind], number) + 1
        return LayerEntry(kind, type_number, number, self._passes.get(number) or (first,))

    def layer_of(self, operation: int) -> LayerEntry:
        """The layer an operation belongs to."""
        return self.layer(self._layer_of[operation])

    def by_layer(self, operations: Iterable[int]) -> dict[LayerEntry, list[int]]:
        """Group operations by the layer that they belong to."""
        found: dict[int, list[int]] = {}
        for operation in operations:
            found.setdefault(self._layer_of[operation], []).append(operation)
        return {self.layer(number): numbers for number, numbers in found.items()}

    @property
    def layers(self) -> list[LayerEntry]:
        """Every layer, in execution order."""
        return [self.layer(number) for number in range(len(self))]

    def pass_number(self, number: int) -> int:
        """Which pass of its layer an operation is, from 1."""
        return self._later_passes.get(number, 1)

    @property
    def most_passes(self) -> int:
        """The largest number of passes that a layer has."""
        return max(map(len, self._passes.values()), default=min(1, len(self)))

    def label(self, layer: LayerEntry) -> str:
        """A layer's label."""
        if self.label_format is DEFAULT_FORMAT:
            return f"{layer.type}_{layer.type_number}_{layer.number}"
        return self.label_format.format(type=layer.type, type_number=layer.type_number, number=layer.number)

    def label_of(self, operation: int) -> str:
        """An operation's label: the label of its layer, with the pass number if the layer has several passes."""
        layer = self.layer_of(operation)
        label = self.label(layer)
        return label if len(layer.passes) == 1 else f"{label}:{self.pass_number(operation)}"

    def labelled(self, label: str, *, short: bool = False) -> LayerEntry | None:
        """The layer with this label, or with this short label (`conv2d_3`)."""
        if not short and self.label_format is not DEFAULT_FORMAT:
            return self._by_label.get(label)
        kind, _, number = label.partition("_")
        type_number, _, overall = number.partition("_")
        if not type_number.isdecimal() or len(type_number) > 9 or bool(overall) == short:
            return None
        same = self._of_type.get(kind, ())
        layer = self.layer(same[int(type_number) - 1]) if 1 <= int(type_number) <= len(same) else None
        if layer is None or label != (layer.short_label if short else self.label(layer)):
            return None
        return layer

    @property
    def _by_label(self) -> dict[str, LayerEntry]:
        """The layers by label, for label formats other than the default."""
        if self._in_other_form is None or self._in_other_form[0] != len(self._layer_of):
            self._in_other_form = (len(self._layer_of), {self.label(layer): layer for layer in self.layers})
        return self._in_other_form[1]


def check_format(label_format: str) -> str:
    """Return the format. Raises if its labels would not be unique."""
    if label_format == DEFAULT_FORMAT:
        return DEFAULT_FORMAT
    if not isinstance(label_format, str):
        raise InvalidArgument(f"layer_label_format is a text such as '{{type}}_{{number}}'; got {label_format!r}.")
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(label_format) if name is not None}
        label_format.format(type="relu", type_number=1, number=1)
    except KeyError:
        names = set()
    except (ValueError, IndexError, AttributeError) as error:
        raise InvalidArgument(f"layer_label_format {label_format!r} is no format string: {error}") from error
    if not names <= _FIELDS or not (names >= {"type", "type_number"} or "number" in names):
        raise InvalidArgument(
            f"layer_label_format {label_format!r} must use {{number}}, or {{type}} and {{type_number}}, and nothing but "
            f"{{type}}, {{type_number}} and {{number}}; the default is {DEFAULT_FORMAT!r}."
        )
    return label_format
