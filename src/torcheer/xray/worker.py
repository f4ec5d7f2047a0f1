"""The process that draws: reads a request, draws a snapshot of a run, answers with a line of JSON and the PNG.

It reads the run from its folder, as any reader does, so the process that trains hands over nothing but a few words.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any, BinaryIO

from .._files.files import write_whole
from .figures import figure_of_snapshot, png_of
from .run import Run
from .store import FileManager


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what packages print must not mix with the answers
    runs: dict[str, FileManager] = {}
    began = 0.0
    for line in sys.stdin.buffer:
        answer(json.loads(line), runs, answers, began)
        began = time.process_time()


def answer(request: dict[str, Any], runs: dict[str, FileManager], answers: BinaryIO, began: float) -> None:
    """Draw what is asked for. Whatever goes wrong is the answer."""
    png, said = b"", dict[str, Any]()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            said["step"], png = draw(request, runs)
        said["warnings"] = [str(one.message) for one in warned]
        if request["is_file"]:
            path = figure_path(Path(request["folder"]), said["step"])
            path.parent.mkdir(exist_ok=True)
            write_whole(path, png, "picture", follows=False)
            png = b""
    except Exception as error:
        png, said = b"", {"error": f"{type(error).__name__}: {error}"}
    said.update(seconds=time.process_time() - began, length=len(png))
    answers.write(json.dumps(said).encode() + b"\n" + png)
    answers.flush()


def figure_path(folder: Path, step: int) -> Path:
    return folder / "figures" / f"step_{step:08d}.png"


def draw(request: dict[str, Any], runs: dict[str, FileManager]) -> tuple[int, bytes]:
    """The PNG of a snapshot, and its step: the one asked for or, if that is damaged or gone, the last that can be read."""
    folder = request["folder"]
    if folder in runs:
        runs[folder].refresh()
    else:
        runs.clear()  # one training at a time
        runs[folder] = FileManager.open(folder)
    run = Run(runs[folder])
    step = run.readable_step(request["step"])
    return step, png_of(figure_of_snapshot(run, step, layers=request["layers"], scale=request["scale"]))


if __name__ == "__main__":
    main()
