"""One HTML file that shows a history, offline: the graph program and the payload, compressed.

Nothing of a history is ever written into the page as text, but for its title, which is escaped.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from ..files import output_path, write_whole
from ..history.printing.text import human_size
from ..web.page import Bundle, packed, plain_title, read_bundle
from ..web.schema import Plain
from .payload import MAX_BYTES, Recorded, check_limit, payload_of, text_of
from .reading import check_payload
from .values import Metrics

Viewable = Recorded | Mapping[str, Any]

_FRAME_HEIGHT = 640  # pixels, in a notebook


class Page:
    """A page that shows a history. A notebook shows it; `save` writes it.

    >>> import torch, torcheer
    >>> from torcheer.viewer import make_page
    >>> page = make_page(torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2)))
    >>> page.title, "Content-Security-Policy" in page.html
    ('ReLU', True)
    """

    def __init__(self, title: str, payloads: list[Plain], bundle: Bundle) -> None:
        self.title = plain_title(title)
        self._packed = [packed(text_of(payload).encode()) for payload in payloads]
        self._bundle = bundle

    @cached_property
    def html(self) -> str:
        """The whole page."""
        return self._bundle.page(self.title, dict(zip(("payload", "payload-2"), self._packed, strict=False)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, which is there whole or not at all."""
        return write_whole(output_path(path, "page", "model.html", "html"), self.html.encode(), "page")

    def _repr_html_(self) -> str:
        """The page inside a notebook, in a frame that can reach nothing of it."""
        return (
            f'<iframe title="{html.escape(self.title)}" sandbox="allow-scripts allow-downloads" allowfullscreen '
            f'style="width:100%;height:{_FRAME_HEIGHT}px;border:1px solid #8884;border-radius:6px" '
            f'srcdoc="{html.escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<Page of {self.title}: {human_size(len(self.html))}>"


# Making -------------------------------------------------------------------------------------------------------------


def make_page(
    history: Viewable,
    *,
    compare: Viewable | None = None,
    title: str | None = None,
    previews: bool = True,
    max_bytes: int = MAX_BYTES,
    metrics: Metrics | None = None,
    bundle: Bundle | None = None,
) -> Page:
    """The page of a history, or of two side by side. The arguments are those of `to_html`."""
    check_limit(max_bytes)
    bundle = bundle or read_bundle("graph")
    shown = [history] if compare is None else [history, compare]
    room = (max_bytes - bundle.size) // len(shown)
    if room <= 0:
        raise InvalidArgument(f"max_bytes={max_bytes:,} leaves no room: the viewer alone takes {bundle.size:,} bytes.")
    payloads = [_payload(one, previews, room, metrics) for one in shown]
    if title is not None:
        payloads[0] = {**payloads[0], "title": title}
    names = [str(payload["title"]) for payload in payloads]
    return Page(title if title is not None else " and ".join(names), payloads, bundle)


def _payload(shown: Viewable, previews: bool, room: int, metrics: Metrics | None) -> Plain:
    if isinstance(shown, Mapping):
        return dict(check_payload(shown))
    if not hasattr(shown, "graph"):
        raise InvalidArgument(f"a page shows a history or a payload; got {type(shown).__name__}.")
    return payload_of(shown, previews=previews, max_bytes=room, metrics=metrics)


def to_html(
    history: Viewable,
    path: str | os.PathLike[str],
    *,
    compare: Viewable | None = None,
    title: str | None = None,
    previews: bool = True,
    max_bytes: int = MAX_BYTES,
    metrics: Metrics | None = None,
) -> Path:
    """Write one HTML file that shows a history: it opens in any browser, offline, and needs nothing else.

    >>> import tempfile, torch, torcheer
    >>> from torcheer.viewer import to_html
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     to_html(torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2)), f"{folder}/relu.html").name
    'relu.html'

    The arguments are those of `ModelHistory.to_html`; `history` and `compare` may also be payloads (`payload_of`).
    """
    target = output_path(path, "page", "model.html", "html")  # what is wrong is told before the work
    page = make_page(history, compare=compare, title=title, previews=previews, max_bytes=max_bytes, metrics=metrics)
    return page.save(target)
