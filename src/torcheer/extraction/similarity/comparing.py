"""How similar layers are: those of one model to one another, or those of two models, over the same samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from ...display import few
from ...errors import InvalidArgument, LayerNotFound
from ...inputs import is_whole
from ...keys import glob_pattern
from ..statistics.feature_statistics import FeatureStatistics, sample_names
from ..statistics.rows import Rows
from .cka import linear_cka
from .matrix import Similarity
from .rsa import rank_similarity

Measure = Literal["cka", "rsa"]
Array = np.ndarray[Any, Any]
_MEMORY = 2 << 30
_LEAST = {"cka": 2, "debiased": 4, "rsa": 3}  # samples


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
    """How similar the layers of `a` are to one another, or to those of `b`, which has the same samples.

    >>> import torch
    >>> x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    >>> found = similarity({"x": x, "turned": x.flip(1) * 3, "other": x.square()})
    >>> round(found["x", "turned"], 6), found["x", "other"] < 0.5
    (1.0, True)

    Args:
        a, b: features from `extract` or `open_features`, or mappings from names to arrays or tensors whose first dimension
            counts samples. Where both have ids of samples, these are matched; otherwise sample i of `a` is sample i of `b`.
        measure: "cka" is linear CKA: 1 where the features are the same up to rotation and scale, 0 where no linear relation is
            found. "rsa" is Spearman's correlation of the distances between samples (one minus their correlation).
        layers: names or globs of the layers to compare, for both models, or `{"a": …, "b": …}`; by default all.
        debiased: of CKA. The plain one is the measure of the literature, and the default for that; it is too high where samples
            are not many more than features, and then only the debiased one tells layers apart. It may be below zero.
        samples: use the first so many only.
        memory: how many bytes this may take, by default 2 GiB. Features are read in parts, however many there are.

    Everything of a sample is flattened to one row, of a convolution all positions of all channels. Samples with a NaN or an
    infinity are left out, and of RSA those whose features are all equal; the result says how many.
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
        measure="debiased cka" if debiased else measure,
        samples=count,
        is_within=b is None,
        titles=(sides[0].title, sides[-1].title),
        notes=_notes(values, names, left_out, measure, too_few=measure == "cka" and not debiased and count < widest),
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


# The two sides ------------------------------------------------------------------------------------------------------


class Side(NamedTuple):
    """The layers of one model, and which samples their rows are of, where that is known."""

    layers: Mapping[str, Any]
    ids: list[Any] | None
    numbers: list[int] | None  # in the data
    title: str


def _side(features: Any, which: str) -> Side:
    if isinstance(features, FeatureStatistics):
        if not features:
            raise InvalidArgument(f"the values of no layer of {which} are stored, only what reducers found in them.")
        names = sample_names(features._index)
        numbers = names.of_rows(torch.arange(len(features[next(iter(features))])))
        return Side(features, names.ids_of(numbers), numbers.tolist(), features.title)
    if isinstance(features, Mapping) and features and all(isinstance(name, str) for name in features):
        return Side(features, None, None, which)
    raise InvalidArgument(
        f"{which} is features, as extract() and open_features() return them, or a mapping from names of layers to arrays whose "
        f"first dimension counts samples; got {type(features).__name__}: {features!r:.60}."
    )


def _chosen(sides: list[Side], layers: Any) -> list[list[str]]:
    """The names of the layers of each side."""
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
    """The layers of each side that the texts name. A text has to name one in some side, and each side has to have one."""
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
            raise LayerNotFound(f"{text!r} is no layer of {which}; there are {few(known, 20)}.")
    for side, some, name in zip(sides, found, "ab", strict=False):
        if not some:
            wanted = few(map(repr, texts), 20)
            raise LayerNotFound(f"none of {wanted} is a layer of {name}, which has {few(side.layers, 20)}.")
    return found


# Samples ------------------------------------------------------------------------------------------------------------


def _aligned(sides: list[Side], chosen: list[list[str]], samples: int | None) -> list[list[Rows]]:
    """The rows of each layer of each side, the same samples in the same order."""
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
        order = _order(sides[0].numbers, sides[1].numbers)  # where blocks are missing these differ
    count = table[0][0].count if samples is None else min(samples, table[0][0].count)
    first = np.arange(count)
    if count < table[0][0].count:
        table[0] = [rows.of(first) for rows in table[0]]
    if len(sides) == 2 and (order is not None or count < table[1][0].count):
        places = first if order is None else order[:count]
        table[1] = [rows.of(places) for rows in table[1]]
    return table


def _order(ids: Sequence[Any], others: Sequence[Any]) -> Array | None:
    """Where the samples of `ids` are among `others`; None where both have the same order."""
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
    """The rows without the samples for which some layer has no usable features, and how many these are.

    A layer without usable features for any sample is not asked: it cannot be compared, but the others can.
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
