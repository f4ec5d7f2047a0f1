"""The numbers of every layer over a run: statistics, histograms, metrics and notes of every snapshot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._text import Progress
from .._torch.measure import NUM_BINS, finite
from ..errors import SnapshotNotFound
from .captions import axes_of, totals_of
from .records import KINDS, Entry, Summary
from .run import Run, limits_of
from .store import Snapshots

Array = Any  # a NumPy array; NumPy's types are not followed

LEAST_FRACTION = 1e-9  # a bin that is not empty is shown with at least this fraction of all values
FIELDS = (
    *("form", "count", "mean", "std", "min", "max", "norm", "zeros", "nan", "inf", "low", "high"),
    *("update_ratio", "dead", "units", "grad_norm", "grad_nonfinite"),
)
SUMMARY = "summary"  # the page lists it beside the kinds of a layer: a few numbers, without pictures


class Series:
    """One kind of one layer over the run: the numbers and histograms of every snapshot, and what its entries have in common."""

    def __init__(self, layer: str, kind: str, count: int) -> None:
        self.layer, self.kind = layer, kind
        self.numbers: Array = np.full((len(FIELDS), count), math.nan, np.float32)
        self.histogram: Array | None = None
        self.forms: list[dict[str, Any]] = []  # shape, layout, rows, … of the entries
        self._known: dict[tuple[Any, ...], int] = {}

    @property
    def present(self) -> list[int]:
        """The positions of the snapshots that have this kind of this layer."""
        found: list[int] = np.flatnonzero(~np.isnan(self.numbers[0])).tolist()
        return found

    @property
    def nonfinite(self) -> Array:
        """Number of values that are not finite at each snapshot; for a summary, of the parameters and their gradients."""
        return self.row("nan") + self.row("inf") + np.nan_to_num(self.row("grad_nonfinite"))

    def row(self, field: str) -> Array:
        """A number for each snapshot, NaN if it is missing."""
        return self.numbers[FIELDS.index(field)]

    def value(self, field: str, at: int) -> float:
        return float(self.row(field)[at])

    def add(self, at: int, entry: Entry) -> None:
        """Add the entry of one snapshot."""
        key = entry.source, entry.shape, entry.dtype, entry.layout, entry.rows, entry.columns, entry.note
        if key not in self._known:
            self._known[key] = len(self.forms)
            self.forms.append(_form(entry))
        known = entry.statistics
        low, high = limits_of(entry)
        counted = {name: getattr(known, name) for name in ("count", "mean", "std", "min", "max", "norm", "zeros", "nan", "inf")}
        found = {"update_ratio": entry.update_ratio, "dead": entry.dead, "units": entry.units}
        self._write(at, form=self._known[key], **counted, low=low, high=high, **found)
        if self.histogram is None:
            self.histogram = np.zeros((NUM_BINS, self.numbers.shape[1]), np.uint8)
        self.histogram[:, at] = _as_levels(np.array(known.histogram or [0] * NUM_BINS) / max(known.count, 1))

    def summarise(self, at: int, found: Summary) -> None:
        if not self.forms:
            self.forms.append(
                {"layout": "none", "shape": [], "dtype": "", "source": "", "note": "", "rows": [], "color": False}
            )
        named = ("norm", "update_ratio", "dead", "units", "grad_norm", "grad_nonfinite")
        numbers = {name: getattr(found, name) for name in named}
        self._write(at, form=0, count=found.parameters, nan=found.nonfinite, inf=0, **numbers)

    def _write(self, at: int, **values: float | None) -> None:
        largest = float(np.finfo(np.float32).max)
        known = {name: min(max(float(value), -largest), largest) for name, value in values.items() if value is not None}
        self.numbers[:, at] = [known.get(name, math.nan) for name in FIELDS]


@dataclass(slots=True)
class Numbers:
    """All numbers of the snapshots that a page shows; no pictures."""

    series: list[Series]  # series with pictures first, then a summary for each layer with parameters
    metrics: dict[str, list[float | None]]
    notes: list[tuple[int, list[str]]]

    @property
    def pictured(self) -> list[Series]:
        return [one for one in self.series if one.kind != SUMMARY]


def read_numbers(run: Run, snapshots: Snapshots, bar: Progress) -> Numbers:
    """Read every snapshot once, without pictures."""
    count = len(snapshots)
    pictured: dict[tuple[str, str], Series] = {}
    summaries: dict[str, Series] = {}
    metrics: dict[str, list[float | None]] = {name: [None] * count for name in run.metrics}
    notes: list[tuple[int, list[str]]] = []
    for at in range(count):
        bar.reached(at + 1)
        try:
            snapshot = snapshots[at]
        except SnapshotNotFound:  # the snapshot was deleted meanwhile
            continue
        for entry in snapshot.entries:
            pictured.setdefault((entry.layer, entry.kind), Series(entry.layer, entry.kind, count)).add(at, entry)
        for found in snapshot.summaries:
            summaries.setdefault(found.layer, Series(found.layer, SUMMARY, count)).summarise(at, found)
        for name, value in snapshot.metrics.items():
            metrics[name][at] = finite(value)
        if snapshot.notes:
            notes.append((at, list(snapshot.notes)))
    ordered = [pictured[layer, kind] for layer in run.layers for kind in KINDS if (layer, kind) in pictured]
    return Numbers([*ordered, *summaries.values()], metrics, notes)


def _form(entry: Entry) -> dict[str, Any]:
    """The facts about an entry that the page shows or needs to draw the entry."""
    names = "source", "shape", "dtype", "layout", "rows", "columns", "note"
    said = {"axes": axes_of(entry), "totals": totals_of(entry), "color": entry.is_color and entry.columns == (0, 1, 2)}
    return {name: getattr(entry, name) for name in names} | said


def _as_levels(parts: Array) -> Array:
    scale = 1 - np.log10(np.maximum(parts, LEAST_FRACTION)) / math.log10(LEAST_FRACTION)
    return np.where(parts > 0, np.rint(1 + 254 * scale), 0).astype(np.uint8)
