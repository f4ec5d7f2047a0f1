"""`extract`: computes chosen layers over a whole dataset, written in blocks while the model runs, with progress reports."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from .._text import human_size
from .._torch.addresses import innermost
from .._torch.inputs import is_whole
from .._torch.left_as_found import left_as_found
from ..capture import refuse_inside_compiled_code
from ..errors import FeaturesMismatch, InvalidArgument, TorcheerError, UnreadableFile, put_on
from .block_index import BlockIndex
from .data import LARGEST, Column, Data, GivenIds, Ids, Labels, Part, Source, generators_of, open_source, texts_as_tensor, world
from .digests import described_function, state_digests, value_digest
from .features import Features, open_features
from .layer_reader import Call, Calling, Flatten, GivenLayers, LayerReader, training_modules, warn_of_training
from .plan import End, Plan, check_plan_is_there, read_end, read_plan, settle_plan, write_end
from .reduced_blocks import ReducedBlocks, States
from .storage import (
    FORMAT,
    IDS,
    LABELS,
    LAYERS,
    SAMPLES,
    TEXTS,
    TOKEN_POSITIONS,
    TOKEN_SAMPLES,
    BlockName,
    Storage,
    blocks_among,
    open_storage,
)
from .transforms import GivenKeep, GivenTransform, Keeping, parse_keep
from .writer import BlockWriter

_EVERY = 0.5  # number of seconds between two lines on a terminal
_EVERY_IN_A_FILE = 30.0


@dataclass(frozen=True)
class ExtractionProgress:
    """The progress of an extraction, passed to `progress=` functions."""

    samples: int  # number of samples that this process has run so far
    total: int | None  # number of samples that this process has to run, if known
    seconds: float
    written: int  # number of bytes in the folder, including the unfinished block

    @property
    def rate(self) -> float:
        """The number of samples per second."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The estimated time that is left, if known."""
        if self.total is None or not self.rate:
            return None
        return (self.total - self.samples) / self.rate

    def __str__(self) -> str:
        of = f" of {self.total:,}" if self.total is not None else ""
        left = f", {_duration(self.seconds_left)} left" if self.seconds_left is not None else ""
        return f"{self.samples:,}{of} samples, {self.rate:,.1f}/s, {human_size(self.written)} on disk{left}"


WantedProgress = bool | Callable[[ExtractionProgress], object]


class ProgressReport:
    """Reports the progress of an extraction: on stderr, to a function, or not at all."""

    def __init__(self, progress: WantedProgress, total: int | None, written: int, who: str = "") -> None:
        self._report = progress if callable(progress) else None
        self._is_shown = progress is True and sys.stderr is not None
        self._is_terminal = self._is_shown and sys.stderr.isatty()
        self._who = f"extract{who}: "
        self.total = total
        self.written = written
        self._samples = 0
        self._begin = self._last = monotonic()
        self._width = 0

    def ran(self, samples: int) -> None:
        """Count samples that were run, and report when it is time."""
        self._samples += samples
        if self._report is not None:
            self._report(self.now())
        elif self._is_shown and monotonic() - self._last >= (_EVERY if self._is_terminal else _EVERY_IN_A_FILE):
            self._say()

    def wrote(self, size: int) -> None:
        """Count written bytes."""
        self.written += size

    def end(self) -> None:
        """Print the last line."""
        if self._is_shown and self._samples and (self._is_terminal or self._width):
            self._say()
            if self._is_terminal:
                sys.stderr.write("\n")

    def now(self) -> ExtractionProgress:
        return ExtractionProgress(self._samples, self.total, monotonic() - self._begin, self.written)

    def _say(self) -> None:
        self._last = monotonic()
        text = self._who + str(self.now())
        sys.stderr.write(f"\r{text.ljust(self._width)}" if self._is_terminal else f"{text}\n")
        sys.stderr.flush()
        self._width = len(text)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# `extract`, and the work of one process.


def extract(
    model: Module,
    data: Data,
    layers: GivenLayers,
    to: str | os.PathLike[str],
    *,
    transform: GivenTransform = None,
    keep: GivenKeep = None,
    dtype: torch.dtype | str | None = None,
    flatten: Flatten | None = None,
    block: int | None = None,
    ids: GivenIds | None = None,
    call: Call | None = None,
    stop: bool | None = None,
    resume: bool = True,
    progress: WantedProgress = True,
) -> Features:
    """Run a model over a dataset and write the values of chosen layers into a folder, from which they are read like arrays.

    >>> import tempfile, torch, torcheer
    >>> model, data = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval(), torch.rand(100, 4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     features = torcheer.extract(model, data, ["0"], to=folder, progress=False)
    ...     print(features["0"].shape, torch.equal(features["0"][7:9], model[0](data[7:9])))
    (100, 3) True

    Args:
        model: the model, in the mode (training or evaluation) it will run in; it runs under `no_grad`, and is restored.
        data: a DataLoader, a Dataset (in batches of 32), or an iterable of batches: tensors, tuples, mappings.
        layers: keys (docs/keys.md), or a mapping from your names to keys.
        to: a folder: new, empty, or with the same extraction, which is then resumed.
        transform: changes a value before it is stored: a function of the tensor, or of the tensor and the batch; "mean"
            (over positions), "max", "first_token", "last_token"; or a mapping from layers to these.
        keep: reducers of `torcheer.reducers` instead of values; with "activations" in the list, values as well.
        dtype: the dtype in which floating-point values are stored.
        flatten: "tokens" stores one row for each position that is not padding, with its sample and its position.
        block: the least number of samples in a block; blocks are whole batches. None: as in the folder, if it has features,
            else an eighth of the samples before the block, from 32 to 1,024.
        ids: identify samples: the name of an item of the batches, a function of a batch, or a sequence.
        call: a function `call(model, batch)` that runs the model, needed if the arguments in a batch are not obvious.
        stop: end each pass after the last of the layers, by an exception. None: if more than a tenth of the operations come
            after it.
        resume: continue an extraction in the folder. The model, the data and the settings must be the same.
        progress: print progress to stderr; or a function that is called with an `ExtractionProgress` after each batch.

    Under torchrun each process takes its share of the blocks. A killed process loses only its unfinished block. A
    KeyboardInterrupt says how many samples are in the folder.
    """
    refuse_inside_compiled_code()
    if block is not None and not is_whole(block, 1):
        raise InvalidArgument(f"block is the least number of samples in a block, a whole number from 1; got {block!r}.")
    storage, calling, known = open_storage(to), Calling(model, call), Ids(ids)
    block = _block_of(storage) if block is None else block
    inner = innermost(model)
    modules = list(inner.modules())
    with left_as_found(model, modules, [], ((), {}), []) as undone:
        undone.restorer.back_up_all_but_parameters()
        for generator in generators_of(data):
            undone.last.callback(generator.set_state, generator.get_state())
        source = open_source(data, block, calling.samples, has_ids=known.is_given)
        reader = LayerReader(
            model, layers, source.first_batch, transform=transform, dtype=dtype, flatten=flatten, call=call, stop=stop
        )
        undone.restorer.back_up(reader.state)
        keeping = parse_keep(keep, reader.names, reader.origins)
        training = training_modules(inner)
        settings = {
            "block": block,
            "dtype": str(reader.dtype) if reader.dtype is not None else None,
            "flatten": flatten,
            "transform": _described_transform(transform),
            "call": described_function(call),
            "ids": known.describe(),
            "keep": keeping.describe(),
            "autocast": _autocast(calling.device.type),
        }
        plan = Plan(
            type(inner).__name__,
            reader.names,
            settings,
            reader.structure,
            training,
            value_digest(source.first_batch),
            source.order,
            state_digests(inner),
        )
        extraction = _Extraction(storage, source, reader, keeping, known, progress, block)
        try:
            with reader:
                extraction.try_first_batch()
                settle_plan(storage, plan, resume=resume)
                storage.clean_up()
                extraction.check_blocks()
                warn_of_training(inner, stacklevel=2)
                extraction.run()
        except BaseException as error:
            _add_progress(error, storage, source)
            raise
    return open_features(to)


class _Extraction:
    """The part of an extraction that one process does."""

    def __init__(
        self,
        storage: Storage,
        source: Source,
        reader: LayerReader,
        keeping: Keeping,
        ids: Ids,
        progress: WantedProgress,
        block: int | None,
    ) -> None:
        self._block_size = LARGEST if block is None else block
        self._storage, self._source, self._reader, self._keeping, self._ids = storage, source, reader, keeping, ids
        sizes = storage.sizes()
        self._there, self._end = blocks_among(sizes), read_end(storage)
        self._done = {block.number for block in self._there}
        self._rank, self._world = world()
        who = f" {self._rank + 1}/{self._world}" if self._world > 1 else ""
        self._report = ProgressReport(progress, source.count(self._is_wanted), sum(sizes.values()), who)
        calling, first = reader.calling, source.first_batch
        self._labels = Labels(self._labels_of(first), calling.samples(first))
        self._reduced = ReducedBlocks(storage, keeping.reducers) if keeping.reducers else None
        self._first_values: dict[str, Tensor] | None = None  # the values of the first batch, until they are stored
        self._block: _Block | None = None
        self._writer: BlockWriter

    def _is_wanted(self, block: int) -> bool:
        return block % self._world == self._rank and block not in self._done

    def _labels_of(self, batch: Any) -> dict[str, Any]:
        return self._reader.calling.labels(batch, self._ids.item)

    def try_first_batch(self) -> None:
        """Run the first batch, so that errors come before anything is written."""
        first = self._source.first_batch
        part = Part(0, 0, 0, self._reader.calling.samples(first), first)
        values = self._reader.read(first)
        self._numbers(part, values, {})
        self._ids.of(part, self._source)
        self._first_values = values if self._is_wanted(0) else None

    def check_blocks(self) -> None:
        """Raise if an existing block is damaged, before missing blocks are run."""
        try:
            BlockIndex(self._storage, self._keeping.stored)
        except UnreadableFile as error:
            raise UnreadableFile(f"{error} Delete this file and extract again: the other blocks are kept.") from None

    def run(self) -> None:
        """Run the missing blocks."""
        if self._source.blocks is not None:
            self._write_end()
        self._writer = BlockWriter(self._storage, self._room(), self._report.wrote)
        try:
            for part in self._source.parts(self._is_wanted, self._there):
                self._check_end(part)
                self._add(part)
                self._report.ran(part.samples)
            self._end_block()
            self._writer.close()
        except BaseException:
            self._writer.abandon()
            raise
        finally:
            self._report.end()
        if self._reduced is not None:
            self._reduced.settle()
        self._write_end()

    def _check_end(self, part: Part) -> None:
        """Raise if there are more blocks than in the earlier extraction."""
        if self._end is not None and part.block >= self._end.blocks:
            raise FeaturesMismatch(
                f"the data has more samples than the {self._end.samples} that it had when these features were extracted. "
                "Extract with the same data, or into another folder."
            )

    def _write_end(self) -> None:
        blocks, samples = self._source.blocks, self._source.samples
        if blocks is not None and samples is not None:
            write_end(self._storage, End(blocks, samples))

    def _room(self) -> int:
        """Estimate the size of a block's header in bytes."""
        samples = self._reader.calling.samples(self._source.first_batch)
        batches = -(-self._block_size // max(samples, 1))
        return min(4 << 20, batches * sum(len(name) + 120 for name in self._reader.names) + 4096)

    # A batch --------------------------------------------------------------------------------------------------------

    def _add(self, part: Part) -> None:
        if self._block is None or self._block.number != part.block:
            self._end_block()
            check_plan_is_there(self._storage)
            self._block = _Block(part.block, part.first, self._reduced.begin() if self._reduced is not None else {})
        block = self._block
        values, self._first_values = self._first_values, None
        if values is None or part.number:
            values = self._reader.read(part.batch, part.number)
        columns: dict[str, Tensor] = {f"{LAYERS}{name}": values[name] for name in self._keeping.stored}
        numbers = self._numbers(part, values, columns)
        if self._reduced is not None:
            for name in self._keeping.reducers:
                self._reduced.update(block.states, name, values[name], numbers.to(values[name].device))
        others: dict[str, Column] = {
            f"{LABELS}{name}": column for name, column in self._labels.of(self._labels_of(part.batch), part).items()
        }
        known = self._ids.of(part, self._source)
        if known is not None:
            others[IDS] = known
        for name, column in others.items():
            if isinstance(column, Tensor):
                columns[name] = column
            else:
                block.texts.setdefault(name, []).extend(column)
        block.samples += part.samples
        self._writer.add(columns)

    def _numbers(self, part: Part, values: dict[str, Tensor], columns: dict[str, Tensor]) -> Tensor:
        """Return the sample number of each row. Unless it follows from the row's index, adds sample numbers to `columns`."""
        numbers = self._source.numbers(part)
        if numbers is None:
            numbers = torch.arange(part.first, part.first + part.samples, device="cpu")
        else:
            columns[SAMPLES] = numbers
        if self._reader.flatten is None:
            return numbers
        samples, positions = self._reader.tokens(part.batch, values)
        columns[TOKEN_SAMPLES], columns[TOKEN_POSITIONS] = numbers[samples], positions
        return columns[TOKEN_SAMPLES]

    def _end_block(self) -> None:
        block, self._block = self._block, None
        if block is None:
            return
        if block.texts:
            self._writer.add({f"{TEXTS}{name}": texts_as_tensor(texts) for name, texts in block.texts.items()})
        self._writer.finish(BlockName(block.number, block.first, block.samples).file, FORMAT, partial(self._before, block))

    def _before(self, block: _Block) -> None:
        """Called by the writing thread before a block gets its name."""
        check_plan_is_there(self._storage)
        if self._reduced is not None:
            self._reduced.write(block.number, block.states, block.samples)


class _Block:
    """The block that is being filled."""

    def __init__(self, number: int, first: int, states: States) -> None:
        self.number, self.first, self.states = number, first, states
        self.samples = 0
        self.texts: dict[str, list[str]] = {}


def _block_of(storage: Storage) -> int | None:
    """Return the `block` setting of the features in a folder. None if there are no features, or if their blocks grow."""
    plan = read_plan(storage)
    block = plan.settings.get("block") if plan is not None else None
    return block if is_whole(block, 1) else None


def _add_progress(error: BaseException, storage: Storage, source: Source) -> None:
    """Add to an interrupt, or an error of the model or data, how many samples are in the folder and how to continue."""
    if isinstance(error, TorcheerError):  # errors of torcheer have their own advice
        return
    with contextlib.suppress(Exception):  # if the folder cannot be read, nothing is added
        there = sum(block.samples for block in blocks_among(storage.names()))
        whole = f" of {source.samples:,}" if source.samples is not None else ""
        said = f"{there:,}{whole} samples are in {storage.location}. The same call of extract() does the rest."
        if isinstance(error, KeyboardInterrupt) and not error.args:
            error.args = (said,)
        else:
            put_on(error, said)


def _described_transform(transform: Any) -> Any:
    if isinstance(transform, dict):
        return {str(name): described_function(one) for name, one in transform.items()}
    return described_function(transform)


def _autocast(device: str) -> str | None:
    """Return the dtype of autocast on a device. None if the caller has not switched autocast on."""
    if device == "meta":  # tensors on the meta device are refused later
        return None
    return str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else None
