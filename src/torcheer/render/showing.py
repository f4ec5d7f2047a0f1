"""Shows a picture: in the notebook, on the screen, or, where there is neither, in a file whose path is printed."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

from ..files import file_name
from ..graph import Graph
from .options import PictureOptions
from .picture import Picture, Target, check_format, make_picture


def draw(graph: Graph, options: PictureOptions, target: Target | None, format: str | None) -> Picture:
    """Draw a graph to a path or file object, which is checked before the work. Without one, show the picture.

    A notebook shows what is returned by itself; elsewhere the picture is saved and opened.
    """
    form = check_format(target, format)
    picture = make_picture(graph, options)
    if target is not None:
        picture.save(target, format)
    elif notebook() is None:
        _open(picture, form or "svg")
    return picture


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


def _open(picture: Picture, form: str = "svg") -> Path:
    kind = "rolled" if picture.graph.is_rolled else "unrolled"
    path = Path(f"torcheer_{file_name(picture.title)}_{kind}.{form}")
    picture.save(path)
    open_file("Picture", path)
    return path


def open_file(what: str, path: Path) -> None:
    """Print where a file is, and what it is; open it where there is a screen."""
    print(f"{what}: {path}")
    if has_screen():
        webbrowser.open(path.resolve().as_uri())
