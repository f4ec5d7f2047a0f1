"""ChosenSamples: some samples of a dataset in an order, such as those that a unit likes best, as numbers and as pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..display import Column, ShownTable, Table
from ..errors import InvalidArgument
from .rows import Rows
from .sample_pictures import SamplePictures, picture_sheet

if TYPE_CHECKING:
    import pandas

_MEASURES = {"cosine": True, "correlation": True, "dot": True, "euclidean": False}  # whether the largest is nearest


class Sample(NamedTuple):
    """A sample: its place in the dataset, its id if it has one, and its value."""

    number: int
    id: Any
    value: float


class ChosenSamples(ShownTable):
    """Samples in an order, the first one first: `numbers` in the dataset, `values`, and `ids` where samples have some."""

    def __init__(
        self,
        title: str,
        word: str,
        numbers: Tensor,
        values: Tensor,
        ids: Sequence[Any] | None,
        *,
        left_out: int = 0,
        row_title: str = "",
    ) -> None:
        self.title = title
        self.row_title = row_title  # beside others of the same kind
        self.word = word  # what the values are
        self.numbers = numbers
        self.values = values
        self.ids = None if ids is None else [ids[number] for number in numbers.tolist()]
        self.left_out = left_out  # samples whose value is not finite

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
        """The samples as a table."""
        import pandas

        ids = {} if self.ids is None else {"id": self.ids}
        return pandas.DataFrame({"sample": self.numbers.numpy(), **ids, self.word: self.values.numpy()})

    def pictures(self, of: Any) -> SamplePictures:
        """A sheet with a picture of each sample, from a dataset, a tensor or list of pictures, or a function of a number."""
        return picture_sheet([self], of)


def nearest_samples(rows: Rows, sample: Any, k: int, measure: str, ids: Sequence[Any] | None) -> ChosenSamples:
    """The `k` samples whose rows are nearest to a sample, given by its number or its id, or to features."""
    if measure not in _MEASURES:
        raise InvalidArgument(f"measure is one of {', '.join(map(repr, _MEASURES))}; got {measure!r}.")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InvalidArgument(f"the number of nearest samples is 1 or more; got {k!r}.")
    number = _number(sample, rows, ids)
    wanted = _features(sample, rows) if number is None else rows.read(number, number + 1)[0]
    if not bool(wanted.isfinite().all()):
        raise InvalidArgument("the features to compare with have a NaN or an infinity.")
    best = torch.zeros(0, dtype=torch.float64)
    whose = torch.zeros(0, dtype=torch.int64)
    left_out = 0
    for begin, part in rows.parts():
        values = _measured(part, wanted, measure)
        numbers = torch.arange(begin, begin + len(part))
        usable = values.isfinite()
        left_out += int((~usable).sum())
        usable &= numbers != (-1 if number is None else number)
        values, numbers = torch.cat([best, values[usable]]), torch.cat([whose, numbers[usable]])
        # Samples come in the order of their numbers, and sorting keeps that among equal ones.
        order = values.sort(descending=_MEASURES[measure], stable=True).indices[:k]
        best, whose = values[order], numbers[order]
    what = "the given features" if number is None else f"sample {number}"
    word = "distance" if measure == "euclidean" else measure
    return ChosenSamples(f"nearest to {what} in {rows.name}", word, whose, best, ids, left_out=left_out)


def _number(sample: Any, rows: Rows, ids: Sequence[Any] | None) -> int | None:
    """The number of a sample that is given by its number or its id; None where its features are given."""
    if ids is not None and isinstance(sample, (str, int)) and sample in ids:
        return list(ids).index(sample)
    if isinstance(sample, int) and not isinstance(sample, bool):
        if -rows.count <= sample < rows.count:
            return sample % rows.count
        raise InvalidArgument(f"there is no sample {sample}: {rows.name!r} has {rows.count:,}.")
    if isinstance(sample, str):
        raise InvalidArgument(
            f"no sample has the id {sample!r}." if ids is not None else f"samples have no ids; got {sample!r}."
        )
    return None


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
