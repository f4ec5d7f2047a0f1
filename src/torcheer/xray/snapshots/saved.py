"""What a run holds: how many snapshots, of which layers and kinds, how much on disk. Prints as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...display import aligned, data_frame
from ...history.printing.text import human_size, plural
from ...render import dimensions
from ..figures.captions import kept_of, number
from .records import Kind, Summary
from .run import Run

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class SavedKind:
    """One kind of one layer over a run."""

    layer: str
    kind: Kind
    source: str
    snapshots: int
    first_step: int
    last_step: int
    shape: tuple[int, ...]  # of the whole tensor; -1 for a ragged dimension
    kept: str  # "8 of 64 channels"


class Saved:
    """Everything a run holds: pictures of the layers that are watched, a summary of every layer with parameters."""

    def __init__(self, run: Run) -> None:
        self.folder = str(run.files.folder)
        self.bytes = run.files.bytes
        self.steps = run.steps()
        self.snapshots = len(run.snapshots)
        self.layers = run.layers
        self.summaries: tuple[Summary, ...] = run.snapshot().summaries if self.snapshots else ()  # of the last snapshot
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
        """What is kept of the layers that are watched."""
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
