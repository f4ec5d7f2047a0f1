"""What a run holds: how many snapshots, of which layers and kinds, how much on disk. Prints as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..history.text import human_size, plural
from .captions import kept_of
from .records import Kind
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
    shape: tuple[int, ...]  # of the whole tensor
    kept: str  # "8 of 64 channels"


class Saved:
    """Everything a run holds."""

    def __init__(self, run: Run) -> None:
        self.folder = str(run.files.folder)
        self.bytes = run.files.bytes
        self.steps = run.steps()
        self.snapshots = len(run.snapshots)
        self.layers = run.layers
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
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.to_rows())

    def __str__(self) -> str:
        span = (
            f", step{'' if len(self.steps) == 1 else 's'} {_span(self.steps[0], self.steps[-1], ' to ')}" if self.steps else ""
        )
        head = f"{plural(self.snapshots, 'snapshot')}{span}, {human_size(self.bytes)} in {self.folder}"
        head = "\n".join([head, *(f"Note: {note}" for note in self.notes)])
        if not self.rows:
            return head
        table = [("layer", "kind", "of", "snapshots", "steps", "shape", "kept")]
        for row in self.rows:
            steps = _span(row.first_step, row.last_step, "…")
            shape = "×".join(map(str, row.shape)) or "scalar"
            table.append((row.layer, row.kind, row.source, str(row.snapshots), steps, shape, row.kept))
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
        lines.insert(1, "  ".join("─" * width for width in widths))
        return "\n".join([head, *lines])

    def __repr__(self) -> str:
        return str(self)


def _span(first: int, last: int, between: str) -> str:
    return f"{first}{between}{last}" if first != last else str(first)
