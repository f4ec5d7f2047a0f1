"""The page of a comparison: both graphs in the viewer, with own error and error as figures to colour by."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..model_history import ModelHistory
from ..viewer import payload_of, to_html

Figures = Mapping[int, tuple[float | None, float | None]]  # by operation: own error and error
_NAMES = ["own error", "error"]


def write_page(
    path: str | os.PathLike[str],
    sides: tuple[tuple[ModelHistory, Figures], tuple[ModelHistory, Figures]],
    headline: str,
    *,
    title: str | None,
    previews: bool,
    max_bytes: int,
) -> Path:
    """Write both histories as one page; the verdict is the first note of each."""
    one, other = (_payload(history, figures, headline, previews, max_bytes // 2) for history, figures in sides)
    return to_html(one, path, compare=other, title=title, max_bytes=max_bytes)


def _payload(history: ModelHistory, figures: Figures, headline: str, previews: bool, max_bytes: int) -> dict[str, Any]:
    payload = payload_of(history, previews=previews, max_bytes=max_bytes)
    payload["metrics"] = _NAMES
    for plain, node in zip(payload["nodes"], history.graph.all_nodes, strict=True):
        found = [figures[number] for number in node.operations if number in figures]
        if found:
            plain["metrics"] = [_largest([pair[place] for pair in found]) for place in range(len(_NAMES))]
    facts = payload["facts"]
    facts["notes"] = [headline, *facts.get("notes", [])]
    return payload


def _largest(values: list[float | None]) -> float | None:
    """The largest of several figures, as JSON can hold it: None for infinity."""
    known = [value for value in values if value is not None and value != float("inf")]
    return max(known, default=None)
