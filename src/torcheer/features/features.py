"""`Features` and `LayerFeatures`: extracted values, read like arrays, with statistics. Only requested rows are read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .._files.tensor_files import enough_memory
from .._text import did_you_mean, few
from .._torch.inputs import described, is_whole
from ..errors import FeaturesNotFound, InvalidArgument, LayerNotFound, UnreadableFile
from ..reducers import (
    Covariance,
    CovarianceResult,
    Histogram,
    HistogramResult,
    Mean,
    MeanResult,
    Reducer,
    TopK,
    TopKResult,
    reducer_from,
)
from .block_index import BlockIndex, Column, Piece
from .exporting import as_numpy, export_features, export_layer, to_datasets
from .plan import END, PLAN, read_end, read_plan
from .reduced_blocks import ReducedBlocks
from .sample_pictures import Pictures, SamplePictures, picture_sheet
from .statistics import (
    MEMORY,
    ChosenSamples,
    Components,
    GivenSample,
    Nearness,
    Rows,
    SampleNames,
    as_integer,
    components_of,
    from_covariance,
    nearest_samples,
)
from .storage import IDS, LABELS, LAYERS, SAMPLES, TOKEN_POSITIONS, TOKEN_SAMPLES, open_storage

_TOGETHER = 64 << 20  # if all rows are needed, about this many bytes are read at once
_VALUES_TOGETHER = 1 << 22  # a reducer gets about this many values at once
_TOP = 20  # default number of samples that `top` returns
Positions = Literal["mean", "max"]


class LayerFeatures(Dataset[Tensor]):
    """The stored values of a layer, with a row for each sample (or token), in order.

    `layer[3]` is a tensor; `layer[2:5]`, `layer[[4, 1]]`, `layer[mask]` have one more dimension; `layer[:, 0]` reads only
    part of each row. All return copies. It is also a `Dataset`: `DataLoader(features["layer3"], batch_size=64)`.

    If samples differ in shape (`is_ragged`), several samples are a list; `pad()` makes tensors.
    """

    def __init__(self, index: BlockIndex, column: str, name: str, padding: float | None = None) -> None:
        self.name = name
        self.padding = padding  # fills samples up to the largest shape; None: no padding
        self._blocks, self._key = index, column

    # Properties -----------------------------------------------------------------------------------------------------

    @property
    def _column(self) -> Column:
        return self._blocks.column(self._key)

    def __len__(self) -> int:
        return self._column.rows

    @property
    def is_ragged(self) -> bool:
        """True if samples differ in shape."""
        return len(self._column.shapes) > 1

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of all samples together; None for a dimension that differs between samples."""
        shapes = self._column.shapes
        if not shapes:
            return (0,)
        if len({len(shape) for shape in shapes}) > 1:
            raise InvalidArgument(f"{self.name!r} has no shape: its samples have different numbers of dimensions.")
        sizes = [set(at) for at in zip(*shapes, strict=True)]
        return (len(self), *(size.pop() if len(size) == 1 else None for size in sizes))

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        types = list(self._column.dtypes) or [torch.float32]
        return reduce(torch.promote_types, types)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all values."""
        return sum(piece.rows * math.prod(piece.shape) * piece.dtype.itemsize for piece in self._column.pieces)

    def pad(self, value: float = 0) -> LayerFeatures:
        """The same layer, with each sample padded at the end of each dimension to the largest of the requested samples."""
        return LayerFeatures(self._blocks, self._key, self.name, value)

    @property
    def said_shape(self) -> str:
        """The shape as text. A size that differs between samples is written `…`, and so are differing numbers of dimensions."""
        if len({len(shape) for shape in self._column.shapes}) > 1:
            return f"({len(self)}, …)"
        sizes = ["…" if size is None else str(size) for size in self.shape]
        return f"({', '.join(sizes)})" if len(sizes) > 1 else f"({sizes[0]},)"

    def __repr__(self) -> str:
        return f"LayerFeatures({self.name!r}, {self.said_shape}, {self.dtype})"

    # Reading --------------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        rows, *rest = (key or (Ellipsis,)) if isinstance(key, tuple) else (key,)
        if rows is Ellipsis:
            if any(one is Ellipsis for one in rest):
                raise IndexError(f"{self.name!r} can be indexed with one ellipsis only.")
            if any(one is not Ellipsis for one in rest) and self.is_ragged:
                raise InvalidArgument(f"{self.name!r} is ragged: index its samples first.")
            return self._all()[_joined(Ellipsis, rest)] if rest else self._all()
        if rows is None:
            return self._all()[_joined(None, rest)]
        number = _as_number(rows)
        if number is not None:
            return self._one(number)[tuple(rest)] if rest else self._one(number)
        if isinstance(rows, slice):
            return self._range(range(*rows.indices(len(self))), tuple(rest))
        numbers = self._numbers(rows)
        if _has_arrays(rest) and not self.is_ragged:  # as in NumPy, arrays are paired with the samples
            return self._chosen(numbers, ())[_joined(torch.arange(len(numbers)), rest)]
        return self._chosen(numbers, tuple(rest))

    def __getitems__(self, numbers: list[int]) -> list[Tensor]:
        """Several samples, as requested by a DataLoader."""
        found = self._chosen(self._numbers(numbers), ())
        return list(found)

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self.batches(max(1, _TOGETHER // max(self.nbytes // max(len(self), 1), 1))):
            yield from batch

    def batches(self, size: int = 1024) -> Iterator[Any]:
        """All samples in order, `size` at a time."""
        if not is_whole(size, 1):
            raise InvalidArgument(f"a batch has a whole number of samples, from 1; got {size!r}.")
        for first in range(0, len(self), size):
            yield self[first : first + size]

    def _all(self) -> Any:
        return self[0 : len(self)]

    def _one(self, number: int) -> Tensor:
        if not -len(self) <= number < len(self):
            raise IndexError(f"{self.name!r} has {len(self)} samples; the index {number} is out of range.")
        number %= len(self)
        piece, first, _ = next(self._column.between(number, number + 1))
        with enough_memory(f"a sample of {self.name!r}"):
            return self._blocks.rows(piece, first).clone()

    def _numbers(self, rows: Any) -> np.ndarray[Any, Any]:
        """Convert an index (a mask or numbers, in a tensor, an array or a list) to sample numbers."""
        if isinstance(rows, Tensor):
            rows = rows.detach().cpu().numpy()
        try:
            found = np.asarray(rows)
        except ValueError:
            found = np.empty((0, 0))
        numbers: np.ndarray[Any, Any]
        if found.dtype == bool and found.shape == (len(self),):
            numbers = np.flatnonzero(found)
            return numbers
        if found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
            raise IndexError(
                f"samples of {self.name!r} are named by numbers, slices, lists of numbers or a mask of {len(self)}; "
                f"got {described(rows)}."
            )
        found = found.astype(np.int64)
        wrong = found[(found < -len(self)) | (found >= len(self))]
        if wrong.size:
            raise IndexError(f"{self.name!r} has {len(self)} samples; the index {wrong[0]} is out of range.")
        numbers = np.where(found < 0, found + len(self), found)
        return numbers

    def _range(self, numbers: range, rest: tuple[Any, ...]) -> Any:
        if numbers.step != 1:
            return self._chosen(np.arange(numbers.start, numbers.stop, numbers.step), rest)
        parts, at = [], 0
        for piece, first, end in self._column.between(numbers.start, max(numbers.start, numbers.stop)):
            parts.append((piece, slice(first, end), slice(at, at + end - first)))
            at += end - first
        return self._put_together(parts, at, rest)

    def _chosen(self, numbers: np.ndarray[Any, Any], rest: tuple[Any, ...]) -> Any:
        column = self._column
        pieces = np.searchsorted(np.asarray(column.starts), numbers, side="right") - 1
        parts = []
        for at in np.unique(pieces):
            to = np.flatnonzero(pieces == at)
            inside = torch.from_numpy(numbers[to] - column.starts[at])
            parts.append((column.pieces[at], inside, torch.from_numpy(to)))
        return self._put_together(parts, len(numbers), rest)

    def _put_together(self, parts: list[tuple[Piece, Any, Any]], count: int, rest: tuple[Any, ...]) -> Any:
        """Join rows of pieces into one tensor, or into a list if they differ in shape."""
        shapes = {piece.shape for piece, _, _ in parts}
        if len(shapes) > 1 or (self.padding is None and self.is_ragged):
            return self._ragged(parts, count, shapes, rest)
        is_basic = all(one is Ellipsis or isinstance(one, (int, slice)) for one in rest)
        found: Tensor | None = None
        for piece, inside, to in parts:
            rows = self._blocks.rows(piece, inside)
            if rest and is_basic:
                rows = rows[_joined(slice(None), rest)]
            if found is None:
                with enough_memory(f"{self.name!r}, {self.said_shape},"):
                    found = torch.empty((count, *rows.shape[1:]), dtype=self.dtype, device="cpu")
            _indexable(found)[to] = _indexable(rows.to(self.dtype))
        if found is None:
            found = torch.empty((0, *(size or 0 for size in self.shape[1:])), dtype=self.dtype, device="cpu")
            is_basic = False
        return found if is_basic or not rest else found[_joined(slice(None), rest)]

    def _ragged(
        self, parts: list[tuple[Piece, Any, Any]], count: int, shapes: set[tuple[int, ...]], rest: tuple[Any, ...]
    ) -> Any:
        samples: list[Any] = [None] * count
        for piece, inside, to in parts:
            places = range(to.start, to.stop) if isinstance(to, slice) else to.tolist()
            for place, row in zip(places, self._blocks.rows(piece, inside).clone(), strict=True):
                samples[place] = row
        if self.padding is None:
            return [sample[rest] for sample in samples] if rest else samples
        if len({len(shape) for shape in shapes}) > 1:
            raise InvalidArgument(f"{self.name!r} cannot be padded: its samples have different numbers of dimensions.")
        largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        with enough_memory(f"{self.name!r}, padded,"):
            found = torch.full((count, *largest), self.padding, dtype=self.dtype, device="cpu")
        for place, sample in enumerate(samples):
            found[_joined(place, [slice(0, size) for size in sample.shape])] = sample
        return found[_joined(slice(None), rest)] if rest else found

    # Statistics -----------------------------------------------------------------------------------------------------

    def reduce(self, reducer: Reducer) -> Any:
        """The result of a reducer of `torcheer.reducers` over the stored values, which are read in parts."""
        if not isinstance(reducer, Reducer):
            raise InvalidArgument(f"reduce takes a reducer, such as reducers.Mean() or reducers.TopK(20); got {reducer!r:.60}.")
        state = reducer.begin()
        numbers = sample_names(self._blocks).of_rows(torch.arange(len(self)))
        width = math.prod(size or 1024 for size in self.shape[1:])
        at = 0
        for batch in self.batches(max(1, _VALUES_TOGETHER // max(1, width))):
            for values in [batch] if isinstance(batch, Tensor) else [sample[None] for sample in batch]:
                reducer.update(state, values, numbers[at : at + len(values)])
                at += len(values)
        return reducer.finish(state)

    def as_mean(self) -> Tensor:
        """The mean of each unit, in a shape that broadcasts to the values, for `changes.mean`."""
        return self.reduce(Mean()).as_mean()  # type: ignore[no-any-return]  # what finish returns depends on the reducer

    def components(self, k: int = 10, *, samples: int | None = None, memory: int = MEMORY) -> Components:
        """The first `k` principal components of the values; each sample is flattened to one row.

        `samples` uses only the first samples; `memory` is the limit in bytes.
        """
        rows = Rows(self.name, self)
        return components_of(rows if samples is None else rows.of(np.arange(min(samples, rows.count))), k, memory)

    @overload
    def nearest(
        self, sample: GivenSample, k: int = ..., measure: Nearness = ..., *, pictures: None = None
    ) -> ChosenSamples: ...

    @overload
    def nearest(self, sample: GivenSample, k: int = ..., measure: Nearness = ..., *, pictures: Pictures) -> SamplePictures: ...

    def nearest(
        self, sample: GivenSample, k: int = 10, measure: Nearness = "cosine", *, pictures: Pictures | None = None
    ) -> ChosenSamples | SamplePictures:
        """The `k` samples whose values are nearest to a sample, given by number or id, or to given values.

        With `pictures`, a sheet of their pictures; see `Features.top`.
        """
        found = nearest_samples(Rows(self.name, self), sample, k, measure, sample_names(self._blocks))
        return found if pictures is None else found.pictures(pictures)

    # Conversions ----------------------------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("features are read from files, so an array of them is a copy.")
        found = self.to_numpy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        """All values as a new tensor, for `torch.as_tensor` and other readers of DLPack."""
        self.check_even()
        return self._all().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return torch.empty(0, device="cpu").__dlpack_device__()

    def to_numpy(self, memmap: str | os.PathLike[str] | None = None) -> np.ndarray[Any, Any]:
        """All values as an array, in memory or in a new memory-mapped `.npy` file. `bfloat16` becomes `float32`."""
        if memmap is not None:
            mapped: np.ndarray[Any, Any] = np.load(export_layer(self, Path(memmap)), mmap_mode="r")
            return mapped
        self.check_even()
        return as_numpy(self._all())

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write all values into a `.npy` file or a `.zarr` folder, without holding them in memory. Returns the path."""
        return export_layer(self, Path(path))

    def check_even(self) -> None:
        """Raise if samples differ in shape and are not padded."""
        if self.is_ragged and self.padding is None:
            raise InvalidArgument(
                f"{self.name!r} is ragged: its samples have different shapes, so it is not a single array. "
                "pad() fills them up: features[…].pad(0)."
            )

    def full_shape(self) -> tuple[int, ...]:
        """The shape of all samples together, with padding if samples differ in shape."""
        self.check_even()
        largest = [max(sizes) for sizes in zip(*self._column.shapes, strict=True)]
        return (len(self), *largest)


def _joined(first: Any, rest: Sequence[Any]) -> Any:
    """Make an index of several parts, like `[first, *rest]`, which needs Python 3.11."""
    return (first, *rest)


def _has_arrays(index: Sequence[Any]) -> bool:
    return any(isinstance(one, (list, tuple, np.ndarray, Tensor, range)) and np.ndim(one) for one in index)


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _indexable(tensor: Tensor) -> Tensor:
    """View a tensor's memory in a dtype that supports index assignment."""
    return tensor.view(_SIGNED.get(tensor.dtype, tensor.dtype))


def _as_number(value: Any) -> int | None:
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, Tensor) and (value.dim() or value.dtype is torch.bool)):
        return None
    if isinstance(value, (np.ndarray, Sequence)) and np.ndim(value):
        return None
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        return None


# The features in a folder, also readable while they are being written.

_MOST_MISSING = 1 << 22  # at most this many missing blocks are listed: a larger number in a file must be wrong


class Features(Mapping[str, Any]):
    """The features in a folder: `features["layer3"]` is a layer, `len(features["layer3"])` the number of its samples.

    Rows are in the order of the data. If blocks are missing, `samples` gives the sample number of each row.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._storage = open_storage(folder)
        plan = read_plan(self._storage)
        if plan is None:
            raise FeaturesNotFound(
                f"there are no features in {self._storage.location}: it has no {PLAN}, the first file that extract() writes."
            )
        self.plan = plan
        self._blocks = BlockIndex(self._storage, self.layers)

    def refresh(self) -> Features:
        """Look for blocks that were written since the last look."""
        self._blocks.refresh()
        return self

    @property
    def location(self) -> str:
        """The folder of the features, as text."""
        return self._storage.location

    def version(self) -> str:
        """A text that changes when the plan changes or blocks are added."""
        said = (self.plan.to_bytes(), [block.file for block in self._blocks.blocks])
        return blake2b(repr(said).encode(), digest_size=12).hexdigest()

    # Layers ---------------------------------------------------------------------------------------------------------

    @property
    def layers(self) -> list[str]:
        """The names of the layers whose values are stored."""
        stored = self.plan.settings["keep"]["stored"]
        return [name for name in self.plan.layers if name in stored]

    def __getitem__(self, name: str) -> LayerFeatures:
        if name in self.layers:
            return LayerFeatures(self._blocks, f"{LAYERS}{name}", name)
        if name in self.plan.layers:
            raise LayerNotFound(
                f"the values of {name!r} are not stored, only the results of reducers: features.mean({name!r}), "
                "features.top(…), features.covariance(…), features.histogram(…)."
            )
        raise self._no_layer(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __contains__(self, name: object) -> bool:
        return name in self.layers

    # Samples --------------------------------------------------------------------------------------------------------

    @property
    def samples(self) -> Tensor:
        """The number of each row's sample in the data, also if a loader shuffles."""
        return _sample_numbers(self._blocks)

    @property
    def ids(self) -> Tensor | list[str] | None:
        """The ids of the samples, if `ids=` was given: integers or texts."""
        return _values(self._blocks, IDS) if self._blocks.has(IDS) else None

    @property
    def labels(self) -> dict[str, Tensor | list[str]]:
        """The items of batches other than the model's arguments, by name: numbers or texts."""
        return {name: _values(self._blocks, f"{LABELS}{name}") for name in sorted(self._blocks.names(LABELS))}

    @property
    def tokens(self) -> Tokens | None:
        """With `flatten="tokens"`: the sample of each row, and the position of its token."""
        if self.plan.settings.get("flatten") != "tokens":
            return None
        return Tokens(_values(self._blocks, TOKEN_SAMPLES), _values(self._blocks, TOKEN_POSITIONS))

    # Statistics: the result of a reducer that ran during the extraction, else computed from stored values, in parts -----

    @property
    def title(self) -> str:
        """The title of these features in figures: the name of their folder."""
        return self._storage.location.rstrip("/").rpartition("/")[2]

    def mean(self, layer: str) -> MeanResult:
        """The mean, variance, minimum and maximum of each unit of a layer."""
        return self._found(layer, Mean())  # type: ignore[no-any-return]  # what a reducer finds depends on it

    def covariance(self, layer: str) -> CovarianceResult:
        """The covariance of the units of a layer."""
        return self._found(layer, Covariance())  # type: ignore[no-any-return]

    def histogram(self, layer: str) -> HistogramResult:
        """Histograms of the values of each unit of a layer."""
        return self._found(layer, Histogram())  # type: ignore[no-any-return]

    def components(self, layer: str, k: int = 10) -> Components:
        """The first `k` principal components of the units of a layer, from their covariance."""
        return from_covariance(self.covariance(layer), k)

    @overload
    def top(
        self,
        layer: str,
        unit: int,
        k: int | None = None,
        *,
        largest: bool | None = None,
        positions: Positions | None = None,
        pictures: None = None,
    ) -> ChosenSamples: ...

    @overload
    def top(
        self,
        layer: str,
        unit: Sequence[int],
        k: int | None = None,
        *,
        largest: bool | None = None,
        positions: Positions | None = None,
        pictures: None = None,
    ) -> list[ChosenSamples]: ...

    @overload
    def top(
        self,
        layer: str,
        unit: int | Sequence[int],
        k: int | None = None,
        *,
        largest: bool | None = None,
        positions: Positions | None = None,
        pictures: Pictures,
    ) -> SamplePictures: ...

    def top(
        self,
        layer: str,
        unit: int | Sequence[int],
        k: int | None = None,
        *,
        largest: bool | None = None,
        positions: Positions | None = None,
        pictures: Pictures | None = None,
    ) -> ChosenSamples | list[ChosenSamples] | SamplePictures:
        """The samples for which a unit of a layer is largest, or smallest with `largest=False`, in order.

            features.top("layer3", unit=12, pictures=dataset).save("unit12.png")

        Args:
            layer: the name of the layer.
            unit: the number of the unit (a channel, a feature), or a list of numbers.
            k: the number of samples; by default as many as `keep=TopK(k)` kept, or 20.
            largest, positions: see `reducers.TopK`; by default as kept.
            pictures: a dataset whose items are pictures or begin with a picture, a tensor or list of pictures, a mapping
                from ids to pictures or their files, or a function from a sample's number to its picture.

        Returns `ChosenSamples`, or a list of them for several units; with `pictures` a sheet, with one row for each of
        several units.
        """
        several = isinstance(unit, Iterable) and getattr(unit, "ndim", 1) > 0
        given: Iterable[Any] = unit if several else [unit]  # type: ignore[assignment]  # mypy does not see what `several` says
        found = self._top(layer, k if k is None else as_integer(k), largest, positions)
        count = len(found.numbers)
        units = [as_integer(one) for one in given]
        for one in units:
            if not is_whole(one, 0) or one >= count:
                raise InvalidArgument(f"a unit of {layer!r} is a number from 0 to {count - 1}; got {one!r}.")
        if not units:
            raise InvalidArgument("name at least one unit.")
        groups = [self._of_unit(layer, one, found, k) for one in units]
        if pictures is not None:
            return picture_sheet(groups, pictures, f"{layer}: {_words(found, k, 'a unit')}" if several else "")
        return groups if several else groups[0]

    def _top(self, layer: str, k: int | None, largest: bool | None, positions: Positions | None) -> TopKResult:
        def fits(one: TopK) -> bool:
            return (k is None or k <= one.k) and largest in (None, one.largest) and positions in (None, one.positions)

        wanted = TopK(_TOP if k is None else k, largest=largest is not False, positions=positions or "mean")
        return self._found(layer, wanted, fits)  # type: ignore[no-any-return]

    def _of_unit(self, layer: str, unit: int, found: TopKResult, k: int | None) -> ChosenSamples:
        numbers, values = found.numbers[unit], found.values[unit]
        numbers, values = numbers[numbers >= 0][:k], values[numbers >= 0][:k]
        title = f"{layer}, unit {unit}: {_words(found, len(numbers), 'it')}"
        ids = sample_names(self._blocks).ids_of(numbers)
        left_out = int(found.left_out[unit])
        return ChosenSamples(title, "value", numbers, values, ids, left_out=left_out, row_title=f"unit {unit}")

    # Reducers -------------------------------------------------------------------------------------------------------

    def _reducers(self) -> dict[str, list[Reducer]]:
        """Maps each layer to its reducers."""
        try:
            given = self.plan.settings["keep"]["reducers"]
            return {layer: [reducer_from(one) for one in some] for layer, some in given.items()}
        except (TypeError, InvalidArgument) as error:
            raise UnreadableFile(f"the plan in {self._storage.location} names reducers that make no sense: {error}") from None

    def _kept(self, layer: str) -> list[Reducer]:
        if layer not in self.plan.layers:
            raise self._no_layer(layer)
        return self._reducers().get(layer, [])

    def _no_layer(self, name: object) -> LayerNotFound:
        known = self.plan.layers
        return LayerNotFound(
            f"there is no layer {name!r} in these features; there are: {few(known, 20)}.{did_you_mean(name, known)}"
        )

    def _found(self, layer: str, reducer: Reducer, fits: Callable[[Any], bool] = lambda one: True) -> Any:
        """Return the stored result of a reducer of the same class that `fits`; else run `reducer` on the stored values."""
        kept = self._kept(layer)
        for at, one in enumerate(kept):
            if type(one) is type(reducer) and fits(one):
                return one.finish(ReducedBlocks(self._storage, self._reducers()).read(layer).states[at])
        if layer in self.layers:
            return self[layer].reduce(reducer)
        raise InvalidArgument(
            f"of {layer!r} {', '.join(map(repr, kept)) or 'nothing'} was kept and its values are not stored, so {reducer!r} is "
            f"not known. Extract it with keep={reducer!r}, or with its values."
        )

    # Completeness ---------------------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """True if every sample is stored."""
        return self.missing == []

    @property
    def missing(self) -> list[int] | None:
        """The numbers of the missing blocks; None if the total is unknown."""
        count = self._block_count()
        if count is None:
            return None
        there = {block.number for block in self._blocks.blocks}
        return [number for number in range(count) if number not in there]

    def _block_count(self) -> int | None:
        """The total number of blocks; None while it is unknown."""
        end, there = read_end(self._storage), len(self._blocks.blocks)
        if end is not None and end.blocks - there > _MOST_MISSING:
            raise UnreadableFile(
                f"{END} in {self._storage.location} says that {end.blocks:,} blocks belong here, and {there:,} are there: "
                "it is damaged. Delete this file and extract again: the blocks are kept."
            )
        return None if end is None else end.blocks

    @property
    def size_on_disk(self) -> int:
        """The size of all files in bytes."""
        return sum(self._storage.sizes().values())

    # Conversions ----------------------------------------------------------------------------------------------------

    def dataset(self, *columns: str) -> Dataset[tuple[Any, ...]]:
        """Layers and labels together, as a `Dataset` of tuples: `features.dataset("layer3", "labels")`."""
        labels = self.labels
        if self.tokens is not None:
            raise InvalidArgument("rows of tokens are not samples, so they have no labels; features[…] alone is a Dataset.")
        for name in columns:
            if name not in self.plan.layers and name not in labels:
                raise LayerNotFound(f"there is no layer or label {name!r}; there are: {', '.join([*self.layers, *labels])}.")
        found = [labels[name] if name not in self and name in labels else self[name] for name in columns]
        if not found:
            raise InvalidArgument('name the layers and labels: features.dataset("layer3", "labels").')
        return _ColumnsDataset(found)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write all layers into a `.zarr` folder. Returns the path. One layer: `features[…].export(path)`."""
        return export_features(self, Path(path))

    def to_datasets(self, layers: list[str] | None = None, *, cache_dir: str | os.PathLike[str] | None = None) -> Any:
        """A Hugging Face `datasets.Dataset` with a column for each layer and label, written into its cache."""
        return to_datasets(self, layers, cache_dir)

    def __repr__(self) -> str:
        missing = self.missing
        state = "being written" if missing is None else f"{len(missing)} blocks are missing" if missing else "complete"
        title = f"Features of {self.plan.model} in {self._storage.location}: {self._blocks.samples} samples, {state}"
        shown = {name: name or "''" for name in self.plan.layers}  # '' is the model itself
        width = max(map(len, shown.values()), default=0)
        return "\n".join([title, *(f"  {text:{width}}  {self._layer_text(name)}" for name, text in shown.items())])

    def _layer_text(self, name: str) -> str:
        """The shape and dtype of a layer, or the reducers kept instead of values."""
        if name in self.layers:
            return f"{self[name].said_shape} {str(self[name].dtype).removeprefix('torch.')}"
        return f"no values, but {reducer_names(self.plan.settings['keep']['reducers'].get(name, []))}"


def _words(found: TopKResult, k: int | None, whose: str) -> str:
    """Write a title for chosen samples, which says how many they are and for which unit they were chosen."""
    which = "largest" if found.reducer.largest else "smallest"
    where = " somewhere" if found.reducer.positions == "max" else ""
    return f"the {found.numbers.shape[1] if k is None else k} samples for which {whose} is {which}{where}"


def reducer_names(described: Iterable[dict[str, Any]]) -> str:
    return ", ".join(str(one.get("reducer")) for one in described)


class Tokens:
    """The sample of each row, and the position of its token."""

    def __init__(self, samples: Tensor, positions: Tensor) -> None:
        self.samples, self.positions = samples, positions

    def rows_of(self, sample: int) -> slice:
        """The rows of one sample."""
        if not self._is_sorted:
            first = int((self.samples == sample).int().argmax())
            others = (self.samples[first:] != sample).nonzero()
            return slice(first, first + int(others[0]) if len(others) else len(self))
        first, end = torch.searchsorted(self.samples, torch.tensor([sample, sample + 1], device="cpu")).tolist()
        return slice(first, end)

    @cached_property
    def _is_sorted(self) -> bool:
        """True if samples come in the order of their numbers, which is not so if a loader shuffles."""
        return bool((self.samples.diff() >= 0).all())

    def __len__(self) -> int:
        return len(self.samples)


class _ColumnsDataset(Dataset[tuple[Any, ...]]):
    """Columns side by side, as a dataset of tuples."""

    def __init__(self, columns: list[Any]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        return tuple(column[number] for column in self._columns)

    def __getitems__(self, numbers: list[int]) -> list[tuple[Any, ...]]:
        found = [
            one.__getitems__(numbers) if isinstance(one, LayerFeatures) else [one[at] for at in numbers]
            for one in self._columns
        ]
        return list(zip(*found, strict=True))


def sample_names(index: BlockIndex) -> SampleNames:
    """The `SampleNames` of the rows of layers."""
    numbers = _sample_numbers(index)
    ids = _values(index, IDS) if index.has(IDS) else None
    named = None if ids is None else dict(zip(numbers.tolist(), ids if isinstance(ids, list) else ids.tolist(), strict=True))
    return SampleNames(_values(index, TOKEN_SAMPLES) if index.has(TOKEN_SAMPLES) else numbers, named)


def _sample_numbers(index: BlockIndex) -> Tensor:
    """The number that each sample has in the data."""
    if index.has(SAMPLES):
        return _values(index, SAMPLES)  # type: ignore[no-any-return]  # a column of numbers
    found = [torch.arange(block.first, block.first + block.samples, device="cpu") for block in index.blocks]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64, device="cpu")


def _values(index: BlockIndex, column: str) -> Any:
    """All values of a column: a tensor, or a list of texts."""
    texts = index.texts(column)
    return list(texts) if texts is not None else LayerFeatures(index, column, column)[:]


def open_features(folder: str | os.PathLike[str]) -> Features:
    """Open features that `extract` wrote, or is still writing. Values are read when they are accessed.

    >>> import tempfile, torch, torcheer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = torcheer.extract(torch.nn.ReLU().eval(), torch.rand(6, 2), "output", to=folder, progress=False)
    ...     torcheer.open_features(folder)["output"].shape
    (6, 2)
    """
    return Features(folder)
