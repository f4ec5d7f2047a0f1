"""Runs of an Xray made by hand, for the tests of what shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torcheer._torch.measure import statistics_of
from torcheer.xray.records import Entry, Snapshot
from torcheer.xray.run import Run
from torcheer.xray.store import FileManager


def make_entry(layer: str, kind: str, kept: Tensor, layout: str, **facts: Any) -> Entry:
    """An entry of what was kept of a tensor, by default all of it."""
    known = kept.flatten()[kept.flatten().isfinite()].float()
    ends = known.quantile(torch.tensor([0.01, 0.99])).tolist() if len(known) else [None, None]
    defaults: dict[str, Any] = {
        "source": layer,
        "shape": (1, *kept.shape) if layout == "maps" else tuple(kept.shape),
        "rows": tuple(range(len(kept))),
        "columns": None if layout == "maps" else tuple(range(kept.shape[1])),
        "low": ends[0],
        "high": ends[1],
        "is_color": kind == "weight" and layout == "filters" and kept.shape[1] == 3,
        "statistics": statistics_of(kept),
    }
    return Entry(layer=layer, kind=kind, layout=layout, dtype="float32", **{**defaults, **facts})


def write_run(
    folder: Path,
    steps: Mapping[int, Sequence[tuple[Entry, Tensor]]],
    notes: Sequence[str] = (),
    metrics: Sequence[dict[str, float]] = (),
) -> Run:
    """A run with these entries and tensors, and metrics if there are some, at these steps."""
    files = FileManager.create(folder, {"title": "Stripes"})
    for at, (step, found) in enumerate(steps.items()):
        snapshot = Snapshot(
            number=files.next_number,
            step=step,
            time=0.0,
            entries=tuple(e for e, _ in found),
            notes=tuple(notes),
            metrics=metrics[at] if metrics else {},
        )
        files.write(snapshot, {entry.key: tensor.clone() for entry, tensor in found})
    files.close()
    return Run(files)


def single(folder: Path, layer: str, kind: str, kept: Tensor, layout: str, **facts: Any) -> Run:
    """A run with one entry at step 5."""
    return write_run(folder, {5: [(make_entry(layer, kind, kept, layout, **facts), kept)]})


def change_snapshot(path: Path, *places: Sequence[Any]) -> None:
    """Set values in what a file says of its snapshot: ("entries", 0, "rows", "x") sets entries[0]["rows"]."""
    data = path.read_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:length])
    said = json.loads(header["__metadata__"]["snapshot"])
    for *way, last, value in places:
        inner = said
        for name in way:
            inner = inner[name]
        inner[last] = value
    header["__metadata__"]["snapshot"] = json.dumps(said)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[length:])
