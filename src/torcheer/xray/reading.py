"""Reader: what can be asked of a run without its model. `Xray` is one, and `Xray.open` gives one that only reads."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._text import plural
from .._torch.inputs import check_names
from ..errors import TorcheerError
from .animation import write_gif, write_strip
from .colors import ScaleName, check_scale
from .drawing import Drawer, Drawing
from .exporting import to_tensorboard, to_wandb
from .figures import Displays, check_layers, figure_of
from .layers import Watch
from .pacing import Pace
from .records import tell
from .report import write_report
from .run import Run, Saved
from .store import FileManager
from .writing import Writer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Reader:
    """Shows, exports and reports what a run holds. A figure that cannot be drawn or written gives a warning, not an error."""

    layers: list[Watch]

    def __init__(self, pace: Pace) -> None:
        self._files: FileManager | None = None  # None in a process that does not watch
        self._writer: Writer | None = None
        self._pace = pace
        self._drawer = Drawer(pace)
        self._displays = Displays()
        self._taken = 0  # snapshots handed to the writer
        self._told: set[str] = set()

    # The run ------------------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The snapshots so far, to read. Waits until everything taken is written."""
        files = self._known_files
        self._flush_snapshots()
        files.refresh()
        return Run(files)

    @property
    def folder(self) -> Path:
        """Where the run is kept."""
        return self._known_files.folder

    @property
    def _known_files(self) -> FileManager:
        if self._files is None:
            raise TorcheerError(
                "this process does not watch: in distributed training rank 0 does, unless rank= says otherwise."
            )
        return self._files

    def saved(self) -> Saved:
        """How many snapshots there are, of which layers and kinds, and how much they take on disk."""
        return Saved(self.run)

    def flush(self) -> None:
        """Wait until everything taken is on disk, and everything that is to be shown is shown."""
        self._flush_snapshots()
        self._drawer.wait()
        self._tell_failures()

    def _flush_snapshots(self) -> None:
        if self._writer is not None:
            self._writer.flush()
            self._tell_failures()

    def _tell_failures(self) -> None:
        """Warn of failures behind the training, once for each kind."""
        failures, self._drawer.failures = self._drawer.failures, []
        if self._writer is not None:
            failures, self._writer.failures = [*self._writer.failures, *failures], []
        for failure in failures:
            if failure.kind not in self._told:
                self._told.add(failure.kind)
                tell(f"{failure.message} (Told once; the training goes on.)", stacklevel=4)

    # Showing ------------------------------------------------------------------------------------------------------

    def show_last_graphs(self, *, layers: Sequence[str] | None = None, scale: ScaleName | None = None) -> Drawing | None:
        """Show everything of the snapshot taken last: in a notebook in place, elsewhere as a file whose path is printed.

        Args:
            layers: only these.
            scale: `"run"`, colours mean the same over the whole run, or `"frame"`, they fit this snapshot. By default the
                gradients' fit the snapshot, since they shrink, and all others are of the run.

        During a training it is drawn behind it, by another process, and the budget counts it; of a run that is only read it is
        shown when this returns. What is shown already is not drawn again. What goes wrong with it is a warning. Returns a
        `Drawing`, which can be used as the Matplotlib figure; None, and nothing is shown, in a process that does not watch,
        before the first snapshot, and where the budget is spent.
        """
        if self._files is None:
            return None
        check_scale(scale)
        self._tell_failures()
        writer = self._writer if self._files.is_writer else None  # neither closed nor forked off
        if writer is None:
            self._files.refresh()
            self._taken = self._files.next_number
        elif writer.is_stuck or (not self._taken and not len(self._files.rows)):
            return None
        run = Run(self._files)
        if layers is not None:
            check_layers(layers, [*(watch.name for watch in self.layers), *run.layers])
        soon = writer.soon if writer is not None else (lambda call: call())
        drawing = self._drawer.draw(run, self._taken, layers, scale, soon)
        if writer is None:  # no training is kept waiting
            self._drawer.wait()
            self._tell_failures()
        return drawing

    def show(self, layer: str, kind: str, step: int | None = None, *, scale: ScaleName | None = None) -> Figure:
        """Show one kind of one layer at a step, by default the last that has it. Returns the Matplotlib figure."""
        run = self.run
        step = step if step is not None else run.last_picture(layer, kind)[0].step
        figure = figure_of(run, layer, kind, step, scale=scale)
        name = f"{layer}_{kind}_{step:08d}"
        path = self.folder / "figures" / f"{re.sub(r'[^0-9A-Za-z_.-]+', '_', name)[:100]}.png"
        try:
            path.parent.mkdir(exist_ok=True)
            self._displays.present(figure, path, f"{layer}/{kind}")
        except OSError as error:
            tell(f"the figure could not be written to {path}: {error}")
        return figure

    def gif(self, layer: str, kind: str, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write a moving picture of a layer over the run; options as in `animation.write_gif`."""
        _check(options, write_gif, "Xray.gif takes")
        return write_gif(self.run, layer, kind, path, **options)

    def strip(self, layer: str, kind: str, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write a few moments of a layer side by side, as PNG; options as in `animation.write_strip`."""
        _check(options, write_strip, "Xray.strip takes")
        return write_strip(self.run, layer, kind, path, **options)

    def report(self, path: str | os.PathLike[str] | None = None, **options: Any) -> Path:
        """Write one HTML file about the run: a slider over time for every layer, histograms, heat maps. It opens offline.

        By default it is `report.html` in the folder of the run; options as in `report.write_report`.
        """
        _check(options, write_report, "Xray.report takes")
        return write_report(self.run, path if path is not None else self.folder / "report.html", **options)

    def to_tensorboard(self, writer: Any, *, pictures: bool = True, after: int = -1) -> int:
        """Send the snapshots to a TensorBoard writer; see `exporting.to_tensorboard`."""
        return to_tensorboard(self.run, writer, pictures=pictures, after=after)

    def to_wandb(self, wandb_run: Any, *, pictures: bool = True, after: int = -1) -> int:
        """Send the snapshots to a run of Weights & Biases; see `exporting.to_wandb`."""
        return to_wandb(self.run, wandb_run, pictures=pictures, after=after)

    def __repr__(self) -> str:
        if self._files is None:
            return "Xray: not active in this process"
        run = Run(self._files)
        snapshots, layers = plural(len(run.snapshots), "snapshot"), plural(len(self.layers), "layer")
        return f"Xray of {run.title}: {snapshots} of {layers} in {self._files.folder}"


def _check(options: dict[str, Any], function: Callable[..., Any], who: str) -> None:
    """Raise if an option is not a keyword argument of the function."""
    own = inspect.signature(function).parameters.values()
    check_names(options, [one.name for one in own if one.kind is one.KEYWORD_ONLY], who)
