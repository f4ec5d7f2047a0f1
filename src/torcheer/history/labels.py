"""Layers and their labels: `conv2d_3_7` is the third conv2d and the seventh layer overall.

Numbers follow first execution, so a table can grow while the model runs. Inputs count from 0. Operations connected to
neither an input nor an output (orphans) are left out once the pass is complete and that can be known.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field

from ..errors import InvalidArgument
from ..records import Log, OperationRecord, Origin

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
        self.layer_of: dict[int, LayerEntry] = {}
        self.pass_of: dict[int, int] = {}  # from 1
        self._type_numbers: dict[str, int] = {}
        self._seen = 0

    def catch_up(self) -> None:
        """Take in the operations recorded since the last time."""
        for record in self.log.operations[self._seen :]:
            self.add(record)
        self._seen = len(self.log.rows)

    def add(self, record: OperationRecord) -> LayerEntry:
        """Give an operation its layer."""
        kind = record.function.type
        self._type_numbers[kind] = count = self._type_numbers.get(kind, 0) + 1
        layer = LayerEntry(kind, count, len(self.layers), [record.number])
        self.layers.append(layer)
        self.layer_of[record.number] = layer
        self.pass_of[record.number] = 1
        return layer

    def label(self, layer: LayerEntry) -> str:
        """A layer's label."""
        if self.label_format is DEFAULT_FORMAT:
            return f"{layer.type}_{layer.type_number}_{layer.number}"
        return self.label_format.format(type=layer.type, type_number=layer.type_number, number=layer.number)


def final_table(log: Log, label_format: str, keep_orphans: bool) -> LayerTable:
    """The layers of a complete log."""
    table = LayerTable(log, label_format)
    connected = None if keep_orphans or not log.is_complete else connected_operations(log)
    for record in log.operations:
        if connected is None or connected[record.number]:
            table.add(record)
    table._seen = len(log.rows)
    return table


def connected_operations(log: Log) -> list[bool]:
    """Which operations have an input among their ancestors or an output among their descendants."""
    forward, backward = input_descendants(log), output_ancestors(log)
    return [a or b for a, b in zip(forward, backward, strict=True)]


def input_descendants(log: Log) -> list[bool]:
    """Which operations are inputs or depend on one."""
    found: list[bool] = []
    for record in log.operations:
        found.append(record.origin is Origin.INPUT or any(found[n] for n in record.dependencies))
    return found


def output_ancestors(log: Log) -> list[bool]:
    """Which operations are outputs or have one depend on them."""
    found = [record.origin is Origin.OUTPUT for record in log.operations]
    operations = log.operations
    for number in range(len(found) - 1, -1, -1):
        if found[number]:
            for parent in operations[number].dependencies:
                found[parent] = True
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
