"""Draws figures while the training goes on, in a separate process: Matplotlib takes seconds and is not safe in threads.

`concurrent.futures.ProcessPoolExecutor` cannot do it. A process that it spawns imports the user's script, and a script without
`if __name__ == "__main__"` would train again; forking is not safe where CUDA or threads run; and at the end of the program the
pool waits without a limit for a process that is stopped. The process that is started here imports nothing of the user's, ends
when its stdin does, however the training ended, and is killed when a figure takes too long.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._cleanup import end_process, kill_process
from .._text import plural
from ..errors import DrawingFailed
from .colors import ScaleName
from .figures import Displays, figure_of_snapshot, png_of, show_png, write_figure
from .pacing import Pace
from .records import Failure
from .run import Run
from .store import FileManager

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Answer = tuple[dict[str, Any], bytes]  # facts about a figure, and its PNG if a notebook shows it

_LIMIT = 300.0  # number of seconds to wait for a figure; then the process that draws is killed
_LEAVE = 5.0  # number of seconds to wait for the process that draws to end
_MOST_WAITING = 8  # number of waiting figures; if more wait, the oldest are left out


# The process that draws -----------------------------------------------------------------------------------------------

# The program gets the absolute paths of this process, so that it finds the same packages wherever it is started.
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from torcheer.xray.drawing import answer; answer()"


def answer() -> None:
    """Answer requests until there are no more, each with a line of JSON and the PNG. Runs are read from their folders."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that packages print must not mix with the answers
    runs: dict[str, FileManager] = {}
    began = 0.0
    for line in sys.stdin.buffer:
        try:
            said, png = _drawn(json.loads(line), runs)
        except Exception as error:
            said, png = {"error": f"{type(error).__name__}: {error}"}, b""
        said |= {"seconds": time.process_time() - began, "length": len(png)}
        answers.write(json.dumps(said).encode() + b"\n" + png)
        answers.flush()
        began = time.process_time()


def _drawn(request: dict[str, Any], runs: dict[str, FileManager]) -> Answer:
    """Draw the snapshot of the requested step; if it is damaged or gone, the last readable snapshot."""
    folder = request["folder"]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if folder in runs:
            runs[folder].refresh()
        else:
            runs.clear()  # figures are drawn for one training at a time
            runs[folder] = FileManager.open(folder)
        run = Run(runs[folder])
        step = run.readable_step(request["step"])
        png = png_of(figure_of_snapshot(run, step, layers=request["layers"], scale=request["scale"]))
    if request["is_file"]:
        path = figure_path(Path(folder), step)
        path.parent.mkdir(exist_ok=True)
        write_figure(path, png)
        png = b""
    return {"step": step, "warnings": [str(one.message) for one in warned]}, png


def figure_path(folder: Path, step: int) -> Path:
    return folder / "figures" / f"step_{step:08d}.png"


def _start() -> subprocess.Popen[bytes]:
    plain = {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": ""}
    paths = [os.path.abspath(path) for path in sys.path]
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, json.dumps(paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **plain},
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # a flag of Windows
        start_new_session=True,  # so that Ctrl-C ends only the training
    )


def _ask(process: subprocess.Popen[bytes], request: dict[str, Any]) -> Answer:
    """Send a request and wait for its answer without a limit. A process that does not answer is ended."""
    assert process.stdin is not None
    assert process.stdout is not None
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
    except Exception as error:
        end_process(process, _LEAVE)
        return {"error": f"{type(error).__name__}: {error}"}, b""
    return said, png


# The training's side of drawing --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Job:
    """A figure to draw, and the function to call when it is drawn."""

    request: dict[str, Any]
    place: str  # where the figure is shown; a newer figure for the same place replaces a waiting figure
    finish: Callable[[dict[str, Any], bytes], None]
    done: threading.Event = field(default_factory=threading.Event)


class Desk:
    """Draws the jobs of all Xrays, one after the other. Every job is finished, also if the process dies or hangs."""

    def __init__(self) -> None:
        self._finished = 0
        self._waiting: deque[Job] = deque()
        self._thread: threading.Thread | None = None  # None while there is nothing to do
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, job: Job) -> None:
        """Add a job. Raises if no thread can be started: there are too many threads, or the program ends."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="torcheer-xray-drawing", daemon=True)
                thread.start()
                self._thread = thread
            left_out = [one for one in self._waiting if one.place == job.place]
            for one in left_out:
                self._waiting.remove(one)
            self._waiting.append(job)
            if len(self._waiting) > _MOST_WAITING:
                left_out.append(self._waiting.popleft())
        for one in left_out:
            self._finish(one, {"left_out": True})

    def wait(self, job: Job) -> bool:
        """Wait until a job is finished. Returns False if no job at all is finished for twice the limit."""
        finished = -1
        while self._thread is not threading.current_thread() and self._finished > finished:
            finished = self._finished
            if job.done.wait(2 * _LIMIT):
                return True
        return False

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                jobs = [self._waiting.popleft()]
            try:
                said, png = self._draw(jobs[0].request)
            except TimeoutError as error:  # the waiting figures would take as long as this figure
                with self._lock:
                    jobs += self._waiting
                    self._waiting.clear()
                said, png = {"error": f"TimeoutError: {error}"}, b""
            except BaseException as error:  # only the figure is lost; the training goes on
                said, png = {"error": f"{type(error).__name__}: {error}"}, b""
            for job in jobs:
                self._finish(job, said, png)

    def _draw(self, request: dict[str, Any]) -> Answer:
        """Draw a figure in the process. A second thread waits for the answer, and is abandoned if the process hangs."""
        process, answers = self._process, list[Answer]()
        # a process whose stdin is closed was ended by `end_process`
        if process is None or process.poll() is not None or process.stdin is None or process.stdin.closed:
            self._stop()
            process = self._process = _start()
        asking = threading.Thread(
            target=lambda: answers.append(_ask(process, request)), name="torcheer-xray-asking", daemon=True
        )
        asking.start()
        asking.join(_LIMIT)
        if asking.is_alive():
            self._process = None
            kill_process(process)
            asking.join(_LEAVE)
            raise TimeoutError(f"it took more than {_LIMIT:g} s, so the process that draws was stopped")
        return answers[0]

    def _finish(self, job: Job, said: dict[str, Any], png: bytes = b"") -> None:
        try:
            with contextlib.suppress(BaseException):  # showing the figure failed, which `finish` has noted
                job.finish(said, png)
        finally:
            self._finished += 1
            job.done.set()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_process(process, _LEAVE)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            thread, process = self._thread, self._process
        if thread is None:
            self._stop()
        elif process is not None:  # a thread reads from the process, perhaps for ever
            kill_process(process)


_desks: dict[int, Desk] = {}  # process id -> its desk; a forked process has a desk of its own


def desk() -> Desk:
    """The desk of this process."""
    return _desks.setdefault(os.getpid(), Desk())


# runs when the program ends, and after the finalizers of Xrays, which are registered later
weakref.finalize(Desk, lambda: desk().close())


# Drawer: shows the last snapshot of a run again and again, without keeping the training waiting.

_Soon = Callable[[Callable[[], None]], None]
_PATIENCE = 60.0  # code that uses the figure waits at most this many seconds until the figure is shown
_LONGEST = 900.0  # `Drawing.wait` waits at most this many seconds by default
_PLACE = "last"  # the name of the place in a notebook where the figure is shown


class Drawing:
    """A figure of a snapshot that another process draws while the training goes on.

    It can be used as a Matplotlib figure (`savefig`, `axes`, …). That waits until the figure is shown, a minute at most, and
    draws it again in this process.
    """

    def __init__(self, run: Run, layers: Sequence[str] | None, scale: ScaleName | None) -> None:
        self._run, self._layers, self._scale = run, layers, scale
        self._shown = threading.Event()
        self._figure: Figure | None = None
        self.step: int | None = None
        self.path: Path | None = None  # the figure's file, if one is written
        self.png = b""  # the picture, if it is shown in a notebook

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the figure is shown or given up, a quarter of an hour at most. Returns False if the time ran out first."""
        return self._shown.wait(_LONGEST if timeout is None else timeout)

    @property
    def figure(self) -> Figure:
        """The Matplotlib figure, which can be saved or changed."""
        return self._drawn()

    def _drawn(self) -> Figure:
        """The figure. A method, because an AttributeError inside a property would lead to `__getattr__`, and back."""
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
        """Show nothing: the figure is shown already."""

    def __repr__(self) -> str:
        what = "the last snapshot" if self.step is None else f"step {self.step}"
        return f"<drawing of {what}{f' in {self.path}' if self.path else ''}>"


class Drawer:
    """Draws the last snapshot of one run, and collects failures."""

    def __init__(self, pace: Pace) -> None:
        self.failures: list[Failure] = []
        self._pace = pace
        self._displays = Displays()
        self._last: Drawing | None = None
        self._asked: tuple[Any, ...] | None = None  # number of snapshots so far, layers and scale of the last request
        self._drawn: tuple[Any, ...] | None = None  # number of the snapshot, layers and scale of the last figure
        self._process = os.getpid()
        self._jobs: list[Job] = []

    def draw(self, run: Run, taken: int, layers: Sequence[str] | None, scale: ScaleName | None, soon: _Soon) -> Drawing | None:
        """Ask for a figure of the last snapshot. `soon` calls a function once every snapshot taken so far is written."""
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
        """Wait until all requested figures are shown. Figures that are not drawn in time are given up."""
        if self._process != os.getpid():  # a forked process does not draw
            return
        jobs, self._jobs = self._jobs, []
        lost = [job for job in jobs if not (job.done.is_set() or desk().wait(job))]
        if lost:
            message = f"{plural(len(lost), 'figure')} could not be drawn in time, and nobody waits for what draws any longer."
            self.failures.append(Failure("figures wait", message))

    def _begin(self, drawing: Drawing, place: str | None) -> None:
        """Called once all snapshots are written: hand the last snapshot over, unless its figure was the last drawn."""
        try:
            job = self._job(drawing, place)
            if job is not None:
                desk().ask(job)
                self._jobs = [*(one for one in self._jobs if not one.done.is_set()), job]
                return
        except Exception as error:
            message = f"a figure could not be drawn: {type(error).__name__}: {error}"
            self.failures.append(Failure(f"figure: {type(error).__name__}", message))
        self._pace.drew(None)
        drawing._shown.set()

    def _job(self, drawing: Drawing, place: str | None) -> Job | None:
        """The job for the last snapshot; None if its figure was the last drawn."""
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
        """Show the figure, or note the failure. Runs on the thread of the desk."""
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
