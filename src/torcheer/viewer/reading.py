"""Reads a payload from a file, and says what is wrong with a file that is not one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NoReturn

from ..errors import InvalidArgument, UnreadableFile
from ..files import read_regular
from ..web.schema import FORMAT, GRAPH, VERSION, Plain

MOST_PAYLOAD = 1 << 30  # bytes: some hundred thousand operations


def read_payload(path: str | os.PathLike[str]) -> Plain:
    """The payload in a file that `history.to_json(path)` wrote.

    >>> import tempfile, torch, torcheer
    >>> from torcheer.viewer import read_payload
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     text = torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2)).to_json(f"{folder}/relu.json")
    ...     read_payload(f"{folder}/relu.json")["title"]
    'ReLU'

    Raises `InvalidArgument` for anything else, and for a version this torcheer cannot read. Nothing in a file is ever run.
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
        raise InvalidArgument(f"{name} is not JSON that can be read ({error}).") from error
    return check_payload(found, name)


def check_payload(found: Any, name: str = "the payload") -> Plain:
    """Returns what it is given, if that is a payload that this version of the viewer can read, and raises otherwise."""
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        said = f" (its format is {found['format']!r:.60})" if isinstance(found, dict) and "format" in found else ""
        raise InvalidArgument(f"{name} is not a history for the viewer{said}: history.to_json(path) writes those.")
    if found.get("version") != VERSION:
        raise InvalidArgument(
            f"{name} has version {found.get('version')!r:.60} of the format; this torcheer reads version {VERSION}. "
            "Write it again with this torcheer, or open it with the one that wrote it."
        )
    for key, declared in GRAPH["payload"].items():
        kind = list if declared.type.endswith("[]") else {"string": str, "number": int}.get(declared.type, dict)
        if (declared.is_required or key in found) and not isinstance(found.get(key), kind):
            raise InvalidArgument(f"{name} is damaged: {key!r} is missing or not what it should be.")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it contains {constant}")
