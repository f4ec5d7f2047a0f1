"""Copies tensors from a device into a file through two pinned buffers, so that the device does not wait for the disk."""

from __future__ import annotations

from queue import Empty, Queue
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from .errors import NotWritten
from .files import WholeFile

_LIMIT = 600.0  # seconds in which a buffer is written


class PinnedCopies:
    """Two buffers: while one is written to the file, the device fills the other."""

    def __init__(self, file: WholeFile, size: int) -> None:
        self._file = file
        self._free: Queue[Tensor] = Queue()
        for _ in range(2):
            self._free.put(torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=torch.cuda.is_available()))
        self._filled: Queue[tuple[Any, Tensor, int, int] | None] = Queue()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="torcheer-writes", daemon=True)
        self._thread.start()

    def write(self, tensor: Tensor, place: int) -> None:
        """Write a contiguous tensor that fits a buffer. What follows on its stream comes after it was read."""
        self._raise()
        try:
            buffer = self._free.get(timeout=_LIMIT)
        except Empty:
            self._give_up()
        self._raise()
        data = tensor.reshape(-1).view(torch.uint8)
        buffer[: data.numel()].copy_(data, non_blocking=True)
        event = None
        if tensor.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
            event.record(torch.cuda.current_stream(tensor.device))
        self._filled.put((event, buffer, data.numel(), place))

    def close(self) -> None:
        """Wait until everything is written."""
        self._filled.put(None)
        self._thread.join(2 * _LIMIT if self._error is None else 0.0)
        if self._thread.is_alive():
            self._give_up()
        self._raise()

    def _give_up(self) -> None:
        """Let the thread write nothing more: it hangs."""
        if self._error is None:
            self._error = NotWritten(f"{self._file.path} cannot be written: the disk has taken nothing for {_LIMIT:g} s.")

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (filled := self._filled.get()) is not None:
            event, buffer, count, place = filled
            try:
                if event is not None:
                    event.synchronize()
                if self._error is None:
                    data: Any = buffer.numpy()
                    self._file.write_at(place, memoryview(data)[:count])
            except BaseException as error:  # raised again where the next tensor is written
                self._error = error
            self._free.put(buffer)
