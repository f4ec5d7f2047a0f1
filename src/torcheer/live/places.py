"""`Place`: where a value occurs in a run of a model. `locate` finds places by a history, `ModelPlaces` by a model alone.

A place is a tensor that a module call returned or received, or the result of one torch call inside it. A torch call is
identified by its call site, and by how many times the same module call reached this site before. Places are plain data, so
they hold for other runs of the same model. A `Spot` is a place that is watched; its `Act` reads or changes the values there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import count
from types import CodeType
from typing import Any, Literal

from torch import Tensor
from torch.nn import Module, ModuleDict, ModuleList, ParameterDict, ParameterList

from .._torch.addresses import addressed
from .._torch.containers import replace_tensors
from .._torch.functions.facts import Origin
from .._torch.left_as_found import PassStopped
from .._torch.source_code import CodeFacts, Site, SourceLine
from ..errors import InvalidArgument, LayerNotFound
from ..log.keys import ALL, Addresses, AnyKey, Meaning, Reading, parse_key
from ..log.records import ClassNames, Composite, Log, ModuleCall, OperationRecord
from ..log.run import LoggedRun


@dataclass(frozen=True, slots=True)
class Frame:
    """One function between a module's `forward` and a call, and the position of the call in it."""

    file: str
    function: str
    first_line: int
    instruction: int
    line: int = field(default=0, compare=False)

    @property
    def is_torch(self) -> bool:
        return SourceLine(self.file, self.line, self.function).is_torch


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a run of a model at which a value occurs.

    `part` is the number of the tensor among the tensors that a module returned or received, from 0; None means all of these.
    """

    kind: Literal["output", "input", "function"]
    module: str  # the address; "" is the model itself
    # number of the module's call, from 1, counted over all logged calls of the model; None: every call
    call: int | None = None
    part: int | None = 0
    function: str = ""
    composites: tuple[str, ...] = ()  # torch's Python functions around the call whose inner calls are watched, outermost first
    site: tuple[Frame, ...] = ()  # the frames of the call site, innermost first
    turn: int = 1  # 1 for the first time that this call of the module reached the site
    turns: int = 1  # how often the logged call of the module reached the site
    path: tuple[object, ...] = ()  # path to the tensor in the function's result
    writes: bool = False  # True if the function or module wrote its result into an argument
    label: str = ""  # label of the operation, in the history that the place is from

    @property
    def whose(self) -> str:
        """The text for the module: `'features.0'`, or the model."""
        return repr(self.module) if self.module else "the model"

    def __str__(self) -> str:
        whose = self.whose
        turn = f", call {self.call}" if self.call is not None else ""
        if self.kind == "function":
            frame = next((frame for frame in self.site if not frame.is_torch), None)
            where = f" at {frame.file}:{frame.line}" if frame is not None else ""
            what = f"{self.function}{'' if self.turn == 1 else f' (time {self.turn})'} in {whose}{turn}{where}"
        else:
            part = "every tensor" if self.part is None else "what" if self.part == 0 else f"tensor {self.part} of what"
            what = f"{part} {whose} {'returned' if self.kind == 'output' else 'was given'}{turn}"
        return f"{self.label}: {what}" if self.label else what


def locate(run: LoggedRun, key: AnyKey) -> list[Place]:
    """The places of the operations that a key means, as `tap` and `intervene` watch them."""
    return places_of(run, run.lookup.meaning(key))


def places_of(run: LoggedRun, meaning: Meaning) -> list[Place]:
    """The places of the operations that a key means."""
    log, found = run.log, []
    calls: _Calls | None = None
    for match in meaning.matches:
        number, call, label = match.number, match.call, run.index.table.label_of(match.number)
        if call is not None:
            found.append(_module_place(log, call, number, label, is_input=match.is_input))
            continue
        place, record = _end_place(log, log.operations[number], label)
        if place is None:
            calls = calls or _calls_by_site(log)
            place = _function_place(calls, record, label)
        found.append(place)
    return found


def _module_place(log: Log, call: ModuleCall, number: int, label: str, *, is_input: bool = False) -> Place:
    if is_input:
        return Place("input", call.address, call.call, call.inputs.index(number), label=label)
    writes, part = _is_written_there(log, call, number), call.outputs.index(number)
    return Place("output", call.address, call.call, part, writes=writes, label=label)


def _is_written_there(log: Log, call: ModuleCall, number: int) -> bool:
    """True if a value is a tensor that a module received and wrote to in place."""
    made = number
    while number >= call.first and (slot := log.operations[number].overwritten) is not None:
        number = log.operations[number].parents[slot]
    return number != made and number in call.inputs and number < call.first


def _end_place(log: Log, record: OperationRecord, label: str) -> tuple[Place | None, OperationRecord]:
    """Return the place of an input or output of the model, or of a value that a module returned; None for other operations.

    Also returns the operation that made the value. Hooks do not look into objects: an output of the model inside an object
    is watched at the operation that made it.
    """
    calls = outermost_calls(log)
    model = next((call for call in calls if record.number in call.inputs), None)
    if record.origin is Origin.INPUT and model is not None:
        return Place("input", "", _number(model, calls), model.inputs.index(record.number), label=label), record
    if record.origin is Origin.OUTPUT:
        made = record.parents[0]
        twins = [one.number for one in log.operations if one.origin is Origin.OUTPUT and one.parents[0] == made]
        parts = [(call, part) for call in calls for part, number in enumerate(call.outputs) if number == made]
        turn = twins.index(record.number)
        if turn < len(parts):
            model, part = parts[turn]
            return Place("output", "", _number(model, calls), part, label=label), record
        record = log.operations[made]
    call = _returning_call(log, record)
    return (_module_place(log, call, record.number, label) if call is not None else None), record


def outermost_calls(log: Log) -> list[ModuleCall]:
    """Return the calls of the model that are not inside another call of the model: `generate` makes one for each token."""
    return [call for call in log.modules if not call.address and not call.is_nested]


def _number(model: ModuleCall, calls: list[ModuleCall]) -> int | None:
    """The number of a call of the model. If the model was called once, None: every call is watched then."""
    return model.call if len(calls) > 1 else None


def _returning_call(log: Log, record: OperationRecord) -> ModuleCall | None:
    """Return the module call that an operation ran in, if a hook on that module sees the operation's value; else None.

    It does if the module returned the value, nothing inside the module used it, and the module's code cannot be watched, or is
    torch's own: torch's code runs the same operations in the next call.
    """
    call = record.module
    if call is None or call.outputs.count(record.number) != 1:
        return None
    cls = ClassNames.of(log.registered[call.address].cls).names[0]
    if record.origin is Origin.OPERATION and not cls.startswith("torch.nn."):
        return None
    inside = range(record.number + 1, call.end)
    return None if any(record.number in log.operations[number].dependencies for number in inside) else call


_Calls = dict[tuple[int, int, str], list[int]]


def _calls_by_site(log: Log) -> _Calls:
    """Maps (module call, site, function) to the calls made there, in order."""
    found: _Calls = {}
    for record in log.operations:
        if record.site is not None and record.module is not None:
            calls = found.setdefault((record.module.number, record.site.number, record.function.name), [])
            if not calls or calls[-1] != record.call:  # a call that returned several tensors is several operations
                calls.append(record.call)
    return found


def _function_place(by_site: _Calls, record: OperationRecord, label: str) -> Place:
    call, site, details = record.module, record.site, record.details
    if record.origin is not Origin.OPERATION or site is None:
        raise InvalidArgument(
            f"{label} cannot be watched while the model runs: no torch function that can be watched made it "
            f"({record.origin.value})."
        )
    if call is None:
        raise InvalidArgument(f"{label} cannot be watched while a model runs: it ran outside of all modules.")
    calls = by_site[call.number, site.number, record.function.name]
    return Place(
        "function",
        call.address,
        call.call,
        function=record.function.name,
        composites=tuple(_composites(details.composite)),
        site=frames_of(site),
        turn=calls.index(record.call) + 1,
        turns=len(calls),
        path=details.output_path,
        writes=record.overwritten is not None,
        label=label,
    )


def _composites(composite: Composite | None) -> Sequence[str]:
    names: list[str] = []
    while composite is not None:
        names.append(composite.name)
        composite = composite.outer
    return names[::-1]


def within_forward(frames: tuple[Frame, ...], forward: CodeType | None) -> tuple[Frame, ...]:
    """Remove the frames outside `forward` from a call site. Returns it unchanged if its two innermost are not in `forward`.

    The place in `forward` identifies such a call: a program may wrap the `forward` of one module in other functions.
    """
    for depth, frame in enumerate(frames[:2]):
        if forward is not None and (frame.file, frame.function, frame.first_line) == CodeFacts.of(forward):
            return frames[: depth + 1]
    return frames


def frames_of(site: Site) -> tuple[Frame, ...]:
    """The frames of a call site, as plain data."""
    offsets = list(map(site.table.offset, site.codes, site.instructions))
    rows = zip(site.functions, offsets, site.lines, strict=True)
    return tuple(Frame(*code, offset, line.line) for code, offset, line in rows)


# The places that keys mean in a model without a history: addresses, globs and classes of its modules.

_NEVER_CALLED = (ModuleList, ModuleDict, ParameterList, ParameterDict)


class ModelPlaces:
    """The modules of a model by address, and the places that keys mean in it."""

    def __init__(self, model: Module) -> None:
        self.modules: dict[str, Module] = {}
        known: dict[int, str] = {}
        others: dict[str, str] = {}

        def note(module: Module, other: str) -> None:
            if known.get(id(module), other) != other:
                others[other] = known[id(module)]

        for address, module in addressed(model, "", known, note):
            known[id(module)] = address if address is not None else ""
            if address is not None:
                self.modules[address] = module
        self.addresses = Addresses({address: type(module) for address, module in self.modules.items()}, others)

    def places(self, key: Any) -> list[Place]:
        """The places that a key means. Raises if only a history can resolve the key."""
        parsed = parse_key(key)
        found = [_place(way) for way in parsed.in_model(self.addresses)]
        if not found:
            near = get_close_matches(key, self.modules, n=3, cutoff=0.7) if isinstance(key, str) else []
            hint = f" The nearest are {', '.join(map(repr, near))}." if near else ""
            raise LayerNotFound(
                f"{parsed} names no module of this model.{hint} Labels, positions and functions mean something only in a log: "
                "make one, and pass it as like=history."
            )
        return found

    def knows(self, keys: list[Any]) -> bool:
        """True if all of `keys` can be resolved without a history."""
        try:
            for key in keys:
                self.places(key)
        except (InvalidArgument, LayerNotFound):
            return False
        return True


def _place(way: Reading) -> Place:
    part = None if way.part == ALL else way.part or 0
    return Place("input" if way.is_input else "output", way.name, way.turn, part)


# Defines watched places (`Spot`), and the action for their values (`Act`).


class Act(ABC):
    """Called with the values at places. A subclass reads or changes them."""

    changes = False  # True if the model continues with another value

    @abstractmethod
    def __call__(self, spot: Spot, tensor: Tensor) -> Tensor | None:
        """Called with a value. Returns the value that the model continues with; None to keep the value."""

    def begin(self) -> None:  # noqa: B027 - most acts have nothing to do here
        """Called when a call of the model begins."""

    def placed(self, spot: Spot, tensor: Tensor, part: int, is_other: Tensor | bool) -> None:  # noqa: B027 - for acts that change
        """Called when the model continues with `tensor`, number `part` of the tensors that a module returned or received.

        `is_other`: True if `tensor` differs from the value before; a tensor if a device has not finished comparing.
        """


@dataclass(eq=False, slots=True)
class Spot:
    """A place that is watched, the act for its values, and how often it was reached."""

    place: Place
    act: Act
    rank: float = 0  # number of places that the spot's key means; of two changes of one value, the lower rank is made
    module: Module | None = None
    reached: int = 0  # how often the place was reached over the whole block
    here: int = 0  # how often the place was reached in this call of the model
    made: int = 0  # how often the model continued with the result of the act, over the whole block
    changed: int | Tensor = 0  # how often this result differed from the value before
    is_alone: bool = False  # True if the place was last reached in a call of its module that the model did not make
    is_outranked: bool = False  # True if another key's change was made instead


def counting(spots: list[Spot]) -> list[Spot]:
    """Choose the spots that act on one value: all spots that read it, but only one spot that changes it."""
    changing = [spot for spot in spots if spot.act.changes]
    if len(changing) < 2:
        return spots
    chosen = min(reversed(changing), key=lambda spot: spot.rank)  # among equal ranks the last
    for spot in changing:
        spot.is_outranked = spot is not chosen
    return [spot for spot in spots if spot is chosen or not spot.act.changes]


class Stopped(PassStopped):
    """Ends a pass when every place was reached."""


def with_tensors(value: Any, new: dict[int, Tensor]) -> Any:
    """Replace tensors in `value`. `new` maps the number of a tensor, among the tensors of `value`, to its replacement."""
    if isinstance(value, Tensor):
        return new.get(0, value)
    numbers = count()
    return replace_tensors(value, lambda tensor: new.get(next(numbers), tensor))


# The number of attention heads of a module, read from its attributes or its configuration.

_QUERIES = ("num_heads", "n_head", "n_heads", "num_attention_heads", "nhead", "heads", "encoder_attention_heads")
# attributes with the number of heads of keys and values, if several heads of queries share one of these
_KEYS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")


def heads_of(module: Module | None) -> list[int]:
    """The number of attention heads of queries, then of keys and values if it differs; empty if unknown."""
    holders = (module, getattr(module, "config", None))
    found = [_first(holders, names) for names in (_QUERIES, _KEYS)]
    return [count for count in found if count is not None]


def _first(holders: tuple[Any, ...], names: tuple[str, ...]) -> int | None:
    for holder in holders:
        for name in names:
            count = getattr(holder, name, None)
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                return count
    return None
