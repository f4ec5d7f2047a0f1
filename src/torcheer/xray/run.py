"""Run: the reading side of an Xray. Figures, reports and exports take from it what was kept in which snapshot."""

from __future__ import annotations

import difflib
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from ..errors import InvalidArgument, SnapshotNotFound
from .records import KINDS, Entry, Kind, Snapshot
from .store import FileManager

if TYPE_CHECKING:
    import numpy


class Run:
    """The snapshots of one training."""

    def __init__(self, files: FileManager) -> None:
        self.files = files

    @cached_property
    def title(self) -> str:
        """The class of the model."""
        return str(self.files.about.get("title", "model"))

    @property
    def snapshots(self) -> list[Snapshot]:
        """By step; of a step that was trained again, the later one."""
        return list({snapshot.step: snapshot for snapshot in self.files.snapshots}.values())

    @property
    def layers(self) -> list[str]:
        """The layers that any snapshot has, in the order they were given."""
        return list(dict.fromkeys(entry.layer for snapshot in self.snapshots for entry in snapshot.entries))

    def kinds(self, layer: str) -> list[Kind]:
        """The kinds that any snapshot has of a layer, in a fixed order."""
        there = {entry.kind for snapshot in self.snapshots for entry in snapshot.entries if entry.layer == layer}
        return [kind for kind in KINDS if kind in there]

    def steps(self, layer: str | None = None, kind: Kind | None = None) -> list[int]:
        """The steps there are snapshots of; those that have a layer and kind, if given."""
        return [
            snapshot.step
            for snapshot in self.snapshots
            if any(layer in (None, entry.layer) and kind in (None, entry.kind) for entry in snapshot.entries)
        ]

    def snapshot(self, step: int | None = None) -> Snapshot:
        """The last snapshot of a step; the last of all without one."""
        found = [one for one in self.snapshots if step is None or one.step == step]
        if not found:
            near = sorted(self.steps(), key=lambda s: abs(s - (step or 0)))[:5]
            hint = f" The nearest steps are {', '.join(map(str, sorted(near)))}." if near else " take_graphs() makes one."
            raise SnapshotNotFound(f"there is no snapshot{'' if step is None else f' of step {step}'}.{hint}")
        return found[-1]

    def entry(self, layer: str, kind: str, step: int | None = None) -> Entry:
        """What is known of a kind of a layer at a step, by default at the last step that has it."""
        return self._locate(layer, kind, step)[1]

    def tensor(self, layer: str, kind: str, step: int | None = None) -> numpy.ndarray[Any, Any]:
        """What was kept of it, as float32, laid out as its entry's `layout` says."""
        snapshot, entry = self._locate(layer, kind, step)
        return cast("numpy.ndarray[Any, Any]", self.files.tensor(snapshot, entry.layer, entry.kind).float().numpy())

    def limits(self, layer: str, kind: str) -> tuple[float, float]:
        """The range of colours that fits the whole run: around zero for weights, gradients and whatever has both signs."""
        self.entry(layer, kind)
        entries = [entry for one in self.snapshots if (entry := one.find(layer, cast(Kind, kind))) is not None]
        return limits_of(entries)

    def _locate(self, layer: str, kind: str, step: int | None) -> tuple[Snapshot, Entry]:
        self._check(layer, kind)
        for snapshot in reversed(self.snapshots):
            if step is None or snapshot.step == step:
                entry = snapshot.find(layer, cast(Kind, kind))
                if entry is not None:
                    return snapshot, entry
        steps = self.steps(layer, cast(Kind, kind))
        near = sorted(sorted(steps, key=lambda s: abs(s - (step or 0)))[:5])
        raise SnapshotNotFound(
            f"no snapshot of step {step} has {kind!r} of {layer!r}. "
            f"The nearest steps that have it are {', '.join(map(str, near))}."
        )

    def _check(self, layer: str, kind: str) -> None:
        if not self.snapshots:
            raise SnapshotNotFound("there is no snapshot yet: take_graphs() makes one.")
        if kind not in KINDS:
            raise InvalidArgument(f"a kind is one of {', '.join(map(repr, KINDS))}; got {kind!r}.")
        layers = self.layers
        if layer not in layers:
            near = difflib.get_close_matches(str(layer), layers, n=5, cutoff=0.3) or layers[:5]
            raise SnapshotNotFound(f"layer {layer!r} is not in this run. It has {', '.join(map(repr, near))}.")
        if kind not in self.kinds(layer):
            there = ", ".join(map(repr, self.kinds(layer)))
            raise SnapshotNotFound(f"{kind!r} of {layer!r} was not kept in this run; {there} of it was.")


def limits_of(entries: list[Entry]) -> tuple[float, float]:
    """The range of colours that fits these entries."""
    lows = [entry.low for entry in entries if entry.low is not None]
    highs = [entry.high for entry in entries if entry.high is not None]
    if not lows or not highs:
        return -1.0, 1.0
    low, high = min(lows), max(highs)
    if low == high == 0:  # nearly all is zero all the time: show what is not
        low = min((entry.statistics.min or 0.0 for entry in entries), default=0.0)
        high = max((entry.statistics.max or 0.0 for entry in entries), default=0.0)
    if low < 0 or any(entry.kind in ("weight", "grad", "layer_grad") for entry in entries):
        reach = max(-low, high) or 1.0
        return -reach, reach
    return 0.0, high or 1.0


def evenly(count: int, number: int) -> list[int]:
    """So many of the first `count` numbers, evenly, with the first and the last."""
    if number >= count:
        return list(range(count))
    return [round(at * (count - 1) / (number - 1)) for at in range(number)] if number > 1 else [0]
