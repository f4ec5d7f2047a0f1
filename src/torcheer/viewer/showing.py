"""Shows a page: in the notebook, in a browser, or, where there is no screen, as a file whose path is printed."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from ..files import file_name
from ..render.showing import has_screen, notebook
from .page import Page, Viewable, make_page
from .payload import MAX_BYTES
from .values import Metrics

_NOTEBOOK_BYTES = 4_000_000  # a notebook is saved with what it shows


def show(
    history: Viewable,
    *,
    compare: Viewable | None = None,
    title: str | None = None,
    previews: bool = True,
    max_bytes: int | None = None,
    metrics: Metrics | None = None,
) -> Page:
    """Show a history in the viewer: in the notebook; elsewhere as `torcheer_<model>.html`, opened where there is a screen.

    The arguments are those of `to_html`; in a notebook a page takes 4 MB at most unless `max_bytes` says otherwise.
    """
    is_notebook = notebook() is not None
    limit = max_bytes if max_bytes is not None else _NOTEBOOK_BYTES if is_notebook else MAX_BYTES
    page = make_page(history, compare=compare, title=title, previews=previews, max_bytes=limit, metrics=metrics)
    if not is_notebook:
        open_page(page.save(f"torcheer_{file_name(page.title)}.html"))
    return page


def open_page(path: Path) -> None:
    """Print where a page is, and open it where there is a screen."""
    print(f"Page: {path}")
    if has_screen():
        webbrowser.open(path.resolve().as_uri())
