"""Writes the tracked graph to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch.nn import Module

from torcheer import InvalidArgument, write_whole

from .execution import track_computational_graph_execution

FORMATS = ("json",)
_OTHERS = frozenset(".csv .dot .gv .htm .html .pdf .png .py .svg .tex .txt .xml".split())  # endings of other kinds of files


def export_computational_graph(
    model: Module,
    input_tensor: Any,
    filepath: str | os.PathLike[str],
    format: str = "json",
    *,
    include_loss: bool = False,
) -> str:
    """Run a model once, forward and backward, and write its graph to a file, whole or not at all.

    >>> import json, pathlib, tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = export_computational_graph(torch.nn.ReLU(), torch.ones(2), folder + "/graph.json")
    ...     len(json.loads(pathlib.Path(path).read_text())["nodes"])
    3

    Args:
        model, input_tensor, include_loss: as in `track_computational_graph_execution`.
        filepath: where to; a file that is there is replaced.
        format: `"json"`. The schema is in `docs/torch_vis.md`.

    Returns the path as text.
    """
    if format not in FORMATS:
        raise InvalidArgument(f"a graph is exported as {' or '.join(map(repr, FORMATS))}; got {format!r}.")
    path = _checked(filepath)  # what is wrong is told before the model runs
    data = track_computational_graph_execution(model, input_tensor, include_loss=include_loss).get_graph_data()
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, indent=1)
    return str(write_whole(path, text.encode(), "graph"))


def _checked(filepath: Any) -> Path:
    if not isinstance(filepath, (str, os.PathLike)) or not str(filepath):
        raise InvalidArgument(f"filepath is the path of a file to write; got {filepath!r:.80}.")
    path = Path(filepath)
    if path.suffix.lower() in _OTHERS:
        raise InvalidArgument(f"the graph is written as .json, and {str(path)!r} ends as a file of another kind does.")
    if path.is_dir():
        raise InvalidArgument(f"{str(path)!r} is a folder; give the path of a file, such as {str(path / 'graph.json')!r}.")
    if not path.parent.is_dir():
        raise InvalidArgument(f"there is no folder {str(path.parent)!r} to write {path.name!r} into.")
    if not os.access(path.parent, os.W_OK):
        raise InvalidArgument(f"the folder {str(path.parent)!r} cannot be written to.")
    return path
