"""Starts the process that draws for all Xrays of this process, when it is first needed, and hands it jobs on one thread."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_LIMIT = 300.0  # seconds a figure may take
_MOST_WAITING = 8  # figures; of more the oldest are left out

# It gets the absolute paths of this process, so that it finds the same packages wherever it is started.
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from torcheer.xray.drawing.worker import main; main()"


@dataclass(slots=True)
class Job:
    """A figure to draw, and what to do with it."""

    request: dict[str, Any]
    place: str  # where it is shown; a newer figure for the same place takes the turn of one that waits
    finish: Callable[[dict[str, Any], bytes], None]
    done: threading.Event = field(default_factory=threading.Event)


class Desk:
    """Jobs, drawn one after the other."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self._waiting: deque[Job] = deque()
        self._is_working = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def ask(self, job: Job) -> None:
        """Draw it when it is its turn."""
        with self._lock:
            left_out = [one for one in self._waiting if one.place == job.place]
            for one in left_out:
                self._waiting.remove(one)
            self._waiting.append(job)
            if len(self._waiting) > _MOST_WAITING:
                left_out.append(self._waiting.popleft())
            if not self._is_working:
                self._is_working = True
                threading.Thread(target=self._work, name="torcheer-xray-drawing", daemon=True).start()
        for one in left_out:
            _finish(one, {"left_out": True}, b"")

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_working = False
                    return
                job = self._waiting.popleft()
            try:
                said, png = self._draw(job.request)
            except Exception as error:  # whatever it is, it is the figure that is lost, not the training
                self._stop()
                said, png = {"error": f"{type(error).__name__}: {error}"}, b""
            _finish(job, said, png)

    def _draw(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        process = self._process if self._process is not None and self._process.poll() is None else self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        limit = threading.Timer(_LIMIT, process.kill)
        limit.daemon = True
        limit.start()
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the process that draws ended with status {process.wait(10)}")
            said = json.loads(line)
            return said, process.stdout.read(said["length"])
        finally:
            limit.cancel()

    def _start(self) -> subprocess.Popen[bytes]:
        self._stop()
        plain = {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": ""}
        paths = [os.path.abspath(path) for path in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **plain},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # of Windows
            start_new_session=True,  # Ctrl-C is for the training
        )
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.communicate(timeout=5)
            return
        process.kill()
        process.wait()

    def close(self) -> None:
        """End the process."""
        if self.process_id == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._stop()


def _finish(job: Job, said: dict[str, Any], png: bytes) -> None:
    with contextlib.suppress(Exception):  # showing it failed, which `finish` has noted
        job.finish(said, png)
    job.done.set()


_desks: list[Desk] = []


def desk() -> Desk:
    """The desk of this process; one that was forked off has its own."""
    if not _desks or _desks[-1].process_id != os.getpid():
        _desks.append(Desk())
    return _desks[-1]
