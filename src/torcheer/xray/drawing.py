"""Draws figures behind the training, in a process of its own: Matplotlib takes seconds, and knows nothing of threads."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._cleanup import end_process, kill_process
from ..errors import DrawingFailed
from ..history.printing import plural
from .colors import ScaleName
from .figures import Displays, figure_of_snapshot, show_png
from .pacing import Pace
from .records import Failure
from .run import Run
from .worker import figure_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Starts the process that draws for all Xrays of this process, when it is first needed, and hands it jobs on one
# thread.

_LIMIT = 300.0  # seconds a figure may take
_GRACE = 15.0  # seconds more, until a process that took too long is gone and its figures are given up
_LEAVE = 5.0  # seconds until a process that has nothing to do has ended
_MOST_WAITING = 8  # figures; of more the oldest are left out

# It gets the absolute paths of this process, so that it finds the same packages wherever it is started.
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from torcheer.xray.worker import main; main()"


@dataclass(slots=True)
class Job:
    """A figure to draw, and what to do with it."""

    request: dict[str, Any]
    place: str  # where it is shown; a newer figure for the same place takes the turn of one that waits
    finish: Callable[[dict[str, Any], bytes], None]
    done: threading.Event = field(default_factory=threading.Event)


class Desk:
    """Jobs, drawn one after the other. Each is finished in the end, whatever becomes of the process that draws."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.is_given_up = False
        self._finished = 0
        self._waiting: deque[Job] = deque()
        self._thread: threading.Thread | None = None  # while it works
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, job: Job) -> None:
        """Draw it when it is its turn."""
        with self._lock:
            left_out = [one for one in self._waiting if one.place == job.place]
            for one in left_out:
                self._waiting.remove(one)
            self._waiting.append(job)
            if len(self._waiting) > _MOST_WAITING:
                left_out.append(self._waiting.popleft())
            failed = self._begin() if self._thread is None else None
        for one in left_out:
            self._finish(one, {"left_out": True}, b"")
        if failed is not None:
            self._finish_all(f"{type(failed).__name__}: {failed}")

    def wait(self, job: Job) -> bool:
        """Wait until a job is finished, as long as any is from time to time. Returns whether it is.

        Where none is, this desk is given up: its process ends, and the next figure has a new one.
        """
        if self._thread is threading.current_thread():
            return False
        finished = self._finished
        while not job.done.wait(_LIMIT + _GRACE):
            if self._finished == finished:
                self.is_given_up = True
                if self._process is not None:
                    kill_process(self._process)
                return False
            finished = self._finished
        return True

    def _begin(self) -> Exception | None:
        """Begin to work. Returns why that is impossible."""
        thread = threading.Thread(target=self._work, name="torcheer-xray-drawing", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # too many threads, or the program ends
            return error
        self._thread = thread
        return None

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                job = self._waiting.popleft()
            try:
                said, png = self._draw(job.request)
            except BaseException as error:  # whatever it is, it is the figure that is lost, not the training
                said, png = {"error": f"{type(error).__name__}: {error}"}, b""
                if isinstance(error, TimeoutError):  # the others would take as long
                    self._finish_all(said["error"])
                with contextlib.suppress(Exception):  # what is said of it is said by the figure
                    self._stop()
            self._finish(job, said, png)

    def _finish_all(self, error: str) -> None:
        """Give up everything that waits."""
        with self._lock:
            jobs, self._waiting = self._waiting, deque()
        for job in jobs:
            self._finish(job, {"error": error}, b"")

    def _finish(self, job: Job, said: dict[str, Any], png: bytes) -> None:
        try:
            with contextlib.suppress(BaseException):  # showing it failed, which `finish` has noted
                job.finish(said, png)
        finally:
            self._finished += 1
            job.done.set()

    def _draw(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        process = self._process if self._process is not None and self._process.poll() is None else self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()
            kill_process(process)

        limit = threading.Timer(_LIMIT, stop)
        limit.daemon = True
        limit.start()
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the process that draws ended with status {process.wait(_LEAVE)}")
            said = json.loads(line)
            png = process.stdout.read(said["length"])
            if len(png) < said["length"]:
                raise RuntimeError("the process that draws ended while it handed the figure over")
            return said, png
        except Exception:
            if is_late.is_set():
                raise TimeoutError(f"it took more than {_LIMIT:g} s, so the process that draws was stopped") from None
            raise
        finally:
            limit.cancel()

    def _start(self) -> subprocess.Popen[bytes]:
        self._stop()
        plain = {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": ""}
        paths = [os.path.abspath(path) for path in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **plain},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # of Windows
            start_new_session=True,  # Ctrl-C is for the training
        )
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_process(process, _LEAVE)

    def close(self) -> None:
        """End the process."""
        if self.process_id != os.getpid():
            return
        with self._lock:
            thread, process = self._thread, self._process
        if thread is None:
            self._stop()
        elif process is not None:  # the thread reads from it, and may do so for ever
            kill_process(process)


_desks: list[Desk] = []


def desk() -> Desk:
    """The desk of this process; one that was forked off has its own."""
    if not _desks or _desks[-1].process_id != os.getpid() or _desks[-1].is_given_up:
        _desks.append(Desk())
    return _desks[-1]


def _close_all() -> None:
    for one in _desks:
        one.close()


weakref.finalize(Desk, _close_all)  # when the program ends, and after what Xrays do then: theirs are made later


# Drawer: shows the last snapshot of a run again and again, without keeping the training waiting.

_Soon = Callable[[Callable[[], None]], None]
_PATIENCE = 60.0  # seconds that a use of the figure waits for it to be shown
_LONGEST = 900.0  # seconds, for the snapshot to be written and the figures before it to be drawn
_PLACE = "last"  # what a notebook's place for the figure is called


class Drawing:
    """A figure of a snapshot that is being drawn behind the training.

    It can be used as a Matplotlib figure (`savefig`, `axes`, …). That waits until the figure is shown, a minute at most, and
    draws it again in this process.
    """

    def __init__(self, run: Run, layers: Sequence[str] | None, scale: ScaleName | None) -> None:
        self._run, self._layers, self._scale = run, layers, scale
        self._shown = threading.Event()
        self._figure: Figure | None = None
        self.step: int | None = None
        self.path: Path | None = None  # of the file, where one is written
        self.png = b""  # where it is shown in a notebook

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is shown or was given up, a quarter of an hour at most. Returns whether that happened in time."""
        return self._shown.wait(_LONGEST if timeout is None else timeout)

    @property
    def figure(self) -> Figure:
        """The Matplotlib figure, to save or change."""
        return self._drawn()

    def _drawn(self) -> Figure:
        """The figure, by a method: an AttributeError inside a property would lead to `__getattr__`, and back."""
        self._shown.wait(_PATIENCE)
        if self._figure is None:
            if self.step is None:
                raise DrawingFailed("there is no snapshot to draw: none was taken yet, or none could be written.")
            self.step = self._run.readable_step(self.step)
            self._figure = figure_of_snapshot(self._run, self.step, layers=self._layers, scale=self._scale)
        return self._figure

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._drawn(), name)

    def _ipython_display_(self) -> None:
        """Nothing: it is shown already."""

    def __repr__(self) -> str:
        what = "the last snapshot" if self.step is None else f"step {self.step}"
        return f"<drawing of {what}{f' in {self.path}' if self.path else ''}>"


class Drawer:
    """Draws the last snapshot of one run, and remembers what went wrong."""

    def __init__(self, pace: Pace) -> None:
        self.failures: list[Failure] = []
        self._pace = pace
        self._displays = Displays()
        self._last: Drawing | None = None
        self._asked: tuple[Any, ...] | None = None  # snapshots so far, layers and scale of the last request
        self._drawn: tuple[Any, ...] | None = None  # number of the snapshot, layers and scale of the last figure
        self._process = os.getpid()
        self._jobs: list[tuple[Desk, Job]] = []

    def draw(self, run: Run, taken: int, layers: Sequence[str] | None, scale: ScaleName | None, soon: _Soon) -> Drawing | None:
        """Ask for a figure of the last snapshot. `soon` calls a function once everything taken is written."""
        asked = taken, tuple(layers) if layers is not None else None, scale
        is_new_place, place = self._displays.place(_PLACE)
        if self._last is not None and asked == self._asked:
            if is_new_place and place is not None and self._last.png:
                show_png(self._last.png, place)
            return self._last
        if not self._pace.draws():
            return None
        self._asked = asked
        drawing = self._last = Drawing(run, layers, scale)
        soon(lambda: self._begin(drawing, place))
        return drawing

    def wait(self) -> None:
        """Wait until everything asked for is shown, as long as figures are drawn; what is not drawn then is given up."""
        if self._process != os.getpid():  # forked off the one that draws
            return
        jobs, self._jobs = self._jobs, []
        lost = [job for desk, job in jobs if not (job.done.is_set() or desk.wait(job))]
        if lost:
            message = f"{plural(len(lost), 'figure')} could not be drawn in time, and nobody waits for what draws any longer."
            self.failures.append(Failure("figures wait", message))

    def _begin(self, drawing: Drawing, place: str | None) -> None:
        """Everything taken is written: hand the last snapshot over, unless it is the one that was drawn last."""
        try:
            job = self._job(drawing, place)
            if job is not None:
                at = desk()
                at.ask(job)
                self._jobs = [*(one for one in self._jobs if not one[1].done.is_set()), (at, job)]
                return
        except Exception as error:
            message = f"a figure could not be drawn: {type(error).__name__}: {error}"
            self.failures.append(Failure(f"figure: {type(error).__name__}", message))
        self._pace.drew(None)
        drawing._shown.set()

    def _job(self, drawing: Drawing, place: str | None) -> Job | None:
        """What is to be drawn; None where that is what was drawn last."""
        number, drawing.step = drawing._run.last_taken
        this = number, drawing._layers, drawing._scale
        if drawing.step is None or this == self._drawn:
            return None
        self._drawn = this
        folder = drawing._run.files.folder
        request = {
            "folder": str(folder.absolute()),
            "step": drawing.step,
            "layers": drawing._layers,
            "scale": drawing._scale,
            "is_file": place is None,
        }
        where = place or str(figure_path(folder, drawing.step))
        return Job(request, where, lambda said, png: self._finish(drawing, place, said, png))

    def _finish(self, drawing: Drawing, place: str | None, said: dict[str, Any], png: bytes) -> None:
        """Show what was drawn, or note the failure. Runs on the thread of the desk."""
        try:
            self._pace.drew(said.get("seconds"))
            warned = [warning.removeprefix("Xray: ") for warning in said.get("warnings", [])]
            self.failures += [Failure(warning, warning) for warning in warned]
            drawing.step = said.get("step", drawing.step)
            if "error" in said:
                message = f"the figure of step {drawing.step} could not be drawn: {said['error']}"
                self.failures.append(Failure(f"figure: {said['error'].partition(':')[0]}", message))
            elif "left_out" in said:
                if place is None:
                    slow = "figures are asked for faster than they can be drawn, so some were left out."
                    self.failures.append(Failure(slow, slow))
            elif place is None:
                assert drawing.step is not None
                drawing.path = figure_path(drawing._run.files.folder, drawing.step)
                print(f"Picture: {drawing.path}")
            else:
                drawing.png = png
                show_png(png, place)
        except Exception as error:
            message = f"the figure of step {drawing.step} could not be shown: {type(error).__name__}: {error}"
            self.failures.append(Failure(f"showing: {type(error).__name__}", message))
        finally:
            drawing._shown.set()
