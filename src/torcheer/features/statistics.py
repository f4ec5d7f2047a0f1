"""Rows of features, read in parts: their principal components, and the samples nearest to one another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .._text import Column, Shown, ShownTable, Table, few
from .._torch.inputs import is_whole
from .._torch.internals import DisableTorchFunction
from .._torch.measure import dense
from ..errors import InvalidArgument
from ..reducers import Covariance, CovarianceResult
from .sample_pictures import Pictures, SamplePictures, picture_sheet

if TYPE_CHECKING:
    import pandas


# Gram matrices (samples × samples: the product of each pair of rows), computed tile by tile from a few columns at a time.


class Prepared(Protocol):
    """The protocol of rows that are centred or scaled as they are read."""

    rows: Rows

    def read(self, begin: int, end: int, columns: slice | None = None) -> Tensor: ...


def product_tile(layer: Prepared, begin: int, other: int, size: int, memory: int) -> Tensor:
    """A tile of the Gram matrix: the products of `size` rows from `begin` with `size` rows from `other`."""
    count = layer.rows.count
    tile = torch.zeros(min(size, count - begin), min(size, count - other), dtype=torch.float64)
    for columns in layer.rows.column_parts(memory // (2 * BYTES_READ * size)):
        one = layer.read(begin, begin + size, columns)
        tile.addmm_(one, (one if other == begin else layer.read(other, other + size, columns)).T)
    return tile


# The features of a layer as a matrix with one row per sample, read in parts in float64.

_TOGETHER = 1 << 20  # about this many values are read at once
BYTES_READ = 24  # number of bytes that a value takes while it is read: as stored, in float64, and centred


class Rows:
    """The features of one layer. Each sample is flattened to one row; complex numbers become pairs of real numbers."""

    def __init__(self, name: str, values: Any, samples: np.ndarray[Any, Any] | None = None) -> None:
        self.name = name
        self._values = values  # a tensor, an array or a layer of features
        self._samples = samples  # the samples of the rows, in this order; None for all
        shape = getattr(values, "shape", None)
        if shape is None or not len(shape):
            raise InvalidArgument(
                f"{name!r} must be features with a dimension of samples, such as an array of shape (samples, features); "
                f"got {type(values).__name__}."
            )
        if not all(isinstance(size, int) for size in shape):
            raise InvalidArgument(
                f"the samples of {name!r} have features of different sizes, which cannot be rows. Extract it with a transform= "
                "that gives every sample the same size, such as a mean over positions."
            )
        self.count = int(shape[0]) if samples is None else len(samples)
        self._shape: tuple[int, ...] = tuple(shape)

    @property
    def width(self) -> int:
        """The number of values in a row."""
        return math.prod(self._shape[1:]) * (2 if self.is_complex else 1)

    @property
    def is_complex(self) -> bool:
        dtype = getattr(self._values, "dtype", None)
        return dtype.is_complex if isinstance(dtype, torch.dtype) else np.dtype(dtype).kind == "c"

    def of(self, samples: np.ndarray[Any, Any]) -> Rows:
        """The rows with these indices, as `Rows`."""
        chosen = samples if self._samples is None else self._samples[samples]
        return Rows(self.name, self._values, chosen)

    @property
    def unit_width(self) -> int:
        """How many numbers of a row share an index of dimension 1: for a convolution, the positions of one channel."""
        return self.width // max(1, self._shape[1]) if len(self._shape) > 1 else self.width

    def column_parts(self, width: int) -> Iterator[slice | None]:
        """Slices of dimension 1, each with about `width` numbers of a row; a single None for the whole row."""
        if len(self._shape) < 2 or self.width <= width:
            yield None
            return
        together = max(1, width // self.unit_width)
        for begin in range(0, self._shape[1], together):
            yield slice(begin, min(begin + together, self._shape[1]))

    def flat(self, columns: slice | None) -> slice:
        """Return the part of a flattened row that a slice of dimension 1 covers."""
        return slice(None) if columns is None else slice(columns.start * self.unit_width, columns.stop * self.unit_width)

    def read(self, begin: int, end: int, columns: slice | None = None) -> Tensor:
        """Rows `begin` to `end` in float64; with `columns`, only this slice of dimension 1."""
        end = min(end, self.count)
        rows: Any = slice(begin, end)
        if self._samples is not None:
            rows = self._samples[begin:end]
            if len(rows) and (np.diff(rows) == 1).all():  # consecutive rows are read without a copy
                rows = slice(int(rows[0]), int(rows[-1]) + 1)
            elif isinstance(self._values, Tensor):
                rows = torch.from_numpy(rows)
        return self._as_rows(self._values[rows] if columns is None else self._values[rows, columns])

    def parts(self, together: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """Yield all rows in parts, each part with the index of its first row."""
        together = together or max(1, _TOGETHER // max(1, self.width))
        for begin in range(0, self.count, together):
            yield begin, self.read(begin, begin + together)

    def _as_rows(self, values: Any) -> Tensor:
        with DisableTorchFunction(), torch.no_grad():
            read = dense(values if isinstance(values, Tensor) else _as_tensor(np.asarray(values)))
            if read is None:
                raise InvalidArgument(f"the values of {self.name!r} cannot be read: they are on device {values.device}.")
            read = torch.view_as_real(read.resolve_conj()) if read.is_complex() else read
            return read.flatten(1).to("cpu", torch.float64) if read.dim() > 1 else read[:, None].to("cpu", torch.float64)


class CentredRows:
    """Rows from which the mean is subtracted, times a scale."""

    def __init__(self, rows: Rows, scale: float = 1.0) -> None:
        self.rows, self.scale = rows, scale
        first = rows.read(0, 1).sum(0)
        away = torch.zeros(rows.width, dtype=torch.float64)
        for _, part in rows.parts():
            away += (part - first).mul_(1 / rows.count).sum(0)
        self.mean = first + away  # if all rows are equal, the mean is exactly equal to them

    def read(self, begin: int, end: int, columns: slice | None = None) -> Tensor:
        return (self.rows.read(begin, end, columns) - self.mean[self.rows.flat(columns)]).mul_(self.scale)


def _as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())  # torch warns about read-only memory


# Samples of a dataset in an order, such as the top samples of a unit, as numbers and as pictures.


def as_integer(value: Any) -> Any:
    """A NumPy or torch integer as a Python int; other values unchanged."""
    if isinstance(value, np.integer) or (isinstance(value, Tensor) and not value.dim() and not value.is_floating_point()):
        return int(value)
    return value


class Sample(NamedTuple):
    """A sample: its number in the dataset, its id if it has one, and its value."""

    number: int
    id: Any
    value: float


@dataclass(eq=False, repr=False)
class ChosenSamples(ShownTable):
    """Samples in an order: their `numbers` in the dataset, `values`, and `ids` if they have ids."""

    title: str
    word: str  # a word for the values
    numbers: Tensor
    values: Tensor
    ids: Sequence[Any] | None  # the ids of these samples
    left_out: int = 0  # number of samples whose value is not finite
    row_title: str = ""  # the title of their row in a sheet of several rows

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Sample]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, place: int) -> Sample:
        return Sample(int(self.numbers[place]), self.ids[place] if self.ids is not None else None, float(self.values[place]))

    @property
    def table(self) -> Table:
        ids = [] if self.ids is None else [Column("id")]
        columns = [Column("sample", is_number=True), *ids, Column(self.word, is_number=True)]
        rows = [(f"{one.number}", *([str(one.id)] if self.ids is not None else []), f"{one.value:.4g}") for one in self]
        left_out = [f"left out, as their value is not finite: {self.left_out:,} samples"] if self.left_out else []
        return Table(columns, rows, notes=[self.title, *left_out])

    def to_pandas(self) -> pandas.DataFrame:
        """The samples as a pandas table."""
        import pandas

        ids = {} if self.ids is None else {"id": self.ids}
        return pandas.DataFrame({"sample": self.numbers.numpy(), **ids, self.word: self.values.numpy()})

    def pictures(self, of: Pictures) -> SamplePictures:
        """A sheet with a picture of each sample, from a dataset, a tensor or list of pictures, or a function of a number."""
        return picture_sheet([self], of)


class SampleNames:
    """The sample number of each row, and the ids of samples if they have ids."""

    def __init__(self, numbers: Tensor, ids: Mapping[int, Any] | None = None) -> None:
        self._numbers = numbers
        self._ids = ids  # for each sample number: the sample's id

    def of_rows(self, rows: Tensor) -> Tensor:
        """The sample numbers of rows."""
        return self._numbers[rows]

    def ids_of(self, numbers: Tensor) -> list[Any] | None:
        """The ids of samples."""
        return None if self._ids is None else [self._ids.get(number) for number in numbers.tolist()]

    def row_of(self, sample: Any, name: str) -> int | None:
        """The row of a sample given by number or id; None if `sample` is features."""
        number = sample
        if self._ids is not None and isinstance(sample, (str, int)) and not isinstance(sample, bool):
            kind = type(next(iter(self._ids.values()), ""))
            if kind is type(sample):  # if ids are integers, an integer means an id, not a sample number
                number = next((number for number, one in self._ids.items() if one == sample), None)
                if number is None:
                    raise InvalidArgument(f"no sample has the id {sample!r}.")
        if isinstance(number, int) and not isinstance(number, bool):
            found = (self._numbers == number).nonzero().flatten()
            if not len(found):
                raise InvalidArgument(f"there is no sample {sample}: {name!r} has {len(self._numbers):,} rows.")
            return int(found[0])
        if isinstance(sample, str):
            raise InvalidArgument(f"samples have no ids; got {sample!r}.")
        return None


# The nearest samples to a sample.

Nearness = Literal["cosine", "correlation", "dot", "euclidean"]
GivenSample = int | str | Tensor | Sequence[float] | np.ndarray[Any, Any]  # the sample's number, its id, or its features
# measure -> True if the largest value is nearest
_MEASURES = {"cosine": True, "correlation": True, "dot": True, "euclidean": False}


def nearest_samples(rows: Rows, sample: Any, k: int, measure: str, names: SampleNames) -> ChosenSamples:
    """The `k` samples nearest to a sample, given by number or id, or to given features."""
    if measure not in _MEASURES:
        raise InvalidArgument(f"measure is one of {', '.join(map(repr, _MEASURES))}; got {measure!r}.")
    if not is_whole(k, 1):
        raise InvalidArgument(f"the number of nearest samples is 1 or more; got {k!r}.")
    sample = as_integer(sample)
    own = names.row_of(sample, rows.name)
    wanted = _features(sample, rows) if own is None else rows.read(own, own + 1)[0]
    if not bool(wanted.isfinite().all()):
        raise InvalidArgument("the features to compare with have a NaN or an infinity.")
    best = torch.zeros(0, dtype=torch.float64)
    whose = torch.zeros(0, dtype=torch.int64)
    left_out = 0
    for begin, part in rows.parts():
        values = _measured(part, wanted, measure)
        places = torch.arange(begin, begin + len(part))
        usable = values.isfinite()
        left_out += int((~usable).sum())
        usable &= places != (-1 if own is None else own)
        values, places = torch.cat([best, values[usable]]), torch.cat([whose, places[usable]])
        # Rows are in the order of samples, and stable sorting keeps it among equal values.
        order = values.sort(descending=_MEASURES[measure], stable=True).indices[:k]
        best, whose = values[order], places[order]
    what = "the given features" if own is None else f"sample {sample}"
    word = "distance" if measure == "euclidean" else measure
    numbers = names.of_rows(whose)
    title = f"nearest to {what} in {rows.name}"
    return ChosenSamples(title, word, numbers, best, names.ids_of(numbers), left_out=left_out)


def _features(sample: Any, rows: Rows) -> Tensor:
    try:
        given = torch.as_tensor(sample)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidArgument(f"a sample is given by its number, its id or its features; got {sample!r:.60}.") from None
    read = Rows("sample", given[None])
    if read.width != rows.width:
        raise InvalidArgument(f"the features of a sample of {rows.name!r} are {rows.width:,} numbers; got {read.width:,}.")
    return read.read(0, 1)[0]


def _measured(rows: Tensor, wanted: Tensor, measure: str) -> Tensor:
    if measure == "euclidean":
        return (rows - wanted).square().sum(1).sqrt()
    if measure == "correlation":
        rows, wanted = rows - rows.mean(1, keepdim=True), wanted - wanted.mean()
    products = rows @ wanted
    if measure == "dot":
        return products
    lengths = rows.square().sum(1).sqrt() * wanted.square().sum().sqrt()
    return torch.where(lengths > 0, products / lengths, math.nan)


# Principal components of the features of a layer, from rows that are read in parts.

_BYTES = 8
_COPIES = 4  # an eigendecomposition needs memory for this many copies of the matrix
MEMORY = 2 << 30
_ROOM = 64 << 20  # at most this many bytes of rows are in memory while their products are computed


@dataclass(frozen=True, eq=False, repr=False)
class Components(Shown):
    """Principal components: unit vectors, sorted by the variance along them, largest first; and these variances.

    Signs are chosen so that the largest entry of a direction, by magnitude, is positive.
    """

    directions: Tensor  # components × features
    variances: Tensor  # sums of squares divided by the number of samples
    mean: Tensor  # the mean of the features
    total_variance: float  # the variance of all components together
    samples: int  # the number of samples, or of observations if computed from a covariance
    left_out: int = 0
    rows: Rows | None = None

    @property
    def explained(self) -> Tensor:
        """The fraction of the total variance that each component explains."""
        return self.variances / self.total_variance if self.total_variance > 0 else torch.zeros_like(self.variances)

    def project(self, values: Tensor | None = None) -> Tensor:
        """The coordinates of samples along the components, samples × components; by default of all samples."""
        if values is None:
            if self.rows is None:
                raise InvalidArgument(
                    "these components come from a covariance, so there are no samples; give the values to project."
                )
            parts = [self._projected(part) for _, part in self.rows.parts()]
            return torch.cat(parts) if parts else torch.zeros(0, len(self.directions), dtype=torch.float64)
        rows = Rows("values", values)
        if rows.width != len(self.mean):
            raise InvalidArgument(f"values to project have {len(self.mean):,} features for each sample; got {rows.width:,}.")
        return self._projected(rows.read(0, rows.count))

    def _projected(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) @ self.directions.T

    def __str__(self) -> str:
        explained = self.explained
        parts = few((f"{100 * part:.1f} %" for part in explained.tolist()), 8)
        lines = [f"{len(self.directions)} principal components of {len(self.mean):,} features:", f"\tSamples: {self.samples:,}"]
        lines += [f"\tExplained: {100 * float(explained.sum()):.1f} % of the variance ({parts})"]
        if self.left_out:
            lines.append(f"\tNote: left out, as they have a NaN or an infinity: {self.left_out:,} samples.")
        return "\n".join(lines)


def _check_number(k: object) -> None:
    if not is_whole(k, 1):
        raise InvalidArgument(f"the number of components is 1 or more; got {k!r}.")


def components_of(rows: Rows, k: int, memory: int = MEMORY) -> Components:
    """The first `k` principal components of rows, from the covariance of features or from the Gram matrix of samples."""
    _check_number(k)
    usable, left_out = _finite(rows)
    if usable.count < 2:
        raise InvalidArgument(f"principal components need 2 samples or more; {rows.name!r} has {usable.count}.")
    smaller = min(usable.width, usable.count)
    if smaller**2 * _BYTES * _COPIES > memory:
        fitting = math.isqrt(memory // (_BYTES * _COPIES))
        raise InvalidArgument(
            f"principal components of {usable.count:,} samples with {usable.width:,} features each need more than "
            f"{memory / 2**30:.3g} GiB: use fewer samples, samples={fitting}, or raise memory=."
        )
    if usable.width <= usable.count:
        reducer = Covariance()
        state = reducer.begin()
        for begin, part in usable.parts():
            reducer.update(state, part, torch.arange(begin, begin + len(part)))
        return from_covariance(reducer.finish(state), k, rows=rows, left_out=left_out)
    return _from_samples(usable, min(k, smaller), rows, left_out)


def from_covariance(found: CovarianceResult, k: int, rows: Rows | None = None, left_out: int = 0) -> Components:
    """The first `k` principal components of units with a known covariance."""
    if found.covariance.is_complex():
        raise InvalidArgument("principal components are of real units; the covariance is of complex ones.")
    _check_number(k)
    values, vectors = _largest(found.covariance, k)
    total = float(found.covariance.diagonal().sum())
    return Components(_signed(vectors.T), values, found.mean, total, found.count, left_out or found.left_out, rows)


def _largest(products: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest eigenvalues of a symmetric matrix, with the eigenvectors as columns."""
    if not products.isfinite().all():
        raise InvalidArgument(
            "products of the values are too large for principal components: make the values smaller with transform=."
        )
    values, vectors = torch.linalg.eigh(products)
    return values.flip(0)[:k].clamp(min=0), vectors.flip(1)[:, :k]


def _from_samples(usable: Rows, k: int, rows: Rows, left_out: int) -> Components:
    """Find components if there are fewer samples than features: eigenvectors of the Gram matrix give the weights with which
    samples add up to the directions.
    """
    centred = CentredRows(usable)
    mean, count = centred.mean, usable.count
    products = torch.zeros(count, count, dtype=torch.float64)
    size = max(1, min(count, 1024, _ROOM // (2 * BYTES_READ * usable.unit_width)))
    for begin in range(0, count, size):
        for other in range(begin, count, size):
            tile = product_tile(centred, begin, other, size, _ROOM)
            products[begin : begin + size, other : other + size] = tile
            products[other : other + size, begin : begin + size] = tile.T
    values, vectors = _largest(products, k)
    directions = torch.zeros(k, usable.width, dtype=torch.float64)
    for begin, part in usable.parts():
        directions += vectors[begin : begin + len(part)].T @ (part - mean)
    # Directions without variance are rounding errors; they are made orthogonal to the other directions.
    directions = torch.linalg.qr(directions.T)[0].T
    total = float(products.diagonal().sum()) / usable.count
    return Components(_signed(directions), values / usable.count, mean, total, usable.count, left_out, rows)


def _signed(directions: Tensor) -> Tensor:
    """Flip directions so that their largest entry is positive: otherwise their signs would be arbitrary."""
    farthest = directions.abs().argmax(1, keepdim=True)
    return (directions * directions.gather(1, farthest).sign()).contiguous()


def _finite(rows: Rows) -> tuple[Rows, int]:
    """The rows without NaN and infinity, and the number of rows that are left out."""
    finite = [part.isfinite().all(1) for _, part in rows.parts()]
    good = torch.cat(finite) if finite else torch.zeros(0, dtype=torch.bool)
    if bool(good.all()):
        return rows, 0
    return rows.of(good.nonzero().flatten().numpy()), int((~good).sum())
