"""Keys name operations. `parse_key` turns a text or an object into a `Key`; a key means the same operations everywhere.

`history[…]`, `layers_to_save`, `save_gradients`, the changes of a replay, an Xray's layers, the functions of `torcheer.graph`,
pictures and the command line parse keys with this file. docs/keys.md has a table of all keys.
"""

from __future__ import annotations

import operator
import re
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, SupportsIndex, TypeVar, get_args, overload

import torch

from .._text import few
from .._torch.internals import WRAPPED_AS, OpOverload, OpOverloadPacket
from ..errors import InvalidArgument, LayerNotFound
from .records import ClassNames, ModuleCall, is_kind_of

# The syntax of text keys: `input:cell[1]:2` is the second tensor among the arguments of the second call of `cell`.
#
# Module names are free text: `relu_1`, `a:2`, `x[0]` and `*` are possible. So a text has several readings, from the most
# literal, the whole text as a name, to the name without `input:`, `[1]` and `:2`. The first reading with a known name counts.

INPUT = "input:"
ALL = -1  # `Reading.part` of `address[*]`: every tensor

_SUFFIX = re.compile(r"^(?P<name>.*)(?:\[(?P<part>\d{1,9}|\*)\]|:(?P<turn>\d{1,9}))$", re.DOTALL)
_END = re.compile(r"^(?P<kind>input|output)(_?(?P<number>\d{1,9}))?$")


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a text."""

    name: str  # a label, an address or a glob
    part: int | None = None  # which of the tensors that a module returned (or received), from 0; `ALL` for all
    turn: int | None = None  # which pass or call, from 1; None if the text does not say
    is_input: bool = False

    @property
    def is_glob(self) -> bool:
        return "*" in self.name

    @property
    def can_be_label(self) -> bool:
        return self.part is None and not self.is_input


def readings(text: str) -> list[Reading]:
    """Every way to read a text, the most literal first.

    >>> [(one.name, one.part, one.turn, one.is_input) for one in readings("input:cell:2")]
    [('input:cell:2', None, None, False), ('input:cell', None, 2, False), ('cell:2', None, None, True), ('cell', None, 2, True)]
    """
    found = [Reading(text)]
    while (match := _SUFFIX.match(found[-1].name)) is not None:
        before = found[-1]
        if match["part"] is not None and before.part is None:
            part = ALL if match["part"] == "*" else int(match["part"])
            found.append(replace(before, name=match["name"], part=part))
        elif match["turn"] is not None and before.turn is None:
            found.append(replace(before, name=match["name"], turn=int(match["turn"])))
        else:
            break
    given = [one for one in found if one.name.startswith(INPUT)]
    return found + [replace(one, name=one.name.removeprefix(INPUT), is_input=True) for one in given]


def end_of(name: str) -> tuple[str, int | None] | None:
    """The kind and the number in `input`, `output`, `input_2` or `output2`; None for any other name."""
    match = _END.match(name)
    return None if match is None else (match["kind"], int(match["number"]) if match["number"] else None)


def split_turn(text: str) -> tuple[str, int | None]:
    """Split a label from its pass number, or an address from its call number; None if there is no number.

    >>> split_turn("conv2d_3_7:2"), split_turn("features.6")
    (('conv2d_3_7', 2), ('features.6', None))
    """
    name, colon, number = text.rpartition(":")
    return (name, int(number)) if colon and number.isdecimal() and len(number) < 10 else (text, None)


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A glob as a regular expression: `*` matches within one part of an address, `**` across dots; nothing else is special.

    >>> [bool(glob_pattern("blocks.*.mlp").fullmatch(one)) for one in ("blocks.0.mlp", "blocks.0.1.mlp")]
    [True, False]
    >>> [bool(glob_pattern("**.mlp").fullmatch(one)) for one in ("mlp", "blocks.0.mlp", "xmlp")]
    [True, True, False]
    """
    pieces = re.split(r"((?:(?<=\.)|^)\*\*\.|\*\*+|\*)", glob)
    meant = {"**.": r"(?:[^.]+\.)*", "*": "[^.]*"}
    return re.compile("".join(meant.get(p, ".*" if p.startswith("**") else re.escape(p)) for p in pieces), re.DOTALL)


# The base class `Key`, and `Meaning`, the operations that a key means in one recording.


@dataclass(frozen=True, slots=True)
class Match:
    """One operation that a key means."""

    number: int
    name: str  # a text key that means only this operation
    call: ModuleCall | None = None  # if the key names modules: the module call that returned or received the tensor
    is_input: bool = False  # True if the call received the tensor as an argument


@dataclass(frozen=True, slots=True)
class Meaning:
    """The operations that a key means, without repetition."""

    matches: Sequence[Match]
    is_plural: bool = True  # True for keys that may mean any number of operations: a class, a function, a glob, a list

    @property
    def numbers(self) -> list[int]:
        return self.matches.numbers if isinstance(self.matches, Labelled) else [match.number for match in self.matches]


class Names(Protocol):
    """The interface that keys are matched against: labels, addresses and functions of one recording."""

    def labelled(self, label: str, *, short: bool = False) -> Sequence[int] | None:
        """The passes of the layer with this full (`conv2d_3_7`) or short (`conv2d_3`) label; None if there is no such layer."""

    def label_of(self, number: int) -> str:
        """An operation's label, with the pass number if its layer has several passes."""

    def layers(self, which: slice) -> Iterable[Sequence[int]]:
        """The passes of each layer in a slice of the layers."""

    def __len__(self) -> int:
        """The number of layers."""

    def labels(self) -> Iterator[tuple[str, Sequence[int]]]:
        """The label and the passes of every layer."""

    def ends(self, kind: str) -> list[Sequence[int]]:
        """The passes of every `input` or `output`."""

    def named_end(self, name: str) -> Sequence[int] | None:
        """The passes of the input or output that people call so: `input_ids`, `logits`, `output.logits`; None if none is."""

    def shows(self, number: int) -> bool:
        """True if a number is an operation that belongs to a layer."""

    @property
    def classes(self) -> Mapping[str, type | ClassNames]:
        """Maps the first address of each module to its class, in order of registration."""

    @property
    def first_addresses(self) -> Mapping[str, str]:
        """For modules with several addresses: maps each further address to the first."""

    def calls(self, address: str) -> Sequence[ModuleCall]:
        """The calls of a module, by its first address."""

    def of_function(self, function: Callable[..., Any]) -> list[int]:
        """The operations of a torch function's layer type."""

    def operations(self) -> Iterator[tuple[int, Any]]:
        """The number of every operation, and the `Operation` that a function key (`Where`) is called with."""

    def not_found(self, what: str) -> str:
        """The text of the error for a key that fits nothing, with the nearest keys."""

    def hint(self, what: str) -> str:
        """A space and a sentence that may explain why there is no such layer; else an empty text."""


class Key(ABC):
    """Names operations of a recording."""

    @abstractmethod
    def meaning(self, names: Names) -> Meaning:
        """The operations that the key means. Raises `LayerNotFound` if the recording has nothing of that name."""

    def modules(self, names: Names) -> list[ModuleCall]:
        """The module calls that the key means. Raises if the key does not name modules."""
        raise InvalidArgument(f"{self} does not name modules: give an address, an address with *, a module class, or a list.")


class Labelled(Sequence[Match]):
    """Matches by operation number. Labels are computed on access, because a layer may have a hundred thousand passes."""

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
    """The tensors that module calls returned (`is_input`: received): the first of each call, number `part`, or `ALL`."""
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


# Text keys: a label, an address, an input or output of the model, or a glob.

_WRAPPERS = frozenset(WRAPPED_AS.values())  # parts that compiled and parallel wrappers add to addresses in `named_modules`


def find_address(name: str, known: Container[str], others: Mapping[str, str]) -> str | None:
    """The first address of the module that a name means; None if no module has this name.

    Names from `named_modules` of a compiled or parallel model are accepted too: parts that the wrapper adds are dropped.

    Args:
        known: the first addresses of the modules.
        others: maps every further address to the first.
    """
    for one in dict.fromkeys((name, _unwrapped(name))):
        first = others.get(one, one)
        if first in known:
            return first
    return None


def fitting_glob(glob: str, known: Iterable[str], others: Mapping[str, str]) -> str | None:
    """The glob, as given or without parts that wrappers add, if it matches the address of a submodule; else None."""
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
            raise LayerNotFound(self.several_addresses(names) or names.not_found(self.text))
        return found

    def several_addresses(self, names: Names) -> str:
        """The error for a text that is the end of several addresses; empty if it is not."""
        addresses = next((found for way in readings(self.text) if (found := ending_with(way.name, names))), [])
        if len(addresses) < 2:
            return ""
        return f"{self.text!r} is the end of {len(addresses)} addresses: {few(map(repr, addresses), 12)}. Say which."

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
        for way in ways:
            if way.can_be_label and (passes := names.named_end(way.name)) is not None:
                return self._passes(way, passes, names)
            if len(addresses := ending_with(way.name, names)) == 1:
                return Meaning(self._tensors(way, addresses[0], names), is_plural=way.part == ALL)
        return None

    def is_known(self, names: Names) -> bool:
        """True if a reading of the text is a known name, even of a module that did not run."""
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
        """The tensors that calls of one module returned or received."""
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
            if way.can_be_label and len(addresses := ending_with(way.name, names)) == 1:
                return _turn(way, addresses[0], names.calls(addresses[0]), self.text)
        for way in readings(self.text):
            if way.is_glob and way.can_be_label and (addresses := _fitting(way.name, names)):
                return [call for one in addresses for call in _turn(way, one, names.calls(one))]
        if self.exact(names) is not None:
            return super(Text, self).modules(names)
        raise LayerNotFound(self.several_addresses(names) or names.not_found(self.text))


def _turn(way: Reading, address: str, calls: Sequence[ModuleCall], text: str = "") -> list[ModuleCall]:
    """The calls that a reading means. Raises for a call that was not made if `text`, used in the message, is given."""
    if way.turn is None or not calls:
        return list(calls)
    if text and not 1 <= way.turn <= len(calls):
        raise LayerNotFound(f"module {address!r} was called {len(calls)} times, so there is no {text!r}.")
    return list(calls[way.turn - 1 : way.turn]) if way.turn else []


def _fitting(glob: str, names: Names) -> list[str]:
    """The first addresses of modules with an address that matches a glob. The model itself never matches."""
    meant = fitting_glob(glob, names.classes, names.first_addresses)
    if meant is None:
        return []
    fits = glob_pattern(meant).fullmatch
    found = {first for other, first in names.first_addresses.items() if fits(other)}
    return [address for address in names.classes if address and (address in found or fits(address))]


def ending_with(name: str, names: Names) -> list[str]:
    """The addresses of the modules that ran whose last parts are a name: `transformer.h.1` ends with `h.1`."""
    return [address for address in names.classes if address.endswith(f".{name}") and names.calls(address)] if name else []


def _find(way: Reading, names: Names) -> str | None:
    return find_address(way.name, names.classes, names.first_addresses)


# Other keys: positions, slices, classes, functions, lists; and `parse_key`, which makes a `Key` from any of them.

_WHAT_A_KEY_IS = (
    "a key is a label, a module address (also with *), a position, a slice, a module class, a torch function, "
    "a function of an operation, or a list of these"
)


class Keyed(Protocol):
    """Objects of a history that are keys too: layers, operations and modules."""

    @property
    def _key(self) -> str: ...


OneKey = str | SupportsIndex | slice | type | types.UnionType | Callable[..., object] | Key | Keyed
AnyKey = OneKey | Iterable[OneKey]  # every type that users may pass as a key
KeyType = TypeVar("KeyType", bound=AnyKey)  # for dictionaries, whose type is invariant in the type of the keys


def parse_key(value: Any) -> Key:
    """Make a `Key` from a text or an object. Raises `InvalidArgument` for objects that are no key."""
    if isinstance(value, Key):
        return value
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, slice):
        return Range(value)
    named = getattr(type(value), "_key", None)  # layers, operations and modules of a history
    if isinstance(named, property):
        return Text(str(value._key))
    if isinstance(value, type):
        return OfClass(value)
    if isinstance(value, types.UnionType):
        return Several(tuple(parse_key(one) for one in get_args(value)))
    if isinstance(value, torch.nn.Module):
        raise InvalidArgument(
            f"a module is named by its address or its class ({type(value).__name__}); got the {type(value).__name__} itself."
        )
    if callable(value):
        return OfFunction(value) if is_torch_function(value) else Where(value)
    position = _position(value)
    if position is not None:
        return Position(position)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, torch.Tensor)):
        return Several(tuple(parse_key(one) for one in value))
    raise InvalidArgument(f"{_WHAT_A_KEY_IS}; got {type(value).__name__}: {value!r:.80}.")


def _position(value: Any) -> int | None:
    if isinstance(value, (bool, torch.Tensor)):
        return None
    try:
        return operator.index(value)  # also NumPy's
    except TypeError:
        return None


def is_torch_function(function: Any) -> bool:
    """True for a function of torch or of `operator` (`operator.add`), False for a function of the user."""
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        return True
    if isinstance(function, (types.FunctionType, types.BuiltinFunctionType)):
        return str(function.__module__).partition(".")[0] in ("torch", "_operator", "operator")
    read = getattr(function, "__self__", None) if isinstance(function, types.MethodWrapperType) else None  # Tensor.T.__get__
    if isinstance(read, property):
        return is_torch_function(read.fget)
    owner = getattr(function if read is None else read, "__objclass__", None)  # of a method such as Tensor.relu
    return isinstance(owner, type) and issubclass(torch.Tensor, owner)


@dataclass(frozen=True, slots=True)
class Position(Key):
    """The layer at a position: from 0, or negative from the end."""

    position: int

    def __str__(self) -> str:
        return str(self.position)

    def meaning(self, names: Names) -> Meaning:
        count = len(names)
        if not -count <= self.position < count:
            raise LayerNotFound(
                f"there is no layer {self.position}: this history has {count} layers, 0 to {count - 1} "
                f"(or -{count} to -1 from the end)."
            )
        at = self.position % count
        return Meaning(Labelled(chain.from_iterable(names.layers(slice(at, at + 1))), names), False)


@dataclass(frozen=True, slots=True)
class Range(Key):
    """The layers in a slice of positions."""

    which: slice

    def __str__(self) -> str:
        return str(self.which)

    def meaning(self, names: Names) -> Meaning:
        try:
            layers = list(names.layers(self.which))
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"{self.which} is no slice of positions: {error}.") from None
        return Meaning(Labelled(chain.from_iterable(layers), names))


@dataclass(frozen=True, slots=True)
class OfClass(Key):
    """The modules that are instances of a class."""

    cls: type

    def __str__(self) -> str:
        return f"the class {self.cls.__name__}"

    def modules(self, names: Names) -> list[ModuleCall]:
        fitting = [address for address, cls in names.classes.items() if is_kind_of(cls, self.cls)]
        calls = [call for address in fitting for call in names.calls(address)]
        if calls:
            return calls
        if fitting:
            raise LayerNotFound(f"no {self.cls.__name__} was called: {few(map(repr, fitting), 5)} did not run.")
        known = list(dict.fromkeys(cls.__name__ for address, cls in names.classes.items() if names.calls(address)))
        said = f"the modules that ran are {few(known, 12)}" if known else "no module ran"
        raise LayerNotFound(f"no module is a {self.cls.__name__}: {said}.{names.hint(self.cls.__name__)}")

    def meaning(self, names: Names) -> Meaning:
        matches = of_calls(self.modules(names), names)
        if not matches:
            raise LayerNotFound(f"no tensor that was logged left a {self.cls.__name__}.")
        return Meaning(sorted(matches, key=lambda match: match.number))


@dataclass(frozen=True, slots=True)
class OfFunction(Key):
    """All operations of a torch function's layer type."""

    function: Callable[..., Any]

    def __str__(self) -> str:
        return str(getattr(self.function, "__name__", self.function))

    def meaning(self, names: Names) -> Meaning:
        numbers = names.of_function(self.function)
        if not numbers:
            raise LayerNotFound(names.not_found(str(self)))
        return Meaning(Labelled(numbers, names))


@dataclass(frozen=True, slots=True)
class Where(Key):
    """The operations for which a function returns true, possibly none."""

    predicate: Callable[[Any], Any]

    def __str__(self) -> str:
        return f"the function {getattr(self.predicate, '__name__', self.predicate)}"

    def meaning(self, names: Names) -> Meaning:
        return Meaning(Labelled([number for number, one in names.operations() if self.predicate(one)], names))


@dataclass(frozen=True, slots=True)
class Several(Key):
    """The union of what several keys mean."""

    keys: tuple[Key, ...]

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.keys))}]"

    def meaning(self, names: Names) -> Meaning:
        return Meaning(once(match for key in self.keys for match in key.meaning(names).matches))

    def modules(self, names: Names) -> list[ModuleCall]:
        return list({id(call): call for key in self.keys for call in key.modules(names)}.values())
