"""Reads how much memory the process and a CUDA device use now, outside any pass."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from .._torch.internals import cuda_is_used


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes in use; None for figures that cannot be read."""

    process: int | None  # resident memory of this process
    allocated: int | None  # on the CUDA device: memory of tensors
    reserved: int | None  # on the CUDA device: memory that torch's allocator holds, in use or not
    peak_allocated: int | None  # on the CUDA device: maximum of `allocated` since it was last reset


def device_memory(device: torch.device | str | int | None = None) -> DeviceMemory:
    """The memory in use now by this process and on a CUDA device (default: the current device).

    >>> memory = device_memory()
    >>> memory.process is None or memory.process > 0
    True

    Process memory is read from `/proc`, so it is None outside Linux. CUDA figures are None if CUDA is not in use.
    """
    wanted = torch.device(device) if device is not None and not isinstance(device, int) else device
    is_cuda = not isinstance(wanted, torch.device) or wanted.type == "cuda"
    cuda = torch.cuda
    if not (is_cuda and cuda_is_used()):
        return DeviceMemory(_resident(), None, None, None)
    return DeviceMemory(
        _resident(), cuda.memory_allocated(wanted), cuda.memory_reserved(wanted), cuda.max_memory_allocated(wanted)
    )


def _resident() -> int | None:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
