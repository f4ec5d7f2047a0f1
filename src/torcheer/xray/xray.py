"""Xray: watches layers change during training, in two lines."""

from __future__ import annotations

import contextlib
import inspect
import operator
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module

from .._cleanup import Managed
from .._text import Progress, few, plural
from .._torch.functions.groups import UNSCALES
from .._torch.inputs import check_names, is_whole
from ..api import recording
from ..errors import InvalidArgument, RunMismatch, TorcheerError
from ..history import ModelHistory
from ..log.keys import AnyKey
from .animation import write_gif, write_strip
from .colors import ScaleName, check_scale
from .drawing import Drawer, Drawing
from .exporting import to_tensorboard, to_wandb
from .figures import Displays, check_layers, figure_of
from .findings import DEAD, Finding, check_part, find_all, find_at
from .layers import CompiledCodeRefusal, Watch, find, parse_layers, refuse_compiled
from .measuring import Measuring, Summariser, UpdateWatcher
from .pacing import Pace
from .probe import Probe
from .records import tell
from .report import write_report
from .run import Run, Saved
from .sampling import Limits
from .selectors import Choices, RandomFilterSelectorType, Selector
from .series import read_numbers
from .store import FileManager, free_folder, new_folder
from .tracer import architecture_of, differences
from .verify import Verification, compare_trainings
from .writing import Taken, Writer, checked_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROBE_LOSS = "probe loss"  # the name of the metric that an Xray with a loss adds itself


class Xray:
    """Watches layers of a model while it is trained.

    >>> import tempfile, torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU())
    >>> with Xray(model, (2, 1, 8, 8), ["0"], folder=tempfile.mkdtemp()) as xray:
    ...     for step in range(3):
    ...         snapshot_is_taken = xray.take_graphs()
    >>> xray.saved().steps
    [0, 1, 2]

    Args:
        model: the model that is trained. Nothing is put on it.
        input: the fixed input of the probe: a tensor, a tuple of arguments, a dictionary of named arguments, a size such as
            `(1, 3, 32, 32)`, or a list of sizes. A probe that is made from sizes is the same every time.
        layers: keys (docs/keys.md): module addresses, labels (`"relu_3"`), classes, globs, in a list, or as the keys of a
            dictionary that says which kinds, `{"conv1": {"weight": True, "layer": True, "activation": True, "grad": True}}`. A
            module called twice is watched as `"fc:1"` and `"fc:2"`. By default convolutions with their output and activation,
            fully connected layers with their activation, or with their output where no activation function follows, attention
            with its pattern, recurrent layers with their output. Whatever is chosen, a summary of every layer with parameters
            is taken, too.
        folder: where the run is kept. By default a new one, `xray/<model>-<time>`.
        resume: go on with the run in the folder, from the step after its last one. The model must have the architecture of that
            run. Where there is no run yet, one begins.
        loss_fn, target: with them the probe also runs backward: `loss_fn(output, target)`, or `loss_fn(output)` without a
            target. That gives the gradients of the layers' outputs. The model's own `.grad`s are not touched.
        selector: chooses the channels to keep of a layer with too many; see `torcheer.xray.selectors`. One for all layers, or a
            dictionary with one for convolutions, `"conv"`, and one for fully connected layers and all others, `"fc"`.
        limits: how many channels, units, samples and pixels are kept at most, see `Limits`.
        every: only steps that are a multiple of it are taken.
        budget: the part of the time that snapshots may take, such as `"1%"`; snapshots are left out to stay below it.
        max_bytes: the limit of the size on disk; beyond it snapshots are deleted, evenly over the run. None for no limit.
        optimizer: with it, update ratios are measured around one of its steps; without it, they are means between snapshots.
        training: whether the probe runs in training mode.
        dtype: of kept maps. Weights and gradients are kept as they are.
        seed: of the choice of channels and of inputs made from sizes.
        rank: in distributed training the process that watches; None for all of them (each then needs its own folder).

    The probe is one forward pass. It leaves weights, buffers, gradients, random states and the mode of every module as they
    were: `verify` proves it. Work on other threads is not seen.
    """

    is_active = False
    layers: list[Watch]
    _files: FileManager | None = None  # None in a process that does not watch
    # None in a process that does not watch, and if a run is only read; so are the attributes below
    _writer: Writer | None = None
    _probe: Probe | None = None
    _updates: UpdateWatcher | None = None
    _next = 0
    _taken = 0  # number of snapshots that were handed to the writer

    def __init__(
        self,
        model: Module,
        input: object,
        layers: AnyKey | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        resume: bool = False,
        loss_fn: Callable[..., Tensor] | None = None,
        target: object = None,
        selector: Selector | Mapping[str, Selector] | None = None,
        limits: Limits | None = None,
        every: int = 1,
        budget: str | float | None = None,
        max_bytes: int | None = 2**30,
        optimizer: torch.optim.Optimizer | None = None,
        training: bool = False,
        dtype: torch.dtype = torch.float16,
        seed: int = 0,
        rank: int | None = 0,
    ) -> None:
        self._begin(Pace(every, budget))
        self.is_active = _is_my_turn(rank)
        self._probe = probe = Probe(model, input, loss_fn=loss_fn, target=target, training=training, seed=seed)
        _check_options(limits, max_bytes, dtype, seed)
        choices = Choices(selector, RandomFilterSelectorType(seed))
        limits = limits if limits is not None else Limits()
        looked = probe.run("none")
        self.layers = parse_layers(layers, looked)
        found = [find(looked, watch, must_exist=True) for watch in self.layers]
        self._summariser = Summariser(probe.model, looked)
        if not self.is_active:
            return
        title = looked.model_name
        if folder is None and resume:
            raise InvalidArgument("resume=True goes on with the run in a folder: give it, folder='runs/first'.")
        kinds = {watch.name: sorted(watch.kinds) for watch in self.layers}
        about = {"title": title, "seed": seed, "layers": kinds, "architecture": architecture_of(probe.model)}
        folder = folder if folder is not None else new_folder(title)
        files = self._files = FileManager.create(folder, about, max_bytes, resume=resume)
        _check_resumed(files, about)
        self._next = max(files.snapshots.steps, default=-1) + 1
        choices.made.update(files.about.get("choices", {}))
        self._writer = Writer(files, choices, limits, dtype)
        weakref.finalize(self, _finish_later, self._writer, self._drawer)
        if optimizer is not None:
            weights = {one.watch.name: one.weight for one in found if one.watch.wants("weight") and one.weight is not None}
            self._updates = UpdateWatcher(optimizer, probe.model, weights, self._summariser.samples, every)
            weakref.finalize(self, self._updates.remove)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Xray:
        """Open a run to look at it: finished, crashed, or still running in another process."""
        found = cls.__new__(cls)
        found._begin(Pace())
        found._files = FileManager.open(folder)
        found.layers = [Watch(name, frozenset(kinds)) for name, kinds in found._files.about.get("layers", {}).items()]
        return found

    def _begin(self, pace: Pace) -> None:
        self._pace = pace
        self._drawer = Drawer(pace)
        self._displays = Displays()
        self._notes: dict[str, str] = {}
        self._metrics: dict[str, Any] = {}
        self._told: set[str] = set()

    # Taking -------------------------------------------------------------------------------------------------------

    def take_graphs(
        self,
        step: int | None = None,
        *,
        show: bool = False,
        metrics: Mapping[str, object] | None = None,
        scale: float | None = None,
        clipped: float | None = None,
    ) -> bool:
        """Take a snapshot of every watched layer. Returns whether one was taken.

            xray.take_graphs(step, show=True, metrics={"loss": loss})

        Args:
            step: of the training; counts by itself when left out.
            show: show the snapshot at once, as `show_last_graphs` does.
            metrics: numbers by name, such as the loss, as tensors of one value or as they are. They are written down with the
                snapshot, and so is the loss of the probe, if it has one; the report draws them over its slider.
            scale: the factor of the gradients, if a gradient scaler has not unscaled them yet.
            clipped: the norm the gradients were clipped to.

        Called after `loss.backward()` it takes the weights' gradients as they stand.
        """
        step = self._step(step)
        self.note_metrics(metrics or {})
        if not self._is_due(step):
            self._metrics.clear()
            return False
        self.note_gradients(scale=scale, clipped=clipped)
        assert self._probe is not None
        began = perf_counter()
        has_loss = self._probe.loss_fn is not None
        history, gradients, loss = self._probe.run_backward() if has_loss else (self._probe.run(), {}, None)
        if loss is not None:
            self._metrics.setdefault(PROBE_LOSS, loss)
        self._hand_over(step, history, gradients, "the probe's loss")
        self._pace.took(perf_counter() - began)
        if show:
            self.show_last_graphs()
        return True

    take_graph = take_graphs

    def step(self, step: int | None = None) -> AbstractContextManager[ModelHistory | None]:
        """Watch your own forward and backward pass, run inside the `with` block, instead of a probe.

        When no snapshot is due it does nothing. Inside, the model is recorded; that costs time, which the budget does not know
        of, and, until the block ends, the memory of all its activations and gradients. A compiled model is refused, and so is a
        compiled function that runs inside: recorded, it would run uncompiled, so that the training would not be the same;
        `take_graphs` watches it.
        """
        if self._probe is not None:
            refuse_compiled(self._probe.given)
        return _WatchedStep(self, step)

    def _record(self, step: int | None) -> tuple[int, recording | None]:
        """The number of a step, and the recording of the step if a snapshot is due."""
        step = self._step(step)
        if not self._is_due(step):
            return step, None
        assert self._probe is not None
        wants_gradients = any(watch.wants("grad") for watch in self.layers)
        return step, recording(self._probe.model, save_gradients=wants_gradients, keep_orphans=True)

    def _take(self, step: int, history: ModelHistory) -> None:
        """Take the snapshot of a recorded step."""
        began = perf_counter()
        scale = max((one.scale for one in history.backward_passes if one.scale is not None), default=None)
        if scale is not None and not any(one._record.function.plain_name == UNSCALES for one in history.operations):
            self.note_gradients(scale=scale)
        self._hand_over(step, history, {}, "this pass", [f"multiplied by {scale:g}"] if scale is not None else [])
        self._pace.took(perf_counter() - began)

    def note_gradients(self, note: str = "", *, scale: float | None = None, clipped: float | None = None) -> None:
        """Note how the gradients of the next snapshot were changed; the note is kept with the snapshot."""
        if note:
            self._notes["note"] = note
        if scale is not None:
            self._notes["scale"] = f"multiplied by {scale:g}, not unscaled yet"
        if clipped is not None:
            self._notes["clipped"] = f"clipped to norm {clipped:g}"

    def note_metrics(self, metrics: Mapping[str, object]) -> None:
        """Give numbers by name that the next snapshot stores, such as the loss inside `xray.step`."""
        self._metrics.update(checked_metrics(metrics))

    def _step(self, step: int | None) -> int:
        self._must_be_writer()
        if step is None:
            step = self._next
        try:
            number = -1 if isinstance(step, bool) else operator.index(step)  # accepts NumPy's integers, too
        except TypeError:
            number = -1
        if number < 0:
            raise InvalidArgument(f"step must be a whole number from 0 on; got {step!r}.")
        self._next = number + 1
        return number

    def _is_due(self, step: int) -> bool:
        if self._writer is None:
            return False
        self._tell_failures()
        return self._pace.is_due(step)

    def _hand_over(
        self, step: int, history: ModelHistory, gradients: dict[str, Tensor], loss: str, said_of_outputs: Sequence[str] = ()
    ) -> None:
        """Take the tensors of all watched layers from a history, and hand them to the writer."""
        assert self._writer is not None
        assert self._probe is not None
        measuring = Measuring(self._probe.model, gradients, loss, list(self._notes.values()), said_of_outputs)
        for watch in self.layers:
            measuring.measure(find(history, watch))
        self._notes.clear()
        metrics, self._metrics = self._metrics, {}
        readings = self._summariser.read(history, gradients)
        updates, moved = self._updates.take() if self._updates is not None else ({}, {})
        on_device = any(one.tensor.is_cuda for one in measuring.measured)
        ready = torch.cuda.Event() if on_device else None  # type: ignore[no-untyped-call]  # torch's own
        if ready is not None:
            ready.record()
        self._taken += 1
        measured, notes = measuring.measured, measuring.notes
        self._writer.submit(Taken(step, time.time(), measured, notes, updates, readings, moved, metrics, ready))

    def _must_be_writer(self) -> None:
        if self._files is not None and not self._files.is_writer:
            raise TorcheerError(
                f"this Xray only reads {self._files.folder}: it was opened with Xray.open, closed, or made before a fork. "
                f"Make one with a model, folder={str(self._files.folder)!r} and resume=True to go on with the run."
            )

    @property
    def cost(self) -> dict[str, float]:
        """Seconds spent in snapshots and drawing, their fraction of the time, and the number of snapshots left out."""
        pace = self._pace
        return {"seconds": pace.spent, "drawing": pace.drawing, "share": pace.share, "skipped": float(pace.skipped)}

    def close(self) -> None:
        """Write and draw the rest, remove the hooks of the optimizer, and let another Xray write to the folder."""
        if self._updates is not None:
            self._updates.remove()
        if self._writer is not None:
            _finish(self._writer, self._drawer)
            self._tell_failures()

    # The run ------------------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The `Run` with the snapshots taken so far. Waits until they are written."""
        files = self._known_files
        self._flush_snapshots()
        files.refresh()
        return Run(files)

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self._known_files.folder

    @property
    def _known_files(self) -> FileManager:
        if self._files is None:
            raise TorcheerError(
                "this process does not watch: in distributed training rank 0 does, unless rank= says otherwise."
            )
        return self._files

    def saved(self) -> Saved:
        """A table of the run: the number of snapshots, their layers and kinds, and their size on disk."""
        return Saved(self.run)

    def flush(self) -> None:
        """Wait until all snapshots are on disk and all figures are shown."""
        self._flush_snapshots()
        self._drawer.wait()
        self._tell_failures()

    def _flush_snapshots(self) -> None:
        if self._writer is not None:
            self._writer.flush()
            self._tell_failures()

    def _tell_failures(self) -> None:
        """Warn of failures on other threads during the training, once for each kind of failure."""
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
            scale: `"run"`, colours mean the same over the whole run, or `"frame"`, they fit this snapshot. By default `"frame"`
                for gradients, since they shrink, else `"run"`.

        During a training it is drawn behind it, by another process, and the budget counts it; of a run that is only read it is
        shown when this returns. A snapshot that is shown already is not drawn again. Failures are warnings. Returns a
        `Drawing`, which can be used as the Matplotlib figure; None, and nothing is shown, in a process that does not watch,
        before the first snapshot, and where the budget is spent.
        """
        if self._files is None:
            return None
        check_scale(scale)
        self._tell_failures()
        writer = self._writer if self._files.is_writer else None  # None if the Xray is closed, or in a forked process
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
        if writer is None:  # without a writer, no training is kept waiting
            self._drawer.wait()
            self._tell_failures()
        return drawing

    def show(self, layer: str, kind: str, step: int | None = None, *, scale: ScaleName | None = None) -> Figure:
        """Show one kind of one layer at a step, by default the last step that has it. Returns the Matplotlib figure.

        `kind` is "weight", "layer" (the output), "activation", "attention", "grad" or "layer_grad"; `scale` is as in
        `show_last_graphs`.
        """
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
        """Write an animation of a layer over the run; the options are those of `animation.write_gif`."""
        _check_names(options, write_gif, "Xray.gif takes")
        return write_gif(self.run, layer, kind, path, **options)

    def strip(self, layer: str, kind: str, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write several steps of a layer side by side, as PNG; the options are those of `animation.write_strip`."""
        _check_names(options, write_strip, "Xray.strip takes")
        return write_strip(self.run, layer, kind, path, **options)

    def findings(self, step: int | None = None, *, dead: float = DEAD) -> list[Finding]:
        """What stands out in the run: values that are not finite, dead units, vanishing gradients, odd updates, jumps.

        Args:
            step: only what holds at this step, judged by the snapshots up to it. By default everything that stood out at any
                step; `at` and `until` are the numbers of the first and the last snapshot at which a finding holds.
            dead: the part of a layer's units from which dead units are a finding.
        """
        check_part(dead)
        run = self.run
        snapshots = run.snapshots
        series = read_numbers(run, snapshots, Progress("findings: numbers", len(snapshots), "snapshots", False)).series
        if step is None:
            return find_all(series, snapshots.steps, dead=dead)
        return find_at(series, snapshots.steps, list(snapshots.steps).index(run.snapshot(step).step), dead=dead)

    def report(self, path: str | os.PathLike[str] | None = None, **options: Any) -> Path:
        """Write one HTML file about the run: a slider over time for every layer, histograms, heat maps. It opens offline.

        By default it is `report.html` in the folder of the run; options as in `report.write_report`.
        """
        _check_names(options, write_report, "Xray.report takes")
        return write_report(self.run, path if path is not None else self.folder / "report.html", **options)

    def to_tensorboard(self, writer: Any, *, pictures: bool = True, after: int = -1) -> int:
        """Send the snapshots to a TensorBoard writer; see `exporting.to_tensorboard`."""
        return to_tensorboard(self.run, writer, pictures=pictures, after=after)

    def to_wandb(self, wandb_run: Any, *, pictures: bool = True, after: int = -1) -> int:
        """Send the snapshots to a run of Weights & Biases; see `exporting.to_wandb`."""
        return to_wandb(self.run, wandb_run, pictures=pictures, after=after)

    # Proving ------------------------------------------------------------------------------------------------------

    def verify(self, train_step: Callable[..., object], steps: int = 3) -> Verification:
        """Prove that watching changes nothing: train a copy with an Xray and a copy without, and compare every bit.

        `train_step(model)`, or `train_step(model, optimizer)` when the Xray knows one, is called for each step with the copies.
        A snapshot is taken after each step. The model itself, its optimizer and the random state are not touched.
        """
        if self._probe is None:
            raise TorcheerError("this Xray was opened to read: it has no model to verify with.")
        if steps < 1:
            raise InvalidArgument(f"steps must be a whole number from 1 on: {steps} prove nothing.")
        probe, optimizer = self._probe, self._updates.optimizer if self._updates is not None else None
        layers = {watch.name: list(watch.kinds) for watch in self.layers}
        given = (*probe.args,) if not probe.kwargs else probe.kwargs

        def watch(model: Module, optimizer: torch.optim.Optimizer | None, folder: str) -> Xray:
            options = {"loss_fn": probe.loss_fn, "target": probe.target, "training": probe.training, "rank": None}
            return Xray(model, given, layers, folder=folder, optimizer=optimizer, **options)

        return compare_trainings(probe.model, optimizer, train_step, steps, watch)

    def __repr__(self) -> str:
        if self._files is None:
            return "Xray: not active in this process"
        run = Run(self._files)
        snapshots, layers = plural(len(run.snapshots), "snapshot"), plural(len(self.layers), "layer")
        return f"Xray of {run.title}: {snapshots} of {layers} in {self._files.folder}"

    def __enter__(self) -> Xray:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _WatchedStep(Managed["ModelHistory | None"]):
    """The context manager that `Xray.step` returns. A class, not a generator: the user's exceptions pass through unchanged."""

    def __init__(self, xray: Xray, step: int | None) -> None:
        self._xray, self._given = xray, step
        self._step = 0
        self._recorded: recording | None = None
        self._history: ModelHistory | None = None

    def _begin(self) -> ModelHistory | None:
        self._step, self._recorded = self._xray._record(self._given)
        if self._recorded is None:
            return None
        self._refusal = CompiledCodeRefusal()
        self._history = self._recorded.__enter__()
        assert self._recorded._session is not None
        self._recorded._session.sites.when_new = self._refusal
        return self._history

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._recorded is not None:
            self._recorded.leave(kind, error, trace)

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the step, unless it was ended already, and take its snapshot."""
        if not self.has_begun:
            return
        super().leave(kind, error, trace)
        if self._history is not None:
            self._refusal.raise_again(error)
            if error is None:
                self._xray._take(self._step, self._history)


def _finish(writer: Writer, drawer: Drawer) -> None:
    writer.close()
    drawer.wait()


def _finish_later(writer: Writer, drawer: Drawer) -> None:
    """Close an Xray that was not closed: at the end of the program, or when Python's collector deletes it.

    The collector may run on a thread that would wait for itself; then a new thread closes it.
    """
    if threading.current_thread().name.startswith("torcheer-"):
        with contextlib.suppress(RuntimeError):  # fails if no more threads can be started
            threading.Thread(target=_finish, args=(writer, drawer), name="torcheer-last", daemon=True).start()
    else:
        _finish(writer, drawer)


def _check_names(options: dict[str, Any], function: Callable[..., Any], who: str) -> None:
    """Raise if an option is not a keyword argument of the function."""
    own = inspect.signature(function).parameters.values()
    check_names(options, [one.name for one in own if one.kind is one.KEYWORD_ONLY], who)


def _check_options(limits: Any, max_bytes: Any, dtype: Any, seed: Any) -> None:
    """Check options that would otherwise fail only when a snapshot is written."""
    if limits is not None and not isinstance(limits, Limits):
        raise InvalidArgument(f"limits must be Limits(channels=…, …) of torcheer.xray; got {type(limits).__name__}.")
    if max_bytes is not None and not is_whole(max_bytes, 1):
        raise InvalidArgument(f"max_bytes must be a whole number from 1 on, or None for no limit; got {max_bytes!r}.")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InvalidArgument(f"dtype must be one of torch's for floating-point numbers, such as torch.float16; got {dtype!r}.")
    if not isinstance(seed, int):
        raise InvalidArgument(f"seed must be a whole number; got {seed!r}.")


def _check_resumed(files: FileManager, about: dict[str, Any]) -> None:
    """Raise if a resumed run is of another model. Newly watched layers are added to its `run.json`."""
    recorded = files.about
    different = differences(recorded["architecture"], about["architecture"]) if "architecture" in recorded else []
    if different:
        files.close()
        raise RunMismatch(
            f"the run in {files.folder} cannot be resumed with this model: {few(different, 5, '; ')}. Resume with the model "
            f"it was made with, or begin a new run in a folder of its own, such as folder={str(free_folder(files.folder))!r}."
        )
    layers = {**recorded.get("layers", {}), **about["layers"]}
    if layers != recorded.get("layers") or "architecture" not in recorded:
        files.note(layers=layers, architecture=about["architecture"])


def _is_my_turn(rank: int | None) -> bool:
    distributed = torch.distributed
    if rank is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    return distributed.get_rank() == rank
