"""Finds what stands out in a training, in a few sentences: at any snapshot, and over the whole run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Literal, NamedTuple

import numpy as np

from .._text import plural
from ..errors import InvalidArgument
from ..pictures import clean
from .records import SNAPSHOTS_TO_BE_DEAD, WORDS
from .series import SUMMARY, Series

Array = Any  # a NumPy array; NumPy's types are not followed

DEAD = 0.25  # by default, dead units are a finding from this fraction of a layer's units
_FAR_APART = 1e4  # a finding if the gradient norms of two layers differ by more than this factor
_TINY_UPDATE = 1e-6  # limits of an ordinary update ratio: how far a step moves the weight, divided by its norm
_HUGE_UPDATE = 0.1
_JUMP = 10.0  # a jump is an update of at least this many times the median of the updates before
_ABOVE_ALL = 3.0  # and of at least this many times the largest of the updates before
_BEFORE = 8  # a jump is judged by at most this many earlier updates
_FEWEST_BEFORE = 3
_HEALTHY_UPDATE = 1e-3  # a smaller update ratio is never a jump
_LONGEST = 32  # largest number of characters of a layer's name in a sentence


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence, and the place in the run that it is about."""

    tone: Literal["bad", "odd", "fine"]
    text: str
    series: Series | None = None
    at: int | None = None  # the number of the snapshot from which it holds
    until: int | None = None  # the number of the last snapshot at which it holds
    about: str = ""  # a further explanation

    def __str__(self) -> str:
        return self.text


def check_part(dead: float) -> None:
    """Raise `InvalidArgument` unless `dead` is a part of units."""
    if isinstance(dead, bool) or not isinstance(dead, (int, float)) or not 0 < dead <= 1:
        raise InvalidArgument(f"dead is the part of a layer's units, above 0 and at most 1, such as 0.25; got {dead!r:.80}.")


def find_at(table: Sequence[Series], steps: Sequence[int], at: int | None = None, *, dead: float = DEAD) -> list[Finding]:
    """Find what stands out at a snapshot, by default the last snapshot. If nothing does, returns one "fine" finding.

    Reads only this snapshot and earlier snapshots. `dead` is the fraction of a layer's units from which dead units are
    a finding.
    """
    at = len(steps) - 1 if at is None else at
    return [one for one in find_all(table, steps, at, dead=dead) if one.until == at or one.tone == "fine"] or [_fine(dead)]


def find_all(
    table: Sequence[Series], steps: Sequence[int], last: int | None = None, *, dead: float = DEAD, is_thinned: bool = False
) -> list[Finding]:
    """Find everything that stood out at any snapshot up to `last`. If nothing did, returns one "fine" finding.

    `is_thinned` says that the run has more snapshots than `steps`.
    """
    last = len(steps) - 1 if last is None else last
    found = [
        *_nonfinite(table, steps, last),
        *_dead(table, steps, last, dead, 1 if is_thinned else SNAPSHOTS_TO_BE_DEAD),
        *_vanishing(table, steps, last),
        *_odd_updates(table, last),
        *_jumps(table, steps, last),
    ]
    return found or [_fine(dead)]


def _fine(dead: float) -> Finding:
    about = (
        f"Looked for: values that are not finite, layers with {_percent(dead)} of their units dead, gradients 10,000 times "
        "apart, updates below a millionth or above a tenth of a weight, updates 10 times as large as before."
    )
    return Finding("fine", "Nothing stands out in what was recorded", about=about)


def _nonfinite(table: Sequence[Series], steps: Sequence[int], last: int) -> Iterator[Finding]:
    firsts = [np.flatnonzero(series.nonfinite[: last + 1] > 0)[:1] for series in table]
    at = min((int(first[0]) for first in firsts if len(first)), default=None)
    if at is None:
        return
    series, *others = (one for one, first in zip(table, firsts, strict=True) if at in first)
    words = "parameters or gradients" if series.kind == SUMMARY else WORDS[series.kind]
    more = f" and {plural(len(others), 'other')}" if others else ""
    text = f"Values are not finite from step {steps[at]:,} on: {words} of {_name(series)}{more}"
    yield Finding("bad", text, series, at, last)


# Dead units ---------------------------------------------------------------------------------------------------------


def _dead(table: Sequence[Series], steps: Sequence[int], last: int, least: float, silent: int) -> Iterator[Finding]:
    """Find stretches of the run in which many units of a layer are dead. Layers with equal stretches share one finding.

    A unit is dead at a snapshot if it was silent in that snapshot and the `silent` - 1 snapshots before.
    """
    stretches: dict[tuple[int, int], list[tuple[Series, Array]]] = {}
    for series in _one_per_layer(table):
        parts = _parts_dead(series, last)
        for first, end in _stretches(parts >= least, ~np.isnan(parts), last):
            present = [at for at in series.present if at <= first]
            since = present[-silent:][0]
            stretches.setdefault((since, end), []).append((series, parts[first : end + 1]))
    for (first, end), layers in sorted(stretches.items(), key=lambda one: (-one[0][1], one[0][0])):
        series, parts = max(layers, key=lambda one: float(np.nanmax(one[1])))
        known = parts[~np.isnan(parts)]
        more = f", and {_percent(least)} or more in {plural(len(layers) - 1, 'other layer')}" if len(layers) > 1 else ""
        until = "on" if end == last else f"to step {steps[end]:,}"
        at = end + 1 - len(parts)
        count = f"{series.value('dead', at):,.0f} of {series.value('units', at):,.0f} units of {_name(series)} are dead"
        grown = f", up to {_percent(float(known.max()))}" if known.max() > known[0] else ""
        text = f"{count} from step {steps[first]:,} {until} ({_percent(float(known[0]))}{grown}){more}"
        about = f"Said of layers with {_percent(least)} of their units dead or more: report(dead=…) sets it."
        yield Finding("odd", text, series, first, end, about)


def _parts_dead(series: Series, last: int) -> Array:
    """Return the fraction of dead units at each snapshot. NaN if it is unknown, or if a value of the layer is not finite."""
    units, dead = series.row("units")[: last + 1], series.row("dead")[: last + 1]
    parts = np.full(last + 1, math.nan)
    known = (units > 0) & ~np.isnan(dead) & ~(series.nonfinite[: last + 1] > 0)
    parts[known] = dead[known] / units[known]
    return parts


def _stretches(holds: Array, known: Array, last: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last snapshot of each stretch in which `holds` is True. Unknown snapshots do not end it."""
    first, end = None, last
    for at in np.flatnonzero(known).tolist():
        if holds[at]:
            first = at if first is None else first
        elif first is not None:
            yield first, end
            first = None
        end = at
    if first is not None:
        yield first, last


# Gradients ----------------------------------------------------------------------------------------------------------


def _vanishing(table: Sequence[Series], steps: Sequence[int], last: int) -> Iterator[Finding]:
    """Find stretches in which the gradients of two layers are far apart. Skips snapshots without finite gradients."""
    kind, field = (SUMMARY, "grad_norm") if any(one.kind == SUMMARY for one in table) else ("grad", "norm")
    gradients = [series for series in table if series.kind == kind]
    if len(gradients) < 2:
        return
    norms = np.stack([series.row(field)[: last + 1] for series in gradients]).astype(float)
    bad = np.stack([series.nonfinite[: last + 1] > 0 for series in gradients])
    known = ((~np.isnan(norms)).sum(0) >= 2) & ~(bad & ~np.isnan(norms)).any(0)
    most = np.where(np.isnan(norms), -math.inf, norms).max(0)
    least = np.where(np.isnan(norms), math.inf, norms).min(0)
    holds = known & (most > _FAR_APART * least)
    for first, end in _stretches(holds, known, last):
        at = first + int(np.flatnonzero(holds[first : end + 1])[-1])
        ranked = _ranked((series, float(norm)) for series, norm in zip(gradients, norms[:, at], strict=True))
        small, large = ranked[0], ranked[-1]
        times = f"{_figure(large.value / small.value)} times smaller than that of" if small.value else "zero, unlike that of"
        text = f"The gradient of {_name(small.series)} is {times} {_name(large.series)} at step {steps[at]:,}"
        yield Finding("odd", text, small.series, first, end)


# Updates ------------------------------------------------------------------------------------------------------------


def _odd_updates(table: Sequence[Series], last: int) -> Iterator[Finding]:
    """Find layers whose median update over the run is tiny or huge."""

    def said(layers: list[_Ranked], word: str, one: _Ranked) -> Finding:
        more = f" and {plural(len(layers) - 1, 'other layer')}" if len(layers) > 1 else ""
        part = "nothing" if one.value == 0 else _figure(one.value)
        text = f"Updates of {_name(one.series)}{more} are {word}: {part} of the weight at a step, where about 0.001 is healthy"
        return Finding("odd", text, one.series, last, last, "The median over the run.")

    ratios = ((series, series.row("update_ratio")[: last + 1].tolist()) for series in _one_per_layer(table))
    medians = _ranked((series, _median(values)) for series, values in ratios)
    tiny = [one for one in medians if one.value < _TINY_UPDATE]
    huge = [one for one in medians if one.value > _HUGE_UPDATE]
    if tiny:
        yield said(tiny, "tiny", tiny[0])
    if huge:
        yield said(huge, "huge", huge[-1])


def _jumps(table: Sequence[Series], steps: Sequence[int], last: int) -> Iterator[Finding]:
    """Find snapshots at which an update is many times as large as earlier updates. The finding holds to the last snapshot."""
    jumps: dict[int, list[tuple[float, Series, float, float]]] = {}
    for series in _one_per_layer(table):
        ratios = series.row("update_ratio")[: last + 1]
        known = np.flatnonzero(~np.isnan(ratios))
        values = ratios[known].astype(float)
        candidates = np.flatnonzero(values > _HEALTHY_UPDATE)
        for place in candidates[candidates >= _FEWEST_BEFORE].tolist():
            before = values[max(place - _BEFORE, 0) : place]
            usual = float(np.median(before))
            if usual > 0 and values[place] >= _JUMP * usual and values[place] >= _ABOVE_ALL * before.max():
                jumps.setdefault(int(known[place]), []).append((values[place] / usual, series, usual, float(values[place])))
    for at, layers in jumps.items():
        times, series, usual, now = max(layers, key=lambda one: one[0])
        more = f", and of {plural(len(layers) - 1, 'other layer')}" if len(layers) > 1 else ""
        text = (
            f"Updates of {_name(series)} jump at step {steps[at]:,}: from {_figure(usual)} to {_figure(now)} of the weight, "
            f"{_figure(times)} times as much{more}"
        )
        yield Finding("odd", text, series, at, last)


class _Ranked(NamedTuple):
    series: Series
    value: float


def _ranked(values: Iterable[tuple[Series, float]]) -> list[_Ranked]:
    """Sort series by value, the smallest first. Series whose value is NaN are left out."""
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
    """A fraction as text: `62 %`, `93.5 %`."""
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
