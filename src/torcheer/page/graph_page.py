"""Makes, reads and shows the page of a history: one offline HTML file with the graph program and the compressed payload.

No data of a history is written into the page as text, except its title, which is escaped.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

from .._files.files import file_name, output_path, read_regular, write_whole
from .._text import human_size
from .._text.screen import notebook, open_file
from .._torch.inputs import check_names
from ..errors import InvalidArgument, UnreadableFile
from .document import Bundle, packed, plain_title, read_bundle
from .payload import MAX_BYTES, Recorded, check_limit, payload_of, text_of
from .schema import FORMAT, GRAPH, VERSION, Plain
from .two_models import PARTNER_BYTES, with_partners
from .values import Metrics

if TYPE_CHECKING:
    from typing_extensions import Unpack

Viewable = Recorded | Mapping[str, Any]

_FRAME_HEIGHT = 640  # the height of the frame in a notebook, in pixels


class PageOptions(TypedDict, total=False):
    """The options of `to_html` and `show` as keyword arguments, which `make_page` takes."""

    compare: Viewable | None
    title: str | None
    previews: bool
    max_bytes: int
    metrics: Metrics | None


class Page:
    """A page that shows a history. A notebook displays it; `save` writes it.

    >>> import torch, torcheer
    >>> from torcheer.page import make_page
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
        """Write the page to a file, whole or not at all."""
        return write_whole(output_path(path, "page", "model.html", "html"), self.html.encode(), "page")

    def _repr_html_(self) -> str:
        """The page in a sandboxed frame, which cannot access the notebook."""
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
    """The page of a history, or of two side by side. Arguments as for `to_html`."""
    check_limit(max_bytes)
    bundle = bundle or read_bundle("graph")
    shown = [history] if compare is None else [history, compare]
    room = (max_bytes - bundle.size) // len(shown)
    if room <= 0:
        raise InvalidArgument(f"max_bytes={max_bytes:,} leaves no room: the viewer alone takes {bundle.size:,} bytes.")
    partners = 0 if compare is None or isinstance(history, Mapping) else PARTNER_BYTES * len(history.graph.all_nodes)
    payloads = [_payload(one, previews, max(1, room - partners), metrics) for one in shown]
    if len(payloads) == 2:
        payloads[0] = with_partners(*payloads)
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


def to_html(history: Viewable, path: str | os.PathLike[str], **options: Unpack[PageOptions]) -> Path:
    """Write one HTML file that shows a history: any browser opens it offline.

    >>> import tempfile, torch, torcheer
    >>> from torcheer.page import to_html
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     to_html(torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2)), f"{folder}/relu.html").name
    'relu.html'

    Arguments as for `ModelHistory.to_html`; `history` and `compare` may also be payloads (`payload_of`).
    """
    check_names(options, list(PageOptions.__annotations__), "a page has")
    target = output_path(path, "page", "model.html", "html")  # a wrong path raises before the work
    return make_page(history, **options).save(target)


# Reads a payload from a file, and explains what is wrong with other files.

MOST_PAYLOAD = 1 << 30  # number of bytes: some hundred thousand operations


def read_payload(path: str | os.PathLike[str]) -> Plain:
    """The payload in a file written by `history.to_json(path)`.

    >>> import tempfile, torch, torcheer
    >>> from torcheer.page import read_payload
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     text = torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2)).to_json(f"{folder}/relu.json")
    ...     read_payload(f"{folder}/relu.json")["title"]
    'ReLU'

    Raises `InvalidArgument` for other files, and for versions that this torcheer cannot read. Nothing in a file is ever run.
    """
    name = str(Path(path))
    try:
        found = json.loads(read_regular(path, MOST_PAYLOAD).decode(), parse_constant=_refuse)
    except OSError as error:
        raise InvalidArgument(f"{name!r} cannot be read: {error.strerror or error}.") from error
    except UnreadableFile as error:
        raise InvalidArgument(f"{name!r} cannot be read: {error}.") from None
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{name!r} is not JSON: it is not text.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{name} is not JSON ({error}).") from error
    return check_payload(found, name)


def check_payload(found: Any, name: str = "the payload") -> Plain:
    """Return the argument if it is a payload that this version can read; otherwise raise."""
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        said = f" (its format is {found['format']!r:.60})" if isinstance(found, dict) and "format" in found else ""
        raise InvalidArgument(f"{name} is not a history for the viewer{said}: history.to_json(path) writes such files.")
    if found.get("version") != VERSION:
        raise InvalidArgument(
            f"{name} has version {found.get('version')!r:.60} of the format; this torcheer reads version {VERSION}. "
            "Write it again with this torcheer, or open it with the version that wrote it."
        )
    for key, declared in GRAPH["payload"].items():
        kind = list if declared.type.endswith("[]") else {"string": str, "number": int}.get(declared.type, dict)
        if (declared.is_required or key in found) and not isinstance(found.get(key), kind):
            raise InvalidArgument(f"{name} is damaged: {key!r} is missing or invalid.")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it contains {constant}")


# Shows a page: in the notebook, in a browser, or, without a screen, as a file whose path is printed.

_NOTEBOOK_BYTES = 4_000_000  # a notebook stores the pages it shows


def show(history: Viewable, **options: Unpack[PageOptions]) -> Page:
    """Show a history in the viewer: in the notebook, or as `torcheer_<model>.html`, opened if there is a screen.

    Arguments as for `to_html`; in a notebook a page has at most 4 MB by default.
    """
    check_names(options, list(PageOptions.__annotations__), "a page has")
    is_notebook = notebook() is not None
    if options.get("max_bytes") is None:
        options["max_bytes"] = _NOTEBOOK_BYTES if is_notebook else MAX_BYTES
    page = make_page(history, **options)
    if not is_notebook:
        open_file("Page", page.save(f"torcheer_{file_name(page.title)}.html"))
    return page
