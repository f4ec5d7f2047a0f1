"""One HTML file that shows a history, offline: the viewer's script and style, and the payload, compressed.

Nothing of a history is ever written into the page as text, but for its title, which is escaped; and the page may run no script
but the one it came with, nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument, ViewerNotBuilt
from ..history.text import human_size
from .fields import Plain
from .payload import MAX_BYTES, Recorded, check_limit, packed, payload_of
from .reading import check_payload
from .writing import write

Viewable = Recorded | Mapping[str, Any]

_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data: blob:; worker-src blob:; "
    "connect-src 'none'; base-uri 'none'; form-action 'none'"
)
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page shows the history of a model with JavaScript, which is switched off here.</noscript>
{payloads}
<script>{script}</script>
</body>
</html>
"""
_LONGEST_TITLE = 200
_FRAME_HEIGHT = 640  # pixels, in a notebook
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class Bundle:
    """The viewer itself: one script and one style sheet, as they stand inside an HTML page."""

    script: str
    style: str

    @property
    def size(self) -> int:
        """The bytes of a page without its payload."""
        return len(self.script.encode()) + len(self.style.encode()) + len(_PAGE) + len(_POLICY) + 6 * _LONGEST_TITLE


def read_bundle(folder: Path | None = None) -> Bundle:
    """The viewer that came with the package, or the one in another folder."""
    place = folder if folder is not None else resources.files("torcheer.viewer") / "static"
    try:
        script, style = ((place / name).read_text(encoding="utf-8") for name in ("viewer.js", "viewer.css"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ViewerNotBuilt(
            "the viewer is not built. In a source tree 'make viewer' builds it; a package installed with pip has it built."
        ) from error
    return Bundle(_inlined(script, "script"), _inlined(style, "style"))


def _inlined(text: str, element: str) -> str:
    """Text that stands in an element, and says the same there: nothing in it ends the element or opens a comment."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")  # as a browser reads it, or no hash fits
    text = re.sub(f"</(?={element})", r"<\\/", text, flags=re.IGNORECASE)
    return text.replace("<!--", r"\x3c!--") if element == "script" else text


class Page:
    """A page that shows a history. A notebook shows it; `save` writes it.

    >>> import torch, torcheer
    >>> from torcheer.viewer import make_page
    >>> page = make_page(torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2)))
    >>> page.title, "Content-Security-Policy" in page.html
    ('ReLU', True)
    """

    def __init__(self, title: str, payloads: list[Plain], bundle: Bundle) -> None:
        self.title = _plain_title(title)
        self._packed = [packed(payload) for payload in payloads]
        self._bundle = bundle

    @cached_property
    def html(self) -> str:
        """The whole page."""
        blocks = [
            f'<script type="application/octet-stream" id="payload{f"-{number}" if number > 1 else ""}">{text}</script>'
            for number, text in enumerate(self._packed, 1)
        ]
        return _PAGE.format(
            policy=_POLICY.format(script=hash_of(self._bundle.script), style=hash_of(self._bundle.style)),
            title=html.escape(self.title),
            style=self._bundle.style,
            payloads="\n".join(blocks),
            script=self._bundle.script,
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, which is there whole or not at all."""
        return write(Path(path), self.html, "page")

    def _repr_html_(self) -> str:
        """The page inside a notebook, in a frame that can reach nothing of it."""
        return (
            f'<iframe title="{html.escape(self.title)}" sandbox="allow-scripts allow-downloads" allowfullscreen '
            f'style="width:100%;height:{_FRAME_HEIGHT}px;border:1px solid #8884;border-radius:6px" '
            f'srcdoc="{html.escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<Page of {self.title}: {human_size(len(self.html))}>"


def hash_of(text: str) -> str:
    """The hash by which a page's policy knows a script or style that stands in it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _plain_title(title: str) -> str:
    """A title on one line, without what cannot be seen."""
    plain = _UNSEEN.sub(" ", title).strip()
    return (plain if len(plain) <= _LONGEST_TITLE else plain[: _LONGEST_TITLE - 1] + "…") or "model"


# Making -------------------------------------------------------------------------------------------------------------


def make_page(
    history: Viewable,
    *,
    compare: Viewable | None = None,
    title: str | None = None,
    previews: bool = True,
    max_bytes: int = MAX_BYTES,
    bundle: Bundle | None = None,
) -> Page:
    """The page of a history, or of two side by side. The arguments are those of `to_html`."""
    check_limit(max_bytes)
    bundle = bundle or read_bundle()
    shown = [history] if compare is None else [history, compare]
    room = (max_bytes - bundle.size) // len(shown)
    if room <= 0:
        raise InvalidArgument(f"max_bytes={max_bytes:,} leaves no room: the viewer alone takes {bundle.size:,} bytes.")
    payloads = [_payload(one, previews, room) for one in shown]
    if title is not None:
        payloads[0] = {**payloads[0], "title": title}
    names = [str(payload["title"]) for payload in payloads]
    return Page(title if title is not None else " and ".join(names), payloads, bundle)


def _payload(shown: Viewable, previews: bool, room: int) -> Plain:
    if isinstance(shown, Mapping):
        check_payload(shown)
        return dict(shown)
    if not hasattr(shown, "graph"):
        raise InvalidArgument(f"a page shows a history or a payload; got {type(shown).__name__}.")
    return payload_of(shown, previews=previews, max_bytes=room)


def to_html(
    history: Viewable,
    path: str | os.PathLike[str],
    *,
    compare: Viewable | None = None,
    title: str | None = None,
    previews: bool = True,
    max_bytes: int = MAX_BYTES,
) -> Path:
    """Write one HTML file that shows a history: it opens in any browser, offline, and needs nothing else.

    >>> import tempfile, torch, torcheer
    >>> from torcheer.viewer import to_html
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     to_html(torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2)), f"{folder}/relu.html").name
    'relu.html'

    Args:
        history: what `log_forward_pass` or `recording` returned, or a payload (`payload_of`, `read_payload`).
        path: where to write; what is there is replaced.
        compare: another history or payload, to show next to it.
        title: the name of the page; without one, that of the model.
        previews: whether to add small pictures of the kept activations.
        max_bytes: how large the file may be. What there is no room for is left out, previews first, and the page says so.

    The file contains names, shapes, statistics, previews, and lines of the program with the paths of its files.
    """
    return make_page(history, compare=compare, title=title, previews=previews, max_bytes=max_bytes).save(path)
