"""ChosenSamples: some samples of a dataset in an order, such as those that a unit likes best, as numbers and as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from ...display import Column, ShownTable, Table
from ...errors import InvalidArgument
from .sample_pictures import Pictures, SamplePictures, picture_sheet

if TYPE_CHECKING:
    import pandas


def as_integer(value: Any) -> Any:
    """A whole number of NumPy's or torch's as one of Python's; anything else as it is."""
    if isinstance(value, np.integer) or (isinstance(value, Tensor) and not value.dim() and not value.is_floating_point()):
        return int(value)
    return value


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
        self.ids = None if ids is None else list(ids)  # of these samples
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

    def pictures(self, of: Pictures) -> SamplePictures:
        """A sheet with a picture of each sample, from a dataset, a tensor or list of pictures, or a function of a number."""
        return picture_sheet([self], of)


class SampleNames:
    """Which sample of the data each row is of, and the ids of samples where they have some."""

    def __init__(self, numbers: Tensor, ids: Mapping[int, Any] | None = None) -> None:
        self._numbers = numbers
        self._ids = ids  # by number

    def of_rows(self, rows: Tensor) -> Tensor:
        """The numbers of the samples of rows."""
        return self._numbers[rows]

    def ids_of(self, numbers: Tensor) -> list[Any] | None:
        """The ids of samples."""
        return None if self._ids is None else [self._ids.get(number) for number in numbers.tolist()]

    def row_of(self, sample: Any, name: str) -> int | None:
        """The row of a sample that is given by its number or its id; None where its features are given."""
        number = sample
        if self._ids is not None and isinstance(sample, (str, int)) and not isinstance(sample, bool):
            kind = type(next(iter(self._ids.values()), ""))
            if kind is type(sample):  # ids that are whole numbers are meant before the numbers of samples are
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
