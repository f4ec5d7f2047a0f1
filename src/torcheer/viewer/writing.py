"""Writes files whole or not at all, and says in our words when that cannot be done."""

from __future__ import annotations

from pathlib import Path

from ..errors import InvalidArgument
from ..files import write_whole


def write(path: Path, text: str, what: str) -> Path:
    """Write text to a file; `what` it is, for the error."""
    if path.is_dir():
        raise InvalidArgument(f"the {what} is written to a file; {str(path)!r} is a folder.")
    try:
        write_whole(path, text.encode())
    except OSError as error:
        why = (error.__cause__ or error).strerror or error  # type: ignore[attr-defined]  # an OSError has it
        raise InvalidArgument(f"the {what} cannot be written to {str(path)!r}: {why}. Choose another path.") from error
    return path
