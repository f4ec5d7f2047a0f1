"""Finds out where results can be shown: in a notebook, in a window, or as a file whose path is printed."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Any


def notebook() -> Any:
    """The notebook that runs this code; None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if shell is not None and hasattr(shell, "kernel") else None


def has_screen() -> bool:
    """True if a window can be opened."""
    if os.environ.get("CI") or os.environ.get("PYTEST_CURRENT_TEST"):
        return False
    if sys.platform in ("win32", "darwin"):
        return not os.environ.get("SSH_CONNECTION")
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_file(what: str, path: Path) -> None:
    """Print what a file is and its path; open it if there is a screen."""
    print(f"{what}: {path}")
    if has_screen():
        webbrowser.open(path.resolve().as_uri())
