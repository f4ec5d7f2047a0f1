"""A lock on a file, held until it is released or the process ends, however it ends."""

from __future__ import annotations

import sys
from typing import IO

if sys.platform == "win32":
    import msvcrt

    def take(file: IO[bytes]) -> None:
        """Take the lock. Raises OSError when another process has it."""
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def release(file: IO[bytes]) -> None:
        """Let go of the lock and close the file."""
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
        file.close()

else:
    import fcntl

    def take(file: IO[bytes]) -> None:
        """Take the lock. Raises OSError when another process has it."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(file: IO[bytes]) -> None:
        """Let go of the lock and close the file. Closing is not enough: a forked process may still have it open."""
        fcntl.flock(file, fcntl.LOCK_UN)
        file.close()
