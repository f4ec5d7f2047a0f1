"""The records of an Xray: snapshots of layers over a training, as plain values for JSON.

A snapshot is one moment of the training. For each watched layer and kind it has an entry: what the whole tensor was like
(shape, statistics) and which part of it was kept. The kept parts are tensors, which `store` writes beside the records.
"""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, cast, get_args

from .._files.json_records import reader
from .._torch.measure import Statistics
from ..errors import SnapshotLost


class Failure(NamedTuple):
    """A failure on a thread beside the training. The user gets one warning for each kind of failure."""

    kind: str
    message: str


def tell(message: str, stacklevel: int = 2) -> None:
    """Warn. If warnings are errors (`python -W error`), print to stderr instead, because an error would end the training."""
    try:
        warnings.warn(f"Xray: {message}", SnapshotLost, stacklevel=stacklevel + 1)
    except SnapshotLost as told:
        if sys.stderr is not None:
            print(told, file=sys.stderr)


VERSION = 1
SNAPSHOTS_TO_BE_DEAD = 3  # a unit is dead if it was not above zero in this many snapshots in a row
_MOST_CHOSEN = 1 << 20  # a snapshot is read if its entries have at most this many rows and columns together
_LARGEST = 1 << 62  # numbers of snapshots and steps must be smaller, so that they fit the int64 columns of a table

Kind = Literal["weight", "layer", "activation", "attention", "grad", "layer_grad"]
KINDS: tuple[Kind, ...] = get_args(Kind)
WORDS: dict[str, str] = {
    "weight": "weight",
    "layer": "output",
    "activation": "activation",
    "attention": "attention pattern",
    "grad": "gradient of the weight",
    "layer_grad": "gradient of the output",
}

# How a kept tensor is laid out, which decides how it is shown.
Layout = Literal[
    "maps",  # [channel, height, width]: feature maps
    "filters",  # [filter, input channel, height, width]: the weights of a convolution
    "matrix",  # [row, column]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one snapshot says about one tensor of a layer: its weight, its output or another `Kind`."""

    layer: str  # the layer's name, as the user gave it
    kind: Kind
    source: str  # the name of the parameter or the label of the operation: `features.0.weight`, `relu_1_2`
    shape: tuple[int, ...]  # shape of the whole tensor; -1 for a ragged dimension
    dtype: str
    layout: Layout
    rows: tuple[int, ...]  # numbers, in the whole tensor, of the kept channels, filters or rows
    columns: tuple[int, ...] | None = None  # numbers of the kept input channels or columns; None if there was nothing to choose
    axes: tuple[str, str] | None = None  # the names of rows and columns: "filter", "input channel"
    totals: tuple[int, int] | None = None  # how many rows and columns the whole tensor has
    is_color: bool = False  # for filters: True if their three input channels are the red, green and blue of a picture
    low: float | None = None  # most of the kept values lie between `low` and `high`; None if no value is finite
    high: float | None = None
    statistics: Statistics
    update_ratio: float | None = None  # for a weight: how far a step moved it, divided by its norm
    dead: int | None = None  # for an activation: number of units that were never above zero over several snapshots
    units: int | None = None  # for an activation: number of units
    note: str = ""  # what a reader must know: "before unscaling by 65536", "every 2nd pixel"

    @property
    def key(self) -> str:
        """The name of the entry's tensor in the snapshot's file."""
        return tensor_key(self.layer, self.kind)


def tensor_key(layer: str, kind: str) -> str:
    return f"{layer}/{kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A few numbers of one layer with parameters in one snapshot. Every such layer has a summary, watched or not."""

    layer: str  # the address of the module; for a parameter of the model itself, the parameter's name
    parameters: int  # number of values of all its parameters
    norm: float | None = None  # norm of all its parameters together; None if a parameter has no finite value
    grad_norm: float | None = None  # norm of their gradients; None also if there are no gradients
    update_ratio: float | None = None  # how far a step moved the parameters, divided by their norm
    nonfinite: int = 0  # number of values of parameters that are NaN or infinite
    grad_nonfinite: int = 0
    dead: int | None = None  # number of units of its activation that were never above zero over several snapshots
    units: int | None = None  # number of units of its activation


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What an Xray took at one moment of a training."""

    number: int  # counts up by one over the run
    step: int  # step of the training, as the user counts
    time: float  # when the snapshot was taken, in seconds since 1970
    entries: tuple[Entry, ...]
    summaries: tuple[Summary, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)  # name -> number that the user gave, such as "loss"
    notes: tuple[str, ...] = ()  # notes about the whole snapshot: "activation of fc2: nothing consumes it"
    bytes: int = 0  # size of its file

    def find(self, layer: str, kind: str) -> Entry | None:
        """The entry of a kind of a layer, if this snapshot has it."""
        return next((entry for entry in self.entries if entry.layer == layer and entry.kind == kind), None)

    def summary(self, layer: str) -> Summary | None:
        """The summary of a layer, if this snapshot has one."""
        return next((one for one in self.summaries if one.layer == layer), None)


_DIMENSIONS: dict[Layout, int] = {"maps": 3, "filters": 4, "matrix": 2}


def misfit(shape: tuple[int, ...], entry: Entry) -> str:
    """The reason why the kept tensor of an entry cannot have this shape; empty if it can."""
    dimensions = _DIMENSIONS[entry.layout]
    if len(shape) != dimensions:
        return (
            f"what was kept of {entry.key} should have {dimensions} dimensions, as its layout is {entry.layout!r}; it has the "
            f"shape {shape}"
        )
    columns = shape[1] if entry.columns is None or entry.layout == "maps" else len(entry.columns)
    if shape[:2] != (len(entry.rows), columns):
        return (
            f"what was kept of {entry.key} has the shape {shape}, but its entry numbers {len(entry.rows)} rows and {columns} "
            "columns"
        )
    return ""


# As JSON ------------------------------------------------------------------------------------------------------------


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as values that JSON can hold. Fields that have their default are left out."""
    entries = [
        {
            **_short(entry),
            "rows": _numbers(entry.rows),
            "columns": _numbers(entry.columns),
            "statistics": _short(entry.statistics),
        }
        for entry in snapshot.entries
    ]
    metrics = {name: value if math.isfinite(value) else str(value) for name, value in snapshot.metrics.items()}
    found = {
        **_short(snapshot),
        "entries": entries,
        "summaries": [_short(one) for one in snapshot.summaries],
        "metrics": metrics,
    }
    return {"version": VERSION, **found}


def snapshot_from_json(found: Any, *, in_outline: bool = False) -> Snapshot:
    """Read a snapshot. Raises ValueError, with the reason, if the JSON is not a snapshot.

    With `in_outline`, entries are read without rows and columns: a short text may stand for a million of them.
    """
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise ValueError(f"not a snapshot of version {VERSION}")
    entries, metrics = found.get("entries"), found.get("metrics", {})
    if not isinstance(entries, list) or not isinstance(metrics, dict):
        raise ValueError("entries is a list, metrics are numbers by name")
    try:
        numbers = {name: float(value) for name, value in metrics.items()}
    except (TypeError, OverflowError) as error:
        raise ValueError(f"metrics: {error}") from error
    chosen = [_chosen(one) if isinstance(one, dict) else (None, None) for one in entries]
    count = sum(_count(one) for pair in chosen for one in pair)
    if count > _MOST_CHOSEN:
        raise ValueError(f"its entries have {count:,} rows and columns, and {_MOST_CHOSEN:,} at most are read")
    plain = [{**one, "rows": [], "columns": None} if isinstance(one, dict) else one for one in entries]
    read = cast(Snapshot, reader(Snapshot)({**found, "entries": plain, "metrics": {}}))
    if max(read.number, read.step) >= _LARGEST:
        raise ValueError("its number or step is too large")
    if in_outline:
        return replace(read, metrics=numbers)
    given = [
        replace(entry, rows=_written_out(rows) or (), columns=_written_out(columns))
        for entry, (rows, columns) in zip(read.entries, chosen, strict=True)
    ]
    return replace(read, entries=tuple(given), metrics=numbers)


def _chosen(found: dict[str, Any]) -> tuple[list[int] | int | None, list[int] | int | None]:
    """Return an entry's rows and columns in their JSON form. Raises ValueError if one lies outside the tensor."""
    shape = reader(tuple[int, ...])(found.get("shape"))
    totals = reader(tuple[int, int] | None)(found.get("totals")) or (math.prod(shape),) * 2
    rows, columns = (_checked(found.get(name), most) for name, most in zip(("rows", "columns"), totals, strict=True))
    return rows, columns


def _count(written: list[int] | int | None) -> int:
    return written if isinstance(written, int) else len(written or ())


def _written_out(written: list[int] | int | None) -> tuple[int, ...] | None:
    """Numbers of rows or columns from their JSON form: a count stands for 0, 1, 2, …"""
    return None if written is None else tuple(range(written) if isinstance(written, int) else written)


def _numbers(chosen: tuple[int, ...] | None) -> list[int] | int | None:
    """The JSON form of numbers of rows or columns: a count if they are 0, 1, 2, …, else a list."""
    if chosen is None:
        return None
    return len(chosen) if chosen == tuple(range(len(chosen))) else list(chosen)


def _checked(found: Any, most: int) -> list[int] | int | None:
    if type(found) is int and 0 <= found <= most:
        return found
    if found is not None and not all(type(one) is int and 0 <= one < most for one in reader(list[Any])(found)):
        raise ValueError(f"rows and columns are numbers from 0 to {most - 1}; got {found!r:.60}")
    return cast("list[int] | None", found)


def _short(record: Any) -> dict[str, Any]:
    """The fields of a record that differ from their defaults."""
    return {one.name: value for one in fields(record) if (value := getattr(record, one.name)) != one.default}
