"""Similarity: the matrix that `similarity` returns, to look up, print, draw and export."""

from __future__ import annotations

import math
import os
from typing import IO, TYPE_CHECKING, Any, overload

import numpy as np
import torch

from ...display import Column, Fold, Shown, Table, few, image, preformatted, terminal_width
from ...errors import LayerNotFound
from ..statistics.drawn import Drawn
from .heat_map import heat_map, short_name

if TYPE_CHECKING:
    import pandas

Array = np.ndarray[Any, Any]
_WORDS = {"cka": "linear CKA", "debiased cka": "debiased linear CKA", "rsa": "RSA (Spearman)"}
_CELL = 7  # characters of a column of numbers
_MOST = 16  # columns that are printed


class Similarity(Shown):
    """How similar layers are: `found["conv1", "fc"]` is a number, `matrix` has rows for layers of a and columns for b."""

    def __init__(
        self,
        matrix: Array,
        layers_a: list[str],
        layers_b: list[str],
        *,
        measure: str,
        samples: int,
        is_within: bool,
        titles: tuple[str, str] = ("a", "b"),
        notes: list[str] | None = None,
    ) -> None:
        self.matrix = matrix
        self.layers_a = layers_a
        self.layers_b = layers_b
        self.measure = measure
        self.samples = samples
        self.is_within = is_within  # one model, its layers with one another
        self.titles = titles
        self.notes = notes or []

    @overload
    def __getitem__(self, key: tuple[str, str]) -> float: ...

    @overload
    def __getitem__(self, key: str) -> dict[str, float]: ...

    def __getitem__(self, key: tuple[str, str] | str) -> float | dict[str, float]:
        """The similarity of a layer of a and one of b; of one layer alone, a dictionary of those with every layer of b."""
        if isinstance(key, tuple):
            return float(self.matrix[_place(key[0], self.layers_a), _place(key[1], self.layers_b)])
        row = self.matrix[_place(key, self.layers_a)]
        return dict(zip(self.layers_b, map(float, row), strict=True))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array: Array = np.asarray(self.matrix) if dtype is None else np.asarray(self.matrix).astype(dtype, copy=False)
        if copy is False and array is not self.matrix:
            raise ValueError("the similarity of layers cannot be given in another type without a copy.")
        return array if copy is False else array.copy()

    def __dlpack__(self, **options: Any) -> Any:
        """The matrix as a new tensor, for `torch.as_tensor` and everything else that reads DLPack."""
        return torch.from_numpy(self.__array__()).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return torch.empty(0, device="cpu").__dlpack_device__()

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.layers_a), len(self.layers_b)

    @property
    def most_similar(self) -> dict[str, str | None]:
        """For each layer of a the most similar layer of b, or other layer of a; None where none can be told."""
        found: dict[str, str | None] = {}
        for at, name in enumerate(self.layers_a):
            row = np.where(np.isnan(self.matrix[at]), -math.inf, self.matrix[at])
            if self.is_within:
                row[at] = -math.inf
            best = int(row.argmax())
            found[name] = self.layers_b[best] if row[best] > -math.inf else None
        return found

    def to_pandas(self) -> pandas.DataFrame:
        """The matrix as a table, with the names of the layers."""
        import pandas

        return pandas.DataFrame(self.matrix, index=self.layers_a, columns=self.layers_b)

    def draw(self, path: str | os.PathLike[str] | IO[bytes] | None = None, *, title: str | None = None) -> Drawn:
        """A heat map, which a notebook shows. With a path it is also written there: PNG, SVG or PDF."""
        title = title or f"{_title(self.measure)} of {self.samples:,} samples"
        ends = ("", "") if self.is_within else self.titles
        drawn = heat_map(self.matrix, self.layers_a, self.layers_b, title, _WORDS[self.measure], ends)
        if path is not None:
            drawn.save(path)
        return drawn

    def _table(self, width: int | None = None, *, is_whole: bool = False) -> Table:
        """The matrix with numbered columns; where these are too many, the most similar layer for each."""
        names = [f"{at} {name}" for at, name in enumerate(self.layers_a, 1)]
        longest = max(map(len, names), default=0)
        if is_whole or (len(self.layers_b) <= _MOST and longest + _CELL * len(self.layers_b) <= (width or math.inf)):
            heads = [Column(str(at), is_number=True) for at in range(1, len(self.layers_b) + 1)]
            rows = [(name, *map(_figure, row)) for name, row in zip(names, self.matrix, strict=True)]
            legend = [] if self.is_within else [f"columns: {self._legend()}"]
            return Table([Column("layer"), *heads], rows, notes=legend)
        columns = [Column("layer"), Column("most similar"), Column("value", is_number=True)]
        rows = []
        for name, (layer, other) in zip(names, self.most_similar.items(), strict=True):
            rows.append((name, other or "none", _figure(self[layer, other]) if other is not None else "–"))
        return Table(columns, rows, notes=["draw() and to_pandas() have all of them"])

    def _legend(self) -> str:
        return ", ".join(f"{at} {short_name(name)}" for at, name in enumerate(self.layers_b, 1))

    def __str__(self) -> str:
        size = f"{len(self.layers_a)} layers" if self.is_within else f"{len(self.layers_a)} × {len(self.layers_b)} layers"
        lines = [f"{_title(self.measure)} of {size}:", f"\tSamples: {self.samples:,}"]
        lines += [f"\tNote: {note}" for note in self.notes]
        width = terminal_width()
        room = None if width is None else width - 16  # what two tabs leave
        table = self._table(room).text(room)
        return "\n".join([*lines, "\tMatrix:", *(f"\t\t{line}" for line in table.split("\n"))])

    def _card_text(self) -> str:
        return str(self).split("\n\tMatrix:")[0]

    def _folds(self) -> list[Fold]:
        drawn = self.draw()
        width = round(float(drawn.figure.get_figwidth() * drawn.figure.dpi / 2))
        picture = image(drawn.to_bytes("png"), drawn.title, width)
        return [Fold("Heat map", picture, is_open=True), Fold("Matrix", preformatted(self._table(is_whole=True).text()))]


def _title(measure: str) -> str:
    words = _WORDS[measure]
    return words[0].upper() + words[1:]


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _place(name: str, layers: list[str]) -> int:
    try:
        return layers.index(name)
    except ValueError:
        raise LayerNotFound(f"{name!r} is none of the layers {few(layers, 20)}.") from None
