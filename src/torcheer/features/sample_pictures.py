"""Figures for features: `Drawn`, a Matplotlib figure with `save`, and sheets with pictures of samples."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from .._files.files import check_form, form_of, write_whole
from ..errors import InvalidArgument
from ..pictures.sheet import FAINT, Sheet, line_height, text_width
from .exporting import as_numpy

if TYPE_CHECKING:
    from .statistics import ChosenSamples, Sample


FORMS = ("png", "svg", "pdf")


class Drawn:
    """A figure that notebooks show. `save` writes it; `figure` is the Matplotlib figure, for changes."""

    def __init__(self, figure: Any, title: str) -> None:
        self.figure = figure
        self.title = title

    def to_bytes(self, form: str = "png") -> bytes:
        """The figure as `png`, `svg` or `pdf`."""
        form = check_form(form, FORMS, "figure")
        data = io.BytesIO()
        self.figure.savefig(data, format=form, metadata={"Software": None} if form == "png" else {})
        return data.getvalue()

    def save(self, target: str | os.PathLike[str] | IO[bytes], format: str | None = None) -> None:
        """Write the figure to a path, whose ending gives the format, or to a binary file object. A file is written whole or
        not at all.
        """
        if not isinstance(target, (str, os.PathLike)):
            if not hasattr(target, "write"):
                raise InvalidArgument(f"a figure is written to a path or a file object; got {target!r:.80}.")
            target.write(self.to_bytes(form_of(target, format, FORMS, "figure", "png")))
            return
        write_whole(Path(target), self.to_bytes(form_of(target, format, FORMS, "figure")), "figure")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """The picture for a notebook, at half its pixel size, so that it is sharp on every screen."""
        width = round(float(self.figure.get_figwidth() * self.figure.dpi / 2))
        return {"image/png": self.to_bytes("png"), "text/plain": repr(self)}, {"image/png": {"width": width}}

    def __repr__(self) -> str:
        width, height = (round(float(size * self.figure.dpi)) for size in self.figure.get_size_inches())
        return f"<Figure of {self.title}: {width}×{height} pixels>"


# A sheet with pictures of samples, such as the top samples of units.

Array = np.ndarray[Any, Any]
# A dataset, a tensor or list of pictures, a mapping from ids to pictures, or a function of a sample's number.
Pictures = Dataset[Any] | Tensor | Array | Sequence[Any] | Mapping[Any, Any] | Callable[[int], Any]
_TILE = 220  # size of a picture in pixels
_GAP = 16
_MARGIN = 30
_ACROSS = 5  # number of pictures of one unit in a row
_MOST_TILES = 2000
_NAMES = ("image", "img", "pixel_values", "picture", "x")  # common names of a picture in a dictionary


class SamplePictures(Drawn):
    """Pictures of samples in order, each with its number or id and its value; `save` writes them."""

    def __init__(self, figure: Any, title: str, samples: list[ChosenSamples]) -> None:
        super().__init__(figure, title)
        self.samples = samples[0] if len(samples) == 1 else samples


def picture_sheet(groups: Sequence[ChosenSamples], of: Pictures, title: str = "") -> SamplePictures:
    """Draw the samples of each group: a single group in several rows, or one row for each of several groups."""
    picture_of = _pictures(of)
    longest = max((len(group) for group in groups), default=0)
    across = min(longest, _ACROSS) if len(groups) == 1 else longest
    down = math.ceil(longest / max(across, 1)) if len(groups) == 1 else len(groups)
    if across * down > _MOST_TILES:
        raise InvalidArgument(
            f"a sheet has {_MOST_TILES:,} pictures at most; {across * down:,} were asked for. Choose fewer units."
        )
    title = title or groups[0].title
    left = _MARGIN + (max(text_width(_row_title(group), 8) for group in groups) + 20 if len(groups) > 1 else 0)
    top = _MARGIN + line_height(11) + 12
    step = _TILE + _GAP, _TILE + line_height(7) + _GAP
    with Sheet.style():
        width = max(left + across * step[0] + _MARGIN, 2 * _MARGIN + text_width(title, 11, "bold"))
        sheet = Sheet(width, top + max(down, 1) * step[1] + _MARGIN)
        sheet.write(_MARGIN, _MARGIN, title, 11, weight="bold")
        if not across:
            sheet.write(_MARGIN, top, "no samples", 9, color=FAINT)
        for row, group in enumerate(groups):
            if len(groups) > 1:
                sheet.write(_MARGIN, top + row * step[1] + _TILE / 2 - line_height(8) / 2, _row_title(group), 8)
            for place, sample in enumerate(group):
                at = divmod(place, across) if len(groups) == 1 else (row, place)
                _draw(sheet, left + at[1] * step[0], top + at[0] * step[1], picture_of(sample), sample)
    return SamplePictures(sheet.figure, title, list(groups))


def _row_title(group: ChosenSamples) -> str:
    return group.row_title or group.title


def _draw(sheet: Sheet, left: float, top: float, picture: Array, sample: Sample) -> None:
    height, width = picture.shape[:2]
    scale = _TILE / max(height, width)
    size = width * scale, height * scale
    axes = sheet.axes(left + (_TILE - size[0]) / 2, top + (_TILE - size[1]) / 2, *size)
    axes.imshow(
        picture, cmap="gray", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest" if scale >= 1 else "antialiased"
    )
    axes.set_axis_off()
    name = f"#{sample.number}" if sample.id is None else str(sample.id)
    caption = f"{name} · {sample.value:.3g}"
    while len(name) > 4 and text_width(caption, 7) > _TILE:
        name = "…" + name[2:]  # the end of a path distinguishes pictures
        caption = f"{name} · {sample.value:.3g}"
    sheet.write(left, top + _TILE + 4, caption, 7, color=FAINT)


# Pictures -----------------------------------------------------------------------------------------------------------


def _pictures(of: Pictures) -> Callable[[Sample], Array]:
    """Return a function that finds the picture of a sample."""
    if isinstance(of, Mapping):
        return lambda sample: _found(of, sample.number if sample.id is None else sample.id)
    if hasattr(of, "__getitem__") and not isinstance(of, (str, bytes)):
        return lambda sample: _found(of, sample.number)
    if callable(of):
        return lambda sample: as_picture(of(sample.number), sample.number)
    raise InvalidArgument(
        "pictures are a dataset, a tensor or list of pictures, a mapping from ids to pictures, or a function of a sample's "
        f"number; got {type(of).__name__}: {of!r:.60}."
    )


def _found(of: Any, key: Any) -> Array:
    try:
        item = of[key]
    except (IndexError, KeyError) as error:
        raise InvalidArgument(f"the pictures have no sample {key!r}: give the dataset of the features.") from error
    return as_picture(item, key)


def as_picture(item: Any, key: Any = "") -> Array:
    """Convert a picture to numbers from 0 to 1, of shape height × width × 3, or height × width if grey.

    Takes the first item of a tuple, or the item of a dictionary with a picture's name. Values outside 0 to 1, as in
    normalised pictures, are scaled to that range.
    """
    if isinstance(item, Mapping):
        name = next((name for name in _NAMES if name in item), None)
        if name is None:
            raise InvalidArgument(f"sample {key!r} has no picture among {list(item)}: {_ADVICE}")
        return as_picture(item[name], key)
    if isinstance(item, (tuple, list)) and item and not isinstance(item[0], (int, float)):
        return as_picture(item[0], key)
    if isinstance(item, (str, os.PathLike)):
        from PIL import Image

        if not Path(item).is_file():
            raise InvalidArgument(f"sample {key!r} is the text {str(item)!r:.60}, not the name of a picture file: {_ADVICE}")
        with Image.open(item) as opened:
            return _scaled(np.asarray(opened.convert("RGB")))
    if hasattr(item, "convert") and hasattr(item, "getbands"):  # a Pillow image
        return _scaled(np.asarray(item.convert("RGB")))
    if isinstance(item, Tensor):
        item = as_numpy(item)
    array = np.asarray(item)
    if array.dtype.kind not in "fiub":
        raise InvalidArgument(f"sample {key!r} is {type(item).__name__}, which is not a picture: {_ADVICE}")
    return _scaled(_channels_last(array, key))


_ADVICE = "give a function of the sample's number that returns a picture."


def _channels_last(array: Array, key: Any) -> Array:
    while array.ndim > 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim == 3 and array.shape[0] in (1, 3, 4):
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 3 and array.shape[-1] in (1, 3, 4):
        chosen: Array = array[..., 0] if array.shape[-1] == 1 else array[..., :3]
        return chosen
    if array.ndim == 2:
        return array
    raise InvalidArgument(
        f"sample {key!r} has shape {array.shape}, which is not a picture (height × width, with 1, 3 or 4 channels): {_ADVICE}"
    )


def _scaled(array: Array) -> Array:
    """Convert to numbers from 0 to 1: divide bytes by 255; stretch other numbers if any is outside this range."""
    if array.dtype == np.uint8:
        scaled: Array = array / 255.0
        return scaled
    values: Array = np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if low >= 0 and high <= 1:
        return values
    stretched: Array = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return stretched
