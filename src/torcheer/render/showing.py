"""Shows a picture: in the notebook, on the screen, or, where there is neither, in a file whose path is printed."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

from ..files import file_name
from .picture import Picture


def show(picture: Picture) -> Path | None:
    """Show a picture that is about to be returned: a notebook does that by itself, elsewhere it is saved and opened."""
    return None if notebook() is not None else _open(picture)


def present(picture: Picture) -> Path | None:
    """Show a picture that is not returned."""
    shell = notebook()
    if shell is None:
        return _open(picture)
    sys.modules["IPython"].display.display(picture)
    return None


def notebook() -> Any:
    """The notebook this runs in; None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if shell is not None and hasattr(shell, "kernel") else None


def has_screen() -> bool:
    """Whether a window can be opened."""
    if os.environ.get("CI") or os.environ.get("PYTEST_CURRENT_TEST"):
        return False
    if sys.platform in ("win32", "darwin"):
        return not os.environ.get("SSH_CONNECTION")
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(picture: Picture) -> Path:
    kind = "rolled" if picture.graph.is_rolled else "unrolled"
    path = Path(f"torcheer_{file_name(picture.title)}_{kind}.svg")
    picture.save(path)
    print(f"Picture: {path}")
    if has_screen():
        webbrowser.open(path.resolve().as_uri())
    return path
