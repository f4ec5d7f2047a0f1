"""Ends processes that this library started, in a time that is known before."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

_PATIENCE = 5.0  # seconds until a process that was killed is gone; one that the system holds back (a dead disk) never is


def end_process(process: subprocess.Popen[bytes], patience: float = 0.0) -> None:
    """Wait `patience` seconds for a process to end, then kill it. Return also where the system cannot end it."""
    if process.stdin is not None:
        with contextlib.suppress(OSError, ValueError):  # it is gone, and reads no more
            process.stdin.close()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        kill_process(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None and sys.platform != "win32":  # where a thread of `communicate` may be reading it for ever
            pipe.close()


def kill_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, stopped or not, and, where it leads a group of its own, what it started: that may hold its pipes."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            if process.returncode is None and os.getpgid(process.pid) == process.pid:  # nobody else has that number yet
                os.killpg(process.pid, signal.SIGKILL)
                return
    with contextlib.suppress(OSError):
        process.kill()
