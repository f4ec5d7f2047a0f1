"""Finds what stands out in a training, at its end or at any snapshot, and says it in a few sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Literal, NamedTuple

import numpy as np

from .._text import plural
from ..pictures import clean
from .records import WORDS
from .series import SUMMARY, Series

_MANY_DEAD = 0.5  # fraction of a layer's units
_FAR_APART = 1e4  # ratio of the gradients of two layers
_TINY_UPDATE = 1e-6  # update at a step of the optimizer, divided by the norm of the weight
_HUGE_UPDATE = 0.1
_LONGEST = 32  # largest number of characters of a layer's name


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence, and the place in the run that it is about."""

    tone: Literal["bad", "odd", "fine"]
    text: str
    series: Series | None = None
    at: int | None = None  # the number of the snapshot
    about: str = ""  # a further explanation


def find(table: Sequence[Series], steps: Sequence[int], at: int | None = None) -> list[Finding]:
    """What stands out in the snapshots up to `at`, by default up to the last; a "fine" finding if nothing stands out."""
    at = len(steps) - 1 if at is None else at
    found = [
        _first_nonfinite(table, steps, at),
        _most_dead(table, steps, at),
        _vanishing(table, steps, at),
        *_odd_updates(table, at),
    ]
    about = (
        "Looked for: values that are not finite, layers with half of their units dead, gradients 10,000 times apart, "
        "updates below a millionth or above a tenth of a weight."
    )
    return [one for one in found if one] or [Finding("fine", "Nothing stands out in what was recorded", about=about)]


def _first_nonfinite(table: Sequence[Series], steps: Sequence[int], last: int) -> Finding | None:
    firsts = [np.flatnonzero(series.nonfinite[: last + 1] > 0)[:1] for series in table]
    at = min((int(first[0]) for first in firsts if len(first)), default=None)
    if at is None:
        return None
    series, *others = (one for one, first in zip(table, firsts, strict=True) if at in first)
    words = "parameters or gradients" if series.kind == SUMMARY else WORDS[series.kind]
    more = f" and {plural(len(others), 'other')}" if others else ""
    text = f"Values are not finite from step {steps[at]:,} on: {words} of {_name(series)}{more}"
    return Finding("bad", text, series, at)


def _most_dead(table: Sequence[Series], steps: Sequence[int], at: int) -> Finding | None:
    parts = _ranked((series, _part_dead(series, at)) for series in _one_per_layer(table))
    dead = [one for one in parts if one.value >= _MANY_DEAD]
    if not dead:
        return None
    worst = next(one for one in dead if one.value == dead[-1].value)
    more = f", and half or more in {plural(len(dead) - 1, 'other layer')}" if len(dead) > 1 else ""
    when = "in the end" if at == len(steps) - 1 else f"at step {steps[at]:,}"
    text = f"{_percent(worst.value)} of the units of {_name(worst.series)} are dead {when}{more}"
    return Finding("odd", text, worst.series, at)


def _part_dead(series: Series, at: int) -> float:
    units = series.value("units", at)
    return series.value("dead", at) / units if units else math.nan


def _vanishing(table: Sequence[Series], steps: Sequence[int], last: int) -> Finding | None:
    """A finding if gradients differ greatly between layers, at the last snapshot with finite gradients."""
    kind, field = (SUMMARY, "grad_norm") if any(one.kind == SUMMARY for one in table) else ("grad", "norm")
    gradients = [series for series in table if series.kind == kind]
    for at in range(last, -1, -1):
        norms = _ranked((series, series.value(field, at)) for series in gradients)
        if len(norms) < 2 or any(series.nonfinite[at] > 0 for series, _ in norms):
            continue
        least, most = norms[0], norms[-1]
        if not most.value > _FAR_APART * least.value:
            return None
        times = f"{_figure(most.value / least.value)} times smaller than that of" if least.value else "zero, unlike that of"
        text = f"The gradient of {_name(least.series)} is {times} {_name(most.series)} at step {steps[at]:,}"
        return Finding("odd", text, least.series, at)
    return None


def _odd_updates(table: Sequence[Series], last: int) -> list[Finding | None]:
    """Findings about layers whose median update over the run is tiny or huge."""

    def said(layers: list[_Ranked], word: str, one: _Ranked | None) -> Finding | None:
        if one is None:
            return None
        more = f" and {plural(len(layers) - 1, 'other layer')}" if len(layers) > 1 else ""
        part = "nothing" if one.value == 0 else _figure(one.value)
        text = f"Updates of {_name(one.series)}{more} are {word}: {part} of the weight at a step, where about 0.001 is healthy"
        return Finding("odd", text, one.series, last)

    ratios = ((series, series.row("update_ratio")[: last + 1].tolist()) for series in _one_per_layer(table))
    medians = _ranked((series, _median(values)) for series, values in ratios)
    tiny = [one for one in medians if one.value < _TINY_UPDATE]
    huge = [one for one in medians if one.value > _HUGE_UPDATE]
    return [said(tiny, "tiny", tiny[0] if tiny else None), said(huge, "huge", huge[-1] if huge else None)]


class _Ranked(NamedTuple):
    series: Series
    value: float


def _ranked(values: Iterable[tuple[Series, float]]) -> list[_Ranked]:
    """The series whose value is known, sorted by value, the smallest first."""
    return sorted((_Ranked(*one) for one in values if not math.isnan(one[1])), key=lambda one: one.value)


def _median(values: list[float]) -> float:
    known = sorted(value for value in values if not math.isnan(value))
    return known[len(known) // 2] if known else math.nan


def _one_per_layer(table: Sequence[Series]) -> Sequence[Series]:
    """The summary of each layer, if there are summaries; else every series."""
    return [series for series in table if series.kind == SUMMARY] or table


# In words -----------------------------------------------------------------------------------------------------------


def _name(series: Series) -> str:
    return clean(series.layer, _LONGEST)


def _percent(part: float) -> str:
    """A fraction as text, with more digits from 90 % on: `62 %`, `93.5 %`."""
    if 0.999 < part < 1:
        return "> 99.9 %"
    return f"{_rounded(100 * part, 3 if part > 0.9 else 2)} %"


def _figure(value: float) -> str:
    """A number with two digits as text: `0.25`, `2e6`, `1e−7`; `12,346`."""
    if 1000 <= value < 1e6:
        return f"{math.floor(value + 0.5):,}"
    return _rounded(value, 2)


def _rounded(value: float, digits: int) -> str:
    """A number with this many digits as text, rounded half up, without zeros at its end."""
    plain = float(Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal(Decimal(value)))
    if plain and not 1e-3 <= plain < 1e6:
        mantissa, power = f"{plain:.{digits - 1}e}".split("e")
        return f"{float(mantissa):g}e{int(power)}".replace("-", "−")
    return f"{plain:g}"
