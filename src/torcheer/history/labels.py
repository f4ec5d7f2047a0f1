"""Layers and their labels: `conv2d_3_7` is the third conv2d and the seventh layer overall.

Numbers follow first execution, so a table can grow while the model runs. Inputs count from 0. Operations connected to
neither an input nor an output (orphans) are left out once the pass is complete and that can be known.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

from ..errors import InvalidArgument
from ..records import FUNCTION, PARENTS, Log, Origin

DEFAULT_FORMAT = "{type}_{type_number}_{number}"
_FIELDS = {"type", "type_number", "number"}


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """One layer: its type, its number among layers of that type and overall, and the operations that are its passes."""

    type: str
    type_number: int
    number: int
    passes: tuple[int, ...]

    @property
    def short_label(self) -> str:
        return f"{self.type}_{self.type_number}"


class LayerTable:
    """Which operation is which pass of which layer. Kept in columns; a `LayerEntry` is made when somebody asks for one."""

    def __init__(self, log: Log, label_format: str = DEFAULT_FORMAT) -> None:
        self.log = log
        self.label_format = check_format(label_format)
        self._layer_of: list[int] = []  # by operation: the number of its layer, or -1 for an orphan
        self._first: list[int] = []  # by layer: the operation that is its first pass
        self._type_number: list[int] = []  # by layer
        self._of_type: dict[str, list[int]] = {}  # the layers of each type
        self._later_passes: dict[int, int] = {}  # which pass an operation is, where it is not the first

    def __len__(self) -> int:
        """The number of layers."""
        return len(self._first)

    def catch_up(self, connected: bytearray | None = None) -> None:
        """Take in the operations recorded since the last time; of a complete log only those that are connected."""
        types = [function.type for function in self.log.functions]
        layer_of, first, numbers, of_type = self._layer_of, self._first, self._type_number, self._of_type
        for number in range(len(layer_of), len(self.log.rows)):
            if connected is not None and not connected[number]:
                layer_of.append(-1)
                continue
            kind = types[self.log.rows[number][FUNCTION]]
            same = of_type.get(kind)
            if same is None:
                same = of_type[kind] = []
            same.append(len(first))
            numbers.append(len(same))
            layer_of.append(len(first))
            first.append(number)

    def shows(self, number: int) -> bool:
        """Whether an operation belongs to a layer. A parameter (a negative number) does not, nor does an orphan."""
        return 0 <= number < len(self._layer_of) and self._layer_of[number] >= 0

    def layer(self, number: int) -> LayerEntry:
        """Layer `number`."""
        first = self._first[number]
        kind = self.log.functions[self.log.rows[first][FUNCTION]].type
        return LayerEntry(kind, self._type_number[number], number, (first,))

    def layer_of(self, operation: int) -> LayerEntry:
        """The layer an operation belongs to."""
        return self.layer(self._layer_of[operation])

    @property
    def layers(self) -> list[LayerEntry]:
        """Every layer, in execution order."""
        return [self.layer(number) for number in range(len(self))]

    def pass_number(self, number: int) -> int:
        """Which pass of its layer an operation is, from 1."""
        return self._later_passes.get(number, 1)

    def label(self, layer: LayerEntry) -> str:
        """A layer's label."""
        if self.label_format is DEFAULT_FORMAT:
            return f"{layer.type}_{layer.type_number}_{layer.number}"
        return self.label_format.format(type=layer.type, type_number=layer.type_number, number=layer.number)

    def find(self, kind: str, number: int) -> LayerEntry | None:
        """The layer that is number so and so of its type."""
        same = self._of_type.get(kind, ())
        return self.layer(same[number - 1]) if 1 <= number <= len(same) else None


def final_table(log: Log, label_format: str, keep_orphans: bool) -> LayerTable:
    """The layers of a complete log."""
    table = LayerTable(log, label_format)
    table.catch_up(None if keep_orphans else connected_operations(log))
    return table


def connected_operations(log: Log) -> bytearray:
    """Which operations are connected to an input or an output: those that depend on one, and all that these used."""
    found = input_descendants(log)
    outputs = {number for number, function in enumerate(log.functions) if function.origin is Origin.OUTPUT}
    for number in range(len(found) - 1, -1, -1):
        if log.rows[number][FUNCTION] not in outputs:
            break  # outputs come last
        found[number] = 1
    unknown = {number for number, is_found in enumerate(found) if not is_found}
    for number in range(len(found) - 1, -1, -1):
        if not unknown:
            break
        if found[number]:
            used = log.rows[number][PARENTS:] + (log.details[number].also if number in log.details else ())
            for parent in unknown.intersection(used):
                found[parent] = 1
                unknown.discard(parent)
    return found


def input_descendants(log: Log) -> bytearray:
    """Which operations are inputs or depend on one."""
    inputs = {number for number, function in enumerate(log.functions) if function.origin is Origin.INPUT}
    found = bytearray(len(log.rows))
    for number, row in enumerate(log.rows):
        if row[FUNCTION] in inputs:
            found[number] = 1
            continue
        if len(row) > PARENTS and row[PARENTS] >= 0 and found[row[PARENTS]]:  # most often the first one does
            found[number] = 1
            continue
        for parent in row[PARENTS + 1 :]:
            if parent >= 0 and found[parent]:
                found[number] = 1
                break
        else:
            if number in log.details:
                found[number] = any(found[parent] for parent in log.details[number].also)
    return found


def output_ancestors(log: Log) -> bytearray:
    """Which operations are outputs or have one depend on them."""
    outputs = {number for number, function in enumerate(log.functions) if function.origin is Origin.OUTPUT}
    found = bytearray(row[FUNCTION] in outputs for row in log.rows)
    for number in range(len(found) - 1, -1, -1):
        if found[number]:
            for parent in log.rows[number][PARENTS:]:
                if parent >= 0:
                    found[parent] = 1
            if number in log.details:
                for parent in log.details[number].also:
                    found[parent] = 1
    return found


def check_format(label_format: str) -> str:
    """The format, if it can make labels that tell layers apart."""
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(label_format) if name is not None}
    except ValueError as error:
        raise InvalidArgument(f"layer_label_format {label_format!r} is no format string: {error}") from error
    if not names <= _FIELDS or not (names >= {"type", "type_number"} or "number" in names):
        raise InvalidArgument(
            f"layer_label_format {label_format!r} must use {{number}}, or {{type}} and {{type_number}}, and nothing but "
            f"{{type}}, {{type_number}} and {{number}}; the default is {DEFAULT_FORMAT!r}."
        )
    return label_format
