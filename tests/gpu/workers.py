"""Runs many small checks in worker processes, and goes on after one that died or that broke its CUDA context.

A script calls `master` in the process that a person starts, and `worker` in those that `master` starts. A worker prints a
line of JSON when it begins with an item and one when it is through; what it says last tells which item ended it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, Queue
from typing import Any

SILENCE = 240  # seconds without a word from a worker, after which it is killed
BROKEN = ("device-side assert", "CUDA error", "illegal memory access", "misaligned address")

Told = dict[str, Any]


def worker(items: Sequence[str], check: Callable[[str], Told]) -> int:
    """Check items one after another. Stops at the first one after which CUDA does not work any more."""
    for name in items:
        print(json.dumps({"begin": name}), flush=True)
        found = check(name)
        is_broken = any(word in str(found) for word in BROKEN)
        print(json.dumps({"name": name, "is_broken": is_broken, **found}), flush=True)
        if is_broken:
            return 3
    return 0


def master(command: list[str], names: Sequence[str], *, size: int, workers: int) -> Iterator[Told]:
    """What was found for every item, as it comes. `command` starts a worker; the items are added to it.

    Of an item that ended its process there is a `death`: how it ended, and the last it said.
    """
    waiting: Queue[list[str]] = Queue()
    for first in range(0, len(names), size):
        waiting.put(list(names[first : first + size]))
    told: Queue[Told] = Queue()
    crew = [threading.Thread(target=_labour, args=(command, waiting, told)) for _ in range(workers)]
    for one in crew:
        one.start()
    while any(one.is_alive() for one in crew) or not told.empty():
        try:
            yield told.get(timeout=0.1)
        except Empty:
            continue


def _labour(command: list[str], waiting: Queue[list[str]], told: Queue[Told]) -> None:
    while True:
        try:
            items = waiting.get_nowait()
        except Empty:
            return
        while items:
            items = items[_run(command, items, told) :]


def _run(command: list[str], items: list[str], told: Queue[Told]) -> int:
    """One worker process. Returns how many of its items are through; at least one."""
    finished, is_begun = 0, False
    with subprocess.Popen([*command, *items], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        errors: list[str] = []
        listener = threading.Thread(target=lambda: errors.extend(process.stderr or ()))
        listener.start()
        timer = threading.Timer(SILENCE, process.kill)
        timer.start()
        for line in process.stdout or ():
            timer.cancel()
            timer = threading.Timer(SILENCE, process.kill)
            timer.start()
            try:
                said = json.loads(line)
            except json.JSONDecodeError:  # something that a library printed
                continue
            is_begun = "begin" in said
            if not is_begun:
                told.put(said)
                finished += 1
        timer.cancel()
        listener.join()
    if process.returncode in (0, 3) and not is_begun and finished:
        return finished
    last = "".join(errors)[-400:]
    told.put({"name": items[finished], "is_broken": True, "death": f"exit {process.returncode}: {last}"})
    return finished + 1


def this_script(*options: str) -> list[str]:
    """The command that runs the script a person started, as a worker."""
    return [sys.executable, "-W", "ignore", sys.argv[0], *options, "--worker"]
