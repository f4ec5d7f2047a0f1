"""Drawer: shows the last snapshot of a run again and again, without keeping the training waiting."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import DrawingFailed
from ...history.printing.text import plural
from ..figures.colors import ScaleName
from ..figures.figure import Displays, figure_of_snapshot, show_png
from ..snapshots.run import Run
from ..snapshots.trouble import Failure
from ..watch.pacing import Pace
from .desk import Desk, Job, desk
from .worker import figure_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        return getattr(self.figure, name)

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
