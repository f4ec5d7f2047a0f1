"""The module calls that only one of two histories has: a block that was deleted, skipped, inserted or duplicated."""

from __future__ import annotations

from dataclasses import dataclass

from ..history import Operation
from ..records import ModuleCall
from .alignment import Alignment
from .sides import Side


@dataclass(frozen=True, slots=True)
class LoneModules:
    """Neighbouring module calls that only one side runs, with all of their operations."""

    names: tuple[str, ...]  # addresses, with the number of the call where it is not the first: `blocks.3:2`
    addresses: tuple[str, ...]
    operations: tuple[Operation, ...]
    elsewhere: Operation | None = None  # the first operation of the first call on the other side, if it runs at another place


class LoneCalls:
    """The outermost module calls without a matched operation. Constants that a call makes do not count."""

    def __init__(self, alignment: Alignment) -> None:
        self._sides = alignment.a, alignment.b
        self._calls = _lone(alignment.a, alignment.of_a), _lone(alignment.b, alignment.of_b)

    def around(self, operations: tuple[Operation, ...], *, of_a: bool) -> LoneModules | None:
        """The lone calls that operations of one side ran in; None where the first of these ran in no lone call."""
        place = 0 if of_a else 1
        side, (calls, members) = self._sides[place], self._calls[place]
        varying = [one._number for one in operations if one._number in side.varying]
        if not varying or varying[0] not in calls:
            return None
        found = list({calls[number].number: calls[number] for number in varying if number in calls}.values())
        inside = tuple(side.operation(number) for call in found for number in members[call.number])
        return LoneModules(
            tuple(_name(call) for call in found),
            tuple(call.address for call in found),
            inside,
            self._elsewhere(found[0], place),
        )

    def _elsewhere(self, call: ModuleCall, place: int) -> Operation | None:
        """The first operation of the same call on the other side, where it is a lone call too."""
        side, other = self._sides[place], self._sides[1 - place]
        calls, members = self._calls[1 - place]
        for twin in {one.number: one for one in calls.values()}.values():
            if side.rename(call.address) == other.rename(twin.address) and call.call == twin.call:
                return other.operation(members[twin.number][0])
        return None


def _name(call: ModuleCall) -> str:
    return call.address if call.call == 1 else f"{call.address}:{call.call}"


def _lone(side: Side, matched: dict[int, int]) -> tuple[dict[int, ModuleCall], dict[int, list[int]]]:
    """By operation: the outermost call around it that has no operation with a match; and by call: its operations."""
    shared = {
        call
        for step in side.steps
        if step.number in matched and step.number in side.varying
        for call in side.stack(step.number)
    }
    calls: dict[int, ModuleCall] = {}
    members: dict[int, list[int]] = {}
    for step in side.steps:
        around = side.log.operations[step.number].module
        if around is None or around.number in shared:
            continue
        call = next((one for one in around.stack() if one.address and one.number not in shared), None)
        if call is not None:
            calls[step.number] = call
            members.setdefault(call.number, []).append(step.number)
    return calls, members
