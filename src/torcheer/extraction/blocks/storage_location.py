"""Where features are: a folder of this machine, or a URL that `fsspec` opens."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...errors import InvalidArgument
from ...inputs import described
from .remote_storage import RemoteStorage
from .storage import LocalStorage, Storage

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")
_HERE = re.compile(r"(file|local)://", re.IGNORECASE)


def open_storage(folder: str | os.PathLike[str]) -> Storage:
    """The storage that a path or URL means."""
    if not isinstance(folder, (str, os.PathLike)) or not str(folder):
        raise InvalidArgument(f"a folder is given by its path or URL; got {described(folder)}.")
    text = str(folder)
    if (here := _HERE.match(text)) is not None:
        return LocalStorage(Path(text[here.end() :]))
    return RemoteStorage(text) if _URL.match(text) else LocalStorage(Path(folder))
