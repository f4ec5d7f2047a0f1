"""What features tell: means, covariances, histograms, top samples, principal components, nearest samples.

What a reducer kept while features were extracted is used; otherwise it is worked out from the stored values, a few at a time.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from ...display import did_you_mean, few
from ...errors import InvalidArgument, LayerNotFound, UnreadableFile
from ...inputs import is_whole
from ...reducers import (
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
from ...tensor_files import enough_memory
from ..blocks.block_files import IDS, SAMPLES, TOKEN_SAMPLES
from ..blocks.block_index import BlockIndex
from ..blocks.reduced_blocks import ReducedBlocks
from ..blocks.storage import Storage
from ..plan import Plan
from .chosen_samples import ChosenSamples, SampleNames, as_integer
from .components import MEMORY, Components, components_of, from_covariance
from .nearest import GivenSample, Nearness, nearest_samples
from .rows import Rows
from .sample_pictures import Pictures, SamplePictures, picture_sheet

Kind = TypeVar("Kind", bound=Reducer)
Positions = Literal["mean", "max"]
_TOGETHER = 1 << 22  # values that are read together
_TOP = 20


def sample_names(index: BlockIndex) -> SampleNames:
    """Which samples the rows of layers are of."""
    numbers = sample_numbers(index)
    texts = index.texts(IDS)
    ids: list[Any] | None = list(texts) if texts is not None else _column(index, IDS).tolist() if index.has(IDS) else None
    named = None if ids is None else dict(zip(numbers.tolist(), ids, strict=True))
    return SampleNames(_column(index, TOKEN_SAMPLES) if index.has(TOKEN_SAMPLES) else numbers, named)


def sample_numbers(index: BlockIndex) -> Tensor:
    """The number that each sample has in the data."""
    if index.has(SAMPLES):
        return _column(index, SAMPLES)
    found = [torch.arange(block.first, block.first + block.samples, device="cpu") for block in index.blocks]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64, device="cpu")


def _column(index: BlockIndex, name: str) -> Tensor:
    with enough_memory(f"{name!r} in {index.storage.location}"):
        parts = [index.rows(piece, slice(0, piece.rows)).clone() for piece in index.column(name).pieces]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


class LayerStatistics:
    """What the stored values of a layer tell. A part of `LayerFeatures`."""

    name: str
    _index: BlockIndex

    @property
    @abstractmethod
    def shape(self) -> tuple[int | None, ...]: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batches(self, size: int = 1024) -> Iterator[Any]: ...

    def reduce(self, reducer: Reducer) -> Any:
        """What a reducer of `torcheer.reducers` finds in the stored values, which are read a few at a time."""
        if not isinstance(reducer, Reducer):
            raise InvalidArgument(f"reduce takes a reducer, such as reducers.Mean() or reducers.TopK(20); got {reducer!r:.60}.")
        state = reducer.begin()
        numbers = sample_names(self._index).of_rows(torch.arange(len(self)))
        width = math.prod(size or 1024 for size in self.shape[1:])
        at = 0
        for batch in self.batches(max(1, _TOGETHER // max(1, width))):
            for values in [batch] if isinstance(batch, Tensor) else [sample[None] for sample in batch]:
                reducer.update(state, values, numbers[at : at + len(values)])
                at += len(values)
        return reducer.finish(state)

    def as_mean(self) -> Tensor:
        """The mean of each unit in a shape that broadcasts to the values, for `changes.mean`."""
        return self.reduce(Mean()).as_mean()  # type: ignore[no-any-return]  # what finish returns depends on the reducer

    def components(self, k: int = 10, *, samples: int | None = None, memory: int = MEMORY) -> Components:
        """The first `k` principal components of the values; everything of a sample is flattened to one row.

        `samples` uses the first so many only; `memory` is how many bytes this may take.
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
        """The `k` samples whose values are nearest to those of a sample, given by its number or id, or to given values.

        With `pictures`, a sheet of them; see `Features.top`.
        """
        found = nearest_samples(Rows(self.name, self), sample, k, measure, sample_names(self._index))
        return found if pictures is None else found.pictures(pictures)


def _words(found: TopKResult, k: int | None, whose: str) -> str:
    """Which samples these are."""
    which = "largest" if found.reducer.largest else "smallest"
    where = " somewhere" if found.reducer.positions == "max" else ""
    return f"the {found.numbers.shape[1] if k is None else k} samples for which {whose} is {which}{where}"


class FeatureStatistics(Mapping[str, Any]):
    """What features tell. A part of `Features`."""

    plan: Plan
    _index: BlockIndex
    _storage: Storage

    @property
    @abstractmethod
    def layers(self) -> list[str]: ...

    @property
    def title(self) -> str:
        """What figures call these features: the name of their folder."""
        return self._storage.location.rstrip("/").rpartition("/")[2]

    def mean(self, layer: str) -> MeanResult:
        """Mean, variance, smallest and largest value of each unit of a layer."""
        return self._found(layer, Mean())  # type: ignore[no-any-return]  # what a reducer finds depends on it

    def covariance(self, layer: str) -> CovarianceResult:
        """The covariance of the units of a layer."""
        return self._found(layer, Covariance())  # type: ignore[no-any-return]

    def histogram(self, layer: str) -> HistogramResult:
        """How often the values of each unit of a layer fall into bins."""
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
        """The samples for which a unit of a layer is largest, or smallest with `largest=False`, the first one first.

            features.top("layer3", unit=12, pictures=dataset).save("unit12.png")

        Args:
            layer: its name.
            unit: its number (a channel, a feature), or a list of numbers.
            k: how many samples; by default as many as `keep=TopK(k)` kept, or 20.
            largest, positions: see `reducers.TopK`; by default as they were kept.
            pictures: a dataset whose items are pictures or begin with one, a tensor or list of pictures, a mapping from ids to
                pictures or their files, or a function from the number of a sample to its picture.

        Returns `ChosenSamples`, of several units a list; with `pictures` a sheet of them, a row for each of several units.
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
        wanted = TopK(_TOP if k is None else k, largest=largest is not False, positions=positions or "mean")
        fits = [
            at
            for at, one in enumerate(self._kept(layer))
            if isinstance(one, TopK)
            and (k is None or k <= one.k)
            and largest in (None, one.largest)
            and positions in (None, one.positions)
        ]
        if fits:
            return self._read_kept(layer, fits[0])  # type: ignore[no-any-return]
        return self._worked_out(layer, wanted)  # type: ignore[no-any-return]

    def _of_unit(self, layer: str, unit: int, found: TopKResult, k: int | None) -> ChosenSamples:
        numbers, values = found.numbers[unit], found.values[unit]
        numbers, values = numbers[numbers >= 0][:k], values[numbers >= 0][:k]
        title = f"{layer}, unit {unit}: {_words(found, len(numbers), 'it')}"
        ids = sample_names(self._index).ids_of(numbers)
        left_out = int(found.left_out[unit])
        return ChosenSamples(title, "value", numbers, values, ids, left_out=left_out, row_title=f"unit {unit}")

    # What was kept --------------------------------------------------------------------------------------------------

    def _reducers(self) -> dict[str, list[Reducer]]:
        """The reducers of each layer."""
        try:
            given = self.plan.settings.get("keep", {}).get("reducers", {})
            return {layer: [reducer_from(one) for one in some] for layer, some in given.items()}
        except (AttributeError, TypeError, InvalidArgument) as error:
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

    def _found(self, layer: str, reducer: Reducer) -> Any:
        """What was kept by a reducer of this kind, or what it finds in the stored values."""
        for at, one in enumerate(self._kept(layer)):
            if type(one) is type(reducer):
                return self._read_kept(layer, at)
        return self._worked_out(layer, reducer)

    def _read_kept(self, layer: str, at: int) -> Any:
        reducers = self._reducers()
        state = ReducedBlocks(self._storage, reducers).read(layer).states[at]
        return reducers[layer][at].finish(state)

    def _worked_out(self, layer: str, reducer: Reducer) -> Any:
        if layer in self.layers:
            return self[layer].reduce(reducer)
        kept = ", ".join(map(repr, self._kept(layer))) or "nothing"
        raise InvalidArgument(
            f"of {layer!r} {kept} was kept and its values are not stored, so {reducer!r} is not known. Extract it with "
            f"keep={reducer!r}, or with its values."
        )
