"""Key, and the operations that a key means in one recording."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

from ..errors import InvalidArgument
from ..records import ClassNames, ModuleCall
from .grammar import ALL, INPUT


@dataclass(frozen=True, slots=True)
class Match:
    """One operation that a key means."""

    number: int
    name: str  # a text that means this operation alone
    call: ModuleCall | None = None  # the module call that returned it, or was given it, where the key names modules
    is_input: bool = False  # it was given to the call


@dataclass(frozen=True, slots=True)
class Meaning:
    """The operations a key means, each once."""

    matches: Sequence[Match]
    is_plural: bool = True  # the key asks for any number of operations: a class, a function, a glob, a list

    @property
    def numbers(self) -> list[int]:
        return self.matches.numbers if isinstance(self.matches, Labelled) else [match.number for match in self.matches]


class Names(Protocol):
    """The names in one recording, with which keys are matched."""

    def labelled(self, label: str, *, short: bool = False) -> Sequence[int] | None:
        """The passes of the layer with this label, in full (`conv2d_3_7`) or short (`conv2d_3`); None where there is none."""

    def label_of(self, number: int) -> str:
        """An operation's label, with its pass where its layer has several."""

    def layers(self, which: slice) -> Iterable[Sequence[int]]:
        """The passes of the layers at some positions."""

    def __len__(self) -> int:
        """The number of layers."""

    def labels(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Every layer: its label and its passes."""

    def ends(self, kind: str) -> list[Sequence[int]]:
        """The passes of every `input` or `output`."""

    def shows(self, number: int) -> bool:
        """Whether a number is an operation of this recording's layers."""

    @property
    def classes(self) -> Mapping[str, type | ClassNames]:
        """The class of each module, by its first address, in the order the model registers them."""

    @property
    def first_addresses(self) -> Mapping[str, str]:
        """The first address of modules that have several, by the other ones."""

    def calls(self, address: str) -> Sequence[ModuleCall]:
        """The calls of a module, by its first address."""

    def of_function(self, function: Callable[..., Any]) -> list[int]:
        """The operations of a torch function's layer type."""

    def operations(self) -> Iterator[tuple[int, Any]]:
        """Every operation: its number, and the object that a function of an operation gets."""

    def not_found(self, what: str) -> str:
        """The text of the error for a key that fits nothing, with the nearest keys."""

    def hint(self, what: str) -> str:
        """A sentence that may explain why there is no such layer, after a space; empty where there is none."""


class Key(ABC):
    """A key: it names operations of a recording."""

    @abstractmethod
    def meaning(self, names: Names) -> Meaning:
        """The operations it means. Raises `LayerNotFound` when it names something that is not there."""

    def modules(self, names: Names) -> list[ModuleCall]:
        """The module calls it means. Raises where it does not name modules."""
        raise InvalidArgument(f"{self} does not name modules: give an address, an address with *, a module class, or a list.")


class Labelled(Sequence[Match]):
    """Operations by number. Each is named by its label when it is looked at: a layer may have a hundred thousand passes."""

    def __init__(self, numbers: Iterable[int], names: Names) -> None:
        self.numbers = list(filter(names.shows, numbers))
        self._names = names

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> Match: ...

    @overload
    def __getitem__(self, place: slice) -> Labelled: ...

    def __getitem__(self, place: int | slice) -> Match | Labelled:
        if isinstance(place, slice):
            return Labelled(self.numbers[place], self._names)
        return Match(self.numbers[place], self._names.label_of(self.numbers[place]))


def of_calls(calls: Iterable[ModuleCall], names: Names, part: int | None = None, is_input: bool = False) -> list[Match]:
    """The tensors that module calls returned (or were given): the first of each call, another one (`part`), or all."""
    found: list[Match] = []
    for call in calls:
        tensors = call.inputs if is_input else call.outputs
        for place, number in enumerate(tensors):
            is_meant = part in (place, ALL) or (part is None and place == 0)
            if is_meant and names.shows(number):
                found.append(Match(number, _name(call, place, part, names, is_input), call, is_input))
    return once(found)


def _name(call: ModuleCall, place: int, part: int | None, names: Names, is_input: bool) -> str:
    address = call.address
    is_label = names.labelled(address) is not None or names.labelled(address, short=True) is not None
    say_which = place > 0 or part is not None or (not is_input and (is_label or not address))
    turn = f":{call.call}" if len(names.calls(address)) > 1 else ""
    return f"{INPUT if is_input else ''}{address}{f'[{place}]' if say_which else ''}{turn}"


def once(matches: Iterable[Match]) -> list[Match]:
    """The first match of each operation."""
    found: dict[int, Match] = {}
    for match in matches:
        found.setdefault(match.number, match)
    return list(found.values())
