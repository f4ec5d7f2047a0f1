"""The measurements. Each runs in a process of its own (see `worker`) and returns what can be written as JSON."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any

import torch

from .memory import distinct_bytes, extra_peak, resident
from .models import build, tiny_loop
from .timing import Times, interleave, rounds_in
from .tools import TOOLS, NotInstalled, Ready

SECONDS = 12.0  # for the rounds of one measurement
_TINY = (4, 4)


def speed(case: str, tool_name: str) -> dict[str, Any]:
    """A tool against the plain forward pass: time, and peak memory of one pass with its result held."""
    model, x = build(case)
    tool = TOOLS[tool_name]

    def plain() -> Any:
        return model(x)

    rounds = rounds_in(SECONDS / 4, plain, most=50)
    plain_peak = extra_peak(plain)[0]
    before = interleave(rounds, plain)[0]
    try:
        ready = tool.prepare(model, x)
    except NotInstalled:
        return {"not_installed": True}
    peak = extra_peak(ready.once)[0]
    raw, used = (_in_turns if tool.leaves_torch_as_it_was else _apart)(plain, before, ready, tool.rounds)
    return {
        "operations": ready.operations,
        "raw": asdict(raw),
        "tool": asdict(used),
        "ratio": used.median / raw.median,
        "us_per_operation": (used.median - raw.median) * 1e3 / ready.operations if ready.operations else None,
        "plain_after": interleave(rounds, plain)[0].median / before.median,
        "raw_peak_bytes": plain_peak,
        "peak_bytes": peak,
    }


def _in_turns(plain: Callable[[], Any], before: Times, ready: Ready, rounds: int | None) -> tuple[Times, Times]:
    raw, used = interleave(rounds or rounds_in(SECONDS, plain, ready.once), plain, ready.once)
    return raw, used


def _apart(plain: Callable[[], Any], before: Times, ready: Ready, rounds: int | None) -> tuple[Times, Times]:
    """The plain passes are those from before the tool was first used: it has changed torch since."""

    def once() -> Any:
        gc.collect()  # what it made before is in cycles, and would pile up
        return ready.once()

    return before, interleave(rounds or rounds_in(SECONDS, once), once)[0]


def plain_after_use(case: str) -> dict[str, Any]:
    """The plain forward pass after 20 recordings, against before; and before against before, which shows the noise."""
    model, x = build(case)

    def plain() -> Any:
        return model(x)

    def plain_median() -> float:
        interleave(rounds // 10, plain)
        return interleave(rounds, plain)[0].median

    rounds = rounds_in(SECONDS / 6, plain, least=20, most=1000)
    earlier, before = plain_median(), plain_median()

    import torcheer  # only now: importing it is part of using it

    for _ in range(20):
        torcheer.log_forward_pass(model, x)
    after = plain_median()
    return {"before_ms": before, "after_ms": after, "ratio": after / before, "noise": before / earlier}


def tiny_operations(few: int, many: int) -> dict[str, Any]:
    """Time per operation in a short and in a long loop: whether anything grows faster than the number of operations."""
    import torcheer

    x = torch.zeros(_TINY)

    def recorded(operations: int) -> Callable[[], Any]:
        loop = tiny_loop(operations)

        def once() -> Any:
            history = torcheer.log_forward_pass(loop, x)
            return history, history["add_5_5"]

        return once

    short, long, plain = recorded(few), recorded(many), tiny_loop(few)
    interleave(5, short)
    samples = [(interleave(15, short)[0].median, interleave(1, long)[0].median) for _ in range(5)]
    few_us = median(s for s, _ in samples) * 1e3 / few
    many_us = median(s for _, s in samples) * 1e3 / many
    plain_us = interleave(50, lambda: plain(x))[0].median * 1e3 / few
    return {
        "few": few,
        "many": many,
        "plain_us": plain_us,
        "few_us": few_us,
        "many_us": many_us,
        "ratio": many_us / few_us,
    }


def held_memory(case: str, operations: int = 0) -> dict[str, Any]:
    """What a history with everything kept holds, before and after a lookup, next to the bytes of its activations.

    Several histories are held at once and the first is not counted: it may have filled gaps that were there before, and
    each further one has to be paid for in full.
    """
    import torcheer

    model, x = (tiny_loop(operations), torch.zeros(_TINY)) if case == "tiny_loop" else build(case)
    label = torcheer.log_forward_pass(model, x).layer_labels[1]
    histories = [torcheer.log_forward_pass(model, x)]
    activations = distinct_bytes(one.tensor_contents for one in histories[0].saved)
    count = histories[0].num_operations
    further = max(3, min(20, int(1e9 / (activations + 1500 * count))))
    start = resident()
    histories += [torcheer.log_forward_pass(model, x) for _ in range(further)]
    logged = resident()
    for history in histories[1:]:
        history[label].label  # noqa: B018 - builds the tables for lookup
    looked_up = resident()
    return {
        "operations": count,
        "activation_bytes": activations,
        "histories": further,
        "logged_bytes": (logged - start) / further,
        "looked_up_bytes": (looked_up - start) / further,
    }


def graph_only_peak(operations: int) -> dict[str, Any]:
    """The most memory held while a loop is logged without activations, and then looked into; per operation."""
    import torcheer

    x = torch.zeros(_TINY)

    def record(count: int) -> Any:
        return torcheer.log_forward_pass(tiny_loop(count), x, layers_to_save="none")

    warm = record(1000)
    label = warm.layer_labels[1]
    warm[label]
    del warm
    peak, history = extra_peak(lambda: record(operations))
    lookup_peak, _ = extra_peak(lambda: history[label])
    held = resident()
    del history, _
    freed = held - resident()
    tracemalloc.start()
    history = record(operations)
    python_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "operations": operations,
        "peak_per_operation": _per(peak, operations),
        "lookup_peak_per_operation": _per(lookup_peak, operations),
        "freed_per_operation": _per(freed, operations),
        "python_peak_per_operation": _per(python_peak, operations),
    }


def _per(value: int | None, count: int) -> float | None:
    return None if value is None else value / count


MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function for function in (speed, plain_after_use, tiny_operations, held_memory, graph_only_peak)
}
