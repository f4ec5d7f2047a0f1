"""A layer over the whole run: as an animated GIF or WebP, or as a strip of frames in one PNG."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...display import Progress
from ...errors import InvalidArgument, SnapshotNotFound
from ...files import output_path, write_whole
from ..snapshots.records import WORDS, Entry, Snapshot
from ..snapshots.run import Run, evenly
from ..store import Snapshots
from .captions import number
from .colors import ColorScale, ScaleName, check_scale, chosen_scale, paint, scales_of
from .frames import Paints, Shot, Stage, enlarged, import_pillow, quantised_paints, scale_paints, step_words, zoom_of
from .moving import as_gif, as_webp
from .tiles import Array, choose_columns, make_mosaic

_FRAME = 600  # about how many pixels the longer side of a picture has
_STRIP_FRAME = 260
_FRAMES = 120  # of an animation, by default
_LASTS = 12  # seconds
_SLOW, _FAST = 4, 15  # frames for each second
_FASTEST = 50.0  # viewers slow down anything faster
_SAMPLES = 16  # pictures in colour that the palette is made for
_SCALE_WORDS = {"run": "scale of the run", "frame": "scale of each step"}


def write_gif(
    run: Run,
    layer: str,
    kind: str,
    path: str | os.PathLike[str],
    *,
    frames: int | None = None,
    every: int = 1,
    fps: float | None = None,
    scale: ScaleName | None = None,
    tile: int | None = None,
    progress: bool = True,
) -> Path:
    """Write one kind of one layer over the run as an animation. Returns the path.

        write_gif(run, "conv1", "weight", "conv1.gif", frames=60, fps=12)

    Args:
        run: the run to read from.
        layer: as it was named when the run was made.
        kind: one of `torcheer.xray.snapshots.records.KINDS`, such as `"weight"` or `"activation"`.
        path: ends with `.gif`, or with `.webp` for an animated WebP, which is smaller and takes longer. The file is there
            whole or not at all.
        frames: how many snapshots are shown at most, evenly over the run, the first and the last among them. By default 120, or
            all of them where `every` is given.
        every: only every n-th snapshot.
        fps: frames for each second, up to 50. By default as many as make the whole last some twelve seconds, 4 to 15.
        scale: `"run"` has the same colours for the same values over the whole run; `"frame"` has colours that fit each step. By
            default `"frame"` for gradients, since they shrink, else `"run"`. The picture says which.
        tile: about how many pixels wide one channel is, or one value of a matrix; by default a picture has some 600 pixels.
        progress: a bar on stderr, if that is a terminal.

    A GIF has at most 256 colours. Filters that are shown in red, green and blue get the palette that suits the whole run best.
    Frames are read and written one by one. A snapshot that cannot be read is left out, with a warning.
    """
    import_pillow()
    target = _target(path, (".gif", ".webp"))
    check_scale(scale)
    _check_from("every", every, 1)
    if frames is not None:
        _check_from("frames", frames, 1)
    if fps is not None:
        _check_from("fps", fps, 1 / 60, _FASTEST)
    most = frames if frames is not None else _FRAMES if every == 1 else None
    is_gif = target.suffix.lower() == ".gif"
    reel = _make_reel(run, _chosen(run, layer, kind, every, most), layer, kind, scale, tile, _FRAME, is_gif)
    total = len(reel.snapshots)
    milliseconds = round(1000 / (fps if fps is not None else min(max(total / _LASTS, _SLOW), _FAST)))
    with Progress(target.name, total, "frames", progress) as bar:

        def frame_at(at: int) -> Array:
            bar.reached(at + 1)
            return reel.stage.frame(reel.shot(at), (at + 1) / total)

        if is_gif:
            data = as_gif(map(frame_at, range(total)), reel.stage.paints, milliseconds)
        else:
            data = as_webp(frame_at, total, reel.stage.paints, milliseconds)
    return write_whole(target, data, "picture")


def write_strip(
    run: Run,
    layer: str,
    kind: str,
    path: str | os.PathLike[str],
    *,
    frames: int = 8,
    scale: ScaleName | None = None,
    tile: int | None = None,
) -> Path:
    """Write one kind of one layer at several steps, evenly over the run, side by side in one PNG. Returns the path.

        write_strip(run, "conv1", "weight", "conv1.png", frames=6)

    Args:
        run, layer, kind, scale, tile: as in `write_gif`; by default a picture has some 260 pixels.
        path: ends with `.png`. The file is there whole or not at all.
        frames: how many steps, the first and the last among them; fewer where there are fewer snapshots.

    A snapshot that cannot be read is left out, with a warning.
    """
    import_pillow()
    target = _target(path, (".png",))
    check_scale(scale)
    _check_from("frames", frames, 1)
    chosen = _chosen(run, layer, kind, 1, int(frames))
    reel = _make_reel(run, chosen, layer, kind, scale, tile, _STRIP_FRAME, is_gif=False)
    data = io.BytesIO()
    reel.stage.paints.as_image(_strip(reel)).save(data, format="PNG")
    return write_whole(target, data.getvalue(), "picture")


# Reading ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reel:
    """The pictures of a layer over the run, read and painted one by one, and what their frames share."""

    run: Run
    snapshots: list[Snapshot]  # each with the one entry that is shown
    stage: Stage
    scale: ScaleName
    colors: Callable[[Entry], ColorScale]

    def shot(self, at: int) -> Shot:
        snapshot = self.snapshots[at]
        entry = snapshot.entries[0]
        colors = self.colors(entry)
        mosaic = make_mosaic(self.run.kept(snapshot, entry.layer, entry.kind), entry)
        return Shot(snapshot.step, self.stage.paints.picture(mosaic, colors), colors, entry.statistics.nonfinite)


def _chosen(run: Run, layer: str, kind: str, every: int, most: int | None) -> Snapshots:
    run.entry(layer, kind)  # says what is wrong when nothing has it
    found = run.having(layer, kind)[::every]
    return found if most is None else Snapshots(found.table[evenly(len(found), most)], run.files.read)


def _make_reel(
    run: Run,
    chosen: Snapshots,
    layer: str,
    kind: str,
    scale: ScaleName | None,
    tile: int | None,
    wanted: int,
    is_gif: bool,
) -> _Reel:
    """Look at every picture once, to know which can be read, how large frames must be, and which colours there are."""
    if tile is not None:
        _check_from("tile", tile, 1)
    scale = chosen_scale(kind, scale)
    scale_for = scales_of(run, layer, kind, scale)
    snapshots, samples, largest = list[Snapshot](), list[Array](), None
    height = width = 0
    paints = Paints(None)
    spread = max(1, len(chosen) // _SAMPLES)
    for snapshot, entry, kept in run.pictures(layer, kind, chosen):
        mosaic = make_mosaic(kept, entry)
        if largest is None and is_gif:
            paints = scale_paints(scale_for(entry))
        if largest is None or mosaic.width * mosaic.height > largest.width * largest.height:
            largest = mosaic
        height, width = max(height, mosaic.height), max(width, mosaic.width)
        if mosaic.is_color and is_gif and len(snapshots) % spread == 0:
            samples.append(paint(mosaic, scale_for(entry)))
        snapshots.append(replace(snapshot, entries=(entry,), summaries=()))
    if largest is None:
        raise SnapshotNotFound(f"no snapshot with {kind!r} of {layer!r} can be read from {run.files.folder}.")
    if samples:
        paints = quantised_paints(samples)
    zoom = zoom_of(largest, wanted, tile)
    words = f"red, green, blue: {_SCALE_WORDS[scale]}" if largest.is_color else _SCALE_WORDS[scale]
    stage = Stage(f"{layer} · {WORDS[kind]}", height * zoom[0], width * zoom[1], zoom, paints, largest.is_color, words)
    return _Reel(run, snapshots, stage, scale, scale_for)


# Strips -------------------------------------------------------------------------------------------------------------


def _strip(reel: _Reel) -> Array:
    """Frames side by side, in several rows where they are wide, with one title and one key."""
    stage, scale = reel.stage, reel.scale
    shots = [reel.shot(at) for at in range(len(reel.snapshots))]
    head, foot, space, label = 40, 46, 28, 24
    captions = [_caption(shot, scale) for shot in shots]
    widest = max(stage.letters.line(caption, 15).shape[1] for caption in captions)
    width, height = max(stage.width, widest), stage.height + label
    across = choose_columns(len(shots), height + space, width + space, aspect=len(shots))
    down = math.ceil(len(shots) / across)
    inner = max(across * (width + space) - space, stage.narrowest)
    foot = foot if scale == "run" else 0
    canvas = stage.paints.blank(head + down * (height + space) + foot + stage.margin, inner + 2 * stage.margin)
    stage.put(canvas, stage.margin - 4, stage.margin, stage.letters.fitting(stage.title, 17, inner))
    for at, (shot, caption) in enumerate(zip(shots, captions, strict=True)):
        top, left = head + at // across * (height + space), stage.margin + at % across * (width + space)
        stage.put(canvas, top, left, stage.letters.line(caption, 15))
        stage.paste(canvas, top + label, left, enlarged(shot.picture, stage.zoom))
    if foot:
        stage.key(canvas, head + down * (height + space), shots[0].scale)
    return canvas


def _caption(shot: Shot, scale: str) -> str:
    """The step, and the frame's own scale if each frame has one."""
    return step_words(shot) + (f" ({number(shot.scale.low)} … {number(shot.scale.high)})" if scale == "frame" else "")


# Arguments and progress ---------------------------------------------------------------------------------------------


def _target(path: str | os.PathLike[str], endings: tuple[str, ...]) -> Path:
    """Check, before any work is done, that a path can be written to."""
    target = output_path(path, "picture", f"conv1{endings[0]}")
    if target.suffix.lower() not in endings:
        raise InvalidArgument(f"the path must end with {' or '.join(endings)}; got {str(target)!r}.")
    return target


def _check_from(name: str, value: Any, least: float, most: float = math.inf) -> None:
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    is_whole = isinstance(least, int)
    if not is_number or not math.isfinite(value) or not least <= value <= most or (is_whole and value != int(value)):
        reach = f"from {least:.3g} on" if math.isinf(most) else f"from {least:.3g} to {most:g}"
        raise InvalidArgument(f"{name} must be a {'whole ' if is_whole else ''}number {reach}; got {value!r}.")
