"""What may end its process runs in a copy of this one, which is forked: nothing has to be imported anew."""

from __future__ import annotations

import functools
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import IO, Any, NoReturn

before_exit: list[Callable[[], object]] = []
"""What else a copy does before it ends."""


def run_in_a_copy(work: Callable[[], object]) -> tuple[int, str]:
    """The exit code of a copy of this process that did something, and what it printed or was raised in it."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            _work(work, said)
        try:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except BaseException:  # it takes too long
            os.kill(child, signal.SIGKILL)
            raise
        said.seek(0)
        return code, said.read().decode(errors="replace")


def in_a_copy_of_the_process(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test where its death harms nobody; then it fails."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        code, said = run_in_a_copy(lambda: test(*args, **kwargs))
        assert code == 0, f"exit code {code}\n{said[-4000:]}"

    return run


def _work(work: Callable[[], object], said: IO[bytes]) -> NoReturn:
    """What the copy does; it never returns."""
    code = 1
    try:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for last in before_exit:
            last()
        os._exit(code)
