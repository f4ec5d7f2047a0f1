"""The sheet itself: pictures in groups, written as one HTML page beside their files."""

from __future__ import annotations

import html
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Page

STYLE = """
body { font: 15px system-ui, sans-serif; margin: 24px; background: #f4f5f7; color: #1b1f24 }
h2 { margin: 32px 0 12px }
.group { display: flex; flex-wrap: wrap; gap: 20px; align-items: flex-start }
figure { margin: 0; padding: 8px; background: #fff; border: 1px solid #d5d9de; border-radius: 8px }
img { display: block; max-width: 100%; height: 420px; object-fit: contain }
figcaption { padding-top: 6px; color: #4b5563 }
"""


@dataclass(frozen=True)
class Picture:
    """One picture on the sheet."""

    group: str
    title: str
    file: str  # beside the sheet


class Sheet:
    """Pictures, as they are made: `add` takes a file that is there, `shoot` makes one of a page in a browser."""

    def __init__(self, folder: Path, browser: Browser) -> None:
        self.folder = folder
        self.browser = browser
        self.pictures: list[Picture] = []

    def room(self, group: str, title: str, suffix: str) -> Path:
        """Where the file of the next picture goes. The picture is on the sheet from now on."""
        name = re.sub(r"[^\w]+", "_", f"{group} {title}").strip("_").lower() + suffix
        self.pictures.append(Picture(group, title, name))
        print(f"  {group}: {title}", flush=True)
        return self.folder / name

    def add(self, group: str, title: str, file: Path) -> None:
        """Put a picture that was made elsewhere (PNG or SVG) on the sheet."""
        shutil.copyfile(file, self.room(group, title, file.suffix))

    def shoot(
        self,
        page_file: Path,
        group: str,
        title: str,
        size: tuple[int, int],
        act: Callable[[Page], object] | None = None,
        *,
        place: str = "",
        is_whole: bool = False,
    ) -> Path:
        """Open a page in a window of some size, do something with it, and take a picture of the window or of the whole page."""
        context = self.browser.new_context(
            offline=True, viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce"
        )
        page = context.new_page()
        page.goto(page_file.as_uri() + place)
        page.wait_for_timeout(700)
        if act is not None:
            act(page)
            page.wait_for_timeout(300)
        path = self.room(group, title, ".png")
        page.screenshot(path=path, full_page=is_whole)
        context.close()
        return path

    def write(self) -> Path:
        """Write the sheet."""
        groups = list(dict.fromkeys(picture.group for picture in self.pictures))
        body = "".join(self._group(group) for group in groups)
        path = self.folder / "index.html"
        path.write_text(f"<!doctype html><meta charset=utf-8><title>Contact sheet</title><style>{STYLE}</style>{body}")
        return path

    def _group(self, group: str) -> str:
        figures = (
            f'<figure><a href="{picture.file}"><img src="{picture.file}" alt=""></a>'
            f"<figcaption>{html.escape(picture.title)}</figcaption></figure>"
            for picture in self.pictures
            if picture.group == group
        )
        return f'<h2>{html.escape(group)}</h2><div class="group">{"".join(figures)}</div>'
