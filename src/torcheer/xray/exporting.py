"""Sends the snapshots of a run to TensorBoard or Weights & Biases: numbers, histograms as they were binned, pictures.

Nothing is computed again: the histograms are the bins that were counted over the whole tensor. Both functions return the number
of the last snapshot that was sent; given back as `after`, only what is new is sent, so they can stand in a training loop.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, cast

import numpy as np

from .._torch.measure import BIN_EDGES, Statistics
from ..errors import InvalidArgument, SnapshotNotFound
from .animation import enlarged, stretched
from .captions import title_of
from .colors import chosen_scale, paint, scales_of
from .records import Entry, Snapshot, Summary
from .run import Run
from .store import Snapshots
from .tiles import make_mosaic

_SIDE = 256  # the least number of pixels of a picture's longer side


def to_tensorboard(run: Run, writer: Any, *, pictures: bool = True, after: int = -1) -> int:
    """Send snapshots to a TensorBoard writer, at their own steps and times. Returns the number of the last one.

    >>> import tempfile, torch
    >>> from torch.utils.tensorboard import SummaryWriter
    >>> from torcheer.xray import Xray
    >>> xray = Xray(torch.nn.Linear(4, 2), (1, 4), {"linear_1": ["weight"]}, folder=tempfile.mkdtemp())
    >>> with xray, SummaryWriter(tempfile.mkdtemp()) as writer:
    ...     last = -1
    ...     for step in range(3):
    ...         is_taken = xray.take_graphs(step)
    ...         last = to_tensorboard(xray.run, writer, after=last)
    >>> last
    2

    Args:
        run: what to send.
        writer: a `torch.utils.tensorboard.SummaryWriter`, one of tensorboardX, or anything with the same `add_scalar`,
            `add_histogram_raw` and `add_image`.
        pictures: whether to send the kept tensors as pictures too.
        after: only snapshots with a higher number.

    Numbers are tagged `layer/kind/mean`, those of summaries `layer/summary/norm`, metrics `metrics/loss`, histograms and
    pictures `layer/kind`. What is not finite is counted in `layer/kind/nonfinite` and is in no other number. A tensor without a
    finite value has no histogram. TensorBoard shows ten pictures of a tag by default (`--samples_per_plugin images=100`).
    """
    needed = ["add_scalar", "add_histogram_raw", *(["add_image"] if pictures else [])]
    _must_have(writer, needed, "a writer such as torch.utils.tensorboard.SummaryWriter (of Lightning: logger.experiment)")
    snapshots = _after(run, after)
    for snapshot in snapshots:
        at = {"global_step": snapshot.step, "walltime": snapshot.time}
        for name, value in _numbers_of(snapshot).items():
            writer.add_scalar(name, value, **at)
        for entry in snapshot.entries:
            if (bins := bins_of(entry.statistics)) is not None:
                edges, counts = bins
                buckets = {"bucket_limits": edges, "bucket_counts": [0, *counts]}  # a limit is the upper end of its bucket
                writer.add_histogram_raw(entry.key, **_sums(entry.statistics), **buckets, **at)
            if pictures and (picture := _picture(run, snapshot, entry)) is not None:
                writer.add_image(entry.key, picture, **at, dataformats="HWC")
    return int(max(snapshots.table["number"], default=after))


def to_wandb(run: Run, wandb_run: Any, *, pictures: bool = True, after: int = -1) -> int:
    """Send snapshots to a run of Weights & Biases, one `log` for each, in order. Returns the number of the last one.

    >>> import tempfile, torch
    >>> from types import SimpleNamespace
    >>> from torcheer.xray import Xray
    >>> xray = Xray(torch.nn.Linear(4, 2), (1, 4), {"linear_1": ["weight"]}, folder=tempfile.mkdtemp())
    >>> xray.take_graphs(step=10)
    True
    >>> wandb_run = SimpleNamespace(log=lambda values, step: print(step, min(values), max(values)))
    >>> to_wandb(xray.run, wandb_run, pictures=False)
    10 Linear/summary/nonfinite linear_1/weight/zero_fraction
    0

    Args:
        run: what to send.
        wandb_run: what `wandb.init()` returned, or anything with the same `log(values, step=...)`.
        pictures: whether to send the kept tensors as pictures too. They need the package wandb.
        after: only snapshots with a higher number.

    Without the package wandb a histogram is a dictionary of `values` (counts) and `bins` (edges), and there are no pictures.
    Weights & Biases refuses steps below the last one it has: send while training, or to a run of its own.
    """
    _must_have(wandb_run, ["log"], "a run of Weights & Biases, such as wandb.init() returns")
    wandb = _import_wandb()
    snapshots = _after(run, after)
    for snapshot in snapshots:
        values: dict[str, Any] = dict(_numbers_of(snapshot))
        for entry in snapshot.entries:
            if (bins := bins_of(entry.statistics)) is not None:
                edges, counts = bins
                plain = {"values": counts, "bins": edges}
                histogram = plain if wandb is None else wandb.Histogram(np_histogram=(np.array(counts), np.array(edges)))
                values[f"{entry.key}/histogram"] = histogram
            if pictures and wandb is not None and (picture := _picture(run, snapshot, entry)) is not None:
                values[f"{entry.key}/picture"] = wandb.Image(picture, caption=title_of(entry, snapshot.step))
        wandb_run.log(values, step=snapshot.step)
    return int(max(snapshots.table["number"], default=after))


def _after(run: Run, number: int) -> Snapshots:
    snapshots = run.snapshots
    return snapshots.some(snapshots.table["number"] > number)


def _must_have(given: Any, names: list[str], expected: str) -> None:
    missing = [name for name in names if not callable(getattr(given, name, None))]
    if missing:
        raise InvalidArgument(f"expected {expected}; got {type(given).__name__}, which has no {', '.join(missing)}.")


# Numbers ------------------------------------------------------------------------------------------------------------


def _numbers_of(snapshot: Snapshot) -> dict[str, float]:
    """The metrics of a snapshot, and the numbers of its summaries and entries, by tag."""
    found: dict[str, float] = {f"metrics/{name}": value for name, value in snapshot.metrics.items()}
    for one in snapshot.summaries:
        known = {
            "norm": one.norm,
            "grad_norm": one.grad_norm,
            "update_ratio": one.update_ratio,
            "nonfinite": one.nonfinite + one.grad_nonfinite,
            "dead_fraction": _dead_fraction(one),
        }
        found |= {f"{one.layer}/summary/{name}": float(value) for name, value in known.items() if value is not None}
    for entry in snapshot.entries:
        found |= {f"{entry.key}/{name}": value for name, value in scalars_of(entry).items()}
    return found


def _dead_fraction(one: Summary | Entry) -> float | None:
    return one.dead / one.units if one.dead is not None and one.units else None


def scalars_of(entry: Entry) -> dict[str, float]:
    """The numbers of an entry to send, by name. Numbers that the entry lacks are left out."""
    known = entry.statistics
    found = {
        "mean": known.mean,
        "std": known.std,
        "norm": known.norm,
        "zero_fraction": known.zero_fraction if known.count else None,
        "nonfinite": known.nonfinite,
        "update_ratio": entry.update_ratio,
        "dead_fraction": _dead_fraction(entry),
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def bins_of(statistics: Statistics) -> tuple[list[float], list[int]] | None:
    """Edges and counts of a histogram without the empty bins at its ends (one more edge than counts); None if all are empty."""
    counts = statistics.histogram
    filled = [number for number, count in enumerate(counts) if count]
    if not filled or statistics.min is None or statistics.max is None:
        return None
    first, last = filled[0], filled[-1]
    lowest = min(statistics.min, math.nextafter(BIN_EDGES[0], -math.inf))
    highest = max(statistics.max, math.nextafter(BIN_EDGES[-1], math.inf))
    edges = [lowest, *BIN_EDGES, highest]
    return edges[first : last + 2], list(counts[first : last + 1])


def _sums(statistics: Statistics) -> dict[str, Any]:
    """The sums that TensorBoard stores with the buckets of a histogram."""
    number = statistics.count - statistics.nonfinite
    mean, norm = statistics.mean or 0.0, statistics.norm or 0.0
    return {"min": statistics.min, "max": statistics.max, "num": number, "sum": mean * number, "sum_squares": norm * norm}


def _import_wandb() -> Any:
    """The package wandb, or None. A folder called wandb, which runs of the package leave behind, does not count."""
    try:
        found = importlib.import_module("wandb")
    except ImportError:
        return None
    return found if hasattr(found, "Histogram") else None


# Pictures -----------------------------------------------------------------------------------------------------------


def _picture(run: Run, snapshot: Snapshot, entry: Entry) -> np.ndarray[Any, Any] | None:
    """A picture in bytes of red, green and blue; None, with one warning per snapshot, if its file cannot be read.

    Colours mean the same at every step; colours of gradients fit the step.
    """
    try:
        kept = run.kept(snapshot, entry.layer, entry.kind)
    except SnapshotNotFound as error:
        run.tell(snapshot.number, f"pictures of step {snapshot.step} are not sent: {error}")
        return None
    scale = scales_of(run, entry.layer, entry.kind, chosen_scale(entry.kind, None))(entry)
    mosaic = make_mosaic(kept, entry)
    zoom = stretched(mosaic, math.ceil(_SIDE / max(mosaic.height, mosaic.width)))
    return cast("np.ndarray[Any, Any]", enlarged(paint(mosaic, scale), zoom))
