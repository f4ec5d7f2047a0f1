"""Starts the process that draws for all Xrays of this process, when it is first needed, and hands it jobs on one thread."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...processes import end_process, kill_process

_LIMIT = 300.0  # seconds a figure may take
_GRACE = 15.0  # seconds more, until a process that took too long is gone and its figures are given up
_LEAVE = 5.0  # seconds until a process that has nothing to do has ended
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
    """Jobs, drawn one after the other. Each is finished in the end, whatever becomes of the process that draws."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.is_given_up = False
        self._finished = 0
        self._waiting: deque[Job] = deque()
        self._thread: threading.Thread | None = None  # while it works
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, job: Job) -> None:
        """Draw it when it is its turn."""
        with self._lock:
            left_out = [one for one in self._waiting if one.place == job.place]
            for one in left_out:
                self._waiting.remove(one)
            self._waiting.append(job)
            if len(self._waiting) > _MOST_WAITING:
                left_out.append(self._waiting.popleft())
            failed = self._begin() if self._thread is None else None
        for one in left_out:
            self._finish(one, {"left_out": True}, b"")
        if failed is not None:
            self._finish_all(f"{type(failed).__name__}: {failed}")

    def wait(self, job: Job) -> bool:
        """Wait until a job is finished, as long as any is from time to time. Returns whether it is.

        Where none is, this desk is given up: its process ends, and the next figure has a new one.
        """
        if self._thread is threading.current_thread():
            return False
        finished = self._finished
        while not job.done.wait(_LIMIT + _GRACE):
            if self._finished == finished:
                self.is_given_up = True
                if self._process is not None:
                    kill_process(self._process)
                return False
            finished = self._finished
        return True

    def _begin(self) -> Exception | None:
        """Begin to work. Returns why that is impossible."""
        thread = threading.Thread(target=self._work, name="torcheer-xray-drawing", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # too many threads, or the program ends
            return error
        self._thread = thread
        return None

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                job = self._waiting.popleft()
            try:
                said, png = self._draw(job.request)
            except BaseException as error:  # whatever it is, it is the figure that is lost, not the training
                said, png = {"error": f"{type(error).__name__}: {error}"}, b""
                if isinstance(error, TimeoutError):  # the others would take as long
                    self._finish_all(said["error"])
                with contextlib.suppress(Exception):  # what is said of it is said by the figure
                    self._stop()
            self._finish(job, said, png)

    def _finish_all(self, error: str) -> None:
        """Give up everything that waits."""
        with self._lock:
            jobs, self._waiting = self._waiting, deque()
        for job in jobs:
            self._finish(job, {"error": error}, b"")

    def _finish(self, job: Job, said: dict[str, Any], png: bytes) -> None:
        try:
            with contextlib.suppress(BaseException):  # showing it failed, which `finish` has noted
                job.finish(said, png)
        finally:
            self._finished += 1
            job.done.set()

    def _draw(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        process = self._process if self._process is not None and self._process.poll() is None else self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()
            kill_process(process)

        limit = threading.Timer(_LIMIT, stop)
        limit.daemon = True
        limit.start()
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the process that draws ended with status {process.wait(_LEAVE)}")
            said = json.loads(line)
            png = process.stdout.read(said["length"])
            if len(png) < said["length"]:
                raise RuntimeError("the process that draws ended while it handed the figure over")
            return said, png
        except Exception:
            if is_late.is_set():
                raise TimeoutError(f"it took more than {_LIMIT:g} s, so the process that draws was stopped") from None
            raise
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
        if process is not None:
            end_process(process, _LEAVE)

    def close(self) -> None:
        """End the process."""
        if self.process_id != os.getpid():
            return
        with self._lock:
            thread, process = self._thread, self._process
        if thread is None:
            self._stop()
        elif process is not None:  # the thread reads from it, and may do so for ever
            kill_process(process)


_desks: list[Desk] = []


def desk() -> Desk:
    """The desk of this process; one that was forked off has its own."""
    if not _desks or _desks[-1].process_id != os.getpid() or _desks[-1].is_given_up:
        _desks.append(Desk())
    return _desks[-1]


def _close_all() -> None:
    for one in _desks:
        one.close()


weakref.finalize(Desk, _close_all)  # when the program ends, and after what Xrays do then: theirs are made later
