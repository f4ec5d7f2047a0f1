"""What the ending of a path says of the file, and whether that agrees with what is written into the file."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from .errors import InvalidArgument

_SAME = {"gv": "dot", "htm": "html", "jpeg": "jpg", "tiff": "tif", "text": "txt"}
_KNOWN = frozenset(
    "svg png pdf tex dot gif webp jpg bmp tif eps ps "  # pictures
    "html css js json jsonl csv tsv xml yaml xls xlsx parquet md py ipynb "
    "npy npz pt pth pkl safetensors onnx zarr gz bz2 xz zip tar mp4 webm".split()
)


def kind_of(path: str | os.PathLike[str]) -> str:
    """Which kind of file the ending of a path names, such as "html" for `page.HTM`; empty where the ending names none.

    >>> kind_of("page.HTM"), kind_of("model.v2")
    ('html', '')
    """
    ending = Path(path).suffix.removeprefix(".").lower()
    kind = _SAME.get(ending, ending)
    return kind if kind in _KNOWN else ""


def check_ending(path: Any, kind: str, what: str) -> None:
    """Raise where the ending of a path names another kind of file than the one that is written there."""
    if isinstance(path, (str, os.PathLike)) and (named := kind_of(path)) and named != kind:
        raise InvalidArgument(f"the {what} is written as .{kind}, and {str(path)!r} ends as a file of another kind does.")


def form_of(target: Any, given: Any, forms: Collection[str], what: str, default: str | None = None) -> str:
    """The form in which something is written to a path or file object: `given`, else what the ending names, else `default`.

    Raises where that is none of `forms`, and where `given` and the ending contradict each other.

    >>> form_of("model.svg", None, ("svg", "png"), "picture")
    'svg'
    """
    if given is not None:
        form = check_form(given, forms, what)
    path = target if isinstance(target, (str, os.PathLike)) else getattr(target, "name", None)
    named = kind_of(path) if isinstance(path, (str, os.PathLike)) else ""
    if given is not None and named in ("", form):
        return form
    if given is not None:
        raise InvalidArgument(
            f"format={given!r} and the ending of {str(path)!r} contradict each other. Leave format out, or give a path "
            f"that ends with .{form}."
        )
    if named in forms:
        return named
    if default is None or named:
        endings = ", ".join(f".{one}" for one in forms)
        raise InvalidArgument(f"the ending of a {what}'s path is one of {endings}; got {str(path)!r}.")
    return default


def check_form(given: Any, forms: Collection[str], what: str) -> str:
    """A form as a user names it, in the words of this library. Raises where it is none of `forms`."""
    form = given.lower().removeprefix(".") if isinstance(given, str) else ""
    form = _SAME.get(form, form)
    if form not in forms:
        raise InvalidArgument(f"a {what} has the forms {', '.join(forms)}; got {given!r:.80}.")
    return form
