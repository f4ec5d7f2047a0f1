"""What may end its process runs in a copy of this one, which is forked: nothing has to be imported anew."""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any, NoReturn

before_exit: list[Callable[[], object]] = []
"""What else a copy does before it ends."""


def start_a_copy(work: Callable[[], object]) -> tuple[int, IO[str]]:
    """Let a copy of this process do something. Returns its number, and what it prints or is raised in it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _work(work, writing)
    os.close(writing)
    return child, open(reading, errors="replace")


def run_in_a_copy(work: Callable[[], object]) -> tuple[int, str]:
    """Let a copy of this process do something. Returns its exit code, and what it printed or was raised in it."""
    child, said = start_a_copy(work)
    with said:
        try:
            text = said.read()
        except BaseException:  # it takes too long
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, text


def in_a_copy_of_the_process(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test where its death harms nobody; then it fails."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        code, said = run_in_a_copy(lambda: test(*args, **kwargs))
        assert code == 0, f"exit code {code}\n{said[-4000:]}"

    return run


def _work(work: Callable[[], object], writing: int) -> NoReturn:
    """What the copy does; it never returns."""
    code = 1
    try:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for last in before_exit:
            last()
        os._exit(code)
