"""Writes blocks in a thread of its own, fed by a queue of limited size in bytes.

A block is one safetensors file. A column (a layer, labels) is stored as tensors `name#0`, `name#1`, …: batches whose samples
have the same shape, joined until they are large enough for one read. So shapes may differ between batches, and a block is
never in memory as a whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Condition, Thread, get_native_id
from typing import Any

import torch
from torch import Tensor

from .._files.tensor_files import NAMES
from ..errors import NotWritten
from .storage import ODD, Storage, TensorsInWork

QUEUE = 256 << 20  # at most this many bytes are in the queue, or three batches if these are larger
_BATCHES = 3
_LIMIT = 1800.0  # give up if no batch and no block is written within this many seconds; a remote folder may be slow
_LAST = 60.0  # the same limit after an error or an interrupt
_TOGETHER = 1 << 20  # a column is written whenever this many bytes of it are waiting
# Niceness of the writing thread. On 8 cores with 8 torch threads, extracting ResNet-50 took 1.15 times as long as the plain
# loop without this niceness, and 1.07 times with it.
_NICE = 5


@dataclass
class _Step:
    """A task for the thread: add tensors to the unfinished block, or finish the block."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    event: Any = None  # device events, recorded when the copies from a device are complete
    size: int = 0
    name: str = ""  # the name of the finished block
    metadata: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None  # called before the block gets its name


class BlockWriter:
    """Writes the blocks of one process, one after the other, with `room` bytes reserved for the header of each.

    `written` is called with the number of bytes written since its last call; negative if a block is given up.
    """

    def __init__(self, storage: Storage, room: int, written: Callable[[int], None], most: int = QUEUE) -> None:
        self._storage, self._room, self._written, self._most = storage, room, written, most
        self._steps: deque[_Step] = deque()
        self._waiting = 0  # number of bytes in the queue and being written
        self._changed = Condition()
        self._is_closing = False
        self._is_over = False
        self._finished = 0  # number of finished steps
        self._error: BaseException | None = None
        self._streams: dict[torch.device, Any] = {}
        self._thread: Thread | None = None  # starts with the first batch, after the workers of a DataLoader

    # Called by the model's thread ---------------------------------------------------------------------------------------

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Add the columns of a batch to the unfinished block. Do not write to these tensors afterwards.

        Waits while the queue is full. Raises errors of the writing thread, also if the folder accepts no more data.
        """
        size = sum(tensor.nbytes for tensor in tensors.values())
        with self._changed:
            most = max(self._most, _BATCHES * size)
            self._wait(lambda: self._error is not None or self._waiting + size <= most, _LIMIT)
            self._raise()
            self._waiting += size
        step = self._in_main_memory(dict(tensors))
        step.size = size
        self._put(step)

    def finish(self, name: str, metadata: Mapping[str, str], before: Callable[[], None] | None = None) -> None:
        """Finish the block; it gets its name when it is written."""
        self._raise()
        self._put(_Step(name=name, metadata=metadata, before=before))

    def close(self) -> None:
        """Wait until everything is written."""
        self._end(_LIMIT)
        self._raise()

    def abandon(self) -> None:
        """Write the finished blocks, and drop the unfinished block. Gives up if nothing is written for `_LAST` seconds."""
        with self._changed:
            while self._steps and not self._steps[-1].name:
                self._steps.pop()
        if not isinstance(self._error, _NotResponding):
            self._end(_LAST)

    def _end(self, limit: float) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            self._wait(lambda: self._thread is None or self._is_over, limit)

    def _wait(self, is_so: Callable[[], bool], limit: float) -> None:
        """Wait until `is_so` returns True or an error occurs. Raises if the thread finishes no step within `limit` seconds."""
        finished = self._finished
        while not self._changed.wait_for(lambda: self._is_over or is_so(), limit):
            if self._finished == finished:
                self._error = self._error or _NotResponding(
                    f"features cannot be written to {self._storage.location}: it has accepted no data for {limit:g} s. The "
                    "blocks in it are kept; extract again when it answers."
                )
                return
            finished = self._finished

    def _put(self, step: _Step) -> None:
        with self._changed:
            self._steps.append(step)
            self._changed.notify_all()
        if self._thread is None:
            thread = Thread(target=self._run, name="torcheer-blocks", daemon=True)
            thread.start()
            self._thread = thread

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _in_main_memory(self, tensors: dict[str, Tensor]) -> _Step:
        """Copy device tensors to main memory, on a separate stream, so that the model's stream does not wait."""
        devices = {one.device for one in tensors.values() if one.device.type == "cuda"}
        if not devices:
            return _Step({name: one if one.is_cpu else one.cpu() for name, one in tensors.items()})
        found: dict[str, Tensor] = {}
        events = []
        for device in devices:
            stream = self._streams.get(device)
            if stream is None:
                stream = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for name, one in tensors.items():
                    if one.device == device:
                        found[name] = torch.empty(one.shape, dtype=one.dtype, device="cpu", pin_memory=True)
                        found[name].copy_(one, non_blocking=True)
                        one.record_stream(stream)
                events.append(stream.record_event())
        return _Step({name: found.get(name, one) for name, one in tensors.items()}, events)

    # Called by the writing thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            _lower_priority()
            self._write_steps()
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _write_steps(self) -> None:
        work: _BlockInWork | None = None
        reported = 0  # number of bytes of the unfinished block that `written` was called with
        while self._error is None and (step := self._next()) is not None:
            try:
                for event in step.event or ():
                    event.synchronize()
                work = work or _BlockInWork(self._storage.new_tensors(self._room))
                work.add(step.tensors)
                size = work.finish(step) if step.name else work.size
                self._written(size - reported)
                work, reported = (None, 0) if step.name else (work, size)
            except BaseException as error:  # the error is raised again in the model's thread
                with self._changed:
                    self._error = error
                    self._steps.clear()
                break
            with self._changed:
                self._waiting -= step.size
                self._finished += 1
                self._changed.notify_all()
            del step
        if work is not None:
            with contextlib.suppress(Exception):  # the block is given up anyway
                work.abandon()
            self._written(-reported)

    def _next(self) -> _Step | None:
        with self._changed:
            self._changed.wait_for(lambda: self._steps or self._is_closing)
            return self._steps.popleft() if self._steps else None


class _NotResponding(NotWritten):
    """Raised if the folder accepts no more data."""


def _lower_priority() -> None:
    """Lower this thread's priority: if all cores are busy, torch's parallel work waits for the slowest core."""
    if sys.platform == "linux":  # elsewhere threads have no priority of their own
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, get_native_id(), _NICE)


class _BlockInWork:
    """The block that is being written, with the tensors of each column that are still too small to write."""

    def __init__(self, file: TensorsInWork) -> None:
        self._file = file
        self._pending: dict[str, list[Tensor]] = {}
        self._sizes: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._odd: dict[str, str] = {}  # names and dtypes of columns whose dtype safetensors lacks

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._file.size

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            earlier = self._pending.setdefault(name, [])
            if earlier and (earlier[0].shape[1:] != tensor.shape[1:] or earlier[0].dtype != tensor.dtype):
                self._flush(name)
            self._pending[name].append(tensor)
            self._sizes[name] = self._sizes.get(name, 0) + tensor.nbytes
            if self._sizes[name] >= _TOGETHER:
                self._flush(name)

    def _flush(self, name: str) -> None:
        tensors = self._pending[name]
        if tensors:
            number = self._counts[name] = self._counts.get(name, -1) + 1
            self._file.add(f"{name}#{number}", tensors[0] if len(tensors) == 1 else torch.cat(tensors))
            if tensors[0].dtype not in NAMES:
                self._odd[name] = str(tensors[0].dtype).removeprefix("torch.")
        self._pending[name], self._sizes[name] = [], 0

    def finish(self, step: _Step) -> int:
        for name in self._pending:
            self._flush(name)
        if step.before is not None:
            step.before()
        return self._file.finish(step.name, {**step.metadata, **({ODD: json.dumps(self._odd)} if self._odd else {})})

    def abandon(self) -> None:
        self._file.abandon()
