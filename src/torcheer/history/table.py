"""A history as a table: one row per operation."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from .._files.files import check_ending, write_whole
from .._torch.measure import statistics_of
from ..errors import ActivationLost, ActivationNotSaved, InvalidArgument
from ..log.operation import OperationFacts, facts_of
from .operation import Operation

_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")  # a spreadsheet reads a text that begins with one of these as a formula


_COLUMNS = [fact for fact in facts_of(OperationFacts) if fact.column is not None]


_STATISTICS = ("min", "max", "mean", "std", "zeros", "nonfinite")


def row_of(one: Operation, *, statistics: bool = False) -> dict[str, Any]:
    """The row of an operation: every fact that has a column, and on request statistics of its activation."""
    values = [(fact, getattr(one, fact.name)) for fact in _COLUMNS]
    row = {str(fact.column): value if fact.cell is None else fact.cell(value) for fact, value in values}
    if statistics:
        row.update(dict.fromkeys(_STATISTICS))
        with contextlib.suppress(ActivationNotSaved, ActivationLost):
            value = one.tensor_contents
            found = statistics_of(value) if isinstance(value, Tensor) else None
            row.update({name: getattr(found, name, None) for name in _STATISTICS})
    return row


def write_csv(rows: list[dict[str, Any]], path: str | os.PathLike[str] | IO[Any]) -> Path | None:
    """Write rows as comma-separated values to a path, which is returned, or to a file object, of text or of bytes.

    A text that a spreadsheet would take for a formula begins with an apostrophe, which spreadsheets do not show.
    """
    check_ending(path, "csv", "table")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    if isinstance(path, (str, os.PathLike)):
        return write_whole(Path(path), text.getvalue().encode(), "table")
    if not hasattr(path, "write"):
        raise InvalidArgument(f"to_csv takes a path or a file object; got {type(path).__name__}: {path!r:.60}.")
    try:
        path.write(text.getvalue())
    except TypeError:  # the file object takes bytes
        path.write(text.getvalue().encode())
    return None


def _cell(value: Any) -> Any:
    """Convert a value to a cell: a number stays unchanged; a text gets a form that no spreadsheet reads as a formula."""
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULAS) else text
