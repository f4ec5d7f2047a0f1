"""The page of every model, as it opens, in the window of a laptop and on a telephone."""

from __future__ import annotations

import tempfile
from pathlib import Path

from zoo.cases import Unavailable

from .models import MODELS, history_of
from .sheet import Sheet

SIZES = {"laptop": (1440, 900), "telephone": (390, 844)}


def add_to(sheet: Sheet, only: str = "") -> None:
    """Take the pictures."""
    for name in MODELS:
        if only not in name.lower():
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                page_file = history_of(name).to_html(Path(folder) / "page.html")
            except Unavailable as reason:
                print(f"  {name} is left out: {reason}")
                continue
            for title, size in SIZES.items():
                sheet.shoot(page_file, "The page, first view", f"{name}, {title}", size)
