"""`Features`: what `extract` wrote, read like arrays, also while it is still being written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import FeaturesNotFound, InvalidArgument, LayerNotFound, UnreadableFile
from .blocks.block_files import IDS, LABELS, LAYERS, TOKEN_POSITIONS, TOKEN_SAMPLES
from .blocks.block_index import BlockIndex
from .blocks.storage_location import open_storage
from .exporting import export_features, to_datasets
from .layer_features import LayerFeatures
from .plan import END, PLAN, read_end, read_plan
from .statistics import FeatureStatistics
from .statistics.feature_statistics import sample_numbers

_MOST_MISSING = 1 << 22  # blocks that are listed: more would be a claim that no file bears out


class Features(FeatureStatistics):
    """The features in a folder: `features["layer3"]` is a layer, and `len(features["layer3"])` how many samples are there.

    Rows are in the order of the data. While blocks are missing, `samples` says which samples they are of.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._storage = open_storage(folder)
        plan = read_plan(self._storage)
        if plan is None:
            raise FeaturesNotFound(
                f"there are no features in {self._storage.location}: it has no {PLAN}, the first file that extract() writes."
            )
        self.plan = plan
        self._index = BlockIndex(self._storage, self.layers)

    def refresh(self) -> Features:
        """Look for blocks that were written since."""
        self._index.refresh()
        return self

    @property
    def location(self) -> str:
        """The folder."""
        return self._storage.location

    def version(self) -> str:
        """A text that changes when the plan changes or blocks are added."""
        said = (self.plan.to_bytes(), [block.file for block in self._index.blocks])
        return blake2b(repr(said).encode(), digest_size=12).hexdigest()

    # Layers ---------------------------------------------------------------------------------------------------------

    @property
    def layers(self) -> list[str]:
        """The names of the layers whose values are stored."""
        stored = self.plan.settings.get("keep", {}).get("stored", self.plan.layers)
        return [name for name in self.plan.layers if name in stored]

    def __getitem__(self, name: str) -> LayerFeatures:
        if name in self.layers:
            return LayerFeatures(self._index, f"{LAYERS}{name}", name)
        if name in self.plan.layers:
            raise LayerNotFound(
                f"the values of {name!r} are not stored, only what reducers found in them: features.mean({name!r}), "
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
        """The numbers of the samples that are there: which one of the data each row is of, also where a loader shuffles."""
        return sample_numbers(self._index)

    @property
    def ids(self) -> Tensor | list[str] | None:
        """What samples are known by, if `ids=` was given: whole numbers or texts."""
        return self._read(IDS) if self._index.has(IDS) else None

    @property
    def labels(self) -> dict[str, Tensor | list[str]]:
        """What batches had besides the arguments of the model, by name: numbers or texts."""
        return {name: self._read(f"{LABELS}{name}") for name in sorted(self._index.names(LABELS))}

    @property
    def tokens(self) -> Tokens | None:
        """With `flatten="tokens"`: which sample, and which of its tokens, each row is of."""
        if self.plan.settings.get("flatten") != "tokens":
            return None
        return Tokens(*(LayerFeatures(self._index, name, name)[:] for name in (TOKEN_SAMPLES, TOKEN_POSITIONS)))

    def _read(self, column: str) -> Any:
        texts = self._index.texts(column)
        return list(texts) if texts is not None else LayerFeatures(self._index, column, column)[:]

    # How much of it is there ----------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether every sample is there."""
        return self._missing_count() == 0

    @property
    def missing(self) -> list[int] | None:
        """The numbers of the blocks that are not there; None where it is not known how many there will be."""
        count = self._block_count()
        if count is None:
            return None
        there = {block.number for block in self._index.blocks}
        return [number for number in range(count) if number not in there]

    def _missing_count(self) -> int | None:
        count = self._block_count()
        return None if count is None else count - sum(block.number < count for block in self._index.blocks)

    def _block_count(self) -> int | None:
        """How many blocks there will be; None while that is not known."""
        end, there = read_end(self._storage), len(self._index.blocks)
        if end is not None and end[0] - there > _MOST_MISSING:
            raise UnreadableFile(
                f"{END} in {self._storage.location} says that {end[0]:,} blocks belong here, and {there:,} are there: it is "
                "damaged. Delete this file and extract again: the blocks are kept."
            )
        return None if end is None else end[0]

    @property
    def size_on_disk(self) -> int:
        """How many bytes the files have."""
        return sum(self._storage.sizes().values())

    # As other things ------------------------------------------------------------------------------------------------

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
        return _Together(found)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write all layers into a `.zarr` folder. Returns the path. One layer: `features[…].export(path)`."""
        return export_features(self, Path(path))

    def to_datasets(self, layers: list[str] | None = None, *, cache_dir: str | os.PathLike[str] | None = None) -> Any:
        """A `datasets.Dataset` of Hugging Face, with a column for each layer and label, written into its cache."""
        return to_datasets(self, layers, cache_dir)

    def __repr__(self) -> str:
        missing = self._missing_count()
        state = "complete" if missing == 0 else "being written" if missing is None else f"{missing} blocks are missing"
        title = f"Features of {self.plan.model} in {self._storage.location}: {self._index.samples} samples, {state}"
        shown = {name: name or "''" for name in self.plan.layers}  # '' is the model itself
        width = max(map(len, shown.values()), default=0)
        return "\n".join([title, *(f"  {text:{width}}  {self._said(name)}" for name, text in shown.items())])

    def _said(self, name: str) -> str:
        """Shape and type of a layer, or what was kept of it instead of values."""
        if name in self.layers:
            return f"{self[name].said_shape} {str(self[name].dtype).removeprefix('torch.')}"
        reducers = self.plan.settings["keep"].get("reducers", {}).get(name, [])
        return f"no values, but {', '.join(str(one.get('reducer')) for one in reducers)}"


class Tokens:
    """Which sample, and which of its tokens, each row is of."""

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
        """Whether samples come in the order of their numbers: not those of a loader that shuffles."""
        return bool((self.samples.diff() >= 0).all())

    def __len__(self) -> int:
        return len(self.samples)


class _Together(Dataset[tuple[Any, ...]]):
    """Columns side by side."""

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


def open_features(folder: str | os.PathLike[str]) -> Features:
    """Open features that `extract` wrote, or is writing. Nothing is read but what is asked for.

    >>> import tempfile, torch, torcheer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = torcheer.extract(torch.nn.ReLU().eval(), torch.rand(6, 2), "output", to=folder, progress=False)
    ...     torcheer.open_features(folder)["output"].shape
    (6, 2)
    """
    return Features(folder)
