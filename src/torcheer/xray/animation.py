"""A layer over the whole run: as an animated GIF or WebP, or as a strip of frames in one PNG."""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..errors import InvalidArgument
from ..files import write_whole
from .captions import number
from .colours import ScaleName, check_scale, scales_of
from .frames import Paints, Shot, Stage, enlarged, import_pillow, quantised, scale_paints, step_words, zoom_of
from .records import WORDS, Entry, Kind, Snapshot
from .run import Run, evenly
from .tiles import Array, Mosaic, choose_columns, make_mosaic

_FRAME = 600  # about how many pixels the longer side of a picture has
_STRIP_FRAME = 260
_SHORTEST = 0.02  # seconds; viewers show what is shorter for longer
_SCALE_WORDS = {"run": "scale of the run", "frame": "scale of each step"}


def write_gif(
    run: Run,
    layer: str,
    kind: str,
    path: str | os.PathLike[str],
    *,
    seconds_per_frame: float = 0.25,
    scale: ScaleName = "run",
    tile: int | None = None,
    progress: bool = True,
) -> Path:
    """Write one kind of one layer over the run as an animation, a frame for each snapshot that has it. Returns the path.

        write_gif(run, "conv1", "weight", "conv1.gif")

    A value has exactly the same colour in every frame.

    Args:
        run: the run to read from.
        layer: as it was named when the run was made.
        kind: `"weight"`, `"layer"`, `"activation"`, `"grad"` or `"layer_grad"`.
        path: ends with `.gif`, or with `.webp` for an animated WebP, which is smaller and takes longer. The file is
            there whole or not at all.
        seconds_per_frame: from 0.02 on.
        scale: `"run"` has the same colours for the same values over the whole run; `"frame"` has colours that fit each step.
        tile: about how many pixels wide one channel is, or one value of a matrix; by default a picture has some 600 pixels.
        progress: a bar on stderr, if that is a terminal.

    A GIF has at most 256 colours. Filters that are shown in red, green and blue get the palette that suits the whole run best.
    """
    import_pillow()
    target = _target(path, (".gif", ".webp"))
    check_scale(scale)
    _check_from("seconds_per_frame", seconds_per_frame, _SHORTEST)
    is_gif = target.suffix.lower() == ".gif"
    reel = _make_reel(run, _snapshots(run, layer, kind), layer, cast(Kind, kind), scale, tile, _FRAME, is_gif)
    total = len(reel.shots)
    images = (
        reel.stage.paints.as_image(reel.stage.frame(shot, (at + 1) / total))
        for at, shot in enumerate(_with_bar(reel.shots, target.name, progress))
    )
    form: dict[str, Any] = (
        {"format": "GIF", "optimize": False} if is_gif else {"format": "WEBP", "lossless": True, "quality": 25, "method": 2}
    )
    data = io.BytesIO()
    next(images).save(data, save_all=True, append_images=images, duration=round(seconds_per_frame * 1000), loop=0, **form)
    write_whole(target, data.getvalue(), "animation")
    return target


def write_strip(
    run: Run,
    layer: str,
    kind: str,
    path: str | os.PathLike[str],
    *,
    frames: int = 8,
    scale: ScaleName = "run",
    tile: int | None = None,
) -> Path:
    """Write one kind of one layer at several steps, evenly over the run, side by side in one PNG. Returns the path.

        write_strip(run, "conv1", "weight", "conv1.png", frames=6)

    Args:
        run: the run to read from.
        layer: as it was named when the run was made.
        kind: `"weight"`, `"layer"`, `"activation"`, `"grad"` or `"layer_grad"`.
        path: ends with `.png`. The file is there whole or not at all.
        frames: how many steps, the first and the last among them; fewer where there are fewer snapshots.
        scale: `"run"` has the same colours for the same values over the whole run; `"frame"` has colours that fit each step.
        tile: about how many pixels wide one channel is, or one value of a matrix; by default a picture has some 260 pixels.
    """
    import_pillow()
    target = _target(path, (".png",))
    check_scale(scale)
    _check_from("frames", frames, 1)
    there = _snapshots(run, layer, kind)
    reel = _make_reel(
        run,
        [there[at] for at in evenly(len(there), int(frames))],
        layer,
        cast(Kind, kind),
        scale,
        tile,
        _STRIP_FRAME,
        is_gif=False,
    )
    data = io.BytesIO()
    reel.stage.paints.as_image(_strip(reel, scale)).save(data, format="PNG")
    write_whole(target, data.getvalue(), "animation")
    return target


# Reading ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reel:
    """The pictures of a layer over the run, and what their frames share."""

    shots: list[Shot]
    stage: Stage


def _snapshots(run: Run, layer: str, kind: str) -> list[Snapshot]:
    run.entry(layer, kind)  # says what is wrong when nothing has it
    return list(run.having(layer, cast(Kind, kind)))


def _make_reel(
    run: Run, snapshots: list[Snapshot], layer: str, kind: Kind, scale: ScaleName, tile: int | None, wanted: int, is_gif: bool
) -> _Reel:
    """Every picture painted, not enlarged yet."""
    if tile is not None:
        _check_from("tile", tile, 1)
    scale_for = scales_of(run, layer, kind, scale)
    paints, shots = Paints(None), list[Shot]()
    largest: Mosaic | None = None
    for snapshot in snapshots:
        entry = cast(Entry, snapshot.find(layer, kind))
        mosaic = make_mosaic(run.files.tensor(snapshot, layer, kind).float().numpy(), entry)
        colours = scale_for(entry)
        if largest is None and is_gif:
            paints = scale_paints(colours)
        if largest is None or mosaic.width * mosaic.height > largest.width * largest.height:
            largest = mosaic
        shots.append(Shot(snapshot.step, paints.picture(mosaic, colours), colours, entry.statistics.nonfinite))
    assert largest is not None  # there is a snapshot
    if is_gif and largest.is_colour:
        paints, pictures = quantised([shot.picture for shot in shots])
        shots = [replace(shot, picture=picture) for shot, picture in zip(shots, pictures, strict=True)]
    zoom = zoom_of(largest, wanted, tile)
    height, width = (max(shot.picture.shape[side] for shot in shots) * zoom[side] for side in (0, 1))
    words = f"red, green, blue: {_SCALE_WORDS[scale]}" if largest.is_colour else _SCALE_WORDS[scale]
    return _Reel(shots, Stage(f"{layer} · {WORDS[kind]}", height, width, zoom, paints, largest.is_colour, words))


# Strips -------------------------------------------------------------------------------------------------------------


def _strip(reel: _Reel, scale: str) -> Array:
    """Frames side by side, in several rows where they are wide, with one title and one key."""
    stage, shots = reel.stage, reel.shots
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
    """The step, and where each has a scale of its own, that."""
    return step_words(shot) + (f" ({number(shot.scale.low)} … {number(shot.scale.high)})" if scale == "frame" else "")


# Arguments and progress ---------------------------------------------------------------------------------------------


def _target(path: str | os.PathLike[str], endings: tuple[str, ...]) -> Path:
    """A path that can be written to, as far as can be told before."""
    target = Path(path)
    if target.suffix.lower() not in endings:
        raise InvalidArgument(f"the path must end with {' or '.join(endings)}; got {str(target)!r}.")
    if target.is_dir():
        raise InvalidArgument(
            f"{str(target)!r} is a folder; give the path of a file in it, such as {str(target / target.name)!r}."
        )
    if not target.parent.is_dir():
        raise InvalidArgument(f"there is no folder {str(target.parent)!r} to write {target.name!r} to; make it first.")
    return target


def _check_from(name: str, value: Any, least: float) -> None:
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < least or (isinstance(least, int) and value != int(value)):
        raise InvalidArgument(
            f"{name} must be a {'whole ' if isinstance(least, int) else ''}number from {least} on; got {value!r}."
        )


def _with_bar(shots: list[Shot], name: str, wanted: bool) -> Iterator[Shot]:
    """The shots, with a bar on stderr that tells how far they are; nothing where that is no terminal."""
    is_shown = wanted and sys.stderr is not None and sys.stderr.isatty()
    try:
        for at, shot in enumerate(shots, 1):
            yield shot
            if is_shown:
                done = at * 30 // len(shots)
                sys.stderr.write(f"\r{name} [{'#' * done}{'.' * (30 - done)}] {at}/{len(shots)} frames")
                sys.stderr.flush()
    finally:
        if is_shown:
            sys.stderr.write("\n")
