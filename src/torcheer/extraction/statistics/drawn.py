"""Drawn: a Matplotlib figure that a notebook shows and that is saved whole."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import IO, Any

from ...endings import check_form, form_of
from ...errors import InvalidArgument
from ...files import write_whole

FORMS = ("png", "svg", "pdf")


class Drawn:
    """A figure. A notebook shows it; `save` writes it; `figure` is Matplotlib's, to change what is wanted otherwise."""

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
        """Write the figure to a path, whose ending says the form, or to a binary file. A file is there whole or not at all."""
        if not isinstance(target, (str, os.PathLike)):
            if not hasattr(target, "write"):
                raise InvalidArgument(f"a figure is written to a path or a file object; got {target!r:.80}.")
            target.write(self.to_bytes(form_of(target, format, FORMS, "figure", "png")))
            return
        write_whole(Path(target), self.to_bytes(form_of(target, format, FORMS, "figure")), "figure")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """The picture for a notebook, half as large as its pixels, which is sharp on every screen."""
        width = round(float(self.figure.get_figwidth() * self.figure.dpi / 2))
        return {"image/png": self.to_bytes("png"), "text/plain": repr(self)}, {"image/png": {"width": width}}

    def __repr__(self) -> str:
        width, height = (round(float(size * self.figure.dpi)) for size in self.figure.get_size_inches())
        return f"<Figure of {self.title}: {width}×{height} pixels>"
