"""The places that keys mean in one model, watched together: what reading and changing have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch.nn import Module

from ..capture.addresses import innermost
from ..capture.intercept.fused import FUSING
from ..display import few
from ..errors import InvalidArgument, PlaceNotReached
from ..history import History
from ..keys import OfClass, OfFunction, Range, Several, Text, Where, parse_key
from ..records import is_kind_of
from .model_places import ModelPlaces
from .places import Place, locate, outermost_calls
from .spots import Act, Spot
from .watch import Watch

_FEW = 2  # to see this many operations takes a mode less time than to be taken off and put on again


class WatchedKeys:
    """The places that keys mean, watched together."""

    def __init__(
        self,
        model: Module,
        keys: Iterable[tuple[Any, Act]],
        like: History | None,
        *,
        stops: bool = False,
        lasts: bool = False,
    ) -> None:
        if not isinstance(model, Module):
            raise InvalidArgument(
                f"values are read and changed by hooks on modules, so model must be an nn.Module; got {type(model).__name__}."
            )
        if like is not None and not isinstance(like, History):
            raise InvalidArgument(f"like is a history of the model, as log_forward_pass returns; got {type(like).__name__}.")
        self.spots: list[tuple[Any, list[Spot]]] = []  # by key
        known = ModelPlaces(innermost(model))
        for key, act in keys:
            places = locate(like, key) if like is not None else known.places(key)
            if not places:
                raise InvalidArgument(f"{key!r} means no operation, so there is nothing to watch.")
            if stops:  # how often a module will be called is not known without a history
                places = [replace(place, call=1) if place.call is None else place for place in places]
            rank = len(places) if places[0].call is not None else math.inf
            self.spots.append((key, [Spot(place, act, rank) for place in places]))
        calls, callees = _called(like) if like is not None else ({}, {})
        spots = [spot for _, at_key in self.spots for spot in at_key]
        passes = len(outermost_calls(like._log)) if like is not None else 1
        self.watch = Watch(model, spots, calls, callees, passes=passes, stops=stops, lasts=lasts)

    def check(self, strict: bool, notes: list[str]) -> None:
        """Raise, or note, what was not reached or did not run as logged."""
        said = [*self._not_reached(), *self.watch.otherwise]
        if said and strict:
            raise PlaceNotReached("; ".join(said) + ". strict=False makes this a note.")
        notes += said

    def _not_reached(self) -> list[str]:
        said = []
        for key, spots in self.spots:
            missing = [spot.place for spot in spots if not spot.reached and not spot.is_outranked]
            if missing and (len(missing) == len(spots) or spots[0].place.label or not is_plural(key)):
                threads = any(place.module in self.watch.elsewhere for place in missing)
                why = "; it ran on another thread, which is not watched" if threads else ""
                said.append(f"{key!r} was not reached ({few(missing, 1)}{why})")
        return said


def is_plural(key: Any) -> bool:
    """Whether a key asks for any number of values, so that the answer is a list."""
    parsed = parse_key(key)
    return isinstance(parsed, (Several, OfClass, OfFunction, Range, Where)) or (isinstance(parsed, Text) and "*" in parsed.text)


def _called(history: History) -> tuple[dict[str, int], dict[str, list[str]]]:
    """By address, how often each module was called, and for which of the modules it calls its function mode steps aside.

    Those are modules with a fused path, which they do not take while a mode is on, and modules that ran more than a few
    operations.
    """
    log = history._log
    counts: dict[str, int] = {}
    callees: dict[str, dict[str, None]] = {}
    for call in log.modules:
        counts[call.address] = counts.get(call.address, 0) + 1
        is_fusing = any(is_kind_of(log.registered[call.address].cls, known) for known in FUSING)
        if call.outer is not None and (call.end - call.first > _FEW or is_fusing):
            callees.setdefault(call.outer.address, {})[call.address] = None
    return counts, {address: list(inner) for address, inner in callees.items()}


def in_words(place: Place, key: Any) -> str:
    """A place in an error: the key, and what it means."""
    return f"{key!r} ({place})"
