"""Failures of files or figures: they give warnings, and the training goes on."""

from __future__ import annotations

import sys
import warnings
from typing import NamedTuple

from ...errors import SnapshotLost


class Failure(NamedTuple):
    """What went wrong behind the training. Of each kind the user is told once."""

    kind: str
    message: str


def tell(message: str, stacklevel: int = 2) -> None:
    """Warn; where warnings are errors (`python -W error`), say it on stderr instead, since an error would end the training."""
    try:
        warnings.warn(f"Xray: {message}", SnapshotLost, stacklevel=stacklevel + 1)
    except SnapshotLost as told:
        if sys.stderr is not None:
            print(told, file=sys.stderr)
