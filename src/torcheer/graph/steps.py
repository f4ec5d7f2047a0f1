"""Which calls of a module are one step of the model, as passes are one layer. A rolled picture draws a step as one box.

All calls of a module with parameters are one step. A module without parameters is treated as a function, so its calls are one
step where the same layers ran in them: one pool for a whole U-Net is a step at every level.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from ..history.index import Index
from ..records import ModuleCall


@dataclass(slots=True)
class Step:
    """Calls of one module that are the same step."""

    name: str  # the address; with its first call where the module has several steps
    turns: dict[int, int] = field(default_factory=dict)  # by number of the module call: which time of the step it is, from 1


def steps_of_calls(index: Index) -> dict[int, Step]:
    """The step of every module call, by its number."""
    made = list(index.operations)
    found: dict[int, Step] = {}
    for address, calls in index.calls.items():
        groups: dict[object, list[ModuleCall]] = {}
        for call in calls:
            groups.setdefault(address in index.holders or _layers(index, made, call), []).append(call)
        for group in groups.values():
            step = Step(address if len(groups) == 1 else f"{address}:{group[0].call}")
            step.turns = {call.number: turn for turn, call in enumerate(group, 1)}
            found.update(dict.fromkeys(step.turns, step))
    return found


def _layers(index: Index, made: list[int], call: ModuleCall) -> object:
    """The layer of the first operation that ran in a call; where none ran, the layers of its inputs."""
    place = bisect_left(made, call.first)
    if place < len(made) and (call.end < 0 or made[place] < call.end):
        return index.layer(made[place]).number
    return tuple([index.layer(number).number for number in call.inputs if index.table.shows(number)])
