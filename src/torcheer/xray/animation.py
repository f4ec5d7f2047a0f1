"""Draws a layer over the whole run: as an animated GIF or WebP, or as a strip of frames in one PNG.

Frames are painted pixel by pixel, with NumPy; Pillow only draws the letters. All frames share one palette made from the colour
scale, so a value has the same colour in every frame: nothing is dithered, nothing is smoothed. A frame is a title, the step,
the picture enlarged by a whole factor, and the colours with their values.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from .._files.files import output_path, write_whole
from .._text import Progress
from ..errors import InvalidArgument, SnapshotNotFound
from .captions import number
from .colors import GAP, INK, NONFINITE, ColorScale, ScaleName, check_scale, chosen_scale, paint, scales_of
from .records import WORDS, Entry, Snapshot
from .run import Run, evenly
from .store import Snapshots
from .tiles import Array, Mosaic, choose_columns, make_mosaic

_RAMP = 235  # number of colours of the scale; odd, so that zero has a colour of its own
_GREYS = 16  # number of greys between ink and paper, for letters
_PAPER = _RAMP + _GREYS - 1
_NONFINITE = _RAMP + _GREYS

_LARGEST = 80  # one value takes at most this many pixels, down and across
_FLATTEST = 4  # a matrix is stretched until its longer side is at most this many times the shorter side
_BAR = (200, 12)


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture at a step, not enlarged."""

    step: int
    picture: Array
    scale: ColorScale
    nonfinite: int  # number of values of the whole tensor that are NaN or infinite


def import_pillow() -> Any:
    """Return the package Pillow. Raises an error that says how to install it if it is missing."""
    try:
        import PIL.GifImagePlugin
        import PIL.Image
        import PIL.ImageDraw
        import PIL.ImageFont
    except ImportError as error:
        raise ImportError("animations of an Xray need Pillow: pip install pillow") from error
    return PIL


class Letters:
    """Lines of text as grey pixels, 0 where there is ink, in the font that comes with Pillow."""

    def __init__(self) -> None:
        self._pillow = import_pillow()
        self._fonts: dict[int, Any] = {}
        self._has_freetype = True

    def line(self, text: str, size: int) -> Array:
        """Draw a line of text. A letter that the font lacks is drawn as a question mark."""
        text = text.replace("−", "-").replace("×", "x")
        text = "".join(letter if letter.isascii() or letter in "·…" else "?" for letter in text)
        font = self._font(size)
        if not self._has_freetype:
            text = text.replace("…", "...")
        image = self._pillow.Image.new("L", (max(1, round(font.getlength(text)) + 1), round(size * 1.35)), 255)
        self._pillow.ImageDraw.Draw(image).text((0, 0), text, font=font, fill=0)
        return np.asarray(image)

    def fitting(self, text: str, size: int, width: int) -> Array:
        """Draw a line of text of at most `width` pixels. The beginning of a longer text is cut off."""
        line = self.line(text, size)
        while line.shape[1] > width and len(text) > 2:
            text = "…" + text[2:]
            line = self.line(text, size)
        return line[:, :width]

    def _font(self, size: int) -> Any:
        if size not in self._fonts:
            try:
                self._fonts[size] = self._pillow.ImageFont.load_default(size)
            except (TypeError, ImportError):  # Pillow 10.0 and a Pillow without FreeType draw letters of one size, and no …
                self._fonts[size] = self._pillow.ImageFont.load_default()
                self._has_freetype = False
        return self._fonts[size]


# Paints -------------------------------------------------------------------------------------------------------------


class Paints:
    """The form of pixels: indices into a palette or, if the palette is None, red, green and blue."""

    def __init__(self, palette: Array | None) -> None:
        self.palette = palette

    def picture(self, mosaic: Mosaic, scale: ColorScale) -> Array:
        if self.palette is None:
            return paint(mosaic, scale)
        if mosaic.is_color:
            known = self.as_image(np.zeros((1, 1), np.uint8))
            image = import_pillow().Image.fromarray(paint(mosaic, scale))
            levels = np.array(image.quantize(palette=known, dither=import_pillow().Image.Dither.NONE))
        else:
            levels = scale.levels(mosaic.values, _RAMP)
        levels[mosaic.gaps] = _PAPER  # every palette has separate colours for gaps and for values that are not finite
        levels[mosaic.nonfinite] = _NONFINITE
        return levels

    def letters(self, greys: Array) -> Array:
        """Convert letters, given as grey pixels, to pixels of this form."""
        if self.palette is not None:
            return (_RAMP + np.rint(greys / 255 * (_GREYS - 1))).astype(np.uint8)
        ink = np.array(INK) + (np.array(GAP) - INK) * (greys[..., None] / 255)
        return np.rint(ink).astype(np.uint8)

    def blank(self, height: int, width: int) -> Array:
        return self.letters(np.full((height, width), 255))

    def bar(self, scale: ColorScale, width: int, height: int, is_color: bool) -> Array:
        """Draw the colours of a scale, from the lowest value to the highest. Draws greys if the pictures are in colour."""
        if is_color:
            return self.letters(np.tile(np.linspace(0, 255, width), (height, 1)))
        levels = np.rint(np.linspace(0, _RAMP - 1, width)).astype(np.uint8)
        row = levels if self.palette is not None else scale.colors(_RAMP)[levels]
        return np.repeat(row[None], height, axis=0)

    def as_image(self, canvas: Array) -> Any:
        """The canvas as a Pillow image."""
        image = import_pillow().Image.fromarray(canvas)
        if self.palette is not None:
            image.putpalette(self.palette.tobytes())
        return image


def scale_paints(scale: ColorScale) -> Paints:
    """Make a palette of the colours of a scale, greys for letters, and a colour for values that are not finite."""
    return Paints(_palette(scale.colors(_RAMP)))


def quantised_paints(pictures: list[Array]) -> Paints:
    """Make the palette that fits pictures in red, green and blue best."""
    pillow = import_pillow()
    image = pillow.Image.fromarray(np.concatenate([picture.reshape(1, -1, 3) for picture in pictures], axis=1))
    found = image.quantize(_RAMP, method=pillow.Image.Quantize.MAXCOVERAGE).getpalette()[: _RAMP * 3]
    chosen = np.array(found, np.uint8).reshape(-1, 3)
    return Paints(_palette(np.concatenate([chosen, np.repeat(chosen[-1:], _RAMP - len(chosen), axis=0)])))


def _palette(ramp: Array) -> Array:
    greys = np.linspace(INK, GAP, _GREYS).round()
    return np.concatenate([ramp, greys, [NONFINITE] * (256 - _NONFINITE)]).astype(np.uint8)


# Frames -------------------------------------------------------------------------------------------------------------


@dataclass
class Stage:
    """The parts that all frames share: size, title, enlargement, paints."""

    title: str
    height: int  # height of the largest picture, enlarged, in pixels
    width: int
    zoom: tuple[int, int]
    paints: Paints
    is_color: bool
    scale_words: str
    letters: Letters = field(default_factory=Letters)

    margin = 12
    narrowest = 340

    def frame(self, shot: Shot, share: float) -> Array:
        """A whole frame. `share` is the fraction of the run that has passed, from 0 to 1."""
        width = max(self.width, self.narrowest) + 2 * self.margin
        top, foot = self.margin + 54, 46
        canvas = self.paints.blank(top + self.height + foot + self.margin, width)
        inner = width - 2 * self.margin
        self.put(canvas, self.margin - 4, self.margin, self.letters.fitting(self.title, 17, inner))
        self.put(canvas, self.margin + 20, self.margin, self.letters.fitting(step_words(shot), 19, inner))
        self.paste(canvas, top, self.margin, enlarged(shot.picture, self.zoom))
        self.key(canvas, top + self.height + 12, shot.scale)
        canvas[-4:, : round(width * share)] = self.paints.letters(np.array([120]))[0]
        return canvas

    def key(self, canvas: Array, top: int, scale: ColorScale) -> None:
        """Draw the colours of the scale, and the values at its ends."""
        width = min(_BAR[0], canvas.shape[1] - 2 * self.margin)
        self.paste(canvas, top, self.margin, self.paints.bar(scale, width, _BAR[1], self.is_color))
        low, high = self.letters.line(number(scale.low), 13), self.letters.line(number(scale.high), 13)
        self.put(canvas, top + _BAR[1] + 3, self.margin, low)
        self.put(canvas, top + _BAR[1] + 3, self.margin + width - high.shape[1], high)
        room = canvas.shape[1] - 3 * self.margin - width
        if room > 60:
            self.put(canvas, top - 2, 2 * self.margin + width, self.letters.fitting(self.scale_words, 13, room))

    def put(self, canvas: Array, top: int, left: int, greys: Array) -> None:
        self.paste(canvas, top, left, self.paints.letters(greys))

    @staticmethod
    def paste(canvas: Array, top: int, left: int, part: Array) -> None:
        canvas[top : top + part.shape[0], left : left + part.shape[1]] = part


def step_words(shot: Shot) -> str:
    """The text `step 40`, and how many of the step's values are not finite."""
    return f"step {shot.step}" + (f" · {shot.nonfinite:,} not finite" if shot.nonfinite else "")


def zoom_of(mosaic: Mosaic, wanted: int, tile: int | None) -> tuple[int, int]:
    """Return whole factors (down, across): they enlarge a picture to about `wanted` pixels, or each tile to about `tile`."""
    if tile is not None:
        across = mosaic.tiles[0].width if mosaic.tiles else 1
        return (max(1, round(tile / across)),) * 2
    longer = max(mosaic.height, mosaic.width)
    return stretched(mosaic, max(1, min(round(wanted / longer), _LARGEST // max(mosaic.enlarged))))


def stretched(mosaic: Mosaic, factor: int) -> tuple[int, int]:
    """Return `factor` as a pair (down, across). The shorter side of a very flat matrix gets a larger factor."""
    if mosaic.form != "matrix":
        return factor, factor
    down = factor * mosaic.width // (_FLATTEST * mosaic.height)
    across = factor * mosaic.height // (_FLATTEST * mosaic.width)
    return max(factor, min(down, _LARGEST)), max(factor, min(across, _LARGEST))


def enlarged(picture: Array, zoom: tuple[int, int]) -> Array:
    """Repeat each pixel down and across."""
    return picture.repeat(zoom[0], axis=0).repeat(zoom[1], axis=1)


# Frames are written to an animated GIF or WebP one by one, so that memory does not grow with their number.

_ENDLESS = b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"  # GIF extension: the animation begins again when it ends
_LEAVE = 1  # GIF disposal: what a frame does not cover stays as it was


def as_gif(frames: Iterable[Array], paints: Paints, milliseconds: int) -> bytes:
    """The bytes of a GIF with one palette. For each frame, only the part that changed is written."""
    pillow = import_pillow()
    assert paints.palette is not None
    data = io.BytesIO()
    before: Array = None
    for frame in frames:
        if before is None:
            data.write(_gif_header(frame, paints.palette))
        top, bottom, left, right = _changed(before, frame)
        part = pillow.Image.fromarray(np.ascontiguousarray(frame[top:bottom, left:right]))
        part.putpalette(paints.palette.tobytes())
        written = pillow.GifImagePlugin.getdata(part, (left, top), duration=milliseconds, disposal=_LEAVE)
        data.writelines(written)
        before = frame
    data.write(b";")
    return data.getvalue()


def _gif_header(frame: Array, palette: Array) -> bytes:
    height, width = frame.shape[:2]
    colors: bytes = palette.tobytes()
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF7, 0, 0) + colors + _ENDLESS


def _changed(before: Array, frame: Array) -> tuple[int, int, int, int]:
    """Return the smallest box around all pixels that differ: top, bottom, left, right. For equal frames: one pixel."""
    if before is None:
        return 0, frame.shape[0], 0, frame.shape[1]
    differs = before != frame
    rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    if not len(rows):
        return 0, 1, 0, 1
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1


def as_webp(frame_at: Callable[[int], Array], count: int, paints: Paints, milliseconds: int) -> bytes:
    """The bytes of a lossless WebP."""
    data = io.BytesIO()
    form: dict[str, Any] = {"format": "WEBP", "lossless": True, "quality": 25, "method": 2}
    _reel(frame_at, count, paints).save(data, save_all=True, duration=milliseconds, loop=0, **form)
    return data.getvalue()


def _reel(frame_at: Callable[[int], Array], count: int, paints: Paints) -> Any:
    """A Pillow image of several frames. A frame is made when Pillow seeks it."""
    pillow = import_pillow()

    class Reel(pillow.Image.Image):  # type: ignore[misc, name-defined]  # Pillow's types are not followed
        n_frames = count
        _at = -1

        def seek(self, at: int) -> None:
            if at != self._at:
                self.im, self._at = paints.as_image(frame_at(at)).im, at

        def tell(self) -> int:
            return max(self._at, 0)

    first = paints.as_image(frame_at(0))
    reel = Reel()
    reel._mode, reel._size, reel.im, reel._at = first.mode, first.size, first.im, 0
    return reel


_FRAME = 600  # the approximate number of pixels of a picture's longer side
_STRIP_FRAME = 260
_FRAMES = 120  # the default number of frames of an animation
_LASTS = 12  # by default an animation lasts about this many seconds
_SLOW, _FAST = 4, 15  # the least and the largest default number of frames per second
_FASTEST = 50.0  # frames per second; viewers slow down anything faster
_SAMPLES = 16  # the palette for pictures in colour is made from about this many of them
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
        kind: one of `torcheer.xray.records.KINDS`, such as `"weight"` or `"activation"`.
        path: ends with `.gif`, or with `.webp` for an animated WebP, which is smaller and takes longer. The file is there
            whole or not at all.
        frames: the largest number of snapshots, chosen evenly, with the first and the last. By default 120, or all if `every`
            is given.
        every: only every n-th snapshot.
        fps: frames per second, up to 50. By default 4 to 15, so that the whole lasts about twelve seconds.
        scale: `"run"` has the same colours for the same values over the whole run; `"frame"` has colours that fit each step. By
            default `"frame"` for gradients, since they shrink, else `"run"`. The picture says which.
        tile: the approximate width of a channel in pixels, or of a matrix's values; by default a picture has some 600 pixels.
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
        frames: the number of steps, with the first and the last; fewer if there are fewer snapshots.

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
    """The pictures of a layer over the run, read and painted one by one."""

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
    run.entry(layer, kind)  # raises if no snapshot has this layer and kind
    found = run.having(layer, kind)[::every]
    return found if most is None else found.some(evenly(len(found), most))


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
    """Read every picture once, to find the readable snapshots, the size of frames and the palette."""
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
    """Frames side by side, in several rows if they are wide, with one title and one colour key."""
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
    """Write the step. If each frame has its own colour scale, also write the values at the ends of the frame's scale."""
    return step_words(shot) + (f" ({number(shot.scale.low)} … {number(shot.scale.high)})" if scale == "frame" else "")


# Arguments and progress ---------------------------------------------------------------------------------------------


def _target(path: str | os.PathLike[str], endings: tuple[str, ...]) -> Path:
    """The path as a `Path`. Raises, before any work is done, if the path cannot be written to."""
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
