"""Keys name operations. `parse_key` turns a text or an object into a `Key`; a key means the same operations everywhere.

`history[…]`, `layers_to_save`, `save_gradients`, the changes of a replay, an Xray's layers, the functions of `torcheer.graph`,
pictures and the command line use keys. docs/keys.md has a table of all keys.

Each kind of key is one class here, a `Key`, which answers every question that is asked of a key:

- `meaning`: the operations that it means in a log;
- `modules`: the module calls that it means in a log;
- `in_model`: the tensors of modules that it means in a model without a log;
- `add_to`, `first_sign`, `asking`: the operations that it may mean in a run that has not ended.

`Lookup` implements `history[…]`, `numbers_that_fit` implements `history.filter(…)`.
"""

from __future__ import annotations

import copy
import difflib
import operator
import re
import types
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeVar, get_args, overload

import torch
from torch import Tensor
from torch.nn import ModuleDict, ModuleList, ParameterDict, ParameterList

from .._text import few, nearest
from .._torch.functions import facts, groups
from .._torch.functions.facts import Origin
from .._torch.functions.names import label_type
from .._torch.internals import WRAPPED_AS, OpOverload, OpOverloadPacket
from ..errors import AmbiguousKey, InvalidArgument, LayerNotFound
from .records import FUNCTION, ClassNames, Log, ModuleCall, RegisteredModule, is_kind_of

if TYPE_CHECKING:
    from .run import Index, LayerEntry, LayerTable

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
    """One way to read a text key: a name with optional part, turn and `input:`."""

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
    """`("input", 2)` for `input_2` or `input2`, `("input", None)` for `input`, likewise for outputs; None for other names."""
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
    """Convert a glob to a regular expression. `*` matches within one part of an address, `**` also across dots.

    >>> [bool(glob_pattern("blocks.*.mlp").fullmatch(one)) for one in ("blocks.0.mlp", "blocks.0.1.mlp")]
    [True, False]
    >>> [bool(glob_pattern("**.mlp").fullmatch(one)) for one in ("mlp", "blocks.0.mlp", "xmlp")]
    [True, True, False]
    """
    pieces = re.split(r"((?:(?<=\.)|^)\*\*\.|\*\*+|\*)", glob)
    meant = {"**.": r"(?:[^.]+\.)*", "*": "[^.]*"}
    return re.compile("".join(meant.get(p, ".*" if p.startswith("**") else re.escape(p)) for p in pieces), re.DOTALL)


# Finds the modules that a key names, by address.

_WRAPPERS = frozenset(WRAPPED_AS.values())  # parts that compiled and parallel wrappers add to addresses in `named_modules`
_NEVER_CALLED = (ModuleList, ModuleDict, ParameterList, ParameterDict)


class Addresses:
    """The modules of a model by address.

    Args:
        classes: maps the first address of each module to its class, in order of registration.
        others: for modules with several addresses: maps each further address to the first.
    """

    def __init__(self, classes: Mapping[str, type | ClassNames], others: Mapping[str, str]) -> None:
        self.classes = classes
        self.others = others

    @classmethod
    def of(cls, registered: Mapping[str, RegisteredModule]) -> Addresses:
        """The modules of a log, by address."""
        others = {other: address for address, module in registered.items() for other in module.other_addresses}
        return cls({address: module.cls for address, module in registered.items()}, others)

    def find(self, name: str) -> str | None:
        """The first address of the module that a name means; None if no module has this name.

        Names from `named_modules` of a compiled or parallel model are accepted too: parts that the wrapper adds are dropped.
        """
        for one in dict.fromkeys((name, _unwrapped(name))):
            first = self.others.get(one, one)
            if first in self.classes:
                return first
        return None

    def known_glob(self, glob: str) -> str | None:
        """Return the glob if it matches the address of a submodule, as given or without parts that wrappers add; else None."""
        for one in dict.fromkeys((glob, _unwrapped(glob))):
            fits = glob_pattern(one).fullmatch
            if any(address and fits(address) for address in (*self.classes, *self.others)):
                return one
        return None

    def fitting(self, glob: str) -> list[str]:
        """The first addresses of modules with an address that matches a glob. The model itself never matches."""
        known = self.known_glob(glob)
        if known is None:
            return []
        fits = glob_pattern(known).fullmatch
        found = {first for other, first in self.others.items() if fits(other)}
        return [address for address in self.classes if address and (address in found or fits(address))]

    def of_class(self, cls: type) -> list[str]:
        """The first addresses of the modules that are instances of a class."""
        return [address for address, known in self.classes.items() if is_kind_of(known, cls)]


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


# Describes what a key means: in a log (`Meaning`, found in the log's `Names`), or in a run that has not ended (`Candidates`).


@dataclass(frozen=True, slots=True)
class Match:
    """One operation that a key means, with the module call that made the key fit, if there is one."""

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


class Names:
    """The names in one index, against which keys are matched: labels, addresses and functions of a log."""

    def __init__(self, index: Index) -> None:
        self.table: LayerTable = index.table
        self._index = weakref.ref(index)
        self._numbers = range(index.length)
        self._calls = index.calls
        self.addresses = index.addresses

    def without_tensors(self) -> Names:
        """A copy that refers to no tensor, for objects that live longer than the history."""
        light = copy.copy(self)
        light.__dict__["_named_ends"] = self._named_ends
        log = self.table.log
        light.table = copy.copy(self.table)
        light.table.log = Log(log.title, rows=log.rows, functions=log.functions)
        return light

    def ends(self, kind: str) -> list[Sequence[int]]:
        """The operation numbers of each layer that is an `input` (or `output`) of the model."""
        origin, log = Origin(kind), self.table.log
        return [layer.passes for layer in self.table.layers if log.function_of(layer.passes[0]).origin is origin]

    @cached_property
    def _named_ends(self) -> dict[str, Sequence[int]]:
        """Maps the names of inputs and outputs to their operation numbers; an output wins over an input of the same name."""
        log, found = self.table.log, {}
        for kind in ("input", "output"):
            for passes in self.ends(kind):
                for name in log.port_names(passes[0]):
                    found[name] = found[f"{kind}.{name}"] = passes
        return found

    def named_end(self, name: str) -> Sequence[int] | None:
        """The operation numbers of the input or output with a name: `input_ids`, `output.logits`; None if none has it."""
        return self._named_ends.get(name)

    def calls(self, address: str) -> Sequence[ModuleCall]:
        """The calls of a module, by its first address."""
        return self._calls.get(address, ())

    def of_function(self, function: Callable[..., Any]) -> list[int]:
        """The operations whose layer type is the name of a torch function, as in labels."""
        log, kind = self.table.log, layer_type_of(function)
        fitting = {number for number, known in enumerate(log.functions) if known.type == kind}
        return [n for n in self._numbers if log.rows[n][FUNCTION] in fitting and self.table.shows(n)]

    def operations(self) -> Iterator[tuple[int, Any]]:
        """The number of every operation, and the `Operation` that a function key (`Where`) is called with."""
        index = self._index()
        if index is None:
            raise InvalidArgument(
                "a function of an operation needs the history that this graph was made from, which is gone. "
                "Keep the history, or use another key."
            )
        return ((number, type(index).operation(index, number)) for number in index.operations)

    def known(self) -> list[str]:
        """Every label and every module address that can be typed."""
        return [*map(self.table.label, self.table.layers), *(address for address in self._calls if address)]

    def not_found(self, what: str) -> str:
        """Make the text of the error for a key that fits nothing. It names the nearest keys."""
        others = [other for other, first in self.addresses.others.items() if first in self._calls]
        known = [*self.known(), *others]
        some = [address for address in self._calls if address][:3] + known[1:3]
        hint = nearest(what, known, "keys")
        if not hint and known:
            hint = f" Keys are, for example, {', '.join(map(repr, dict.fromkeys(some)))}."
        return f"no layer fits {what!r}: this history has {len(self.table)} layers.{hint}{self.hint(what)}"

    def hint(self, what: str) -> str:
        """A sentence, after a space, that may explain why a name is unknown; else an empty text."""
        kind = what.replace("_", "").lower()
        if kind in {known.type for known in self.table.log.functions}:
            return f" {kind!r} is a type of layers: '{kind}_*' means all of them."
        if "softmax" not in kind:
            return ""
        functions = {layer: self.table.log.function_of(layer.passes[0]) for layer in self.table.layers}
        fused = [self.table.label(layer) for layer, function in functions.items() if function.is_in(groups.ATTENTION)]
        if not fused:
            return ""
        computes = "compute" if len(fused) > 1 else "computes"
        return (
            f" Attention is fused here: {few(fused, 3)} {computes} it as one function, inside which there is no softmax to "
            "see. To see inside, use attn_implementation='eager' (models of transformers); need_weights=True and "
            "torch.backends.mha.set_fastpath_enabled(False) (nn.MultiheadAttention); or write "
            "softmax(q @ k.transpose(-2, -1) * scale, -1) @ v."
        )


def layer_type_of(function: Callable[..., Any]) -> str:
    """The layer type of a torch function's operations. `operator.truediv` counts as `/`, and so on."""
    name = getattr(function, "__name__", "")
    if getattr(operator, name, None) is function:
        function = getattr(Tensor, f"__{name.strip('_')}__", function)
    return facts(function).type


class Candidates:
    """The operations that a key may turn out to mean, for a run that has not ended: labels are not final there.

    Args:
        addresses: the modules that are registered so far.
        labels_are_default: True if labels have the default format, so that a label says type and number.
    """

    def __init__(self, addresses: Addresses, labels_are_default: bool) -> None:
        self.addresses = addresses
        self.labels_are_default = labels_are_default
        self.everything = False  # True if only the complete run shows what the key means
        self.types: set[str] = set()  # every operation of these layer types
        self.numbers: dict[str, set[int]] = {}  # layer type -> numbers of layers of that type
        self.positions: set[int] = set()  # numbers of layers
        self.predicates: list[Callable[[Any], Any]] = []
        self._outputs: list[Callable[[RegisteredModule], object]] = []  # modules of which every output is a candidate
        self._inputs: list[Callable[[RegisteredModule], object]] = []
        self._known: dict[tuple[str, bool], bool] = {}

    @property
    def has_modules(self) -> bool:
        """True if outputs or inputs of modules are candidates."""
        return bool(self._outputs or self._inputs)

    def add_modules(self, fits: Callable[[RegisteredModule], object], *, is_input: bool = False) -> None:
        """Add the outputs (or inputs) of all modules that fit."""
        (self._inputs if is_input else self._outputs).append(fits)

    def has_module(self, module: RegisteredModule, *, is_input: bool) -> bool:
        """True if the outputs (or inputs) of a module are candidates."""
        at = module.address, is_input
        if at not in self._known:
            self._known[at] = any(fits(module) for fits in (self._inputs if is_input else self._outputs))
        return self._known[at]


class Key(ABC):
    """A key names one or several operations of a recording."""

    @property
    def is_plural(self) -> bool:
        """True if the key may mean several operations, so that an answer is a list."""
        return True

    @abstractmethod
    def meaning(self, names: Names) -> Meaning:
        """The operations that the key means. Raises `LayerNotFound` if the recording has nothing of that name."""

    def modules(self, names: Names) -> list[ModuleCall]:
        """The module calls that the key means. Raises if the key does not name modules."""
        raise InvalidArgument(f"{self} does not name modules: give an address, an address with *, a module class, or a list.")

    def in_model(self, addresses: Addresses) -> list[Reading]:
        """Return the readings of the key in a model without a log. Their names are first addresses. Empty if nothing fits."""
        raise InvalidArgument(f"{self} means something only in a log of the model: pass one as like=history.")

    def add_to(self, candidates: Candidates) -> None:
        """Add what the key may mean to the candidates."""
        candidates.everything = True

    def first_sign(self, addresses: Addresses) -> tuple[str, str, int] | None:
        """Return a sign of the first operation that the key means, by which it is recognized while the model runs; None if
        only the complete run shows it.

        `("module", address, n)`: the n-th call of a module returned it. `("layer", type, n)`: it is the n-th layer of a type.
        """
        return None

    def asking(self, answering: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Key:
        """Copy the key, with `answering(function)` in place of each function that the user gave."""
        return self


class Labelled(Sequence[Match]):
    """Matches by operation number. Labels are computed on access, because a layer may have a hundred thousand passes."""

    def __init__(self, numbers: Iterable[int], table: LayerTable) -> None:
        self.numbers = list(filter(table.shows, numbers))
        self._table = table

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> Match: ...

    @overload
    def __getitem__(self, place: slice) -> Labelled: ...

    def __getitem__(self, place: int | slice) -> Match | Labelled:
        if isinstance(place, slice):
            return Labelled(self.numbers[place], self._table)
        return Match(self.numbers[place], self._table.label_of(self.numbers[place]))


def of_calls(calls: Iterable[ModuleCall], names: Names, part: int | None = None, is_input: bool = False) -> list[Match]:
    """Return the tensors that module calls returned (`is_input`: received): the first of each call, number `part`, or `ALL`."""
    found: list[Match] = []
    for call in calls:
        tensors = call.inputs if is_input else call.outputs
        for place, number in enumerate(tensors):
            is_meant = part in (place, ALL) or (part is None and place == 0)
            if is_meant and names.table.shows(number):
                found.append(Match(number, _name(call, place, part, names, is_input), call, is_input))
    return once(found)


def _name(call: ModuleCall, place: int, part: int | None, names: Names, is_input: bool) -> str:
    address = call.address
    is_label = names.table.labelled(address) is not None or names.table.labelled(address, short=True) is not None
    say_which = place > 0 or part is not None or (not is_input and (is_label or not address))
    turn = f":{call.call}" if len(names.calls(address)) > 1 else ""
    return f"{INPUT if is_input else ''}{address}{f'[{place}]' if say_which else ''}{turn}"


def once(matches: Iterable[Match]) -> list[Match]:
    """Keep the first match of each operation, and remove later ones."""
    found: dict[int, Match] = {}
    for match in matches:
        found.setdefault(match.number, match)
    return list(found.values())


# Text keys: a label, an address, an input or output of the model, or a glob.


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
        """Make the text of the error for a key that is the end of several addresses; empty if it is not."""
        addresses = next((found for way in readings(self.text) if (found := ending_with(way.name, names))), [])
        if len(addresses) < 2:
            return ""
        return f"{self.text!r} is the end of {len(addresses)} addresses: {few(map(repr, addresses), 12)}. Say which."

    def exact(self, names: Names) -> Meaning | None:
        """The meaning as a label, an address, or an input or output of the model; None if it is none of these."""
        ways = readings(self.text)
        for way in ways:
            if way.can_be_label and (layer := names.table.labelled(way.name)) is not None:
                return self._passes(way, layer.passes, names)
            if (address := names.addresses.find(way.name)) is not None:
                matches = self._tensors(way, address, names)
                return Meaning(matches, is_plural=way.part == ALL)
            if way.can_be_label and (layer := names.table.labelled(way.name, short=True)) is not None:
                return self._passes(way, layer.passes, names)
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
            names.addresses.find(way.name) is not None
            or (way.can_be_label and any(names.table.labelled(way.name, short=short) is not None for short in (False, True)))
            for way in readings(self.text)
        )

    def short_label(self, names: Names) -> Sequence[int] | None:
        """Return the passes of the layer that has the text as its short label, even if it is a module's address too."""
        for way in readings(self.text):
            if way.can_be_label and (layer := names.table.labelled(way.name, short=True)) is not None:
                return layer.passes if way.turn is None else layer.passes[way.turn - 1 : way.turn]
        return None

    @property
    def is_plural(self) -> bool:
        return "*" in self.text

    def in_model(self, addresses: Addresses) -> list[Reading]:
        ways = readings(self.text)
        for way in ways:
            address = addresses.find(way.name)
            if address is not None and (address or way.name == ""):
                return [replace(way, name=address)]
        for way in ways:
            end = end_of(way.name) if way.can_be_label else None
            if end is not None:
                return [Reading("", (end[1] or 1) - 1, is_input=end[0] == "input")]
        for way in ways:
            if way.is_glob and (fitting := addresses.fitting(way.name)):
                called = [one for one in fitting if not any(is_kind_of(addresses.classes[one], cls) for cls in _NEVER_CALLED)]
                return [replace(way, name=address) for address in called]
        return []

    def add_to(self, candidates: Candidates) -> None:
        """Add every reading of the text. If no reading has a known name, the run may still create a module of that name."""
        ways = readings(self.text)
        are_known = [self._add_reading(way, candidates) for way in ways]
        if any(are_known):
            return
        for way in ways:
            _add_modules(way, way.name, candidates)
        if any(way.can_be_label and (way.is_glob or not candidates.labels_are_default) for way in ways):
            candidates.everything = True

    def _add_reading(self, way: Reading, candidates: Candidates) -> bool:
        """Add the operations that one reading may mean. Returns whether its name is known: an address, an end or a label."""
        address = candidates.addresses.find(way.name)
        if address is None and way.is_glob:
            address = candidates.addresses.known_glob(way.name)
        if address is not None:
            _add_modules(way, address, candidates)
        if not way.can_be_label:
            return address is not None
        end = end_of(way.name)
        if end is not None:
            candidates.types.add(end[0])
        kind, _, rest = way.name.partition("_")
        number = rest.partition("_")[0]
        is_label = candidates.labels_are_default and number.isdecimal() and len(number) < 10 and kind == kind.lower()
        if is_label:
            candidates.numbers.setdefault(kind, set()).add(int(number))
        return address is not None or end is not None or is_label

    def first_sign(self, addresses: Addresses) -> tuple[str, str, int] | None:
        for way in readings(self.text) if not self.is_plural else ():
            if not way.can_be_label:
                return None
            if (address := addresses.find(way.name)) is not None:
                return "module", address, way.turn or 1
            kind, _, number = way.name.partition("_")
            if number.isdecimal() and way.turn in (None, 1):
                return "layer", kind, int(number)
        return None

    def _passes(self, way: Reading, passes: Sequence[int], names: Names) -> Meaning:
        if way.turn is not None:
            if not 1 <= way.turn <= len(passes):
                label, count = split_turn(names.table.label_of(passes[0]))[0], len(passes)
                said = f"{count} pass" + ("es" if count > 1 else "")
                raise LayerNotFound(f"{label} has {said}, so there is no {self.text!r}.")
            passes = [passes[way.turn - 1]]
        return Meaning(Labelled(passes, names.table), False)

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
            addresses = names.addresses.fitting(way.name)
            calls = [call for one in addresses for call in _turn(way, one, names.calls(one))]
            matches = of_calls(calls, names, way.part, way.is_input)
            if not addresses and way.can_be_label:
                pattern = glob_pattern(way.name)
                fitting = [layer.passes for layer in names.table.layers if pattern.fullmatch(names.table.label(layer))]
                turned = [passes if way.turn is None else passes[way.turn - 1 : way.turn] for passes in fitting]
                matches = list(Labelled(chain.from_iterable(turned), names.table))
            if matches:
                return Meaning(sorted(once(matches), key=lambda match: match.number))
            if addresses:
                raise LayerNotFound(f"{self.text!r} fits {few(map(repr, addresses), 5)}, but no tensor of theirs was logged.")
        return None

    def modules(self, names: Names) -> list[ModuleCall]:
        for way in readings(self.text):
            if (address := names.addresses.find(way.name)) is not None and way.can_be_label:
                calls = _turn(way, address, names.calls(address), self.text)
                if not calls:
                    raise LayerNotFound(f"module {self.text!r} was not called.")
                return calls
        for way in readings(self.text):
            if way.can_be_label and len(addresses := ending_with(way.name, names)) == 1:
                return _turn(way, addresses[0], names.calls(addresses[0]), self.text)
        for way in readings(self.text):
            if way.is_glob and way.can_be_label and (addresses := names.addresses.fitting(way.name)):
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


def _add_modules(way: Reading, name: str, candidates: Candidates) -> None:
    """Add the tensors that the module at an address, or the modules that a glob fits, return (or receive)."""
    if name not in candidates.addresses.classes and way.is_glob:
        pattern = glob_pattern(name).fullmatch

        def fits(module: RegisteredModule) -> bool:
            return bool(module.address) and any(map(pattern, (module.address, *module.other_addresses)))

        candidates.add_modules(fits, is_input=way.is_input)
    else:
        candidates.add_modules(lambda module: module.address == name, is_input=way.is_input)


def ending_with(name: str, names: Names) -> list[str]:
    """The addresses of modules that ran and whose last parts are `name`: `transformer.h.1` ends with `h.1`."""
    if not name:
        return []
    return [address for address in names.addresses.classes if address.endswith(f".{name}") and names.calls(address)]


# Defines the other keys (positions, slices, classes, functions, lists) and `parse_key`, which makes a `Key` from any object.

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
        return operator.index(value)  # accepts NumPy's integers, too
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
    owner = getattr(function if read is None else read, "__objclass__", None)  # the class of a method such as Tensor.relu
    return isinstance(owner, type) and issubclass(torch.Tensor, owner)


@dataclass(frozen=True, slots=True)
class Position(Key):
    """The layer at a position: from 0, or negative from the end."""

    position: int

    @property
    def is_plural(self) -> bool:
        return False

    def __str__(self) -> str:
        return str(self.position)

    def meaning(self, names: Names) -> Meaning:
        count = len(names.table)
        if not -count <= self.position < count:
            raise LayerNotFound(
                f"there is no layer {self.position}: this history has {count} layers, 0 to {count - 1} "
                f"(or -{count} to -1 from the end)."
            )
        return Meaning(Labelled(names.table.layer(self.position % count).passes, names.table), False)

    def add_to(self, candidates: Candidates) -> None:
        if self.position >= 0:
            candidates.positions.add(self.position)
        else:
            candidates.everything = True


@dataclass(frozen=True, slots=True)
class Range(Key):
    """The layers in a slice of positions."""

    which: slice

    def __str__(self) -> str:
        return str(self.which)

    def meaning(self, names: Names) -> Meaning:
        try:
            layers = [names.table.layer(number) for number in range(len(names.table))[self.which]]
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"{self.which} is no slice of positions: {error}.") from None
        return Meaning(Labelled([number for layer in layers for number in layer.passes], names.table))


@dataclass(frozen=True, slots=True)
class OfClass(Key):
    """The modules that are instances of a class."""

    cls: type

    def __str__(self) -> str:
        return f"the class {self.cls.__name__}"

    def modules(self, names: Names) -> list[ModuleCall]:
        fitting = names.addresses.of_class(self.cls)
        calls = [call for address in fitting for call in names.calls(address)]
        if calls:
            return calls
        if fitting:
            raise LayerNotFound(f"no {self.cls.__name__} was called: {few(map(repr, fitting), 5)} did not run.")
        known = list(dict.fromkeys(cls.__name__ for address, cls in names.addresses.classes.items() if names.calls(address)))
        said = f"the modules that ran are {few(known, 12)}" if known else "no module ran"
        raise LayerNotFound(f"no module is a {self.cls.__name__}: {said}.{names.hint(self.cls.__name__)}")

    def meaning(self, names: Names) -> Meaning:
        matches = of_calls(self.modules(names), names)
        if not matches:
            raise LayerNotFound(f"no tensor that was logged left a {self.cls.__name__}.")
        return Meaning(sorted(matches, key=lambda match: match.number))

    def in_model(self, addresses: Addresses) -> list[Reading]:
        return [Reading(address) for address in addresses.of_class(self.cls)]

    def add_to(self, candidates: Candidates) -> None:
        candidates.add_modules(lambda module: is_kind_of(module.cls, self.cls))


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
        return Meaning(Labelled(numbers, names.table))

    def add_to(self, candidates: Candidates) -> None:
        candidates.types.add(layer_type_of(self.function))


@dataclass(frozen=True, slots=True)
class Where(Key):
    """The operations for which a function returns true, possibly none."""

    predicate: Callable[[Any], Any]

    def __str__(self) -> str:
        return f"the function {getattr(self.predicate, '__name__', self.predicate)}"

    def meaning(self, names: Names) -> Meaning:
        return Meaning(Labelled([number for number, one in names.operations() if self.predicate(one)], names.table))

    def add_to(self, candidates: Candidates) -> None:
        candidates.predicates.append(self.predicate)

    def asking(self, answering: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Key:
        return Where(answering(self.predicate))


@dataclass(frozen=True, slots=True)
class Several(Key):
    """The union of the operations that several keys mean."""

    keys: tuple[Key, ...]

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.keys))}]"

    def meaning(self, names: Names) -> Meaning:
        return Meaning(once(match for key in self.keys for match in key.meaning(names).matches))

    def modules(self, names: Names) -> list[ModuleCall]:
        return list({id(call): call for key in self.keys for call in key.modules(names)}.values())

    def in_model(self, addresses: Addresses) -> list[Reading]:
        return [place for key in self.keys for place in key.in_model(addresses)]

    def add_to(self, candidates: Candidates) -> None:
        for key in self.keys:
            key.add_to(candidates)

    def asking(self, answering: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Key:
        return Several(tuple(key.asking(answering) for key in self.keys))


# `history[key]`: a text or a position means one layer or operation; any other key means a list of them.

_SHOWN = 12  # an error lists at most this many layers


@dataclass(frozen=True, slots=True)
class Found:
    """A layer, or one of its operations, as the result of a lookup."""

    layer: LayerEntry
    number: int | None = None  # the operation's number; None for the whole layer


class Lookup:
    """Finds what keys mean in one state of a history."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.names = Names(index)
        self._table = index.table

    def meaning(self, key: Any) -> Meaning:
        """The operations that a key means. `history[…]` uses `find_any` instead, which also accepts parts of names."""
        return parse_key(key).meaning(self.names)

    def find(self, key: Any) -> Found:
        """The one layer or operation that a key means. Raises `AmbiguousKey` if there are several."""
        parsed = _parsed(key)
        meaning = self._meaning(parsed)
        if meaning.is_plural and len(meaning.matches) != 1:
            raise AmbiguousKey(f"{parsed} means {len(meaning.matches)} operations here; one is wanted.")
        return self._one(parsed, meaning)

    def find_any(self, key: Any) -> Found | list[Found]:
        """The one layer or operation that a text or a position means; a list for every other kind of key."""
        parsed = _parsed(key)
        if isinstance(parsed, Several):
            return list(dict.fromkeys(found for one in parsed.keys for found in self._all(self._meaning(one))))
        meaning = self._meaning(parsed)
        return self._all(meaning) if meaning.is_plural else self._one(parsed, meaning)

    def _meaning(self, key: Key) -> Meaning:
        """The meaning of a key. A text may also be an unambiguous part of a name."""
        try:
            return key.meaning(self.names)
        except LayerNotFound:
            found = self._part(key.text) if isinstance(key, Text) and not key.is_known(self.names) else None
            if found is None:
                raise
            return found

    def _one(self, key: Key, meaning: Meaning) -> Found:
        numbers = meaning.numbers
        layers = list(self._table.by_layer(numbers))
        if isinstance(key, Text) and meaning.matches[0].call is not None:
            self._refuse_clash(key, layers)
        if len(numbers) == 1:
            return Found(layers[0], numbers[0])
        if len(layers) == 1 and len(layers[0].passes) == len(numbers):
            return Found(layers[0])
        raise AmbiguousKey(self._several(key, meaning))

    def _all(self, meaning: Meaning) -> list[Found]:
        """Return the layers of which all passes are meant; for other layers, the single operations that are meant."""
        found: list[Found] = []
        for layer, numbers in self._table.by_layer(meaning.numbers).items():
            is_whole = len(numbers) == len(layer.passes)
            found += [Found(layer)] if is_whole else [Found(layer, number) for number in numbers]
        return found

    def _refuse_clash(self, key: Text, layers: list[LayerEntry]) -> None:
        """Raise if a module's address is also the short label of another layer: the user may mean either."""
        short = key.short_label(self.names)
        other = self._table.layer_of(short[0]) if short else None
        if other is not None and layers != [other]:
            both = self._list([other, *layers])
            raise AmbiguousKey(
                f"{key} is a short label and a module address: {both}. "
                f"{self._table.label(other)!r} is the layer, {key.text + '[0]'!r} what the module returned."
            )

    def _several(self, key: Key, meaning: Meaning) -> str:
        matches = meaning.matches
        call = matches[0].call
        if call is not None and isinstance(key, Text):
            options = few((f"{match.name} ({self.index.label(match.number)})" for match in matches), _SHOWN)
            times = len(self.names.calls(call.address))
            return f"module {key} was called {times} times: say which, by {options}."
        layers = list(self._table.by_layer(meaning.numbers))
        end = end_of(key.text) if isinstance(key, Text) else None
        if end is not None:
            name = end[0]
            return f"there are {len(layers)} {name}s: {self._list(layers)}. Use one of these labels, or {name}1, {name}2, …"
        return f"{key} fits {len(layers)} layers: {self._list(layers)}. Use one of these labels."

    def _part(self, text: str) -> Meaning | None:
        """Find the layer whose label or module address contains a text. Returns None if none fits; raises if several do."""
        names = self.names
        fitting = [layer for layer in self._table.layers if text and text in self._table.label(layer)]
        if not fitting and text:
            calls = [call for address in names.addresses.classes if text in address for call in names.calls(address)]
            numbers = (number for call in calls for number in call.outputs[:1] if names.table.shows(number))
            fitting = list(self._table.by_layer(numbers))
        if len(fitting) > 1:
            if (several := Text(text).several_addresses(names)) and not any(
                text in self._table.label(layer) for layer in fitting
            ):
                raise AmbiguousKey(several)
            raise AmbiguousKey(f"{text!r} fits {len(fitting)} layers: {self._list(fitting)}. Use one of these labels.")
        return Position(fitting[0].number).meaning(names) if fitting else None

    def _list(self, layers: Sequence[LayerEntry]) -> str:
        return few(map(self._table.label, layers), _SHOWN)

    # The keys of a layer ------------------------------------------------------------------------------------------

    def keys_of(self, number: int) -> list[int | str]:
        """The keys that find this operation."""
        layer = self.index.layer(number)
        label = self._table.label(layer)
        found: list[int | str] = [f"{label}:{self._table.pass_number(number)}"]
        if len(layer.passes) == 1:
            found[:0] = [layer.number - len(self._table), layer.number, label]
        for call in self.index.exits.get(number, ()):
            names = (call.address, f"{call.address}:{call.call}") if call.outputs[0] == number and call.address else ()
            found += [name for name in names if name not in found and self._finds(name, [number])]
        return found

    def keys_of_layer(self, layer: LayerEntry) -> list[int | str]:
        """The keys that find this layer with all its passes."""
        if len(layer.passes) == 1:
            return self.keys_of(layer.passes[0])
        found: list[int | str] = [layer.number - len(self._table), layer.number, self._table.label(layer)]
        calls = (call for number in layer.passes for call in self.index.exits.get(number, ()))
        for address in dict.fromkeys(call.address for call in calls if call.address):
            if address not in found and self._finds(address, layer.passes):
                found.append(address)
        return found

    def _finds(self, name: str, numbers: Sequence[int]) -> bool:
        """True if a name means exactly these operations."""
        try:
            found = self._one(Text(name), Text(name).meaning(self.names))
        except LayerNotFound:
            return False
        return list(numbers) == ([found.number] if found.number is not None else list(found.layer.passes))


def _parsed(key: Any) -> Key:
    try:
        return parse_key(key)
    except InvalidArgument as error:
        raise LayerNotFound(f"a layer is looked up by a key: {error}") from None


# Implements `history.filter(…)`: finds the operations that fit a key, a type, a module and a function.

_LayerType = str | type | Callable[..., object]  # the name of a layer type, a module class, or a torch function
LayerTypes = _LayerType | Iterable[_LayerType]


def numbers_that_fit(lookup: Lookup, key: AnyKey | None, type_: LayerTypes | None, module: AnyKey | None) -> list[int]:
    """The numbers of the operations that fit every criterion that is not None, in execution order."""
    index, names = lookup.index, lookup.names
    numbers = sorted(lookup.meaning(key).numbers) if key is not None else index.operations
    if type_ is not None:
        of_type = _of_type(type_, lookup)
        numbers = [n for n in numbers if n in of_type]
    if module is not None:
        calls = parse_key(module).modules(names)
        inside = {n for call in calls for n in range(call.first, call.end if call.end >= 0 else index.length)}
        numbers = [n for n in numbers if n in inside]
    return numbers


def check_where(where: Any) -> None:
    """Raise if `where` is not a function of an operation."""
    if where is not None and (not callable(where) or isinstance(where, type) or is_torch_function(where)):
        raise InvalidArgument(
            "where is a function of an operation, such as lambda operation: operation.flops > 1e6; got "
            f"{type(where).__name__}: {where!r:.60}. Classes of modules go into module=, torch functions and types into type=."
        )


def _of_type(given: Any, lookup: Lookup) -> set[int]:
    """Find the operations of a layer type or torch function, or that modules of a class returned. A list: any of its items."""
    if isinstance(given, type):
        names = lookup.names
        calls = [call for address in names.addresses.of_class(given) for call in names.calls(address)]
        return _or_hint({match.number for match in of_calls(calls, names)}, given.__name__, names)
    if isinstance(given, str):
        return _of_name(given, lookup)
    if callable(given) and is_torch_function(given):
        return _of_name(layer_type_of(given), lookup)
    if isinstance(given, Iterable):
        return {number for one in given for number in _of_type(one, lookup)}
    raise InvalidArgument(
        f"type is a layer type such as 'relu', a torch function, a class of modules, or a list of these; got {given!r:.80}."
    )


def _of_name(name: str, lookup: Lookup) -> set[int]:
    kind = name.replace("_", "").lower()
    log = lookup.index.log
    functions = {place for place, function in enumerate(log.functions) if function.type == kind}
    if not functions and kind not in _types_of_torch():
        ran = list(dict.fromkeys(function.type for function in log.functions))
        near = difflib.get_close_matches(kind, ran, n=3) or difflib.get_close_matches(kind, _types_of_torch(), n=3)
        hint = f"The nearest are {', '.join(map(repr, near))}." if near else f"Those that ran are {few(ran, 12)}."
        raise LayerNotFound(f"no type of layers is called {name!r}. {hint}")
    return _or_hint({n for n in lookup.index.operations if log.rows[n][FUNCTION] in functions}, kind, lookup.names)


def _or_hint(numbers: set[int], what: str, names: Names) -> set[int]:
    """Returns `numbers`. If it is empty and a hint explains why, such as a fused call, raises an error with the hint."""
    if not numbers and (hint := names.hint(what)):
        raise LayerNotFound(f"no operation is a {what}.{hint}")
    return numbers


@cache
def _types_of_torch() -> frozenset[str]:
    """The layer types of torch's functions, and of inputs, outputs and sources."""
    spaces: list[Any] = [torch, torch.Tensor, torch.nn.functional, torch.special, torch.fft, torch.linalg, torch.nn]
    found = [name for space in spaces for name in dir(space)]
    found += [f"{space.__name__.rpartition('.')[2]}_{name}" for space in spaces for name in dir(space)]  # linalg_norm
    return frozenset(map(label_type, found)) | {origin.value for origin in Origin}
