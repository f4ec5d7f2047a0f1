"""The HTML report of a run."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from .._files.files import output_path, write_whole
from .._text import Progress
from .._torch.inputs import is_whole
from .._torch.measure import BIN_EDGES
from ..errors import InvalidArgument, SnapshotNotFound
from ..page.document import Bundle, packed, read_bundle
from .findings import DEAD, Finding, check_part, find_all
from .records import KINDS, WORDS, Entry
from .run import Run, evenly
from .series import FIELDS, LEAST_FRACTION, SUMMARY, Numbers, Series, read_numbers
from .store import Snapshots

# A run as bytes that fit into a page: pictures of 8 bits a value, and the statistics of every snapshot.
#
# A picture's codes 0 … 252 lie evenly between the `low` and `high` of its frame, so that zero is exact; 253, 254 and
# 255 are −inf, +inf and NaN. The range of a frame is its own, so that a gradient that vanishes keeps its shape; it
# takes only certain values, so that it seldom changes and the difference between two steps is small. That difference
# is what is compressed. Measured against lossless WebP it is as small, and needs nothing but zlib.

Array = Any  # a NumPy array; NumPy's types are not followed

LEVELS = 252
NEGATIVE, POSITIVE, NAN = 253, 254, 255
OUTLIERS = 3.0  # values are clipped if they are further from zero than this many times the usual range
_CHUNK = 2_000_000  # frames are packed together up to this many codes
_AROUND_BLOCK = 64  # number of bytes that a page adds around each block


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture: the codes of a kept tensor, and the values that the codes 0 and 252 stand for."""

    codes: np.ndarray[Any, Any]
    low: float
    high: float
    is_clipped: bool = False  # True if values beyond the ends are shown as the ends


# Pictures ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pictures:
    """The frames of some snapshots, packed into blocks of text."""

    steps: list[int]  # numbers of the requested snapshots
    stride: int = 1
    blocks: list[str] = field(default_factory=list)
    chunks: list[list[dict[str, Any]]] = field(default_factory=list)  # for each series: the places of its frames
    unreadable: list[int] = field(default_factory=list)  # numbers of snapshots that cannot be read

    @property
    def codes(self) -> int:
        """The number of bytes of all frames, unpacked."""
        return sum(len(chunk["frames"]) * math.prod(chunk["kept"]) for chunks in self.chunks for chunk in chunks)

    @property
    def size(self) -> int:
        """The approximate number of bytes in a page."""
        return sum(len(block) + _AROUND_BLOCK for block in self.blocks) + len(json.dumps(self.chunks, separators=(",", ":")))


class Album:
    """Reads the frames of a run, and packs the frames of chosen snapshots."""

    def __init__(self, run: Run, snapshots: Snapshots, pictured: list[Series]) -> None:
        self._run = run
        self._snapshots = snapshots
        self._series = pictured
        self._read: dict[int, list[Frame | None]] = {}
        self._unreadable: set[int] = set()

    def packed(self, wanted: list[int], stride: int = 1) -> Pictures:
        """The frames of the wanted snapshots, and of the first and the last snapshot of each series."""
        pictures = Pictures(wanted, stride)
        for number, series in enumerate(self._series):
            present = series.present
            taken = sorted({*set(present).intersection(wanted), present[0], present[-1]})
            found = [(at, frame) for at in taken if (frame := self._frames(at)[number]) is not None]
            pictures.chunks.append(_chunks([(at, _thinned(frame, stride)) for at, frame in found], pictures.blocks))
        pictures.unreadable = sorted(self._unreadable)
        return pictures

    def _frames(self, at: int) -> list[Frame | None]:
        """The frame of each series in one snapshot. The snapshot's file is opened once."""
        if at in self._read:
            return self._read[at]
        frames = self._read[at] = [None] * len(self._series)
        try:
            snapshot = self._snapshots[at]
            kept = self._run.files.tensors(snapshot)
        except SnapshotNotFound as error:  # deleted by the process that writes, or damaged: the page says that it is missing
            self._run.tell(int(self._snapshots.table["number"][at]), f"a snapshot is skipped: {error}")
            self._unreadable.add(at)
            return frames
        for number, series in enumerate(self._series):
            entry = snapshot.find(series.layer, series.kind)
            if entry is not None:
                frames[number] = quantise(kept[entry.key].float().numpy(), entry)
        return frames


def _thinned(frame: Frame, stride: int) -> Frame:
    """Keep every n-th pixel of feature maps, every n-th filter, or every n-th row and column of a matrix."""
    if stride == 1:
        return frame
    codes = frame.codes[::stride] if frame.codes.ndim == 4 else frame.codes[..., ::stride, ::stride]
    return replace(frame, codes=codes)


def quantise(values: np.ndarray[Any, Any], entry: Entry) -> Frame | None:
    """Convert values to codes of 8 bits. Returns None if there are no values."""
    if not values.size:
        return None
    values = values.astype(np.float64)  # the difference between two values of float32 may be too large for float32
    known = np.isfinite(values)
    largest = float(np.abs(values, where=known, out=np.zeros(values.shape)).max())
    most = max(abs(entry.low or 0.0), abs(entry.high or 0.0))
    reach = _rounded_up(min(largest, OUTLIERS * most) if most else largest)
    low = -reach if bool((values[known] < 0).any()) else 0.0
    scaled = np.clip((np.where(known, values, low) - low) / (reach - low), 0, 1) * LEVELS
    special = np.where(np.isnan(values), NAN, np.where(values > 0, POSITIVE, NEGATIVE))
    return Frame(np.where(known, np.rint(scaled), special).astype(np.uint8), low, reach, is_clipped=largest > reach)


def _rounded_up(reach: float) -> float:
    """Round a range up to one of four values per doubling."""
    return float(2.0 ** (math.ceil(math.log2(reach) * 4) / 4)) if reach > 0 else 1.0


def _chunks(frames: list[tuple[int, Frame]], blocks: list[str]) -> list[dict[str, Any]]:
    """Pack frames in several chunks, so that a page can show one frame without unpacking all of them."""
    groups: list[list[tuple[int, Frame]]] = []
    for at, frame in frames:
        is_like_last = bool(groups) and groups[-1][0][1].codes.shape == frame.codes.shape
        if is_like_last and (len(groups[-1]) + 1) * frame.codes.size <= _CHUNK:
            groups[-1].append((at, frame))
        else:
            groups.append([(at, frame)])
    return [_chunk(group, blocks) for group in groups]


def _chunk(group: list[tuple[int, Frame]], blocks: list[str]) -> dict[str, Any]:
    codes = np.stack([frame.codes.reshape(-1) for _, frame in group])
    codes[1:] -= codes[:-1].copy()  # differences from one step to the next, modulo 256
    blocks.append(packed(codes.tobytes()))
    return {
        "block": len(blocks) - 1,
        "kept": list(group[0][1].codes.shape),
        "frames": [[at, _short(frame.high), (frame.low < 0) + 2 * frame.is_clipped] for at, frame in group],
    }


def _short(value: float) -> float:
    return float(f"{value:.7g}")


# One HTML file about a whole training, to look at without a network, a server or anything installed.
#
# The program is in web/report; its data are declared in `web/schema.py` and described in docs/report_format.md.
# Everything that comes from a run is data, and is shown as text.

MAX_BYTES = 20 * 2**20
MOST_SNAPSHOTS = 2000  # more snapshots than a screen has columns of pixels would not be seen
_STRIDES = (1, 2, 4, 8)
_ENOUGH = 12  # pictures are thinned if fewer than this many steps fit
_SLACK = 100  # number of bytes left free, because the text of the facts may still grow
_TRIES = 5
_WORTH_IT = 1.05  # another try is made only if it may fit this many times more steps
_MOST_CODES = 256_000_000  # largest number of codes of all pictures together, unpacked


def write_report(
    run: Run,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    max_bytes: int = MAX_BYTES,
    dead: float = DEAD,
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
        dead: the part of a layer's units from which dead units are a finding, above 0 and at most 1.
        progress: a bar on stderr, if that is a terminal.
    """
    target = output_path(path, "report", "report.html", "html")
    if not is_whole(max_bytes, 1):
        raise InvalidArgument(f"max_bytes is a number of bytes above 0; got {max_bytes!r:.80}.")
    check_part(dead)
    bundle = read_bundle("report")
    snapshots = run.snapshots
    snapshots = snapshots.some(evenly(len(snapshots), MOST_SNAPSHOTS))
    with Progress(f"{target.name}: numbers", len(snapshots), "snapshots", progress) as bar:
        numbers = read_numbers(run, snapshots, bar)
    if not numbers.series:
        raise SnapshotNotFound("there is nothing to report: the run has no snapshot with a layer. take_graphs() makes one.")
    heading = run.title if title is None else str(title)
    plain = np.stack([series.numbers for series in numbers.series]).astype("<f4").reshape(-1)
    histograms = [series.histogram.tobytes() for series in numbers.pictured if series.histogram is not None]
    statistics = {
        # for each series and field one float32 for each snapshot; first the first byte of all numbers, then the second: a
        # quarter smaller
        "statistics": packed(plain.view(np.uint8).reshape(-1, 4).T.tobytes()),
        # a byte for each bin: 0 if the bin is empty, else the logarithm of its fraction of all values
        "histograms": packed(b"".join(histograms)),
    }
    findings = find_all(numbers.series, snapshots.steps, dead=dead, is_thinned=len(snapshots) < len(run.snapshots))
    content = _Content(run, snapshots, numbers, findings, dead, heading, max_bytes)
    bare = _page(bundle, content, Pictures([]), statistics)
    pictures = _fitting(content, len(bare), Progress(f"{target.name}: pictures", _TRIES + 1, "rounds", progress))
    blocks = statistics | {f"pictures-{number}": block for number, block in enumerate(pictures.blocks)}
    data = _page(bundle, content, pictures, blocks)
    return write_whole(target, data, "report")


# Which pictures fit -----------------------------------------------------------------------------------------------


def _fitting(content: _Content, taken: int, bar: Progress) -> Pictures:
    """Pack the pictures of as many steps as fit. If a dozen steps do not fit, pictures are thinned."""
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
    """Find about the largest number of steps whose pictures fit. Each try packs the pictures of all its steps."""
    most = min(count, len(fits.steps) * _MOST_CODES // max(fits.codes, 1))
    guess = int(len(fits.steps) * 1.25 * room / max(fits.size, 1))  # steps that are closer to each other differ less
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
    """The data of a report page, without its pictures."""

    run: Run
    snapshots: Snapshots
    numbers: Numbers
    findings: list[Finding]
    dead: float
    heading: str
    max_bytes: int


def _facts(content: _Content, pictures: Pictures) -> dict[str, Any]:
    """The facts that the page reads first. Numbers and pictures are packed blocks of their own."""
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
        "dead": content.dead,
        "findings": [
            {
                "tone": one.tone,
                "text": one.text,
                "about": one.about,
                "series": numbers.series.index(one.series) if one.series is not None else None,
                "at": one.at,
                "until": one.until,
            }
            for one in content.findings
        ],
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
    """Every layer with parameters, in order; watched layers without parameters follow the previous watched layer."""
    found = run.summarised
    before = -1
    for layer in run.layers:
        if layer not in found:
            found.insert(before + 1, layer)
        before = found.index(layer)
    return found


def _page(bundle: Bundle, content: _Content, pictures: Pictures, blocks: dict[str, str]) -> bytes:
    facts = json.dumps(_facts(content, pictures), separators=(",", ":"), allow_nan=False)
    facts = facts.replace("<", "\\u003c")  # so that no text in the facts can end the script element around them
    return bundle.page(content.heading, {"facts": facts, **blocks}).encode()
