"""Where a value is in a run of a model: plain data, read off a history, that holds for other runs of the same model.

A place is what a module call returned, what it was given, or what one call of a torch function inside it returned. A function
call is known by its call site, and by how often that site was reached before in the same call of the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Literal

from ..errors import InvalidArgument
from ..history import History
from ..keys import AnyKey, Meaning
from ..records import ClassNames, Composite, Log, ModuleCall, OperationRecord, Origin
from ..source_places import CodeFacts, Site, SourceLine


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
    """Where a value is.

    `part` is the number of the tensor among those that a module returned or was given, from 0; None means all of them.
    """

    kind: Literal["output", "input", "function"]
    module: str  # the address; "" is the model itself
    call: int | None = None  # which call of the module, from 1, in as many calls of the model as were logged; None: every one
    part: int | None = 0
    function: str = ""
    composites: tuple[str, ...] = ()  # Python functions of torch around the call that are opened, outermost first
    site: tuple[Frame, ...] = ()  # innermost first
    turn: int = 1  # which time the site was reached in this call of the module
    turns: int = 1  # how often it was reached in this call when it was logged
    path: tuple[object, ...] = ()  # to the tensor in what the function returned
    writes: bool = False  # the function or module wrote its result to what it was given
    label: str = ""  # of the operation, in the history that the place is from

    @property
    def whose(self) -> str:
        """The module, in words."""
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


def locate(history: History, key: AnyKey) -> list[Place]:
    """Where the operations that a key means are: what `tap` and `intervene` watch."""
    return places_of(history, history._lookup.meaning(key))


def places_of(history: History, meaning: Meaning) -> list[Place]:
    """The places of the operations that a key means."""
    log, found = history._log, []
    calls: _Calls | None = None
    for match in meaning.matches:
        number, call, label = match.number, match.call, history._index.table.label_of(match.number)
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
    """Whether a value is a tensor that a module was given and wrote to in place."""
    made = number
    while number >= call.first and (slot := log.operations[number].overwritten) is not None:
        number = log.operations[number].parents[slot]
    return number != made and number in call.inputs and number < call.first


def _end_place(log: Log, record: OperationRecord, label: str) -> tuple[Place | None, OperationRecord]:
    """The place of an input or output of the model, or of what a module returned; None for other operations.

    Also returns the operation that made the value. For an output of the model inside an object, which hooks do not look into,
    that is the operation behind it: the output is watched where it was made.
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
    """The calls of the model itself that no other call of the model made: `generate` makes one for each token."""
    return [call for call in log.modules if not call.address and not _is_inside_model(call)]


def _is_inside_model(call: ModuleCall) -> bool:
    outer = call.outer
    while outer is not None and outer.address:
        outer = outer.outer
    return outer is not None


def _number(model: ModuleCall, calls: list[ModuleCall]) -> int | None:
    """The number of a call of the model, where there are several; a model that is called once is watched at every call."""
    return model.call if len(calls) > 1 else None


def _returning_call(log: Log, record: OperationRecord) -> ModuleCall | None:
    """The module call that an operation ran in, if a hook on that module is enough to see the operation.

    It is enough where the module returned the value and nothing inside used it, and the module's code is torch's own, which
    runs the same operations in the next call; or is code that cannot be watched.
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
    """By module call, site and function: the calls that were made, in order."""
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
    """A call site without the frames outside of `forward`, where the call is in `forward` or in a function that it calls.

    A log knows such calls by their place in `forward` alone; a program may wrap the `forward` of one module in other functions.
    """
    for depth, frame in enumerate(frames[:2]):
        if forward is not None and (frame.file, frame.function, frame.first_line) == CodeFacts.of(forward):
            return frames[: depth + 1]
    return frames


def frames_of(site: Site) -> tuple[Frame, ...]:
    """The frames of a call site, as plain data."""
    offsets = [site.table.offset(instruction) for instruction in site.instructions]
    rows = zip(site.functions, offsets, site.lines, strict=True)
    return tuple(Frame(*code, offset, line.line) for code, offset, line in rows)
