"""Which operations descend from inputs, which are ancestors of outputs, and which are neither (orphans).

A pass that was given no tensor and returned none (a pipeline: text in, pictures out) has no orphans: what ran is the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from ...records import FUNCTION, MODULE, PARENTS, Log, ModuleCall, Origin


def connected_operations(log: Log) -> bytearray | None:
    """Which operations are connected to an input or an output: those that depend on an input, outputs, and all that these used.

    None when all operations are.
    """
    found = input_descendants(log)
    if not _functions_of(log, Origin.INPUT, Origin.OUTPUT):
        _add(log, range(len(log.rows)), found)
    elif log.is_recording:
        _add_what_a_recording_shows(log, found)
    outputs = _functions_of(log, Origin.OUTPUT)
    for number in range(len(found) - 1, -1, -1):
        if log.rows[number][FUNCTION] not in outputs:
            break  # outputs come last
        found[number] = True
    unknown = {number for number, is_found in enumerate(found) if not is_found}
    also = {number: details.also for number, details in log.details.items() if details.also}
    for number in range(len(found) - 1, -1, -1):
        if not unknown:
            return None
        if not found[number]:
            continue
        used = log.rows[number][PARENTS:]
        if number in also:
            used += also[number]
        if not unknown.isdisjoint(used):
            for parent in unknown.intersection(used):
                found[parent] = True
                unknown.discard(parent)
    return found if unknown else None


def _add_what_a_recording_shows(log: Log, found: bytearray) -> None:
    """Add the operations outside of all modules (the recorded code itself), and the outputs of the models it called.

    Of a model that was given no tensor and returned none, add all that ran.
    """
    _add(log, (number for number, row in enumerate(log.rows) if row[MODULE] < 0), found)
    for call in log.modules:
        if call.outer is None:
            for number in call.outputs:
                if number >= 0:
                    found[number] = True
            if not call.inputs and not call.outputs:
                _add(log, range(call.first, call.end), found)


def _add(log: Log, numbers: Iterable[int], found: bytearray) -> None:
    """Add operations, but for new tensors without elements that nothing used."""
    for number in numbers:
        if number not in log.hollow:
            found[number] = True


def input_descendants(log: Log) -> bytearray:
    """Which operations are inputs or depend on one."""
    inputs = _functions_of(log, Origin.INPUT)
    found = bytearray(len(log.rows))
    for number, row in enumerate(log.rows):
        if row[FUNCTION] in inputs:
            found[number] = True
            continue
        if len(row) > PARENTS and row[PARENTS] >= 0 and found[row[PARENTS]]:  # most often the first one does
            found[number] = True
            continue
        for parent in row[PARENTS + 1 :]:
            if parent >= 0 and found[parent]:
                found[number] = True
                break
        else:
            if number in log.details:
                found[number] = any(found[parent] for parent in log.details[number].also)
    return found


def output_ancestors(log: Log) -> bytearray:
    """Which operations are outputs or have one depend on them."""
    outputs = _functions_of(log, Origin.OUTPUT)
    found = bytearray(row[FUNCTION] in outputs for row in log.rows)
    for number in range(len(found) - 1, -1, -1):
        if found[number]:
            for parent in log.rows[number][PARENTS:]:
                if parent >= 0:
                    found[parent] = True
            if number in log.details:
                for parent in log.details[number].also:
                    found[parent] = True
    return found


def _functions_of(log: Log, *origins: Origin) -> set[int]:
    """The numbers of the functions that stand for these origins."""
    return {number for number, function in enumerate(log.functions) if function.origin in origins}


class CallCounts:
    """How many calls of torch functions ran inside a module call.

    A call that made several tensors counts once. Inputs, sources and operations that are not shown do not count.
    """

    def __init__(self, log: Log, connected: bytearray | None) -> None:
        made = _functions_of(log, Origin.OPERATION, Origin.OPAQUE)
        uncounted = {number for number, row in enumerate(log.rows) if row[FUNCTION] not in made}
        uncounted.update(number for number, details in log.details.items() if 0 <= details.call < number)
        if connected is not None:
            uncounted.update(number for number, is_connected in enumerate(connected) if not is_connected)
        self._log = log
        self._outputs: dict[int, frozenset[int]] = {}
        self._uncounted = sorted(uncounted)

    def inside(self, call: ModuleCall) -> int:
        """How many calls ran inside `call`."""
        end = call.end if call.end >= 0 else len(self._log.rows)
        left_out = bisect_left(self._uncounted, end) - bisect_left(self._uncounted, call.first)
        return max(0, end - call.first - left_out)

    def is_alone(self, number: int, call: ModuleCall) -> bool:
        """Whether an operation is the only one that ran inside a module call, and was returned by it."""
        if not call.first <= number < call.end or self.inside(call) != 1:
            return False
        outputs = self._outputs.get(call.number)
        if outputs is None:
            outputs = self._outputs[call.number] = frozenset(call.outputs)
        return number in outputs
