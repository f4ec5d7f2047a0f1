"""`Picture`: laid out once, then drawn in any format, saved or shown."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from .._files.files import check_form, file_name, form_of, output_path, write_whole
from .._text import plural
from .._text.screen import notebook, open_file
from ..errors import InvalidArgument
from ..graph import Graph
from .columns import in_columns
from .dot import Placement, box_name, dot_text
from .drawing import Drawing, make_drawing
from .geometry import read_layout
from .layout import LEAST, first_laid_out, run_graphviz
from .options import PictureOptions
from .placing import place_words
from .svg import light_svg
from .views import View, check_drawable, views, views_for_print
from .wording import clean

Target = str | os.PathLike[str] | IO[Any]  # a path or a file object
FORMATS = {"svg": True, "png": False, "pdf": False, "dot": True}  # name of a format -> True if it is text
_LONGEST = 16_000  # a side of a PNG has at most this many pixels
_AREA = 60e6  # a PNG has at most this many pixels
SMALLEST_TEXT = 6.0  # smaller text, in points, cannot be read in print
_PRINTED = 300.0  # pixels per inch, if the picture has a width


class Picture:
    """A picture of a graph. A notebook displays it; `save` writes it.

    >>> import torch, torcheer
    >>> from torcheer.pictures import make_picture
    >>> picture = make_picture(torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2)).graph)
    >>> "relu_1_1" in picture.svg
    True
    """

    def __init__(self, view: View, drawing: Drawing, places: Placement, options: PictureOptions) -> None:
        self.graph = view.graph
        self.notes = drawing.notes
        self._drawing = drawing
        self._places = places
        self._width = options.length
        self._limit = max(options.time_limit, LEAST)

    @property
    def title(self) -> str:
        return self._drawing.title

    @property
    def dot(self) -> str:
        """The DOT source of the picture, before the layout."""
        return dot_text(self._drawing)

    @cached_property
    def svg(self) -> str:
        """The picture as SVG."""
        titles = {node.id: clean(node.key, 400) for node in self._drawing.nodes}
        titles |= {box_name(number): clean(box.key, 400) for number, box in enumerate(self._drawing.boxes)}
        own_labels = {node.id for node in self._drawing.nodes if "label" in node.attributes}
        return light_svg(self._drawn("svg"), titles, self.title, own_labels, self._width)

    def to_bytes(self, form: str) -> bytes:
        """The picture in one of the formats of `FORMATS`."""
        form = check_form(form, FORMATS, "picture")
        if form == "svg":
            return self.svg.encode()
        return self.dot.encode() if form == "dot" else self._drawn(form)

    def _drawn(self, form: str) -> bytes:
        drawing = self._drawing
        attributes: dict[str, str] = {}
        width, height = self.size
        if form != "svg" and self._width is not None:
            attributes["size"] = f"{width / 72:.4f},{height / 72 + 1:.4f}!"
        if form == "pdf":
            attributes["margin"] = "0"
        if form == "png":
            wanted = 144.0 if self._width is None else _PRINTED
            sharp = min(wanted, 72 * _LONGEST / max(width, height, 1.0), 72 * (_AREA / max(width * height, 1.0)) ** 0.5)
            attributes["dpi"] = f"{sharp:.1f}"
        source = dot_text(replace(drawing, attributes={**attributes, **drawing.attributes}), self._places)
        return run_graphviz(source, "nop2", form, self._limit)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height, in points."""
        bounds = self._places.bounds
        width = bounds.width if self._width is None else self._width.points
        return width, bounds.height * width / bounds.width

    @property
    def smallest_text(self) -> float:
        """The size of the smallest text at the width of the picture, in points."""
        style, drawing = self._drawing.style, self._drawing
        sizes = {style.name_size}
        if any(len(node.lines) > 1 or node.is_reference for node in drawing.nodes):
            sizes.add(style.text_size)
        sizes |= {style.edge_size for edge in drawing.edges if edge.text} | {style.title_size for _ in drawing.boxes}
        return min(sizes) * self.size[0] / self._places.bounds.width

    def save(self, target: Target, format: str | None = None) -> None:
        """Write the picture to a path, whose ending gives the format, or to a file object.

        A file is written whole or not at all.
        """
        data = self.to_bytes(form_for(target, format))
        if isinstance(target, (str, os.PathLike)):
            write_whole(Path(target), data, "picture")
        else:
            target.write(data.decode() if _takes_text(target) else data)

    def _repr_svg_(self) -> str:
        """The SVG for a notebook, never wider than the page. Files are without this style, which some viewers cannot read."""
        return self.svg.replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)

    def __repr__(self) -> str:
        width, height = self.size
        return f"<Picture of {self.title}: {plural(len(self.graph.nodes), 'node')}, {width:.0f}×{height:.0f} points>"


def form_for(target: Target, format: str | None) -> str:
    """The format in which a picture is written to a path or file object. Raises if it cannot be written there."""
    if isinstance(target, (str, os.PathLike)):
        form = form_of(target, format, FORMATS, "picture")
        output_path(target, "picture", f"model.{form}")
        return form
    if not hasattr(target, "write"):
        raise InvalidArgument(f"a picture is written to a path or a file object; got {target!r:.80}.")
    form = form_of(target, format, FORMATS, "picture", "svg")
    if not FORMATS[form] and _takes_text(target):
        raise InvalidArgument(f"a {form.upper()} needs a file opened in binary mode, open(path, 'wb').")
    return form


def check_format(target: Target | None, format: str | None) -> str | None:
    """The format of a picture, checked before the work; None if it is only shown and no format was given."""
    if target is not None:
        return form_for(target, format)
    return check_form(format, FORMATS, "picture") if format is not None else None


def _takes_text(file: Any) -> bool:
    return hasattr(file, "encoding") or (hasattr(file, "getvalue") and isinstance(file.getvalue(), str))


def make_picture(graph: Graph, options: PictureOptions | None = None) -> Picture:
    """Lay out a graph. If it is too large or too slow, fewer modules are open, and the picture says so."""
    options = options or PictureOptions()
    check_drawable(graph)
    if options.style == "paper" and options.length is not None:
        return _for_print(graph, options)
    return _made(views(graph, options), graph.title, options)


def _made(tries: Iterable[View], title: str, options: PictureOptions) -> Picture:
    drawn = first_laid_out(tries, lambda view: make_drawing(view, options), title, options.time_limit)
    view, drawing, laid_out = drawn
    found, drawing = in_columns(read_layout(laid_out), drawing, options)
    return Picture(view, drawing, place_words(found, drawing), options)


def _for_print(graph: Graph, options: PictureOptions) -> Picture:
    """Make the most detailed picture whose text can be read in print; if there is none, the picture with the largest text."""
    end = time.monotonic() + options.time_limit
    best: Picture | None = None
    for number, view in enumerate(views_for_print(graph, options)):
        if best is not None and time.monotonic() > end:
            break
        for columns in dict.fromkeys((options.columns, options.columns or 1)):
            picture = _made([view], graph.title, replace(options, columns=columns))
            if best is None or picture.smallest_text > best.smallest_text:
                best = picture
            if picture.smallest_text >= SMALLEST_TEXT:
                if number:
                    said = f"Closed and folded until no text is smaller than {SMALLEST_TEXT:g} pt at {options.length}."
                    picture.notes = (*picture.notes, said)
                return picture
    assert best is not None
    said = f"The smallest text has {best.smallest_text:.1f} pt at {options.length}: give it more width."
    best.notes = (*best.notes, said)
    return best


# Shows a picture: in the notebook, on the screen, or else as a file whose path is printed.


def draw(graph: Graph, options: PictureOptions, target: Target | None, format: str | None) -> Picture:
    """Draw a graph to a path or file object, which is checked before the work. Without a target, show the picture.

    A notebook displays the returned picture by itself; elsewhere the picture is saved and opened.
    """
    form = check_format(target, format)
    picture = make_picture(graph, options)
    if target is not None:
        picture.save(target, format)
    elif notebook() is None:
        _open(picture, form or "svg")
    return picture


def present(picture: Picture) -> Path | None:
    """Show a picture that is not returned to a notebook."""
    shell = notebook()
    if shell is None:
        return _open(picture)
    sys.modules["IPython"].display.display(picture)
    return None


def _open(picture: Picture, form: str = "svg") -> Path:
    kind = "rolled" if picture.graph.is_rolled else "unrolled"
    path = Path(f"torcheer_{file_name(picture.title)}_{kind}.{form}")
    picture.save(path)
    open_file("Picture", path)
    return path
