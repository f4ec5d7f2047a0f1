"""Calls Graphviz in another process, with a time limit: the one in pygraphviz, or else the `dot` command."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from ..errors import DrawingFailed, GraphvizNotFound
from ..processes import end_process
from . import worker

_LONGEST = 86_400.0  # seconds; no system waits for infinitely many
HOW_TO_GET_IT = f"{sys.executable or 'python'} -m pip install 'pygraphviz>=2.0'"


class TooSlow(DrawingFailed):
    """Graphviz was stopped at its time limit."""


def run_graphviz(source: str, engine: str, form: str, limit: float) -> bytes:
    """What Graphviz makes of DOT text."""
    tried: list[str] = []
    for command in _commands(engine, form):
        done = _run(command, source, limit)
        if done.returncode == 0 and done.stdout:
            return done.stdout
        said = done.stderr.decode(errors="replace").strip()
        tried.append(said or f"stopped with code {done.returncode}")
        if done.returncode != worker.NOT_IMPORTABLE:
            raise DrawingFailed(f"Graphviz could not make the picture: {tried[-1][-600:]}")
    library = re.search(r"(lib\S+\.so\S*): cannot open shared object", tried[0]) if tried else None
    if library is not None and form in ("png", "pdf"):
        raise GraphvizNotFound(
            f"{form.upper()} pictures need the system library {library[1]}, which this machine lacks. Write SVG instead, or "
            "install it; on Debian and Ubuntu: apt-get install libglib2.0-0 libxrender1 libxext6."
        )
    why = f" (pygraphviz does not import: {tried[0][-300:]})" if tried else ""
    raise GraphvizNotFound(f"drawing needs Graphviz{why}. Run: {HOW_TO_GET_IT}")


def _commands(engine: str, form: str) -> list[list[str]]:
    """The ways to run Graphviz on this machine, the best first."""
    folder, system = _pygraphviz_folder(), shutil.which("dot")
    own = [[sys.executable, "-I", str(Path(worker.__file__)), folder, engine, form]] if folder and sys.executable else []
    return [*own, [system, f"-K{engine}", f"-T{form}"]] if system is not None else own


def _pygraphviz_folder() -> str | None:
    try:
        spec = find_spec("pygraphviz")
    except (ImportError, ValueError):
        return None
    return str(Path(spec.origin).parent.parent) if spec is not None and spec.origin is not None else None


def _run(command: list[str], source: str, limit: float) -> subprocess.CompletedProcess[bytes]:
    no_window = getattr(subprocess, "CREATE_NO_WINDOW", 0)  # of Windows
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, creationflags=no_window)
    except OSError as error:
        raise DrawingFailed(f"Graphviz could not be started ({command[0]}: {error}).") from error
    try:  # `subprocess.run` has a limit too, but waits without end for a process that it has killed
        made, said = process.communicate(source.encode(), min(limit, _LONGEST))
    except subprocess.TimeoutExpired as error:
        raise TooSlow(f"the layout was stopped after {limit:.1f} s.") from error
    finally:
        end_process(process)
    return subprocess.CompletedProcess(command, process.returncode, made, said)
