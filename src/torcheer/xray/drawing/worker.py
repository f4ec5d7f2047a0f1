"""The process that draws: reads a request, draws a snapshot of a run, answers with a line of JSON and the PNG.

It reads the run from its folder, as any reader does, so the process that trains hands over nothing but a few words.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import SnapshotNotFound
from ...files import write_whole
from ..figures import figure_of_snapshot
from ..run import Run
from ..store import FileManager


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a package prints is no answer
    runs: dict[str, FileManager] = {}
    for line in sys.stdin.buffer:
        answer(json.loads(line), runs, answers)


def answer(request: dict[str, Any], runs: dict[str, FileManager], answers: BinaryIO) -> None:
    """Draw what is asked for. Whatever goes wrong is the answer."""
    began = time.process_time()
    png, said = b"", dict[str, Any]()
    try:
        with warnings.catch_warnings(record=True) as warned:
            png = draw(request, runs)
        said["warnings"] = [str(one.message) for one in warned]
        if request["path"] is not None:
            path = Path(request["path"])
            path.parent.mkdir(exist_ok=True)
            write_whole(path, png, "picture")
            png = b""
    except Exception as error:
        png, said = b"", {"error": f"{type(error).__name__}: {error}"}
    said.update(seconds=time.process_time() - began, length=len(png))
    answers.write(json.dumps(said).encode() + b"\n" + png)
    answers.flush()


def draw(request: dict[str, Any], runs: dict[str, FileManager]) -> bytes:
    """The PNG of a snapshot."""
    folder = request["folder"]
    if folder in runs:
        runs[folder].refresh()
    else:
        runs.clear()  # one training at a time
        runs[folder] = FileManager.open(folder)
    run, look = Run(runs[folder]), {"layers": request["layers"], "scale": request["scale"]}
    try:
        figure = figure_of_snapshot(run, request["step"], **look)
    except SnapshotNotFound:  # damaged, or let go of already: the last that can be read
        figure = figure_of_snapshot(run, **look)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()


if __name__ == "__main__":
    main()
