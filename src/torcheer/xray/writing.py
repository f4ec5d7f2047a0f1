"""Writes snapshots in the background: statistics, choice and files, while the training goes on."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .keeping import Limits, Measured, as_written, is_above_zero, keep
from .records import Failure, Snapshot
from .selectors import Choices
from .statistics import pieces
from .store import FileManager

SNAPSHOTS_TO_BE_DEAD = 3


@dataclass(slots=True)
class Taken:
    """What was taken at one moment and is yet to be written."""

    step: int
    time: float
    measured: list[Measured]
    notes: list[str]
    updates: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # by layer: a weight before and after one step
    ready: Any = None  # an event of the device, when the tensors are there


class Writer:
    """A thread that turns what was taken into snapshots on disk, in order."""

    def __init__(self, files: FileManager, choices: Choices, limits: Limits, dtype: torch.dtype) -> None:
        self.files = files
        self.failures: list[Failure] = []
        self._choices, self._limits, self._dtype = choices, limits, dtype
        self._noted = dict(choices.made)
        self._weights: dict[str, tuple[int, Tensor]] = {}  # by layer: the last one seen, and its step
        self._quiet: dict[str, tuple[int, Tensor]] = {}  # by layer: snapshots seen, and for how many each unit was silent
        self._queue: queue.Queue[Taken | Callable[[], None] | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def submit(self, taken: Taken) -> None:
        """Hand over what was taken. Waits for the one before: of a process that is killed only one is ever unwritten."""
        self.flush()
        self._start()
        self._queue.put(taken)

    def soon(self, call: Callable[[], None]) -> None:
        """Call a function, on the thread of the writer, once everything handed over so far is written."""
        self._start()
        self._queue.put(call)

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=_work, args=(self, self._queue), name="torcheer-xray", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Wait until everything handed over is written."""
        if self._thread is not None and self._thread.is_alive():
            self._queue.join()

    def close(self) -> None:
        """Write what is left, and let go of the folder."""
        self.flush()
        if self._thread is not None and self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._thread = None
        self.files.close()

    def write(self, taken: Taken) -> None:
        """Write one snapshot."""
        if taken.ready is not None:
            taken.ready.synchronize()
        entries, tensors = [], {}
        for measured in taken.measured:
            self._note_update(measured, taken)
            entry, kept = keep(measured, self._choices, self._limits, self._dead(measured))
            entries.append(entry)
            tensors[entry.key] = as_written(kept, measured.kind, self._dtype)
        if self._choices.made != self._noted:
            self.files.note(choices=self._choices.made)
            self._noted = dict(self._choices.made)
        snapshot = Snapshot(
            number=self.files.next_number,
            step=taken.step,
            time=taken.time,
            entries=tuple(entries),
            notes=tuple(dict.fromkeys(taken.notes)),
        )
        self.files.write(snapshot, tensors)

    def _note_update(self, measured: Measured, taken: Taken) -> None:
        """How far one step moved a weight, measured around the optimizer's step, or as a mean since the last snapshot."""
        if measured.kind != "weight":
            return
        layer, weight = measured.layer, measured.tensor
        last = self._weights.get(layer)
        self._weights[layer] = (taken.step, weight)
        if layer in taken.updates:
            measured.update_ratio = _ratio(*taken.updates[layer])
        elif last is not None and last[0] < taken.step and last[1].shape == weight.shape:
            steps = taken.step - last[0]
            ratio = _ratio(last[1], weight)
            measured.update_ratio = ratio / steps if ratio is not None else None
            if steps > 1:
                measured.notes.append(f"update ratio is a mean over {steps} steps")

    def _dead(self, measured: Measured) -> int | None:
        """How many units were silent in this and the last snapshots, once there are enough of them to say."""
        if measured.kind != "activation":
            return None
        lives = is_above_zero(measured)
        seen, silent = self._quiet.get(measured.layer, (0, torch.zeros(0, dtype=torch.int32, device="cpu")))
        if silent.shape != lives.shape:
            seen, silent = 0, torch.zeros(lives.shape, dtype=torch.int32, device="cpu")
        silent = torch.where(lives, 0, silent + 1)
        self._quiet[measured.layer] = (seen + 1, silent)
        return int((silent >= SNAPSHOTS_TO_BE_DEAD).sum()) if seen + 1 >= SNAPSHOTS_TO_BE_DEAD else None


def _work(writer: Writer, waiting: queue.Queue[Taken | Callable[[], None] | None]) -> None:
    while True:
        taken = waiting.get()
        try:
            if taken is None:
                return
            if not isinstance(taken, Taken):
                taken()
                continue
            with torch.no_grad():
                writer.write(taken)
        except Exception as error:  # the training goes on; whoever takes the next snapshot is told
            what = f"the snapshot of step {taken.step} was lost" if isinstance(taken, Taken) else "a figure could not be drawn"
            writer.failures.append(Failure(f"snapshot: {type(error).__name__}", f"{what}: {type(error).__name__}: {error}"))
        finally:
            taken = None
            waiting.task_done()


def _ratio(before: Tensor, after: Tensor) -> float | None:
    """How far a weight moved, as a part of its norm."""
    moved = norm = 0.0
    old, new = before.detach().reshape(-1), after.detach().reshape(-1)
    wide = torch.complex128 if old.is_complex() else torch.float64
    for one, other in zip(pieces(old), pieces(new), strict=True):
        moved += float(torch.linalg.vector_norm(other.to(wide) - one.to(wide))) ** 2
        norm += float(torch.linalg.vector_norm(one.to(wide))) ** 2
    with contextlib.suppress(ZeroDivisionError, OverflowError):
        ratio = (moved / norm) ** 0.5
        return ratio if ratio < float("inf") else None
    return None
