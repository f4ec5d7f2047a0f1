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
    """A failure behind the training. The user gets one warning for each kind."""

    kind: str
    message: str


def tell(message: str, stacklevel: int = 2) -> None:
    """Warn; where warnings are errors (`python -W error`), say it on stderr instead, since an error would end the training."""
    try:
        warnings.warn(f"Xray: {message}", SnapshotLost, stacklevel=stacklevel + 1)
    except SnapshotLost as told:
        if sys.stderr is not None:
            print(told, file=sys.stderr)


VERSION = 1
SNAPSHOTS_TO_BE_DEAD = 3  # in which a unit was never above zero
_MOST_CHOSEN = 1 << 20  # rows and columns of all entries of one snapshot
_LARGEST = 1 << 62  # of a number or a step: one more is a number that tables hold, too

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

# How a kept tensor is laid out, and so how it is shown.
Layout = Literal[
    "maps",  # [channel, height, width]: feature maps
    "filters",  # [filter, input channel, height, width]: the weights of a convolution
    "matrix",  # [row, column]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One kind of one layer in one snapshot."""

    layer: str  # as the user named it
    kind: Kind
    source: str  # the parameter or operation: `features.0.weight`, `relu_1_2`
    shape: tuple[int, ...]  # of the whole tensor; -1 for a ragged dimension
    dtype: str
    layout: Layout
    rows: tuple[int, ...]  # which channels, filters or rows are kept, as numbers of the whole tensor
    columns: tuple[int, ...] | None = None  # which input channels or columns; None: not a choice
    axes: tuple[str, str] | None = None  # what the rows and columns are: "filter", "input channel"
    totals: tuple[int, int] | None = None  # how many of them the whole tensor has
    is_color: bool = False  # of filters: their three input channels are the red, green and blue of a picture
    low: float | None = None  # most of the kept values lie between these two; None when none is finite
    high: float | None = None
    statistics: Statistics
    update_ratio: float | None = None  # of a weight: how far a step moved it, as a part of its norm
    dead: int | None = None  # of an activation: units that were never above zero over several snapshots
    units: int | None = None  # of an activation: how many units there are
    note: str = ""  # what a reader must know: "before unscaling by 65536", "every 2nd pixel"

    @property
    def key(self) -> str:
        """The name of its tensor in the snapshot's file."""
        return tensor_key(self.layer, self.kind)


def tensor_key(layer: str, kind: str) -> str:
    return f"{layer}/{kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A few numbers of one layer with parameters in one snapshot. There is one for every such layer, watched or not."""

    layer: str  # the address of the module; the name of the parameter where it is the model's own
    parameters: int  # how many values all its parameters have
    norm: float | None = None  # of all its parameters together; None where one of them has no finite value
    grad_norm: float | None = None  # of their gradients; None also where there are none
    update_ratio: float | None = None  # how far a step moved them, as a part of their norm
    nonfinite: int = 0  # values of parameters that are NaN or infinite
    grad_nonfinite: int = 0
    dead: int | None = None  # units of its activation that were never above zero over several snapshots
    units: int | None = None  # how many units its activation has


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One moment of a training."""

    number: int  # counts up by one over the run
    step: int  # of the training, as the user counts
    time: float  # seconds since 1970
    entries: tuple[Entry, ...]
    summaries: tuple[Summary, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)  # what the user gave: "loss" and others, by name
    notes: tuple[str, ...] = ()  # about the whole snapshot: "activation of fc2: nothing consumes it"
    bytes: int = 0  # of its file

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
    """A snapshot as values that JSON can hold, short: what has its default is left out."""
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
    """Read a snapshot. Raises ValueError, with the reason, where the JSON is not a snapshot.

    In outline, its entries have no rows and columns: a short text may describe a million of them.
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
    """The rows and columns of an entry, as they are written. Raises ValueError for a number beyond the shape of the tensor."""
    shape = reader(tuple[int, ...])(found.get("shape"))
    totals = reader(tuple[int, int] | None)(found.get("totals")) or (math.prod(shape),) * 2
    rows, columns = (_checked(found.get(name), most) for name, most in zip(("rows", "columns"), totals, strict=True))
    return rows, columns


def _count(written: list[int] | int | None) -> int:
    return written if isinstance(written, int) else len(written or ())


def _written_out(written: list[int] | int | None) -> tuple[int, ...] | None:
    """Numbers of rows or columns from how they are written."""
    return None if written is None else tuple(range(written) if isinstance(written, int) else written)


def _numbers(chosen: tuple[int, ...] | None) -> list[int] | int | None:
    """Numbers of rows or columns as JSON: a count where they are 0, 1, 2, …, else a list."""
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
