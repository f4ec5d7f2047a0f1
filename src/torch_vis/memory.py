"""What the process and the devices hold, asked without waiting for a device."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def cuda_is_used() -> bool:
    """Whether this process has used CUDA."""
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch's own


def cuda_memory() -> dict[str, int]:
    """Bytes allocated and reserved on all CUDA devices, and the most ever allocated; empty where CUDA is not in use."""
    if not cuda_is_used():
        return {}
    devices = range(torch.cuda.device_count())
    return {
        "cuda_allocated": sum(map(torch.cuda.memory_allocated, devices)),
        "cuda_reserved": sum(map(torch.cuda.memory_reserved, devices)),
        "cuda_peak_allocated": sum(map(torch.cuda.max_memory_allocated, devices)),
    }


def process_memory() -> dict[str, int]:
    """The resident bytes of this process; empty where they cannot be read."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {"process_resident": pages * os.sysconf("SC_PAGE_SIZE")}
    except (OSError, ValueError, IndexError, AttributeError):
        return {}
