"""Shows a page: in the notebook, in a browser, or, where there is no screen, as a file whose path is printed."""

from __future__ import annotations

from ..files import file_name
from ..render.showing import notebook, open_file
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
        open_file("Page", page.save(f"torcheer_{file_name(page.title)}.html"))
    return page
