"""Text: a key that is a label, an address, an input or output of the model, or a glob."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ..display import few
from ..errors import LayerNotFound
from ..records import ModuleCall
from ..torch_internals import WRAPPED_AS
from .grammar import ALL, Reading, end_of, glob_pattern, readings, split_turn
from .meaning import Key, Labelled, Match, Meaning, Names, of_calls, once

_WRAPPERS = frozenset(WRAPPED_AS.values())  # what compiled and parallel models put into the addresses of `named_modules`


def find_address(name: str, known: Container[str], others: Mapping[str, str]) -> str | None:
    """The first address of the module a name means; None for no module.

    Compiled and parallel wrappers are looked through, so the names that `named_modules` of a wrapped model gives are known too.

    Args:
        known: the first addresses of the modules.
        others: by every other address, the first.
    """
    for one in dict.fromkeys((name, _unwrapped(name))):
        first = others.get(one, one)
        if first in known:
            return first
    return None


def fitting_glob(glob: str, known: Iterable[str], others: Mapping[str, str]) -> str | None:
    """The glob, as it is or without names of wrappers, if it fits the address of a module below the model; else None."""
    for one in dict.fromkeys((glob, _unwrapped(glob))):
        fits = glob_pattern(one).fullmatch
        if any(address and fits(address) for address in (*known, *others)):
            return one
    return None


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


@dataclass(frozen=True, slots=True)
class Text(Key):
    """A label, an address, `input` or `output`, or a glob."""

    text: str

    def __str__(self) -> str:
        return repr(self.text)

    def meaning(self, names: Names) -> Meaning:
        found = self.exact(names)
        if found is None:
            found = self._by_glob(names)
        if found is None:
            raise LayerNotFound(names.not_found(self.text))
        return found

    def exact(self, names: Names) -> Meaning | None:
        """The meaning as a label, an address, or an input or output of the model; None if it is none of these."""
        ways = readings(self.text)
        for way in ways:
            if way.can_be_label and (passes := names.labelled(way.name)) is not None:
                return self._passes(way, passes, names)
            if (address := _find(way, names)) is not None:
                matches = self._tensors(way, address, names)
                return Meaning(matches, is_plural=way.part == ALL)
            if way.can_be_label and (passes := names.labelled(way.name, short=True)) is not None:
                return self._passes(way, passes, names)
        for way in ways:
            end = end_of(way.name) if way.can_be_label else None
            ends = names.ends(end[0]) if end is not None else []
            if end is not None and end[1] is not None:
                ends = ends[end[1] - 1 : end[1]] if end[1] else []
            if ends:
                return Meaning([match for passes in ends for match in self._passes(way, passes, names).matches], False)
        return None

    def is_known(self, names: Names) -> bool:
        """Whether some reading of it is a name, even of a module that did not run."""
        return any(
            _find(way, names) is not None or (way.can_be_label and names.labelled(way.name, short=short) is not None)
            for way in readings(self.text)
            for short in (False, True)
        )

    def short_label(self, names: Names) -> Sequence[int] | None:
        """The passes of the layer with this short label, even if a module has this address, too."""
        for way in readings(self.text):
            if way.can_be_label and (passes := names.labelled(way.name, short=True)) is not None:
                return passes if way.turn is None else passes[way.turn - 1 : way.turn]
        return None

    def _passes(self, way: Reading, passes: Sequence[int], names: Names) -> Meaning:
        if way.turn is not None:
            if not 1 <= way.turn <= len(passes):
                label, count = split_turn(names.label_of(passes[0]))[0], len(passes)
                said = f"{count} pass" + ("es" if count > 1 else "")
                raise LayerNotFound(f"{label} has {said}, so there is no {self.text!r}.")
            passes = [passes[way.turn - 1]]
        return Meaning(Labelled(passes, names), False)

    def _tensors(self, way: Reading, address: str, names: Names) -> list[Match]:
        """The tensors that calls of one module returned, or were given."""
        calls = _turn(way, address, names.calls(address), self.text)
        matches = of_calls(calls, names, way.part, way.is_input)
        if matches:
            return matches
        verb = "was given" if way.is_input else "returned"
        known = f"history.modules[{address!r}] knows it."
        if not calls:
            raise LayerNotFound(f"module {self.text!r} was not called, so it has no {'in' if way.is_input else 'out'}put.")
        if way.part not in (None, ALL):
            most = max(len(call.inputs if way.is_input else call.outputs) for call in calls)
            parts = f"tensors [0] to [{most - 1}]" if most > 1 else "one tensor, [0]" if most else "no tensor"
            raise LayerNotFound(f"module {address!r} {verb} {parts}; no operation is {self.text!r}. {known}")
        raise LayerNotFound(
            f"module {self.text!r} was called, but no tensor that was logged is in what it {verb}: containers and dataclasses "
            f"are looked into there, other objects are not. {known}"
        )

    def _by_glob(self, names: Names) -> Meaning | None:
        for way in readings(self.text):
            if not way.is_glob:
                continue
            addresses = _fitting(way.name, names)
            calls = [call for one in addresses for call in _turn(way, one, names.calls(one))]
            matches = of_calls(calls, names, way.part, way.is_input)
            if not addresses and way.can_be_label:
                pattern = glob_pattern(way.name)
                fitting = [passes for label, passes in names.labels() if pattern.fullmatch(label)]
                turned = [passes if way.turn is None else passes[way.turn - 1 : way.turn] for passes in fitting]
                matches = list(Labelled(chain.from_iterable(turned), names))
            if matches:
                return Meaning(sorted(once(matches), key=lambda match: match.number))
            if addresses:
                raise LayerNotFound(f"{self.text!r} fits {few(map(repr, addresses), 5)}, but no tensor of theirs was logged.")
        return None

    def modules(self, names: Names) -> list[ModuleCall]:
        for way in readings(self.text):
            if (address := _find(way, names)) is not None and way.can_be_label:
                calls = _turn(way, address, names.calls(address), self.text)
                if not calls:
                    raise LayerNotFound(f"module {self.text!r} was not called.")
                return calls
        for way in readings(self.text):
            if way.is_glob and way.can_be_label and (addresses := _fitting(way.name, names)):
                return [call for one in addresses for call in _turn(way, one, names.calls(one))]
        if self.exact(names) is not None:
            return super(Text, self).modules(names)
        raise LayerNotFound(names.not_found(self.text))


def _turn(way: Reading, address: str, calls: Sequence[ModuleCall], text: str = "") -> list[ModuleCall]:
    """The calls that a reading means. With `text`, for the error, a call that was not made is an error."""
    if way.turn is None or not calls:
        return list(calls)
    if text and not 1 <= way.turn <= len(calls):
        raise LayerNotFound(f"module {address!r} was called {len(calls)} times, so there is no {text!r}.")
    return list(calls[way.turn - 1 : way.turn]) if way.turn else []


def _fitting(glob: str, names: Names) -> list[str]:
    """The first addresses of the modules of which any address fits a glob. The model itself never fits."""
    meant = fitting_glob(glob, names.classes, names.first_addresses)
    if meant is None:
        return []
    fits = glob_pattern(meant).fullmatch
    found = {first for other, first in names.first_addresses.items() if fits(other)}
    return [address for address in names.classes if address and (address in found or fits(address))]


def _find(way: Reading, names: Names) -> str | None:
    return find_address(way.name, names.classes, names.first_addresses)
