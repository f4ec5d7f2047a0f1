"""`Run`: reads the snapshots of a training, for figures, reports and exports."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from .._text import aligned, data_frame, human_size, plural
from ..errors import InvalidArgument, SnapshotNotFound
from ..pictures import dimensions
from .captions import kept_of, number
from .records import KINDS, Entry, Kind, Snapshot, Summary, tell
from .store import FileManager, Snapshots

if TYPE_CHECKING:
    import numpy
    import pandas


Read = TypeVar("Read")


class Run:
    """The snapshots of one training. A snapshot is read from the disk when it is asked for."""

    def __init__(self, files: FileManager) -> None:
        self.files = files
        self._told: set[int] = set()  # numbers of unreadable snapshots for which the user got a warning

    @cached_property
    def title(self) -> str:
        """The class name of the model."""
        return str(self.files.about.get("title", "model"))

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots by step. If a step was trained twice, only the later snapshot of this step."""
        every = self.files.snapshots
        steps = every.table["step"]
        return every.some(np.append(steps[1:] != steps[:-1], True)[: len(every)])

    @property
    def notes(self) -> list[str]:
        """Sentences about damaged files of the run."""
        return list(self.files.notes)

    @property
    def layers(self) -> list[str]:
        """The layers that any snapshot has pictures of, in the order the user gave."""
        return list(dict.fromkeys(layer for content in self._contents() for layer, _ in content.keys))

    @property
    def summarised(self) -> list[str]:
        """The layers that any snapshot has a summary of: all layers with parameters."""
        return list(dict.fromkeys(layer for content in self._contents() for layer in content.summaries))

    @property
    def metrics(self) -> list[str]:
        """The names of metrics that any snapshot has."""
        return list(dict.fromkeys(name for content in self._contents() for name in content.metrics))

    def kinds(self, layer: str) -> list[Kind]:
        """The kinds that any snapshot has of a layer, in a fixed order."""
        there = {kind for content in self._contents() for name, kind in content.keys if name == layer}
        return [kind for kind in KINDS if kind in there]

    def steps(self, layer: str | None = None, kind: str | None = None) -> list[int]:
        """The steps of all snapshots, or of the snapshots that have a layer and kind."""
        return self.having(layer, kind).steps

    def having(self, layer: str | None = None, kind: str | None = None) -> Snapshots:
        """The snapshots that have a layer and kind."""
        snapshots = self.snapshots
        if layer is None and kind is None:
            return snapshots
        has = [
            any(layer in (None, name) and kind in (None, one) for name, one in content.keys)
            for content in self.files.rows.contents
        ]
        return snapshots.some(np.array([*has, False])[snapshots.table["content"]])

    @property
    def latest(self) -> Snapshots:
        """The snapshots in the order taken, the last first. Steps repeat if a training went back to a checkpoint."""
        every = self.files.snapshots
        return every.some(every.table["number"].argsort()[::-1])

    def last_readable(self) -> Snapshot:
        """The last snapshot taken whose file can be read. Damaged snapshots are skipped, with a warning."""
        found = next(self._read(self.latest, self.files.check), None)
        if found is None:
            raise SnapshotNotFound("there is no snapshot that can be read: take_graphs() makes one.")
        return found[0]

    def readable_step(self, step: int) -> int:
        """`step` if its snapshot can be read, else the step of the last readable snapshot."""
        try:
            snapshot = self.snapshot(step)
            self.files.check(snapshot)
        except SnapshotNotFound:
            return self.last_readable().step
        return step

    @property
    def last_taken(self) -> tuple[int | None, int | None]:
        """The number and the step of the snapshot that was taken last."""
        table = self.latest.table[:1]
        return (int(table["number"][0]), int(table["step"][0])) if len(table) else (None, None)

    def snapshot(self, step: int | None = None) -> Snapshot:
        """The last snapshot of a step; without a step, the last snapshot of all."""
        snapshots = self.snapshots
        at = [len(snapshots) - 1] if step is None else np.flatnonzero(snapshots.table["step"] == step)
        if not len(snapshots) or not len(at):
            near = _nearest(snapshots.steps, step)
            hint = f" The nearest steps are {near}." if near else " take_graphs() makes one."
            raise SnapshotNotFound(f"there is no snapshot{'' if step is None else f' of step {step}'}.{hint}")
        return snapshots[int(at[-1])]

    def entry(self, layer: str, kind: str, step: int | None = None) -> Entry:
        """The entry of a layer and kind at a step, by default at the last step that has such an entry."""
        return cast(Entry, self._locate(layer, kind, step).find(layer, kind))

    def tensor(self, layer: str, kind: str, step: int | None = None) -> numpy.ndarray[Any, Any]:
        """Read the kept tensor as float32, in the layout of its entry; by default from the last readable snapshot."""
        if step is None:
            return self.last_picture(layer, kind)[2]
        return self.kept(self._locate(layer, kind, step), layer, kind)

    def kept(self, snapshot: Snapshot, layer: str, kind: str) -> numpy.ndarray[Any, Any]:
        """The kept tensor of a layer and kind in a snapshot, as float32."""
        kept: numpy.ndarray[Any, Any] = self.files.tensor(snapshot, layer, kind).float().numpy()
        return kept

    def summary(self, layer: str, step: int | None = None) -> Summary:
        """The summary of a layer with parameters at a step, by default at the last step."""
        found = self.snapshot(step).summary(layer)
        if found is None:
            raise SnapshotNotFound(f"there is no summary of {layer!r}. There are some of {near_names(layer, self.summarised)}.")
        return found

    def limits(self, layer: str, kind: str) -> tuple[float, float]:
        """The range of colours over the whole run: symmetric around zero for weights, gradients and values of both signs."""
        self._check(layer, kind)
        known = self.files.rows.ranges[layer, kind]
        return _limits(kind, known.low, known.high, known.least, known.most)

    def pictures(
        self, layer: str, kind: str, snapshots: Snapshots
    ) -> Iterator[tuple[Snapshot, Entry, numpy.ndarray[Any, Any]]]:
        """Yields one kind of one layer in several snapshots. Damaged snapshots are skipped, with a warning."""
        for snapshot, kept in self._read(snapshots, lambda one: self.kept(one, layer, kind)):
            yield snapshot, cast(Entry, snapshot.find(layer, kind)), kept

    def _read(self, snapshots: Snapshots, read: Callable[[Snapshot], Read]) -> Iterator[tuple[Snapshot, Read]]:
        """Yields snapshots, each with the result of `read`. Damaged snapshots are skipped, with a warning."""
        for at in range(len(snapshots)):
            try:
                snapshot = snapshots[at]
                yield snapshot, read(snapshot)
            except SnapshotNotFound as error:
                self.tell(int(snapshots.table["number"][at]), f"a snapshot is skipped: {error}")

    def last_picture(self, layer: str, kind: str) -> tuple[Snapshot, Entry, numpy.ndarray[Any, Any]]:
        """Read one kind of one layer in the last snapshot that can be read."""
        self._check(layer, kind)
        found = next(self.pictures(layer, kind, self.having(layer, kind)[::-1]), None)
        if found is None:
            raise SnapshotNotFound(f"no snapshot with {kind!r} of {layer!r} can be read from {self.files.folder}.")
        return found

    def tell(self, number: int, message: str) -> None:
        """Warn that a snapshot cannot be read, once for each snapshot."""
        if number not in self._told:
            self._told.add(number)
            tell(message, stacklevel=3)

    def _contents(self) -> list[Any]:
        used = np.unique(self.files.rows.copy()["content"]).tolist()
        return [self.files.rows.contents[number] for number in used]

    def _locate(self, layer: str, kind: str, step: int | None) -> Snapshot:
        self._check(layer, kind)
        having = self.having(layer, kind)
        at = [len(having) - 1] if step is None else np.flatnonzero(having.table["step"] == step)
        if not len(at):
            raise SnapshotNotFound(
                f"no snapshot of step {step} has {kind!r} of {layer!r}. "
                f"The nearest steps that have it are {_nearest(having.steps, step)}."
            )
        return having[int(at[-1])]

    def _check(self, layer: str, kind: str) -> None:
        if not len(self.files.rows):
            raise SnapshotNotFound("there is no snapshot yet: take_graphs() makes one.")
        if kind not in KINDS:
            raise InvalidArgument(f"a kind is one of {', '.join(map(repr, KINDS))}; got {kind!r}.")
        layers = self.layers
        if layer not in layers:
            kept = "it has a summary, but no pictures were kept" if layer in self.summarised else "it is not in this run"
            raise SnapshotNotFound(f"layer {layer!r}: {kept}. There are pictures of {near_names(layer, layers)}.")
        if kind not in self.kinds(layer):
            there = ", ".join(map(repr, self.kinds(layer)))
            raise SnapshotNotFound(f"{kind!r} of {layer!r} was not kept in this run; {there} of it was.")


def limits_of(entry: Entry) -> tuple[float, float]:
    """The range of colours that fits one entry."""
    return _limits(entry.kind, entry.low, entry.high, entry.statistics.min, entry.statistics.max)


def _limits(kind: str, low: float | None, high: float | None, least: float | None, most: float | None) -> tuple[float, float]:
    """Return the range of colours. Most values lie between `low` and `high`, all values between `least` and `most`."""
    if low is None or high is None:
        return -1.0, 1.0
    if low == high == 0:  # nearly all values are zero: fit the range to the values that are not
        low, high = least or 0.0, most or 0.0
    if low < 0 or kind in ("weight", "grad", "layer_grad"):
        reach = max(-low, high) or 1.0
        return -reach, reach
    return 0.0, high or 1.0


def near_names(name: object, known: Sequence[str]) -> str:
    """The five known names most similar to an unknown name, in quotes; the first five names if no name is similar."""
    return ", ".join(map(repr, difflib.get_close_matches(str(name), known, n=5, cutoff=0.3) or known[:5]))


def _nearest(steps: list[int], step: int | None) -> str:
    return ", ".join(map(str, sorted(sorted(steps, key=lambda one: abs(one - (step or 0)))[:5])))


def evenly(count: int, number: int) -> list[int]:
    """Choose `number` evenly spread integers from 0 to `count` - 1, including the first and the last."""
    if number >= count:
        return list(range(count))
    return [round(at * (count - 1) / (number - 1)) for at in range(number)] if number > 1 else [0]


# The content of a run as a table: numbers of snapshots, layers and kinds, size on disk.


@dataclass(frozen=True, slots=True)
class SavedKind:
    """One kind of one layer over a run."""

    layer: str
    kind: Kind
    source: str
    snapshots: int
    first_step: int
    last_step: int
    shape: tuple[int, ...]  # shape of the whole tensor; -1 for a ragged dimension
    kept: str  # how much of the tensor is kept, as text: "8 of 64 channels"


class Saved:
    """Everything a run holds: pictures of the layers that are watched, a summary of every layer with parameters."""

    def __init__(self, run: Run) -> None:
        self.folder = str(run.files.folder)
        self.bytes = run.files.bytes
        self.steps = run.steps()
        self.snapshots = len(run.snapshots)
        self.layers = run.layers
        # summaries of the last snapshot
        self.summaries: tuple[Summary, ...] = run.snapshot().summaries if self.snapshots else ()
        self.metrics = run.metrics
        self.notes = run.notes
        self.rows: list[SavedKind] = []
        for layer in run.layers:
            for kind in run.kinds(layer):
                steps = run.steps(layer, kind)
                entry = run.entry(layer, kind)
                self.rows.append(
                    SavedKind(layer, kind, entry.source, len(steps), steps[0], steps[-1], entry.shape, kept_of(entry))
                )

    def to_rows(self) -> list[dict[str, Any]]:
        """One dictionary for each kind of each layer."""
        return [{name: getattr(row, name) for name in SavedKind.__slots__} for row in self.rows]

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each kind of each layer. Needs pandas."""
        return data_frame(self.to_rows())

    def __str__(self) -> str:
        span = (
            f", step{'' if len(self.steps) == 1 else 's'} {_span(self.steps[0], self.steps[-1], ' to ')}" if self.steps else ""
        )
        head = f"{plural(self.snapshots, 'snapshot')}{span}, {human_size(self.bytes)} in {self.folder}"
        if self.metrics:
            head += f", with {', '.join(self.metrics)}"
        head = "\n".join([head, *(f"Note: {note}" for note in self.notes)])
        return "\n\n".join(part for part in (head, self._pictures(), self._summaries()) if part)

    def _pictures(self) -> str:
        """A table of the watched layers and their kinds."""
        if not self.rows:
            return ""
        table = [("layer", "kind", "of", "snapshots", "steps", "shape", "kept")]
        for row in self.rows:
            steps = _span(row.first_step, row.last_step, "…")
            table.append((row.layer, row.kind, row.source, str(row.snapshots), steps, dimensions(row.shape), row.kept))
        return aligned(table, has_head=True)

    def _summaries(self) -> str:
        """The last summary of every layer with parameters."""
        if not self.summaries:
            return ""
        table = [("summary of", "parameters", "norm", "gradient norm", "update ratio", "not finite", "dead units")]
        for one in self.summaries:
            norm, grad, ratio = (
                number(value) if value is not None else "NaN" if is_bad else "–"
                for value, is_bad in (
                    (one.norm, one.nonfinite),
                    (one.grad_norm, one.grad_nonfinite),
                    (one.update_ratio, False),
                )
            )
            bad, dead = one.nonfinite + one.grad_nonfinite, "–" if one.dead is None else f"{one.dead:,} of {one.units:,}"
            table.append((one.layer, f"{one.parameters:,}", norm, grad, ratio, f"{bad:,}", dead))
        return aligned(table, has_head=True)

    __repr__ = __str__


def _span(first: int, last: int, between: str) -> str:
    return f"{first}{between}{last}" if first != last else str(first)
