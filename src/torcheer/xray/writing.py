"""Writes snapshots on a thread while the training goes on: statistics, the choice of channels, metrics, files."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from .._torch.measure import pieces
from ..errors import InvalidArgument
from .measuring import Pairs, Reading
from .records import SNAPSHOTS_TO_BE_DEAD, Failure, Snapshot, Summary
from .sampling import Limits, Measured, as_written, keep, lives_and_unknown, units_of
from .selectors import Choices
from .store import FileManager


def checked_metrics(metrics: Any) -> dict[str, Any]:
    """Check metrics and return them. Tensors stay tensors, so that the training does not wait for a device."""
    if not isinstance(metrics, Mapping):
        raise InvalidArgument(f"metrics are a dictionary such as {{'loss': loss}}; got {type(metrics).__name__}.")
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name.strip():
            raise InvalidArgument(f"metrics are named by texts, such as 'loss'; got {name!r}.")
        if isinstance(value, Tensor):
            if value.numel() != 1 or value.is_complex():
                raise InvalidArgument(
                    f"metric {name!r} must be one number; got a tensor of shape {tuple(value.shape)}. Give its mean."
                )
            found[name] = value.detach().clone()
        # NumPy's numbers have `item` and `size`
        elif isinstance(value, Real) or (hasattr(value, "item") and getattr(value, "size", 0) == 1):
            found[name] = float(value)
        else:
            raise InvalidArgument(f"metric {name!r} must be a number or a tensor of one value; got {value!r:.80}.")
    return found


_LIMIT = 300.0  # the training waits at most this many seconds for a snapshot to be written

_Seen = dict[str, tuple[int, Tensor]]  # layer -> the step at which its values were seen last, and these values


@dataclass(slots=True)
class Taken:
    """The tensors and facts of a snapshot that is not written yet."""

    step: int
    time: float
    measured: list[Measured]
    notes: list[str]
    updates: Pairs = field(default_factory=dict)  # watched weights before and after a step
    readings: list[Reading] = field(default_factory=list)  # readings of all layers with parameters
    moved: Pairs = field(default_factory=dict)  # samples of their parameters before and after a step
    metrics: dict[str, Any] = field(default_factory=dict)  # name -> a number, or a tensor of one value
    ready: Any = None  # a device event, recorded when the tensors are complete


class Writer:
    """A thread that turns `Taken` objects into snapshots on disk, in order."""

    def __init__(self, files: FileManager, choices: Choices, limits: Limits, dtype: torch.dtype) -> None:
        self.files = files
        self.failures: list[Failure] = []
        self._choices, self._limits, self._dtype = choices, limits, dtype
        self._noted = dict(choices.made)
        self._weights: _Seen = {}
        self._samples: _Seen = {}  # samples of all layers
        # layer -> snapshots seen, and for each unit in how many of them it was silent
        self._quiet: dict[str, tuple[int, Tensor]] = {}
        self._queue: queue.Queue[Taken | Callable[[], None] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self.is_stuck = False

    def submit(self, taken: Taken) -> None:
        """Hand over a snapshot. Waits until the previous snapshot is written: a killed process loses one snapshot at most."""
        if self.flush():
            self._start()
            self._queue.put(taken)
        else:
            what = f"the snapshot of step {taken.step} was left out, since the one before is still being written"
            self.failures.append(Failure("snapshot left out", f"{what}: the disk may not answer."))

    def soon(self, call: Callable[[], None]) -> None:
        """Call a function, on the thread of the writer, once every snapshot handed over so far is written."""
        self._start()
        self._queue.put(call)

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=_work, args=(self, self._queue), name="torcheer-xray", daemon=True)
            thread.start()
            self._thread = thread

    def flush(self) -> bool:
        """Wait until every snapshot handed over is written. Returns False if nothing is written for `_LIMIT` seconds.

        From then on `flush` returns at once, until the thread has written the present snapshot.
        """
        if self._thread is None or not self._thread.is_alive() or self._thread is threading.current_thread():
            return True
        waiting = self._queue
        with waiting.all_tasks_done:
            while left := waiting.unfinished_tasks:
                limit = 0.0 if self.is_stuck else _LIMIT
                if not waiting.all_tasks_done.wait(limit) and waiting.unfinished_tasks == left:
                    if not self.is_stuck:
                        self.is_stuck = True
                        message = f"a snapshot was not written within {_LIMIT:g} s, and is lost unless the disk answers again."
                        self.failures.append(Failure("snapshots wait", message))
                    return False
        self.is_stuck = False
        return True

    def close(self) -> None:
        """Write the remaining snapshots, and release the lock on the folder."""
        is_written, thread, self._thread = self.flush(), self._thread, None
        if thread is None or not thread.is_alive():
            self.files.close()
            return
        self._queue.put(None)  # the thread releases the lock, which it needs as long as it may write
        if is_written and thread is not threading.current_thread():
            thread.join(_LIMIT)

    def write(self, taken: Taken) -> None:
        if taken.ready is not None:
            taken.ready.synchronize()
        entries, tensors = [], {}
        for measured in taken.measured:
            if measured.make is not None:
                measured.tensor, measured.make = measured.make(), None
            if measured.kind == "weight":
                ratio, steps = _update(self._weights, measured.layer, measured.tensor, taken.step, taken.updates)
                measured.update_ratio = ratio
                if steps > 1:
                    measured.notes.append(f"update ratio is a mean over {steps} steps")
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
            summaries=tuple(self._summary(reading, taken) for reading in taken.readings),
            metrics={name: float(value) for name, value in taken.metrics.items()},
            notes=tuple(dict.fromkeys(taken.notes)),
        )
        self.files.write(snapshot, tensors)

    def _summary(self, reading: Reading, taken: Taken) -> Summary:
        """The summary of a layer, with the numbers that need earlier snapshots."""
        ratio, _ = _update(self._samples, reading.summary.layer, reading.sample, taken.step, taken.moved)
        one = reading.activation
        dead, units = (None, None) if one is None else (self._dead(one, "/summary"), units_of(one))
        return replace(reading.summary, update_ratio=ratio, dead=dead, units=units)

    def _dead(self, measured: Measured, suffix: str = "") -> int | None:
        """Count the dead units: silent in this and the previous snapshots. Returns None until there are enough snapshots."""
        if measured.kind != "activation" or not measured.can_die or units_of(measured) is None:
            return None
        if not measured.tensor.numel():  # the batch was empty, so no unit was silent
            return None
        lives, unknown = lives_and_unknown(measured)
        name = measured.layer + suffix
        seen, silent = self._quiet.get(name, (0, torch.zeros(0, dtype=torch.int32, device="cpu")))
        if silent.shape != lives.shape:
            seen, silent = 0, torch.zeros(lives.shape, dtype=torch.int32, device="cpu")
        # NaN says nothing of a unit: a unit that was dead before stays dead, and another does not come nearer to it
        silent = torch.where(lives, 0, torch.where(unknown, silent, silent + 1))
        seen += 1
        self._quiet[name] = (seen, silent)
        return int((silent >= SNAPSHOTS_TO_BE_DEAD).sum()) if seen >= SNAPSHOTS_TO_BE_DEAD else None


def _work(writer: Writer, waiting: queue.Queue[Taken | Callable[[], None] | None]) -> None:
    while True:
        taken = waiting.get()
        try:
            if taken is None:
                writer.files.close()
                return
            if not isinstance(taken, Taken):
                taken()
                continue
            with torch.no_grad():
                writer.write(taken)
        except BaseException as error:  # the training goes on; the next call of the Xray warns
            if taken is None:
                return
            what = f"the snapshot of step {taken.step} was lost" if isinstance(taken, Taken) else "a figure could not be drawn"
            writer.failures.append(Failure(f"snapshot: {type(error).__name__}", f"{what}: {type(error).__name__}: {error}"))
        finally:
            taken = None
            waiting.task_done()


def _update(seen: _Seen, layer: str, now: Tensor, step: int, measured: Pairs) -> tuple[float | None, int]:
    """Return a layer's update ratio (how far a step moved its values, divided by their norm), and how many steps it averages.

    The number is 1 if the update was measured around one step, else the number of steps since the previous snapshot.
    """
    last = seen.get(layer)
    seen[layer] = step, now
    if layer in measured:
        return _ratio(*measured[layer]), 1
    if last is None or last[0] >= step or last[1].shape != now.shape:
        return None, 1
    ratio, steps = _ratio(last[1], now), step - last[0]
    return ratio / steps if ratio is not None else None, steps


def _ratio(before: Tensor, after: Tensor) -> float | None:
    """How far a weight moved, divided by its norm."""
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
