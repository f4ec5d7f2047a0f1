"""Turns the user's data into batches with fixed numbers, and batches into blocks.

Block k is a fixed range of batches: the fewest whole batches that reach a number of samples. A block depends only on the
data and this number, so any process can make any block. By default the number grows with the samples before the block.

If a DataLoader or Dataset says which samples are in which batch, only the wanted batches are loaded. Other iterables are
read from the beginning, and unwanted batches are dropped.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from .._cleanup import undoing
from .._torch.inputs import described
from .._torch.randomness import random_as_found
from ..errors import FeaturesMismatch, InvalidArgument
from .digests import described_function, value_digest
from .storage import BlockName

BATCH_SIZE = 32  # the batch size for a Dataset
# a DataLoader or another iterable of batches; or samples, as a Dataset or a Tensor
Data = Iterable[Any] | Dataset[Any] | Tensor
_SMALLEST, LARGEST = 32, 1024  # limits of the number of samples that a block needs by default
_PART = 8  # a block has 1/8 of the samples before it, so an interruption loses at most this fraction of the work
_LATER = "extract() divides the data among processes itself, so leave the sampler out"


class Part(NamedTuple):
    """A batch to run, with its block and its samples."""

    block: int
    number: int  # the number of the batch
    first: int  # the number of its first sample
    samples: int
    batch: Any


class Source:
    """The batches of any iterable, in a fixed order."""

    order: str = ""  # a digest of the order of samples, if known
    samples: int | None = None  # the total number of samples, if known
    blocks: int | None = None

    def __init__(self, data: Iterable[Any], block: int | None, samples_of: Callable[[Any], int]) -> None:
        self._block, self._samples_of = block, samples_of
        batches = iter(data)
        try:
            self.first_batch = next(batches)
        except StopIteration:
            raise no_batch(data) from None
        self._rest = chain([self.first_batch], batches)

    def parts(self, is_wanted: Callable[[int], bool], there: Collection[BlockName] = ()) -> Iterator[Part]:
        """Yield the batches of the wanted blocks, in order. At the end, `samples` and `blocks` are known.

        Raises if the existing blocks (`there`) were made from other batches, unless `order` already shows it.
        """
        block = number = first = in_block = 0
        known = {one.number: one for one in there}
        for batch in self._rest:
            count = self._samples_of(batch)
            if in_block >= samples_of_block(self._block, first - in_block):
                _check_same(known.get(block), BlockName(block, first - in_block, in_block))
                block, in_block = block + 1, 0
            if is_wanted(block):
                yield Part(block, number, first, count, batch)
            number, first, in_block = number + 1, first + count, in_block + count
        _check_same(known.get(block), BlockName(block, first - in_block, in_block))
        if known and max(known) > block:
            raise FeaturesMismatch(
                f"the data ended with sample {first - 1}, and there are blocks of later samples: data had more samples "
                "when they were extracted. Extract with the same data, or into another folder."
            )
        self.samples, self.blocks = first, block + 1

    def indices(self, number: int) -> Sequence[Any] | None:
        """The dataset indices of the samples in a batch, if known."""
        return None

    def numbers(self, part: Part) -> Tensor | None:
        """The dataset numbers of a batch's samples; None if samples come in the dataset's order."""
        return None

    def count(self, is_wanted: Callable[[int], bool]) -> int | None:
        """The number of samples in the wanted blocks, if known."""
        return None


def samples_of_block(given: int | None, first: int) -> int:
    """How many samples the block that begins with sample `first` needs at least; `given` is the user's number, or None.

    >>> [samples_of_block(None, first) for first in (0, 1000, 100_000)]
    [32, 125, 1024]
    """
    return max(_SMALLEST, min(first // _PART, LARGEST)) if given is None else given


def open_source(data: Any, block: int | None, samples_of: Callable[[Any], int], *, has_ids: bool) -> Source:
    """Make a `Source` of the batches of `data`, in blocks of at least `block` samples. None: later blocks are larger."""
    if isinstance(data, Tensor):
        data = _Rows(data)
    if isinstance(data, IterableDataset) or (_is_dataset(data) and not isinstance(data, DataLoader)):
        data = DataLoader(data, batch_size=BATCH_SIZE)
    if _has_numbered_samples(data):
        batches = _batches_of(data)
        if not len(batches):
            raise no_batch(data.dataset)
        has_numbers = _check_order(data, batches, has_ids=has_ids)
        if data.batch_sampler is None:  # each item of the dataset is a batch, of unknown size
            source = Source(data, block, samples_of)
        else:
            source = _Indexed(data, batches, block, samples_of, has_numbers=has_numbers)
        source.order = _digest(batches)
        return source
    sampler = getattr(data, "sampler", None)
    if isinstance(sampler, (RandomSampler, WeightedRandomSampler)) and not has_ids:
        raise InvalidArgument(_wrong_order(sampler, "it gives samples in a random order"))
    if isinstance(data, (str, bytes, Mapping)) or not isinstance(data, Iterable):
        raise InvalidArgument(
            f"data is a DataLoader, a Dataset or an iterable of batches; got {described(data)}. "
            "For a single batch: data=[batch]."
        )
    return Source(data, block, samples_of)


def _has_numbered_samples(data: Any) -> bool:
    """True for a DataLoader that says which samples are in which batch."""
    is_plain = isinstance(data, DataLoader) and type(data).__iter__ is DataLoader.__iter__
    return is_plain and not isinstance(data.dataset, IterableDataset)


class _Rows(Dataset[Tensor]):
    """A tensor as a dataset: its samples are the rows."""

    def __init__(self, tensor: Tensor) -> None:
        if not tensor.dim():
            raise InvalidArgument("data is a tensor without dimensions; its first dimension should be samples.")
        self._tensor = tensor

    def __len__(self) -> int:
        return len(self._tensor)

    def __getitem__(self, index: int) -> Tensor:
        return self._tensor[index]


def _is_dataset(data: Any) -> bool:
    """True for a dataset of torch, or an object with samples by number, such as a Hugging Face dataset."""
    if isinstance(data, Dataset):
        return True
    is_container = isinstance(data, (list, tuple, Mapping, str, bytes))
    return not is_container and hasattr(type(data), "__getitem__") and hasattr(type(data), "__len__")


def no_batch(data: Any) -> InvalidArgument:
    """The error for data that has no batch."""
    is_iterator = isinstance(data, Iterator)
    why = " A generator gives its batches once: make a new one for each extraction." if is_iterator else ""
    what = f"a tensor of shape {tuple(data._tensor.shape)}" if isinstance(data, _Rows) else described(data)
    return InvalidArgument(f"data gave no batch, so there is nothing to extract; it is {what}.{why}")


# Batches made by a sampler --------------------------------------------------------------------------------------------


class _Indexed(Source):
    """The batches of a DataLoader over a dataset with numbered samples."""

    def __init__(
        self,
        loader: DataLoader[Any],
        batches: Sequence[Any],
        block: int | None,
        samples_of: Callable[[Any], int],
        *,
        has_numbers: bool,
    ) -> None:
        self._loader, self._batches, self._samples_of = loader, batches, samples_of
        self._has_numbers = has_numbers  # True if the samples have numbers, because they do not come in the dataset's order
        self.first_batch = next(iter(self._loaded([0], is_first=True)))
        self._starts = [0]  # for each batch: the number of its first sample
        self._in_block: list[int] = []
        number = in_block = 0
        for batch in batches:
            first = self._starts[-1]
            if in_block >= samples_of_block(block, first - in_block):
                number, in_block = number + 1, 0
            self._in_block.append(number)
            self._starts.append(first + len(batch))
            in_block += len(batch)
        self.samples, self.blocks = self._starts[-1], number + 1

    def parts(self, is_wanted: Callable[[int], bool], there: Collection[BlockName] = ()) -> Iterator[Part]:
        wanted = [number for number, block in enumerate(self._in_block) if is_wanted(block)]
        for number, batch in zip(wanted, self._loaded(wanted) if wanted else (), strict=True):
            count, planned = self._samples_of(batch), self._starts[number + 1] - self._starts[number]
            if count != planned:
                raise InvalidArgument(
                    f"batch {number} has {count} samples where its sampler names {planned}: collate_fn leaves some out, or "
                    "adds some. Then which samples come when is known only as they come: give iter(loader) as data."
                )
            yield Part(self._in_block[number], number, self._starts[number], count, batch)

    def indices(self, number: int) -> Sequence[Any] | None:
        return list(self._batches[number])

    def numbers(self, part: Part) -> Tensor | None:
        return torch.tensor(self._batches[part.number], dtype=torch.int64, device="cpu") if self._has_numbers else None

    def count(self, is_wanted: Callable[[int], bool]) -> int | None:
        sizes = [end - start for start, end in pairwise(self._starts)]
        return sum(size for size, block in zip(sizes, self._in_block, strict=True) if is_wanted(block))

    def _loaded(self, numbers: Sequence[int], *, is_first: bool = False) -> Iterable[Any]:
        """Load some batches with the loader's settings. The first batch is loaded in this process, unless the workers need
        `worker_init_fn`.
        """
        loader = self._loader
        options: dict[str, Any] = {"collate_fn": loader.collate_fn, "generator": loader.generator}
        workers = loader.num_workers
        if is_first:
            workers = min(workers, 1 if loader.worker_init_fn is not None else 0)
        else:
            options["pin_memory"] = loader.pin_memory
        if workers:
            options.update(num_workers=workers, multiprocessing_context=loader.multiprocessing_context, timeout=loader.timeout)
            options.update(worker_init_fn=loader.worker_init_fn, prefetch_factor=loader.prefetch_factor)
        return DataLoader(loader.dataset, batch_sampler=_Chosen(self._batches, numbers), **options)


def _check_order(loader: DataLoader[Any], batches: Sequence[Any], *, has_ids: bool) -> bool:
    """True if numbered samples do not come in the dataset's order. Raises for another order if the samples have no ids."""
    own: Any = loader.batch_sampler
    sampler = loader.sampler if own is None or type(own) is BatchSampler else own
    if isinstance(sampler, DistributedSampler):
        raise InvalidArgument(f"the loader has a DistributedSampler, and {_LATER}: DataLoader(dataset, batch_size=…).")
    if isinstance(batches, _InOrder):
        return False
    indices = list(batches if own is None else chain.from_iterable(batches))
    wrong = next(((index, expected) for expected, index in enumerate(indices) if index != expected), None)
    if wrong is not None and not has_ids:
        is_random = isinstance(sampler, (RandomSampler, WeightedRandomSampler))
        why = f"sample {wrong[0]!r} of the dataset comes in the place of sample {wrong[1]}"
        raise InvalidArgument(_wrong_order(sampler, "it gives samples in a random order" if is_random else why))
    return wrong is not None and all(isinstance(index, int) for index in indices)


def _digest(batches: Sequence[Any]) -> str:
    """A digest of the order of samples in batches."""
    found = blake2b(digest_size=12)
    for batch in batches:
        found.update(repr(batch if isinstance(batch, (range, int)) else list(batch)).encode())
    return found.hexdigest()


def _wrong_order(sampler: Any, why: str) -> str:
    return (
        f"the order of the loader is not that of its dataset ({type(sampler).__name__}: {why}), so rows of the features "
        "could not be identified later, and the extraction could not be resumed. Use shuffle=False, or give ids= of samples."
    )


class _Chosen(Sampler[Any]):
    """A sampler that gives only some of the batches, as lists of indices."""

    def __init__(self, batches: Sequence[Any], numbers: Sequence[int]) -> None:
        self._batches, self._numbers = batches, numbers

    def __iter__(self) -> Iterator[Any]:
        for number in self._numbers:
            batch = self._batches[number]
            yield list(batch) if isinstance(batch, range) else batch


class _InOrder(Sequence[Any]):
    """The batches of samples in the dataset's order, computed when accessed."""

    def __init__(self, samples: int, size: int, drop_last: bool) -> None:
        self._samples, self._size = samples, size
        self._count = samples // size if drop_last else -(-samples // size)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return range(number * self._size, min((number + 1) * self._size, self._samples))


def _batches_of(loader: DataLoader[Any]) -> Sequence[Any]:
    """Return the dataset indices of each batch. A random sampler is seeded, so that all processes draw the same indices."""
    own: Any = loader.batch_sampler
    if type(own) is BatchSampler and type(own.sampler) is SequentialSampler:
        try:
            return _InOrder(len(own.sampler), own.batch_size, own.drop_last)
        except TypeError:
            raise InvalidArgument(
                f"{described(loader.dataset)} has no length, so its last sample is unknown. Give it a __len__, or make it an "
                "IterableDataset."
            ) from None
    with random_as_found() as random, undoing() as undo:
        for generator in generators_of(loader):
            undo.callback(generator.set_state, generator.get_state())
        random.start_from(0)
        return list(own if own is not None else loader.sampler)


def generators_of(data: Any) -> list[torch.Generator]:
    """The random generators of a DataLoader and its samplers."""
    own = getattr(data, "batch_sampler", None)
    holders = (data, getattr(data, "sampler", None), own, getattr(own, "sampler", None))
    found = [getattr(one, "generator", None) for one in holders]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def _check_same(there: BlockName | None, now: BlockName) -> None:
    if there is not None and there != now:
        raise FeaturesMismatch(
            f"block {now.number} is of samples {now.first} to {now.first + now.samples - 1} of the data, and was of "
            f"{there.first} to {there.first + there.samples - 1} when it was extracted: there are more samples now, or batches "
            "of other sizes. Extract with the same data, or into another folder."
        )


def world() -> tuple[int, int]:
    """This process's rank and the number of processes, as set by torchrun."""
    given = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    try:
        rank, size = map(int, given)
    except ValueError:
        rank, size = -1, 0
    if not 0 <= rank < size:
        raise InvalidArgument(
            f"RANK={given[0]!r} and WORLD_SIZE={given[1]!r} should be numbers, with the first "
            "below the second, as torchrun sets them. Unset both for a single process."
        )
    return rank, size


# Labels and ids of samples, as columns of a block: tensors or texts.

Column = Tensor | list[str]
GivenIds = str | int | Callable[[Any], object] | Sequence[object] | Tensor | np.ndarray[Any, Any]  # the argument `ids`


class Ids:
    """The ids of samples: from a function of a batch, from an item of a batch, or from a sequence with an id for each
    sample.
    """

    def __init__(self, ids: Any) -> None:
        self.item = ids if isinstance(ids, (str, int)) else None
        self._function: Callable[[Any], Any] | None = ids if callable(ids) and self.item is None else None
        self._sequence: Sequence[Any] | None = None
        if ids is not None and self.item is None and self._function is None:
            if not hasattr(ids, "__getitem__") or not hasattr(ids, "__len__"):
                raise InvalidArgument(
                    "ids is the name of an item of a batch, a function of a batch, or a sequence with an id for each sample; "
                    f"got {described(ids)}."
                )
            self._sequence = ids
        self.is_given = ids is not None
        self._are_texts: bool | None = None  # decided by the first batch

    def describe(self) -> Any:
        """A JSON description of the argument `ids`."""
        if self._sequence is not None:
            listed = self._sequence.tolist() if hasattr(self._sequence, "tolist") else list(self._sequence)
            return value_digest(listed)
        return self.item if self._function is None else described_function(self._function)

    def of(self, part: Part, source: Source) -> Column | None:
        """The ids of the samples in a batch."""
        if not self.is_given:
            return None
        found = self._found(part, source)
        column = as_column(found, part.samples)
        are_texts = isinstance(column, list)
        if self._are_texts is None:
            self._are_texts = are_texts
        is_odd = isinstance(column, Tensor) and (column.dim() != 1 or column.is_floating_point())
        if column is None or is_odd or are_texts is not self._are_texts:
            raise InvalidArgument(
                f"the ids of batch {part.number} should be {part.samples} whole numbers or texts, the same in every batch; "
                f"got {described(found)}."
            )
        return column

    def _found(self, part: Part, source: Source) -> Any:
        if self._sequence is not None:
            indices = source.indices(part.number)
            places = range(part.first, part.first + part.samples) if indices is None else indices
            try:
                return [_plain(self._sequence[place]) for place in places]
            except (IndexError, KeyError, TypeError):
                raise InvalidArgument(
                    f"ids has {len(self._sequence)} entries, and none for samples {list(places)[:3]}, … of batch {part.number}."
                ) from None
        if self._function is not None:
            return self._function(part.batch)
        try:
            return part.batch[self.item]
        except (KeyError, IndexError, TypeError):
            raise InvalidArgument(
                f"batch {part.number}, {described(part.batch)}, has no item {self.item!r} with ids."
            ) from None


class Labels:
    """The labels in batches. Every batch must have the same labels as the first."""

    def __init__(self, first: dict[str, Any], samples: int) -> None:
        columns = {name: as_column(value, samples) for name, value in first.items()}
        self._kinds = {name: type(column) for name, column in columns.items() if column is not None}
        for name in columns.keys() - self._kinds.keys():
            warnings.warn(
                f"{name!r} of the batches is not stored: it is {described(first[name])}, not {samples} numbers or texts.",
                stacklevel=4,
            )

    def of(self, labels: dict[str, Any], part: Part) -> dict[str, Column]:
        """The labels of a batch."""
        found: dict[str, Column] = {}
        for name, kind in self._kinds.items():
            column = as_column(labels.get(name), part.samples)
            if type(column) is not kind:
                raise InvalidArgument(
                    f"batch {part.number} should have {name!r} for its {part.samples} samples, "
                    f"{'texts' if kind is list else 'numbers'} as in the first batch; got {described(labels.get(name))}."
                )
            found[name] = column
        return found


def as_column(value: Any, samples: int) -> Column | None:
    """Convert a value to a column with a row for each sample. None if the value has no row for each sample."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(np.ascontiguousarray(value.astype(_native(value.dtype), copy=False)))
    if isinstance(value, Tensor):
        is_fine = value.dim() and value.shape[0] == samples and value.layout is torch.strided and not value.is_nested
        return value.detach().clone() if is_fine else None
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, (list, tuple, range)) or len(value) != samples:
        return None
    plain = [_plain(one) for one in value]
    if all(isinstance(one, str) for one in plain):
        return plain
    if all(isinstance(one, (int, float)) for one in plain):
        try:
            return torch.tensor(plain, device="cpu")
        except (OverflowError, RuntimeError):
            return None
    return None


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the NumPy dtype for the same numbers that torch supports."""
    largest = {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}.get(dtype.kind)
    return largest if largest is not None and dtype.itemsize > largest.itemsize else dtype.newbyteorder("=")


def _plain(value: Any) -> Any:
    """A NumPy or torch scalar as a Python number or text; other values unchanged."""
    return value.item() if isinstance(value, (np.generic, Tensor)) and getattr(value, "ndim", 1) == 0 else value


def texts_as_tensor(texts: list[str]) -> Tensor:
    """Texts as one tensor of bytes."""
    return torch.frombuffer(bytearray(json.dumps(texts).encode()), dtype=torch.uint8)


def texts_of_bytes(data: bytes, count: int) -> list[str] | None:
    """Read stored texts. Returns None if the bytes are not `count` texts."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    is_right = isinstance(found, list) and len(found) == count and all(isinstance(one, str) for one in found)
    return found if is_right else None
