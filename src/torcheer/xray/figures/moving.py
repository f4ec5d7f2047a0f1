"""Frames to an animated GIF or WebP, one at a time: how many there are makes no difference to the memory that is needed."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .frames import Paints, import_pillow
from .tiles import Array

_ENDLESS = b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"  # the animation begins again when it ends
_LEAVE = 1  # what a frame does not cover stays as it was


def as_gif(frames: Iterable[Array], paints: Paints, milliseconds: int) -> bytes:
    """Frames as a GIF with one palette. Of each frame only the part that changed is written."""
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
    colors: bytes = palette.tobytes().ljust(256 * 3, b"\0")
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF7, 0, 0) + colors + _ENDLESS


def _changed(before: Array, frame: Array) -> tuple[int, int, int, int]:
    """The smallest box in which two frames differ; one pixel where they do not."""
    if before is None:
        return 0, frame.shape[0], 0, frame.shape[1]
    differs = before != frame
    rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    if not len(rows):
        return 0, 1, 0, 1
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1


def as_webp(frame_at: Callable[[int], Array], count: int, paints: Paints, milliseconds: int) -> bytes:
    """Frames as a WebP without loss."""
    data = io.BytesIO()
    form: dict[str, Any] = {"format": "WEBP", "lossless": True, "quality": 25, "method": 2}
    _reel(frame_at, count, paints).save(data, save_all=True, duration=milliseconds, loop=0, **form)
    return data.getvalue()


def _reel(frame_at: Callable[[int], Array], count: int, paints: Paints) -> Any:
    """An image of several frames as Pillow knows them: each is made when it is sought."""
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
