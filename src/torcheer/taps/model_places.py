"""The places that keys mean in a model without a history: addresses, globs and classes of its modules."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from torch.nn import Module, ModuleDict, ModuleList, ParameterDict, ParameterList

from ..capture.addresses import addressed
from ..errors import InvalidArgument, LayerNotFound
from ..keys import (
    ALL,
    Key,
    OfClass,
    Reading,
    Several,
    Text,
    end_of,
    find_address,
    fitting_glob,
    glob_pattern,
    parse_key,
    readings,
)
from .places import Place

_NEVER_CALLED = (ModuleList, ModuleDict, ParameterList, ParameterDict)


class ModelPlaces:
    """The modules of a model by address. A module has one first address and may have others."""

    def __init__(self, model: Module) -> None:
        self.modules: dict[str, Module] = {}
        known: dict[int, str] = {}
        self.others: dict[str, str] = {}
        for address, module in addressed(model, "", known, lambda module, address: self._note(known, module, address)):
            known[id(module)] = address if address is not None else ""
            if address is not None:
                self.modules[address] = module

    def _note(self, known: dict[int, str], module: Module, address: str) -> None:
        for name, inner in module.named_modules():
            other = ".".join(part for part in (address, name) if part)
            if id(inner) in known and known[id(inner)] != other:
                self.others[other] = known[id(inner)]

    def places(self, key: Any) -> list[Place]:
        """The places that a key means. Raises where only a history can tell."""
        parsed = parse_key(key)
        found = self._places(parsed)
        if not found:
            near = get_close_matches(key, self.modules, n=3, cutoff=0.7) if isinstance(key, str) else []
            hint = f" The nearest are {', '.join(map(repr, near))}." if near else ""
            raise LayerNotFound(
                f"{parsed} names no module of this model.{hint} Labels, positions and functions mean something only in a log: "
                "make one, and pass it as like=history."
            )
        return found

    def knows(self, keys: list[Any]) -> bool:
        """Whether all of these keys can be understood without a history."""
        try:
            for key in keys:
                self.places(key)
        except (InvalidArgument, LayerNotFound):
            return False
        return True

    def _places(self, key: Key) -> list[Place]:
        if isinstance(key, Several):
            return [place for one in key.keys for place in self._places(one)]
        if isinstance(key, OfClass):
            return [Place("output", address) for address, module in self.modules.items() if isinstance(module, key.cls)]
        if not isinstance(key, Text):
            raise InvalidArgument(f"{key} means something only in a log of the model: pass one as like=history.")
        ways = readings(key.text)
        for way in ways:
            address = find_address(way.name, self.modules, self.others)
            if address is not None and (address or way.name == ""):
                return [_place(way, address)]
        for way in ways:
            end = end_of(way.name) if way.can_be_label else None
            if end is not None:
                return [Place("input" if end[0] == "input" else "output", "", None, (end[1] or 1) - 1)]
        for way in ways:
            glob = fitting_glob(way.name, self.modules, self.others) if way.is_glob else None
            if glob is not None:
                fits = glob_pattern(glob).fullmatch
                return [
                    _place(way, address)
                    for address, module in self.modules.items()
                    if address and fits(address) and not isinstance(module, _NEVER_CALLED)
                ]
        return []


def _place(way: Reading, address: str) -> Place:
    part = None if way.part == ALL else way.part or 0
    return Place("input" if way.is_input else "output", address, way.turn, part)
