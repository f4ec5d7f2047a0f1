"""Layers and their labels: `conv2d_3_7` is the third conv2d and the seventh layer overall.

Numbers follow first execution, so a table can grow while the model runs. Inputs count from 0. Operations connected to
neither an input nor an output (orphans) are left out once the pass is complete and that can be known.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field

from ..errors import InvalidArgument
from ..records import FUNCTION, PARENTS, Log, Origin

DEFAULT_FORMAT = "{type}_{type_number}_{number}"
_FIELDS = {"type", "type_number", "number"}


@dataclass(slots=True, eq=False)
class LayerEntry:
    """One layer: its type, its number among layers of that type and overall, and the operations that are its passes."""

    type: str
    type_number: int
    number: int
    passes: list[int] = field(default_factory=list)

    @property
    def short_label(self) -> str:
        return f"{self.type}_{self.type_number}"


class LayerTable:
    """Which operation is which pass of which layer."""

    def __init__(self, log: Log, label_format: str = DEFAULT_FORMAT) -> None:
        self.log = log
        self.label_format = check_format(label_format)
        self.layers: list[LayerEntry] = []
        self.of_type: dict[str, list[LayerEntry]] = {}
        self.layer_of: dict[int, LayerEntry] = {}
        self._later_passes: dict[int, int] = {}  # which pass an operation is, where it is not the first
        self._seen = 0

    def catch_up(self) -> None:
        """Take in the operations recorded since the last time."""
        for number in range(self._seen, len(self.log.rows)):
            self.add(number)
        self._seen = len(self.log.rows)

    def add(self, number: int) -> None:
        """Give an operation its layer."""
        kind = self.log.functions[self.log.rows[number][FUNCTION]].type
        same = self.of_type.get(kind)
        if same is None:
            same = self.of_type[kind] = []
        layer = LayerEntry(kind, len(same) + 1, len(self.layers), [number])
        same.append(layer)
        self.layers.append(layer)
        self.layer_of[number] = layer

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
        same = self.of_type.get(kind, ())
        return same[number - 1] if 1 <= number <= len(same) else None


def final_table(log: Log, label_format: str, keep_orphans: bool) -> LayerTable:
    """The layers of a complete log."""
    table = LayerTable(log, label_format)
    connected = None if keep_orphans else connected_operations(log)
    for number in range(len(log.rows)):
        if connected is None or connected[number]:
            table.add(number)
    table._seen = len(log.rows)
    return table


def connected_operations(log: Log) -> bytearray:
    """Which operations have an input among their ancestors or an output among their descendants."""
    connected = input_descendants(log)
    if not all(connected):
        for number, reaches in enumerate(output_ancestors(log)):
            connected[number] |= reaches
    return connected


def input_descendants(log: Log) -> bytearray:
    """Which operations are inputs or depend on one."""
    inputs = {number for number, function in enumerate(log.functions) if function.origin is Origin.INPUT}
    found = bytearray(len(log.rows))
    for number, row in enumerate(log.rows):
        if row[FUNCTION] in inputs:
            found[number] = 1
            continue
        for parent in row[PARENTS:]:
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
    operations = log.operations
    for number in range(len(found) - 1, -1, -1):
        if found[number]:
            for parent in operations[number].dependencies:
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
