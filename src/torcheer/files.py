"""Writes files whole or not at all, and names them."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path


def write_whole(path: Path, data: bytes, what: str = "file") -> None:
    """Write a file under another name, flush it to the disk and rename it, so that nobody ever finds half of it.

    Raises the OSError that came, saying that this `what` cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent or ".")
    except OSError as error:
        raise _unwritable(path, what, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except OSError as error:
        raise _unwritable(path, what, error) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def file_name(title: str) -> str:
    """A title as part of the name of a file or folder.

    >>> file_name("My model, v2")
    'My_model_v2'
    """
    return re.sub(r"[^\w.-]+", "_", title).strip("._")[:60] or "model"


def _unwritable(path: Path, what: str, error: OSError) -> OSError:
    return type(error)(error.errno, f"the {what} cannot be written: {error.strerror or error}", str(path))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
