"""The folder of a run: what may be one, whether it holds a run, who writes to it, and what the run says of itself."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ...errors import InvalidArgument, NotWritten, RunExists, RunInUse, RunNotFound
from ...files import file_name, is_link, open_regular, read_regular
from ...json_records import reader
from ..snapshots.records import VERSION
from . import lock

FORMAT = "torcheer-xray"


@dataclass(frozen=True, slots=True)
class _Architecture:
    """What `architecture.py` writes down of a model; runs of older versions have less of it."""

    modules: dict[str, str] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    parameters: dict[str, list[int] | None] = field(default_factory=dict)


_KINDS = {
    "title": str,
    "layers": dict[str, list[str]],
    "choices": dict[str, list[int]],
    "architecture": _Architecture,
}


def free_folder(folder: Path) -> Path:
    """A folder beside this one that is not there yet: `run-2`.

    >>> free_folder(Path("no such folder/run"))
    PosixPath('no such folder/run')
    """
    path, count = folder, 1
    while path.exists():
        count += 1
        path = folder.with_name(f"{folder.name}-{count}")
    return path


def new_folder(title: str) -> Path:
    """A folder that is not there yet, named after the model and the time."""
    return free_folder(Path("xray") / f"{file_name(title)}-{time.strftime('%Y%m%d-%H%M%S')}")


def as_folder(folder: Any) -> Path:
    """The folder of a run; raises if the path cannot be one."""
    if not isinstance(folder, (str, os.PathLike)) or not str(folder).strip():
        raise InvalidArgument(f"folder says where the run is kept, such as 'runs/first'; got {folder!r}.")
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise InvalidArgument(f"the folder of a run cannot be {str(path)!r}: that is a file. Give another folder.")
    return path


def has_snapshots(folder: Path) -> bool:
    """Whether there is anything of a run in a folder."""
    index = folder / "index.jsonl"
    return (index.exists() and index.stat().st_size > 0) or any((folder / "snapshots").glob("*.safetensors"))


def refuse_link(path: Path) -> None:
    """Raise where a file of a run, to which a training would write, is a link: behind the link may be a file of others."""
    if os.path.lexists(path) and is_link(path):
        raise RunExists(
            f"{path} is a link, and nothing is written through it. Put the file itself there, or give the run a folder of its "
            f"own, such as folder={str(free_folder(path.parent))!r}."
        )


def refuse_what_others_made(run: Path) -> None:
    """Raise where there is a `run.json` already that an Xray did not write: a new run would replace it."""
    if not os.path.lexists(run):
        return
    with contextlib.suppress(OSError, ValueError, RecursionError):
        about = json.loads(read_regular(run))
        if isinstance(about, dict) and about.get("format") == FORMAT and not is_link(run):
            return
    raise RunExists(
        f"{run} is not of an Xray, and a new run would replace it. Give the run a folder of its own, such as "
        f"folder={str(free_folder(run.parent))!r}."
    )


def read_about(folder: Path) -> dict[str, Any]:
    """What the run in a folder says of itself; an error of ours where that cannot be read."""
    try:
        about = json.loads(read_regular(folder / "run.json").decode())
    except FileNotFoundError as error:
        raise RunNotFound(
            f"there is no run in {folder}: it has no run.json. Give the folder that an Xray was made with."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunNotFound(f"the run in {folder} cannot be read: run.json: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise RunNotFound(f"{folder / 'run.json'} is not of an Xray: expected format {FORMAT!r}.")
    if about.get("version") != VERSION:
        raise RunNotFound(
            f"the run in {folder} is of version {about.get('version')}, this torcheer reads version {VERSION}: "
            "open it with the version that wrote it."
        )
    try:
        for name, kind in _KINDS.items():
            if name in about:
                reader(kind)(about[name])
    except ValueError as error:
        raise RunNotFound(f"the run in {folder} cannot be read: run.json is damaged: {name}: {error}.") from None
    return about


def locked(folder: Path) -> IO[bytes]:
    """The lock of a folder, held until the file is closed or the process ends, however it ends."""
    path = folder / "writer.lock"
    try:
        file = open_regular(path, adds=True)
    except OSError as error:
        raise NotWritten(f"the run in {folder} cannot be written: {path.name}: {error.strerror or error}.") from error
    try:
        lock.take(file)
    except OSError as error:
        file.close()
        raise RunInUse(
            f"another Xray is writing to {folder}: one folder belongs to one run at a time. "
            f"Close the other one (xray.close()), or give another folder, such as {str(free_folder(folder))!r}."
        ) from error
    return file
