"""One HTML file about a whole training, to look at without a network, a server or anything installed.

The program is in web/report; its data are declared in `web/schema.py` and described in docs/report_format.md. Everything that
comes from a run is data, and is shown as text.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...display import Progress
from ...errors import InvalidArgument, SnapshotNotFound
from ...files import output_path, write_whole
from ...inputs import is_whole
from ...measure import BIN_EDGES
from ...web.page import Bundle, read_bundle
from ..snapshots.records import KINDS, WORDS
from ..snapshots.run import Run, evenly
from ..store import Snapshots
from .page_payload import (
    FIELDS,
    LEAST_FRACTION,
    LEVELS,
    SUMMARY,
    Album,
    Numbers,
    Pictures,
    pack_histograms,
    pack_statistics,
    read_numbers,
)

MAX_BYTES = 20 * 2**20
MOST_SNAPSHOTS = 2000  # a screen has no more columns
_STRIDES = (1, 2, 4, 8)
_ENOUGH = 12  # steps with pictures, before pictures are thinned
_SLACK = 100  # bytes by which the facts may grow
_TRIES = 5
_WORTH_IT = 1.05  # by how many times more steps must fit to be worth another try
_MOST_CODES = 256_000_000  # of all pictures together, unpacked


def write_report(
    run: Run,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    max_bytes: int = MAX_BYTES,
    progress: bool = True,
) -> Path:
    """Write one HTML file about a run: every layer at every step, histograms, and the health of all layers over time.

    >>> import tempfile, torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> with tempfile.TemporaryDirectory() as folder, torcheer.Xray(model, torch.ones(2, 4), folder=f"{folder}/run") as xray:
    ...     _ = xray.take_graphs()
    ...     xray.flush()
    ...     write_report(xray.run, f"{folder}/report.html").name
    'report.html'

    Args:
        run: what an Xray wrote, or is writing.
        path: where to; a file that is there is replaced, whole or not at all.
        title: the heading; the class of the model if not given.
        max_bytes: how large the file may be. Statistics of every step are always in it; of more than 2,000 snapshots, those of
            2,000, chosen evenly. Pictures have 8 bits a value. Where they do not all fit, there are those of evenly chosen
            steps, with the first and the last; where even a dozen steps do not fit, pictures show every 2nd, 4th or 8th pixel.
            The page says which steps are left out.
        progress: a bar on stderr, if that is a terminal.
    """
    target = output_path(path, "report", "report.html", "html")
    if not is_whole(max_bytes, 1):
        raise InvalidArgument(f"max_bytes is a number of bytes above 0; got {max_bytes!r:.80}.")
    bundle = read_bundle("report")
    everything = run.snapshots
    snapshots = Snapshots(everything.table[evenly(len(everything), MOST_SNAPSHOTS)], run.files.read)
    with Progress(f"{target.name}: numbers", len(snapshots), "snapshots", progress) as bar:
        numbers = read_numbers(run, snapshots, bar)
    if not numbers.series:
        raise SnapshotNotFound("there is nothing to report: the run has no snapshot with a layer. take_graphs() makes one.")
    heading = run.title if title is None else str(title)
    statistics = {"statistics": pack_statistics(numbers.series), "histograms": pack_histograms(numbers.pictured)}
    content = _Content(run, snapshots, numbers, heading, max_bytes)
    bare = _page(bundle, content, Pictures([]), statistics)
    pictures = _fitting(content, len(bare), Progress(f"{target.name}: pictures", _TRIES + 1, "rounds", progress))
    blocks = statistics | {f"pictures-{number}": block for number, block in enumerate(pictures.blocks)}
    data = _page(bundle, content, pictures, blocks)
    return write_whole(target, data, "report")


# Which pictures fit -----------------------------------------------------------------------------------------------


def _fitting(content: _Content, taken: int, bar: Progress) -> Pictures:
    """The pictures of as many steps as there is room for beside what is taken; smaller ones where that would be too few."""
    room = content.max_bytes - taken - _SLACK
    album = Album(content.run, content.snapshots, content.numbers.pictured)
    count = len(content.snapshots)
    with bar:
        for at, stride in enumerate(_STRIDES):
            few = album.packed(evenly(count, 2 if stride == _STRIDES[-1] else _ENOUGH), stride)
            bar.reached(at + 1)
            if few.size <= room:
                return _as_many(album, count, room, few, bar)
    raise InvalidArgument(
        f"max_bytes is too small for this run: statistics of all steps, and small pictures of the first and the last, take "
        f"{few.size - room:,} bytes more. Give max_bytes={taken + few.size + 2 * _SLACK}, or more for more pictures."
    )


def _as_many(album: Album, count: int, room: int, fits: Pictures, bar: Progress) -> Pictures:
    """The most steps that fit, or nearly: each try packs them all."""
    most = min(count, len(fits.steps) * _MOST_CODES // max(fits.codes, 1))
    guess = int(len(fits.steps) * 1.25 * room / max(fits.size, 1))  # steps nearer to each other differ less
    for turn in range(_TRIES):
        bar.reached(turn + 1)
        guess = min(guess, most)
        if guess <= (1.0 if guess == count else _WORTH_IT) * len(fits.steps):
            break
        tried = album.packed(evenly(count, guess), fits.stride)
        if tried.size <= room:
            fits = tried
        else:
            most = guess - 1
        guess = int(guess * 0.98 * room / tried.size)
    bar.reached(_TRIES + 1)
    return fits


# The page ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Content:
    """What a page is made of, but for its pictures."""

    run: Run
    snapshots: Snapshots
    numbers: Numbers
    heading: str
    max_bytes: int


def _facts(content: _Content, pictures: Pictures) -> dict[str, Any]:
    """What the page knows at once; the numbers and the pictures lie beside, packed."""
    run, numbers, table = content.run, content.numbers, content.snapshots.table
    layers = {layer: number for number, layer in enumerate(_all_layers(run))}
    chunks = pictures.chunks or [[] for _ in numbers.pictured]
    return {
        "title": content.heading,
        "model": run.title,
        "bytes": run.files.bytes,
        "max_bytes": content.max_bytes,
        "snapshots": len(run.snapshots),
        "steps": table["step"].tolist(),
        "times": [round(moment - float(table["time"][0]), 1) for moment in table["time"].tolist()],
        "notes": [*([0, [note]] for note in run.notes), *numbers.notes],
        "metrics": numbers.metrics,
        "layers": list(layers),
        "watched": len(run.layers),
        "kinds": {**{kind: WORDS[kind] for kind in KINDS}, SUMMARY: "summary"},
        "fields": FIELDS,
        "edges": BIN_EDGES,
        "least_fraction": LEAST_FRACTION,
        "levels": LEVELS,
        "pictures": pictures.steps,
        "stride": pictures.stride,
        "unreadable": pictures.unreadable,
        "series": [
            {
                "layer": layers[series.layer],
                "kind": series.kind,
                "limits": run.limits(series.layer, series.kind) if number < len(chunks) else (0.0, 1.0),
                "forms": series.forms,
                "chunks": chunks[number] if number < len(chunks) else [],
            }
            for number, series in enumerate(numbers.series)
        ],
    }


def _all_layers(run: Run) -> list[str]:
    """Every layer with parameters, in the model's order; a watched one without any stands after the watched one before it."""
    found = run.summarised
    before = -1
    for layer in run.layers:
        if layer not in found:
            found.insert(before + 1, layer)
        before = found.index(layer)
    return found


def _page(bundle: Bundle, content: _Content, pictures: Pictures, blocks: dict[str, str]) -> bytes:
    return bundle.page(content.heading, {"facts": _as_data(_facts(content, pictures)), **blocks}).encode()


def _as_data(facts: dict[str, Any]) -> str:
    """JSON in which nothing can end the script element around it."""
    return json.dumps(facts, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
