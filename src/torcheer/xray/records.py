"""What an Xray writes down: snapshots of layers over training, as plain records that JSON can hold.

A snapshot is one moment of the training. For each watched layer and kind it has an entry: what the whole tensor was like
(shape, statistics) and which part of it was kept. The kept parts themselves are tensors and lie beside, see `store`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

VERSION = 1

Kind = Literal["weight", "layer", "activation", "grad", "layer_grad"]
KINDS: tuple[Kind, ...] = get_args(Kind)
WORDS: dict[Kind, str] = {
    "weight": "weight",
    "layer": "output",
    "activation": "activation",
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
class Statistics:
    """Of a whole tensor, whatever part of it is kept. Those of values are over the finite ones; None where there are none."""

    count: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    norm: float | None
    zeros: int
    nan: int
    inf: int
    histogram: tuple[int, ...]  # of the finite values, see `statistics.BIN_EDGES`: below, between and above the edges

    @property
    def nonfinite(self) -> int:
        return self.nan + self.inf

    @property
    def zero_fraction(self) -> float:
        return self.zeros / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One kind of one layer in one snapshot."""

    layer: str  # as the user named it
    kind: Kind
    source: str  # what it is of: `features.0.weight`, `relu_1_2`
    shape: tuple[int, ...]  # of the whole tensor
    dtype: str
    layout: Layout
    rows: tuple[int, ...]  # which channels, filters or rows are kept, as numbers of the whole tensor
    columns: tuple[int, ...] | None = None  # which input channels or columns; None: not a choice
    axes: tuple[str, str] | None = None  # what the rows and columns are: "filter", "input channel"
    totals: tuple[int, int] | None = None  # how many of them the whole tensor has
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


def tensor_key(layer: str, kind: Kind) -> str:
    return f"{layer}/{kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One moment of a training."""

    number: int  # counts up by one over the run
    step: int  # of the training, as the user counts
    time: float  # seconds since 1970
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()  # about the whole snapshot: "activation of fc2: nothing consumes it"
    bytes: int = 0  # of its file

    def find(self, layer: str, kind: Kind) -> Entry | None:
        """The entry of a kind of a layer, if this snapshot has it."""
        return next((entry for entry in self.entries if entry.layer == layer and entry.kind == kind), None)


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as values that JSON can hold."""
    return {"version": VERSION, **asdict(snapshot)}


def snapshot_from_json(found: dict[str, Any]) -> Snapshot:
    """The snapshot that was written. Raises KeyError, TypeError or ValueError when it is not one."""
    if found["version"] != VERSION:
        raise ValueError(f"version {found['version']}, expected {VERSION}")
    return Snapshot(**{**_fields(Snapshot, found), "entries": tuple(_entry(one) for one in found["entries"])})


def _entry(found: dict[str, Any]) -> Entry:
    statistics = Statistics(**_fields(Statistics, found["statistics"]))
    return Entry(**{**_fields(Entry, found), "statistics": statistics})


def _fields(cls: Any, found: dict[str, Any]) -> dict[str, Any]:
    """What a record of this class needs, with lists as tuples; what it does not know is left out."""
    names = {field.name for field in fields(cls)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items() if name in names}


def finite(value: float) -> float | None:
    """The number, or None where JSON has no word for it."""
    return value if math.isfinite(value) else None
