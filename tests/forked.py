"""Tests that may end their process run in a copy of it, which is forked: nothing has to be imported anew."""

from __future__ import annotations

import functools
import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from typing import IO, Any, NoReturn

before_exit: list[Callable[[], object]] = []
"""What else a copy does before it ends."""


def in_a_copy_of_the_process(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test where its death harms nobody; then it fails."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                _work(lambda: test(*args, **kwargs), said)
            try:
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            except BaseException:  # it takes too long
                os.kill(child, signal.SIGKILL)
                raise
            said.seek(0)
            assert code == 0, f"exit code {code}\n{said.read().decode(errors='replace')[-4000:]}"

    return run


def _work(test: Callable[[], None], said: IO[bytes]) -> NoReturn:
    """What the copy does; it never returns."""
    code = 1
    try:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        test()
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        for last in before_exit:
            last()
        os._exit(code)
