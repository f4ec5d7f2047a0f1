"""One HTML file with a browser program and its data, which works offline.

The programs are built from web/ into static/, which packages contain and git ignores. A page may run only its own script and
load nothing; its data are base64 or JSON in elements that browsers do not run, and its title is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from ..errors import ViewerNotBuilt

Program = Literal["graph", "report"]

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
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
<script>{script}</script>
</head>
<body>
{body}
{data}
</body>
</html>
"""
_LONGEST_TITLE = 200
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A browser program: a script, a style sheet and the HTML body they use."""

    script: str
    style: str
    body: str

    @property
    def size(self) -> int:
        """The number of bytes of a page without its data."""
        return len(self.page("", {}).encode()) + 6 * _LONGEST_TITLE

    def page(self, title: str, data: Mapping[str, str]) -> str:
        """The whole page. Each entry of `data` is the text of an element with that id: base64, or JSON without `<`."""
        blocks = [f'<script type="application/octet-stream" id="{name}">{text}</script>' for name, text in data.items()]
        return _PAGE.format(
            policy=_POLICY.format(script=hash_of(self.script), style=hash_of(self.style)),
            title=html.escape(plain_title(title)),
            style=self.style,
            script=self.script,
            body=self.body,
            data="\n".join(blocks),
        )


def read_bundle(program: Program, folder: Path | None = None) -> Bundle:
    """Read a browser program from the package, or from another folder."""
    place = folder if folder is not None else resources.files(__package__) / "static"
    try:
        script, style, body = ((place / f"{program}.{kind}").read_text(encoding="utf-8") for kind in ("js", "css", "html"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ViewerNotBuilt(
            f"the {program} page is not built: in a source tree 'make web' builds it; a package installed with pip has it."
        ) from error
    return Bundle(_inlined(script, "script"), _inlined(style, "style"), body.strip())


def packed(data: bytes) -> str:
    """Bytes as text for a page: compressed by zlib, in base64. The page unpacks it with `DecompressionStream`.

    Level 6, zlib's default: 9 takes five times as long and saves one percent.
    """
    return base64.b64encode(zlib.compress(data)).decode("ascii")


def plain_title(title: str) -> str:
    """A title on one line, without invisible characters."""
    plain = _UNSEEN.sub(" ", title).strip()
    return (plain if len(plain) <= _LONGEST_TITLE else plain[: _LONGEST_TITLE - 1] + "…") or "model"


def _inlined(text: str, element: str) -> str:
    """Text that can be placed in this element: nothing in the text ends the element or opens a comment."""
    # normalised like in a browser, so that the hash matches
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    text = re.sub(f"</(?={element})", r"<\\/", text, flags=re.IGNORECASE)
    return text.replace("<!--", r"\x3c!--") if element == "script" else text


def hash_of(text: str) -> str:
    """The hash with which a page's policy allows its script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
