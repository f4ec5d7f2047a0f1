"""Pages, reports and animations that a user asks for: the path is checked before the work, the file is written whole."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import InvalidArgument
from .files import write_whole


def output_path(path: str | os.PathLike[str], what: str, example: str) -> Path:
    """A path that a file can be written to, as far as is known beforehand; `what` it is and an example are for errors."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidArgument(f"path says where the {what} is written, such as {example!r}; got {path!r:.80}.")
    target = Path(path)
    if target.is_dir():
        raise _unwritable(target, what, f"it is a folder. Give the path of a file in it, such as {str(target / example)!r}")
    if not target.parent.is_dir():
        raise _unwritable(target, what, f"there is no folder {str(target.parent)!r}. Make it first, or choose another path")
    return target


def write_output(path: Path, data: bytes, what: str) -> Path:
    """Write a file whole or not at all. Returns its path."""
    if path.is_dir():
        raise _unwritable(path, what, "it is a folder. Give the path of a file")
    try:
        write_whole(path, data, what)
    except OSError as error:
        reason = (error.__cause__ or error).strerror or error  # type: ignore[attr-defined]  # an OSError has it
        raise _unwritable(path, what, f"{reason}. Choose another path") from error
    return path


def _unwritable(path: Path, what: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f"the {what} cannot be written to {str(path)!r}: {reason}.")
