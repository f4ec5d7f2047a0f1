"""What the scripts of this folder share: running checks one by one, and telling when something waits for the GPU."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Inside, anything that waits for the GPU raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def run(checks: Iterable[Callable[[], None]]) -> int:
    """Run the checks, a line for each. Returns the exit code: 1 if any failed."""
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    passed = failed = 0
    for check in checks:
        try:
            check()
            passed += 1
            print(f"ok    {check.__name__}", flush=True)
        except Exception:
            failed += 1
            print(f"FAIL  {check.__name__}", flush=True)
            traceback.print_exc()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
