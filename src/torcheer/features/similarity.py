"""`similarity`: how similar layers are, within a model or between two, by CKA or RSA; the result prints, draws and exports."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from .._text import Column, Fold, Shown, Table, few, image, preformatted, terminal_width
from .._torch.inputs import is_whole
from ..errors import InvalidArgument, LayerNotFound
from ..log.keys import glob_pattern
from ..pictures.sheet import FAINT, INK, Sheet, import_matplotlib, line_height, text_width
from .features import Features, sample_names
from .sample_pictures import Drawn
from .statistics import BYTES_READ, CentredRows, Rows, product_tile

if TYPE_CHECKING:
    import pandas


# A heat map of a matrix of layers, large enough to read every name.

Array = np.ndarray[Any, Any]
_MARGIN = 30  # number of pixels around the heat map
_LONGEST = 34  # names are cut to this many letters
_FEW = 16  # up to this many rows and columns, numbers are written in the cells
_CELL_PIXELS, _SMALL_CELL = 88, 30
_MOST_PIXELS = 4000  # each side of the matrix has at most this many pixels


def short_name(name: str, longest: int = _LONGEST) -> str:
    """A long name without its middle: the end distinguishes layers.

    >>> short_name("encoder.layers.11.attention.self.query", 20)
    'encod…ion.self.query'
    """
    if len(name) <= longest:
        return name
    end = (longest - 1) * 3 // 4
    return f"{name[: longest - 1 - end]}…{name[-end:]}"


def heat_map(values: Array, rows: list[str], columns: list[str], title: str, words: str, ends: tuple[str, str]) -> Drawn:
    """Draw a matrix as a heat map. `words` is the label of its colour bar; `ends` label its rows and columns."""
    matplotlib = import_matplotlib()
    count = max(values.shape)
    cell = _CELL_PIXELS if count <= _FEW else max(min(_SMALL_CELL, _MOST_PIXELS // count), 2)
    every = max(1, math.ceil(_SMALL_CELL / cell))  # if the cells are small, only the name of every `every`-th layer is written
    size = 9.0 if count <= _FEW else 7.0
    names = [[short_name(name) for name in some] for some in (rows, columns)]
    room = [max(text_width(name, size) for name in some) + 24 for some in names]
    is_flat = count <= _FEW and room[1] <= cell  # names fit above their columns
    height, width = values.shape[0] * cell, values.shape[1] * cell
    head = line_height(12) + (line_height(8) if any(ends) else 0) + 20
    top = _MARGIN + head + (line_height(size) + 12 if is_flat else room[1])
    left = _MARGIN + room[0]
    bar = 24
    total = max(left + width + 40 + bar + 110 + _MARGIN, 2 * _MARGIN + text_width(title, 12, "bold"))
    with Sheet.style():
        sheet = Sheet(total, top + max(height, 160) + _MARGIN)
        sheet.write(_MARGIN, _MARGIN, title, 12, weight="bold")
        if any(ends):
            sheet.write(_MARGIN, _MARGIN + line_height(12), f"rows: {ends[0]}, columns: {ends[1]}", 8, color=FAINT)
        axes = sheet.axes(left, top, width, height)
        low = -1.0 if np.nanmin(values, initial=0.0) < -0.05 else 0.0
        colors = matplotlib.colormaps["RdBu_r" if low < 0 else "magma"].with_extremes(bad="#D8DAE0")
        picture = axes.imshow(values, cmap=colors, vmin=low, vmax=1.0, aspect="auto", interpolation="nearest")
        axes.tick_params(length=0, labelsize=size, colors=INK, top=False, bottom=False, labeltop=True, labelbottom=False)
        axes.set_yticks(range(0, len(rows), every), names[0][::every])
        axes.set_xticks(range(0, len(columns), every), names[1][::every], rotation=0 if is_flat else 90)
        for spine in axes.spines.values():
            spine.set_visible(False)
        if count <= _FEW:
            _write_numbers(axes, values, picture)
        key = sheet.axes(left + width + 40, top, bar, max(height, 160))
        sheet.figure.colorbar(picture, cax=key, label=words)
        key.tick_params(labelsize=7, colors=INK)
        key.yaxis.label.set_size(8)
        key.yaxis.label.set_color(INK)
        key.spines[:].set_visible(False)
    return Drawn(sheet.figure, title)


def _write_numbers(axes: Any, values: Array, picture: Any) -> None:
    value: Any
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = picture.cmap(picture.norm(value)) if not math.isnan(value) else (1.0, 1.0, 1.0, 1.0)
        is_dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
        text = "–" if math.isnan(value) else f"{value:.2f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if is_dark else INK)


# `Similarity`: the matrix that `similarity` returns, to look up, print, draw and export.

_WORDS = {"cka": "linear CKA", "debiased cka": "debiased linear CKA", "rsa": "RSA (Spearman)"}
_CELL = 7  # number of characters of a column of numbers
_MOST = 16  # at most this many columns are printed


@dataclass(eq=False, repr=False)
class Similarity(Shown):
    """The similarity of layers: `found["conv1", "fc"]` is a number, `matrix` has a row for each layer of a, a column for
    each of b.
    """

    matrix: Array
    layers_a: list[str]
    layers_b: list[str]
    measure: str
    samples: int
    is_within: bool  # True if the layers of one model are compared with one another
    titles: tuple[str, str]
    notes: list[str]

    @overload
    def __getitem__(self, key: tuple[str, str]) -> float: ...

    @overload
    def __getitem__(self, key: str) -> dict[str, float]: ...

    def __getitem__(self, key: tuple[str, str] | str) -> float | dict[str, float]:
        """The similarity of a layer of a and a layer of b; for a single layer of a, a dictionary over all layers of b."""
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
        """The matrix as a new tensor, for `torch.as_tensor` and other readers of DLPack."""
        return torch.from_numpy(self.__array__()).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return torch.empty(0, device="cpu").__dlpack_device__()

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.layers_a), len(self.layers_b)

    @property
    def most_similar(self) -> dict[str, str | None]:
        """For each layer of a: the most similar layer of b, or without b, of the other layers of a. None if undefined."""
        found: dict[str, str | None] = {}
        for at, name in enumerate(self.layers_a):
            row = np.where(np.isnan(self.matrix[at]), -math.inf, self.matrix[at])
            if self.is_within:
                row[at] = -math.inf
            best = int(row.argmax())
            found[name] = self.layers_b[best] if row[best] > -math.inf else None
        return found

    def to_pandas(self) -> pandas.DataFrame:
        """The matrix as a pandas table with the names of the layers."""
        import pandas

        return pandas.DataFrame(self.matrix, index=self.layers_a, columns=self.layers_b)

    def draw(self, path: str | os.PathLike[str] | IO[bytes] | None = None, *, title: str | None = None) -> Drawn:
        """A heat map, which notebooks show. With a path, it is also written as PNG, SVG or PDF."""
        title = title or f"{_title(self.measure)} of {self.samples:,} samples"
        ends = ("", "") if self.is_within else self.titles
        drawn = heat_map(self.matrix, self.layers_a, self.layers_b, title, _WORDS[self.measure], ends)
        if path is not None:
            drawn.save(path)
        return drawn

    def _table(self, width: int | None = None, *, is_whole: bool = False) -> Table:
        """The matrix with numbered columns; if there are too many, the most similar layer for each layer."""
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
        room = None if width is None else width - 16  # the width without two tabs
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
        raise LayerNotFound(f"{name!r} is not among the layers {few(layers, 20)}.") from None


# Linear CKA (Kornblith et al. 2019) of layers, from features that are read in parts.
#
# With centred features X and Y (samples × features), CKA is |XᵀY|² / (|XᵀX| |YᵀY|), in Frobenius norms. |XᵀY|² is computed in
# one of two ways, whichever is cheaper and fits the memory: from the products of features, XᵀY, summed over samples; or, if
# there are more features than samples, from the Gram matrices of samples, since |XᵀY|² = ⟨XXᵀ, YYᵀ⟩, tile by tile.

Pairs = list[tuple[int, int]]
_BYTES = 8  # size of a float64


class _ScaledRows(CentredRows):
    """Centred rows, scaled by a power of two so that no square overflows or underflows."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows)
        largest = max((float(part.abs().max()) for _, part in rows.parts() if part.numel()), default=0.0)
        self.scale = 2.0 ** -max(math.frexp(largest)[1], -1000)
        norms = [((part - self.mean) * self.scale).square().sum(1) for _, part in rows.parts()]
        self.norms = torch.cat(norms) if norms else torch.zeros(0, dtype=torch.float64)  # the squared norm of each row


def linear_cka(a: Sequence[Rows], b: Sequence[Rows] | None, memory: int, *, debiased: bool) -> Array:
    """The CKA matrix of layers with the same samples: of `a` with itself, or of `a` with `b`.

    The debiased version leaves out the pairs of a sample with itself, as in the estimator of Song et al. (2012).
    """
    layers = [_ScaledRows(rows) for rows in (*a, *(b or ()))]
    count = layers[0].rows.count
    if b is None:
        wanted = list(combinations_with_replacement(range(len(a)), 2))
    else:
        wanted = [(one, len(a) + other) for one in range(len(a)) for other in range(len(b))]
        wanted += [(one, one) for one in range(len(layers))]
    found = _squared_products(layers, wanted, memory)
    if debiased:
        for one, other in wanted:
            found[one, other] = _without_self(float(found[one, other]), layers[one].norms, layers[other].norms, count)
    own = found.diagonal()
    lengths = np.sqrt(np.where(own > 0, own, math.nan))
    scaled = found / lengths[:, None] / lengths[None, :]
    result: Array = scaled[: len(a), len(a) :] if b is not None else np.triu(scaled) + np.triu(scaled, 1).T
    return result


def _without_self(product: float, one: Tensor, other: Tensor, count: int) -> float:
    """The unbiased estimate of HSIC, times n (n - 3). `one` and `other` are the diagonals of the two Gram matrices.

    Rows are centred, so each row of a Gram matrix sums to zero; without the diagonal it sums to minus the diagonal.
    """
    together = float(one @ other)
    sums = float(one.sum()) * float(other.sum())
    return product - together + sums / ((count - 1) * (count - 2)) - 2 * together / (count - 2)


def _squared_products(layers: Sequence[_ScaledRows], pairs: Pairs, memory: int) -> Array:
    """Compute |XᵀY|² for each pair of layers, as a matrix with zero elsewhere."""
    count, widths = layers[0].rows.count, [layer.rows.width for layer in layers]
    by_features = count * sum(widths[one] * widths[other] for one, other in pairs)
    by_samples = count * count * (sum(widths) + len(layers) ** 2)
    largest = max(widths[one] * widths[other] for one, other in pairs) * _BYTES
    if by_features <= by_samples and largest + BYTES_READ * max(widths) <= memory // 2:
        return _from_features(layers, pairs, memory)
    return _from_samples(layers, memory)


def _from_features(layers: Sequence[_ScaledRows], pairs: Pairs, memory: int) -> Array:
    found = np.zeros((len(layers), len(layers)))
    for group in _groups(pairs, [layer.rows.width for layer in layers], memory // 2):
        used = sorted({one for pair in group for one in pair})
        widths = sum(layers[one].rows.width for one in used)
        together = max(1, min(4096, memory // 4 // (BYTES_READ * widths)))
        products = {(i, j): torch.zeros(layers[i].rows.width, layers[j].rows.width, dtype=torch.float64) for i, j in group}
        for begin in range(0, layers[0].rows.count, together):
            parts = {one: layers[one].read(begin, begin + together) for one in used}
            for (one, other), product in products.items():
                product.addmm_(parts[one].T, parts[other])
        for (one, other), product in products.items():
            found[one, other] = float(product.flatten() @ product.flatten())
    return found


def _groups(pairs: Pairs, widths: list[int], memory: int) -> list[Pairs]:
    """Group pairs so that the products of each group fit into memory together. Features are read once for each group."""
    groups: list[Pairs] = [[]]
    left = memory
    for one, other in pairs:
        size = widths[one] * widths[other] * _BYTES
        if groups[-1] and size > left:
            groups.append([])
            left = memory
        groups[-1].append((one, other))
        left -= size
    return groups


def _from_samples(layers: Sequence[_ScaledRows], memory: int) -> Array:
    count, widest = layers[0].rows.count, max(layer.rows.unit_width for layer in layers)
    by_tiles = math.isqrt(memory // 2 // (_BYTES * (len(layers) + 1)))
    by_rows = memory // 4 // (2 * BYTES_READ * widest)
    size = min(count, by_tiles, by_rows)
    if size < 1:
        raise InvalidArgument(
            f"samples with {widest:,} positions of a unit do not fit the memory limit of {memory / 2**30:.3g} GiB. Raise "
            "memory=, or extract the layer with a transform= that keeps fewer features."
        )
    found = torch.zeros(len(layers), len(layers), dtype=torch.float64)
    for begin in range(0, count, size):
        for other in range(begin, count, size):
            shape = min(size, count - begin), min(size, count - other)
            stacked = torch.empty(len(layers), shape[0] * shape[1], dtype=torch.float64)
            for one, layer in zip(stacked, layers, strict=True):
                one.copy_(product_tile(layer, begin, other, size, memory // 4).flatten())
            found += stacked @ stacked.T * (1 if begin == other else 2)
    return found.numpy()


# Representational similarity analysis (Kriegeskorte et al. 2008): layers are similar if the same samples are far apart in
# them.
#
# The distance of two samples in a layer is one minus the correlation of their features; two layers are compared by
# Spearman's rank correlation of their distances, where equal distances share their mean rank.

_WORKING = 9  # ranking a layer needs this many temporary arrays, each with an item for each pair of samples
_ROOM = 64 << 20  # at most this many bytes of rows are in memory while their products are computed
_DIGITS = 12  # distances are rounded to this many decimals, so that rounding errors do not separate equal distances


def rank_similarity(a: Sequence[Rows], b: Sequence[Rows] | None, memory: int) -> Array:
    """The matrix of rank correlations of layers with the same samples: of `a` with itself, or of `a` with `b`."""
    count = a[0].count
    pairs = count * (count - 1) // 2
    held = memory // (_BYTES * max(1, pairs)) - _WORKING  # number of layers whose ranks fit into memory
    if held < 2:
        fitting = math.isqrt(2 * memory // (_BYTES * (_WORKING + 2)))
        raise InvalidArgument(
            f"the distances of {count:,} samples need {pairs * _BYTES * (_WORKING + 2) / 2**30:.1f} GiB, and memory= allows "
            f"{memory / 2**30:.3g} GiB: use fewer, samples={fitting}, or raise memory=."
        )
    others = a if b is None else b
    result = np.full((len(a), len(others)), math.nan)
    for begin in range(0, len(a), held - 1):
        some = {at: _ranked(a[at]) for at in range(begin, min(begin + held - 1, len(a)))}
        for column, rows in enumerate(others):
            if b is None and column < begin:
                continue  # the matrix is symmetric
            ranks = some[column] if b is None and column in some else _ranked(rows)
            for row, own in some.items():
                result[row, column] = float(own @ ranks)
                if b is None:
                    result[column, row] = result[row, column]
    return result


def _ranked(rows: Rows) -> Array:
    """The centred ranks of all distances between samples, as a vector of length 1.

    NaN if undefined: all distances are equal, or the features of some sample are.
    """
    distances = _distances(rows)
    ranks = average_ranks(distances) if not np.isnan(distances).any() else np.zeros_like(distances)
    del distances
    ranks -= ranks.mean() if len(ranks) else 0.0
    length = math.sqrt(float(ranks @ ranks))
    ranks /= length if length > 0 else math.nan
    return ranks


def _distances(rows: Rows) -> Array:
    """One minus the correlation of each pair of samples, in the order (0, 1), (0, 2), …, (1, 2), …"""
    count, standard = rows.count, _StandardRows(rows)
    size = max(1, min(count, 1024, _ROOM // (2 * BYTES_READ * rows.unit_width)))
    found = np.empty(count * (count - 1) // 2)
    for begin in range(0, count, size):
        for other in range(begin, count, size):
            products = (1.0 - product_tile(standard, begin, other, size, _ROOM)).round(decimals=_DIGITS).numpy()
            last = other + products.shape[1]
            for row in range(begin, begin + products.shape[0]):
                first = max(row + 1, other)  # the first column that is a new pair
                if first < last:
                    place = row * (2 * count - row - 1) // 2 + first - row - 1
                    found[place : place + last - first] = products[row - begin, first - other :]
    return found


class _StandardRows:
    """Centred rows, each of length 1."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        parts = [self._ends(part) for _, part in rows.parts()]
        self._largest, self._mean, self._length = (torch.cat(some)[:, None] for some in zip(*parts, strict=True))

    def _ends(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute for each row a divisor that prevents overflow, the mean after division, and the norm of the centred row."""
        largest = rows.abs().amax(1)
        largest = torch.where(largest > 0, largest, 1.0)
        scaled = rows / largest[:, None]
        mean = scaled.mean(1)
        return largest, mean, (scaled - mean[:, None]).square().sum(1).sqrt()

    def read(self, begin: int, end: int, columns: slice | None = None) -> Tensor:
        which = slice(begin, end)
        scaled = self.rows.read(begin, end, columns) / self._largest[which]
        return scaled.sub_(self._mean[which]).div_(self._length[which])


def average_ranks(values: Array) -> Array:
    """The rank of each value, from 0; equal values share their mean rank.

    >>> average_ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [1.5, 0.0, 1.5]
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    ranks = np.empty(len(values))
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(values) else np.zeros(0, dtype=np.int64)
    if len(starts) == len(values):
        ranks[order] = np.arange(len(values), dtype=np.float64)
        return ranks
    counts = np.diff(np.r_[starts, len(values)])
    ranks[order] = np.repeat(starts + (counts - 1) / 2, counts)
    return ranks


# `similarity` compares the layers of one model, or of two models, over the same samples.

Measure = Literal["cka", "rsa"]
_MEMORY = 2 << 30
_LEAST = {"cka": 2, "debiased": 4, "rsa": 3}  # measure -> least number of samples


def similarity(
    a: Mapping[str, Any],
    b: Mapping[str, Any] | None = None,
    measure: Measure = "cka",
    layers: str | Iterable[str] | Mapping[str, Iterable[str]] | None = None,
    *,
    debiased: bool = False,
    samples: int | None = None,
    memory: int = _MEMORY,
) -> Similarity:
    """The similarity of the layers of `a` to one another, or to the layers of `b`, which has the same samples.

    >>> import torch
    >>> x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    >>> found = similarity({"x": x, "turned": x.flip(1) * 3, "other": x.square()})
    >>> round(found["x", "turned"], 6), found["x", "other"] < 0.5
    (1.0, True)

    Args:
        a, b: features from `extract` or `open_features`, or mappings from names to arrays or tensors whose first dimension
            is samples. If both have ids of samples, samples are matched by id; otherwise sample i of `a` is sample i of `b`.
        measure: "cka" is linear CKA: 1 if the features are the same up to rotation and scale, 0 if no linear relation is
            found. "rsa" is Spearman's correlation of the distances between samples (one minus their correlation).
        layers: names or globs of the layers to compare, for both models, or `{"a": …, "b": …}`; by default all.
        debiased: debiased CKA. Plain CKA, the default, is the measure of the literature; unless samples far outnumber
            features, it is too high, and only debiased CKA distinguishes layers. Debiased CKA may be below zero.
        samples: use only the first samples, this many.
        memory: the bytes that this may take, by default 2 GiB. Features are read in parts, however many there are.

    Each sample is flattened to one row, for a convolution all positions of all channels. Samples with a NaN or an infinity
    are left out, and for RSA also samples whose features are all equal; the result says how many.
    """
    if measure not in ("cka", "rsa"):
        raise InvalidArgument(f"measure is 'cka' or 'rsa'; got {measure!r}.")
    if debiased and measure != "cka":
        raise InvalidArgument("debiased=True is an option of measure='cka'.")
    for name, number in {"samples": samples, "memory": memory}.items():
        if number is not None and not is_whole(number, 1):
            raise InvalidArgument(f"{name} is a whole number above 0; got {number!r}.")
    sides = [_side(a, "a")] + ([_side(b, "b")] if b is not None else [])
    chosen = _chosen(sides, layers)
    table = _aligned(sides, chosen, samples)
    table, left_out = _usable(table, constant=measure == "rsa")
    count = table[0][0].count
    least = _LEAST["debiased" if debiased else measure]
    if count < least:
        said = f" ({left_out:,} of them are left out)" if left_out else ""
        raise InvalidArgument(f"{measure} needs {least} samples or more; there are {count + left_out:,}{said}.")
    own, other = table[0], table[1] if b is not None else None
    values = rank_similarity(own, other, memory) if measure == "rsa" else linear_cka(own, other, memory, debiased=debiased)
    names = [[rows.name for rows in some] for some in table]
    widest = max(rows.width for some in table for rows in some)
    return Similarity(
        np.clip(values, -1.0, 1.0),
        names[0],
        names[-1],
        "debiased cka" if debiased else measure,
        count,
        b is None,
        (sides[0].title, sides[-1].title),
        _notes(values, names, left_out, measure, too_few=measure == "cka" and not debiased and count < widest),
    )


def _notes(values: Array, names: list[list[str]], left_out: int, measure: str, *, too_few: bool) -> list[str]:
    notes = []
    if left_out:
        why = "a NaN or an infinity" + (", or features that are all equal, in some layer" if measure == "rsa" else "")
        notes.append(f"{left_out:,} samples are left out: they have {why}.")
    dead = [names[0][at] for at in np.flatnonzero(np.isnan(values).all(1))]
    dead += [names[-1][at] for at in np.flatnonzero(np.isnan(values).all(0)) if len(dead) < len(names[0])]
    if dead:
        named = few(dict.fromkeys(dead), 10)
        notes.append(f"no similarity can be told of {named}: no finite values, or the same for every sample.")
    if too_few:
        notes.append("there are fewer samples than features, where plain CKA is too high: debiased=True corrects that.")
    return notes


# The two models -----------------------------------------------------------------------------------------------------


class Side(NamedTuple):
    """The layers of one model, and the samples of their rows, if known."""

    layers: Mapping[str, Any]
    ids: list[Any] | None
    numbers: list[int] | None  # the numbers of the samples in the data
    title: str


def _side(features: Any, which: str) -> Side:
    if isinstance(features, Features):
        if not features:
            raise InvalidArgument(f"the values of no layer of {which} are stored, only the results of reducers.")
        names = sample_names(features._blocks)
        numbers = names.of_rows(torch.arange(len(features[next(iter(features))])))
        return Side(features, names.ids_of(numbers), numbers.tolist(), features.title)
    if isinstance(features, Mapping) and features and all(isinstance(name, str) for name in features):
        return Side(features, None, None, which)
    raise InvalidArgument(
        f"{which} is features, as extract() and open_features() return them, or a mapping from names of layers to arrays whose "
        f"first dimension counts samples; got {type(features).__name__}: {features!r:.60}."
    )


def _chosen(sides: list[Side], layers: Any) -> list[list[str]]:
    """For each model, the names of its layers to compare."""
    if layers is None:
        return [list(side.layers) for side in sides]
    if isinstance(layers, Mapping):
        if not layers.keys() <= {"a", "b"}:
            raise InvalidArgument(f"layers is a list of names, or {{'a': names, 'b': names}}; got the keys {list(layers)}.")
        wanted = [_texts(layers.get(which, ("**",))) for which in ("a", "b")]
        return [_fitting(some, [side], which)[0] for some, side, which in zip(wanted, sides, "ab", strict=False)]
    return _fitting(_texts(layers), sides, "a" if len(sides) == 1 else "a and b")


def _texts(layers: Any) -> list[str]:
    texts = [layers] if isinstance(layers, str) else list(layers) if isinstance(layers, Iterable) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidArgument(f"layers are names or globs, such as ['conv1', 'blocks.*.mlp']; got {layers!r:.100}.")
    return texts


def _fitting(texts: list[str], sides: list[Side], which: str) -> list[list[str]]:
    """For each model, the layers that the texts name. Raises if a text names no layer, or if a model has no named layer."""
    patterns = {text: glob_pattern(text).fullmatch for text in texts}
    found = [
        list(
            dict.fromkeys(
                name for text in texts for name in ([text] if text in side.layers else filter(patterns[text], side.layers))
            )
        )
        for side in sides
    ]
    for text in texts:
        if not any(text in side.layers or any(map(patterns[text], side.layers)) for side in sides):
            known = dict.fromkeys(name for side in sides for name in side.layers)
            raise LayerNotFound(f"{text!r} is not a layer of {which}; there are {few(known, 20)}.")
    for side, some, name in zip(sides, found, "ab", strict=False):
        if not some:
            wanted = few(map(repr, texts), 20)
            raise LayerNotFound(f"none of {wanted} is a layer of {name}, which has {few(side.layers, 20)}.")
    return found


# Samples ------------------------------------------------------------------------------------------------------------


def _aligned(sides: list[Side], chosen: list[list[str]], samples: int | None) -> list[list[Rows]]:
    """The rows of each layer of each model, with the same samples in the same order."""
    table = [[Rows(name, side.layers[name]) for name in names] for side, names in zip(sides, chosen, strict=True)]
    for some, which in zip(table, "ab", strict=False):
        if len({rows.count for rows in some}) > 1:
            said = few((f"{rows.name} {rows.count:,}" for rows in some), 10)
            raise InvalidArgument(f"the layers of {which} must have the same samples; they have {said}.")
    order = None
    if len(sides) == 2 and sides[0].ids is not None and sides[1].ids is not None:
        order = _order(sides[0].ids, sides[1].ids)
    elif len(sides) == 2 and table[0][0].count != table[1][0].count:
        raise InvalidArgument(
            f"a and b must have the same samples; a has {table[0][0].count:,} and b has {table[1][0].count:,} of them."
        )
    elif len(sides) == 2 and sides[0].numbers is not None and sides[1].numbers is not None:
        order = _order(sides[0].numbers, sides[1].numbers)  # the orders differ if blocks are missing
    count = table[0][0].count if samples is None else min(samples, table[0][0].count)
    first = np.arange(count)
    if count < table[0][0].count:
        table[0] = [rows.of(first) for rows in table[0]]
    if len(sides) == 2 and (order is not None or count < table[1][0].count):
        places = first if order is None else order[:count]
        table[1] = [rows.of(places) for rows in table[1]]
    return table


def _order(ids: Sequence[Any], others: Sequence[Any]) -> Array | None:
    """Find the position in `others` of each sample in `ids`. None if both have the same order."""
    if list(ids) == list(others):
        return None
    places = {one: at for at, one in enumerate(others)}
    only_a, only_b = [one for one in ids if one not in places], set(others) - set(ids)
    if only_a or only_b:
        sides = (("a", only_a), ("b", only_b))
        examples = [f"only in {which}: {few(map(repr, some), 3)}" for which, some in sides if some]
        raise InvalidArgument(
            f"a and b must have the same samples; of {len(ids):,} and {len(others):,}, {len(only_a):,} are only in a and "
            f"{len(only_b):,} only in b ({'; '.join(examples)})."
        )
    if len(places) < len(others) or len(set(ids)) < len(ids):
        raise InvalidArgument("ids of samples repeat, and a and b have them in different orders, so they cannot be matched.")
    order: Array = np.array([places[one] for one in ids])
    return order


def _usable(table: list[list[Rows]], *, constant: bool) -> tuple[list[list[Rows]], int]:
    """Leave out samples without usable features in some layer. Returns the remaining rows, and how many samples were left out.

    A layer without usable features for any sample is ignored: it cannot be compared, but the others can.
    """
    count = table[0][0].count
    good: Array = np.ones(count, dtype=bool)
    for rows in (rows for some in table for rows in some):
        fine: Array = np.empty(count, dtype=bool)
        for begin, part in rows.parts():
            finite = part.isfinite().all(1)
            if constant and rows.width:
                finite &= part.amin(1) < part.amax(1)
            fine[begin : begin + len(part)] = finite.numpy()
        if fine.any():
            good &= fine
    if good.all():
        return table, 0
    kept = np.flatnonzero(good)
    return [[rows.of(kept) for rows in some] for some in table], count - len(kept)
