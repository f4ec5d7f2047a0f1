"""Paints the frames of an animation, pixel by pixel, with NumPy; Pillow only draws the letters.

All frames share one palette made from the colour scale, so a value has the same colour in every frame: nothing is dithered,
nothing is smoothed. A frame is a title, the step, the picture enlarged by a whole factor, and the colours with their values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .captions import number
from .colors import GAP, INK, NONFINITE, ColorScale, paint
from .tiles import Array, Mosaic

_RAMP = 235  # colours of the scale; odd, so that zero has one of its own
_GREYS = 16  # from ink to paper, for letters
_PAPER = _RAMP + _GREYS - 1
_NONFINITE = _RAMP + _GREYS

_LARGEST = 80  # pixels one value takes at most
_FLATTEST = 4.0  # a matrix is stretched until its sides are no further apart
_BAR = (200, 12)


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture at a step, not enlarged."""

    step: int
    picture: Array
    scale: ColorScale
    nonfinite: int  # values of the whole tensor


def import_pillow() -> Any:
    """Pillow, or an error that says how to get it."""
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
        """A line of text; a letter that the font lacks is a question mark."""
        text = text.replace("−", "-").replace("×", "x")
        text = "".join(letter if letter.isascii() or letter in "·…" else "?" for letter in text)
        font = self._font(size)
        if not self._has_freetype:
            text = text.replace("…", "...")
        image = self._pillow.Image.new("L", (max(1, round(font.getlength(text)) + 1), round(size * 1.35)), 255)
        self._pillow.ImageDraw.Draw(image).text((0, 0), text, font=font, fill=0)
        return np.asarray(image)

    def fitting(self, text: str, size: int, width: int) -> Array:
        """A line of text of at most `width` pixels; if it is too long its beginning is cut off."""
        line = self.line(text, size)
        while line.shape[1] > width and len(text) > 2:
            text = "…" + text[2:]
            line = self.line(text, size)
        return line[:, :width]

    def _font(self, size: int) -> Any:
        if size not in self._fonts:
            try:
                self._fonts[size] = self._pillow.ImageFont.load_default(size)
            except (TypeError, ImportError):  # Pillow 10.0, and a Pillow without FreeType: one size, no …
                self._fonts[size] = self._pillow.ImageFont.load_default()
                self._has_freetype = False
        return self._fonts[size]


# Paints -------------------------------------------------------------------------------------------------------------


class Paints:
    """The form of pixels: indices into a palette or, if the palette is None, red, green and blue.

    Pictures that are in colour themselves need a table: for each colour in five bits a channel, the nearest of the palette.
    """

    def __init__(self, palette: Array | None, table: Array | None = None) -> None:
        self.palette = palette
        self._table = table

    def picture(self, mosaic: Mosaic, scale: ColorScale) -> Array:
        if self.palette is None:
            return paint(mosaic, scale)
        if mosaic.is_color:
            assert self._table is not None
            levels = self._table[_code(paint(mosaic, scale))]
        else:
            levels = scale.levels(mosaic.values, _RAMP)
        levels[mosaic.gaps] = _PAPER  # gaps and values that are not finite have colours of their own in every palette
        levels[mosaic.nonfinite] = _NONFINITE
        return levels

    def letters(self, greys: Array) -> Array:
        """Grey pixels in these paints."""
        if self.palette is not None:
            return (_RAMP + np.rint(greys / 255 * (_GREYS - 1))).astype(np.uint8)
        ink = np.array(INK) + (np.array(GAP) - INK) * (greys[..., None] / 255)
        return np.rint(ink).astype(np.uint8)

    def blank(self, height: int, width: int) -> Array:
        return self.letters(np.full((height, width), 255))

    def bar(self, scale: ColorScale, width: int, height: int, is_color: bool) -> Array:
        """The colours of a scale, from the lowest value to the highest; greys where pictures are in colour themselves."""
        if is_color:
            return self.letters(np.tile(np.linspace(0, 255, width), (height, 1)))
        levels = np.rint(np.linspace(0, _RAMP - 1, width)).astype(np.uint8)
        row = levels if self.palette is not None else scale.colors(_RAMP)[levels]
        return np.repeat(row[None], height, axis=0)

    def as_image(self, canvas: Array) -> Any:
        """What Pillow writes."""
        image = import_pillow().Image.fromarray(canvas)
        if self.palette is not None:
            image.putpalette(self.palette.tobytes())
        return image


def scale_paints(scale: ColorScale) -> Paints:
    """A palette of a colour scale: its colours, greys for letters, the colour of what is not finite."""
    return Paints(_palette(scale.colors(_RAMP)))


def quantised_paints(pictures: list[Array]) -> Paints:
    """The palette that suits pictures in red, green and blue best, and what it makes of every colour."""
    found = np.unique(np.concatenate([_code(picture).ravel() for picture in pictures]))
    pillow = import_pillow()
    image = pillow.Image.fromarray(_colors(found)[None].astype(np.uint8))
    chosen = np.array(
        image.quantize(_RAMP, method=pillow.Image.Quantize.MAXCOVERAGE).getpalette()[: _RAMP * 3], np.uint8
    ).reshape(-1, 3)
    ramp = np.concatenate([chosen, np.repeat(chosen[-1:], _RAMP - len(chosen), axis=0)])
    every = np.arange(1 << 15)
    return Paints(_palette(ramp), np.concatenate([_nearest(_colors(part), ramp) for part in np.array_split(every, 8)]))


def _colors(codes: Array) -> Array:
    """The colours of codes of five bits a channel."""
    return np.stack([codes >> 10 & 31, codes >> 5 & 31, codes & 31], axis=1) * 255 // 31


def _code(picture: Array) -> Array:
    """Red, green and blue in one number, five bits each: more than a palette can tell apart."""
    parts = np.rint(picture.astype(np.float64) * 31 / 255).astype(np.int32)
    return parts[..., 0] << 10 | parts[..., 1] << 5 | parts[..., 2]


def _nearest(colors: Array, palette: Array) -> Array:
    distances = np.square(colors[:, None].astype(np.int32) - palette[None].astype(np.int32)).sum(axis=2)
    return distances.argmin(axis=1).astype(np.uint8)


def _palette(ramp: Array) -> Array:
    greys = np.linspace(INK, GAP, _GREYS).round()
    return np.concatenate([ramp, greys, [NONFINITE]]).astype(np.uint8)


# Frames -------------------------------------------------------------------------------------------------------------


@dataclass
class Stage:
    """What all frames share: their size, how far pictures are enlarged, the title."""

    title: str
    height: int  # of the largest picture, enlarged
    width: int
    zoom: tuple[int, int]
    paints: Paints
    is_color: bool
    scale_words: str
    letters: Letters = field(default_factory=Letters)

    margin = 12
    narrowest = 340

    def frame(self, shot: Shot, share: float) -> Array:
        """A whole frame; `share` is how much of the run has passed."""
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
        """The colours and the values at their ends."""
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
    """`step 40`, and how many of its values are not finite."""
    return f"step {shot.step}" + (f" · {shot.nonfinite:,} not finite" if shot.nonfinite else "")


def zoom_of(mosaic: Mosaic, wanted: int, tile: int | None) -> tuple[int, int]:
    """By which whole factors, down and across, a picture is about as large as wanted, or its tiles are."""
    if tile is not None:
        across = mosaic.tiles[0].width if mosaic.tiles else 1
        return (max(1, round(tile / across)),) * 2
    longer = max(mosaic.height, mosaic.width)
    factor = max(1, min(round(wanted / longer), _LARGEST // max(mosaic.enlarged)))
    if mosaic.form != "matrix":
        return factor, factor
    down = int(factor * longer / (_FLATTEST * mosaic.height))
    across = int(factor * longer / (_FLATTEST * mosaic.width))
    return max(factor, min(down, _LARGEST)), max(factor, min(across, _LARGEST))


def enlarged(picture: Array, zoom: tuple[int, int]) -> Array:
    """Each pixel as a block of equal ones."""
    return picture.repeat(zoom[0], axis=0).repeat(zoom[1], axis=1)
