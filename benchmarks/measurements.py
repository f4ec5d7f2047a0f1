"""The measurements. Each runs in a process of its own (see `worker`) and returns what can be written as JSON."""

from __future__ import annotations

import gc
import tempfile
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch

from .extraction import extraction_forward, extraction_of_torchlens, extraction_whole
from .lockstep import Bystander, serve_plain_passes
from .memory import distinct_bytes, extra_peak, resident
from .models import build, tiny_loop
from .saving import saved_loop, saving, torchlens_saving
from .taps import taps, taps_of_nnsight
from .timing import Times, interleave, rounds_in
from .tools import TOOLS, NotInstalled, Ready
from .xray_run import measure_long_run

SECONDS = 12.0  # for the rounds of one measurement
_TINY = (4, 4)


def speed(case: str, tool_name: str) -> dict[str, Any]:
    """A tool against the plain forward pass: time, and peak memory of one pass with its result held."""
    model, x = build(case)
    tool = TOOLS[tool_name]

    def plain() -> Any:
        return model(x)

    interleave(5, plain)
    raw_peak = extra_peak(plain)[0]
    compare = _in_turns if tool.leaves_torch_as_it_was else _apart
    try:
        return {"raw_peak_bytes": raw_peak, **compare(plain, lambda: tool.prepare(model, x))}
    except NotInstalled:
        return {"not_installed": True}


def _in_turns(plain: Callable[[], Any], prepare: Callable[[], Ready]) -> dict[str, Any]:
    """A plain pass, another one, and the tool, in turns.

    The first finds memory and caches as the tool left them, the second as a plain pass does; that one is reported as warm.
    """
    ready = prepare()
    peak = extra_peak(ready.once)[0]
    turn = (plain, plain, ready.once)
    raw, warm, used = interleave(rounds_in(SECONDS, *turn), *turn)
    return {**_compared(raw, used, ready), "warm_ratio": used.median / warm.median, "peak_bytes": peak}


def _apart(plain: Callable[[], Any], prepare: Callable[[], Ready]) -> dict[str, Any]:
    """All plain passes first, then a few with the tool: it changes torch for good."""
    raw = interleave(rounds_in(SECONDS / 4, plain), plain)[0]
    ready = prepare()
    peak = extra_peak(ready.once)[0]

    def once() -> Any:
        gc.collect()  # what the tool made before is in cycles, and would pile up
        return ready.once()

    used = interleave(3, once)[0]
    return {**_compared(raw, used, ready), "peak_bytes": peak}


def _compared(raw: Times, used: Times, ready: Ready) -> dict[str, Any]:
    added = (used.median - raw.median) * 1e3
    return {
        "operations": ready.operations,
        "raw": asdict(raw),
        "tool": asdict(used),
        "ratio": used.median / raw.median,
        "us_per_operation": added / ready.operations if ready.operations else None,
    }


def plain_after_use(case: str, tool_name: str) -> dict[str, Any]:
    """The plain forward pass after a tool was used, against before; and before against before, which shows the noise."""
    model, x = build(case)
    tool = TOOLS[tool_name]
    with Bystander(case) as bystander:
        earlier, before = bystander.compare(model, x), bystander.compare(model, x)
        try:
            once = tool.prepare(model, x).once  # imports the tool only now: that is part of using it
        except NotInstalled:
            return {"not_installed": True}
        for _ in range(tool.uses):
            once()
        after = bystander.compare(model, x)
    return {"ratio": after / before, "noise": before / earlier}


def tiny_operations(few: int, many: int) -> dict[str, Any]:
    """Time per operation in a short and in a long loop: whether anything grows faster than the number of operations."""
    import torcheer

    x = torch.zeros(_TINY)

    def recorded(operations: int) -> Callable[[], Any]:
        loop = tiny_loop(operations)

        def once() -> Any:
            history = torcheer.log_forward_pass(loop, x)
            return history, history["add_1_1"]

        return once

    def per_operation(rounds: int) -> tuple[float, float]:
        samples = [(interleave(15, short)[0].median, interleave(1, long)[0].median) for _ in range(rounds)]
        return median(s for s, _ in samples) * 1e3 / few, median(s for _, s in samples) * 1e3 / many

    short, long, plain = recorded(few), recorded(many), tiny_loop(few)
    interleave(5, short)
    plain_us = interleave(50, lambda: plain(x))[0].median * 1e3 / few
    few_us, many_us = per_operation(5)
    gc.disable()  # tells what Python's cycle collector costs, which looks at more objects the more there are
    few_alone, many_alone = per_operation(3)
    return {
        "few": few,
        "many": many,
        "plain_us": plain_us,
        "few_us": few_us,
        "many_us": many_us,
        "ratio": many_us / few_us,
        "few_without_gc_us": few_alone,
        "many_without_gc_us": many_alone,
    }


def training(case: str) -> dict[str, Any]:
    """A recorded training step, forward and backward with everything kept, against the plain step."""
    import torcheer

    return _step_inside(case, lambda model: torcheer.recording(model, save_gradients=True))


def layers_only(case: str) -> dict[str, Any]:
    """A training step of which torch_vis follows the layers and nothing else, against the plain step."""
    import torch_vis

    return _step_inside(case, lambda model: torch_vis.ComputationalGraphTracker(model, track_tensor_ops=False))


def _step_inside(case: str, watching: Callable[[torch.nn.Module], AbstractContextManager[Any]]) -> dict[str, Any]:
    """A training step, forward and backward, inside of something and plain, in turns."""
    model, x = build(case)
    model.train()

    def step() -> None:
        output = model(x)
        (output if isinstance(output, torch.Tensor) else output[0]).square().mean().backward()

    def plain() -> Any:
        model.zero_grad()
        step()

    def watched() -> Any:
        model.zero_grad()
        with watching(model) as seen:
            step()
        return seen

    with torch.enable_grad():
        raw, used = interleave(rounds_in(SECONDS, plain, watched), plain, watched)
    return {"raw": asdict(raw), "tool": asdict(used), "ratio": used.median / raw.median}


def xray(case: str) -> dict[str, Any]:
    """A snapshot of every layer an Xray watches by default, against a plain pass of its input; writing is timed apart."""
    import torcheer

    model, x = build(case)

    def plain() -> Any:
        return model(x)

    with tempfile.TemporaryDirectory() as folder, torcheer.Xray(model, x, folder=folder) as watching:
        watching.take_graphs()
        taken: list[list[float]] = [[], [], []]
        for _ in range(rounds_in(SECONDS, plain, plain)):
            watching.flush()
            marks = [perf_counter()]
            for function in (plain, watching.take_graphs, watching.flush):
                function()
                marks.append(perf_counter())
            for times, (start, end) in zip(taken, pairwise(marks), strict=True):
                times.append((end - start) * 1e3)
        layers = len(watching.layers)
    raw, taking, writing = map(median, taken)
    return {"raw_ms": raw, "taking_ms": taking, "writing_ms": writing, "layers": layers, "ratio": taking / raw}


def xray_training(case: str, every: int) -> dict[str, Any]:
    """Training steps with a snapshot after every so many of them, against plain ones."""
    import torcheer

    model, x = build(case)
    model.train()

    def steps(watching: Any = None) -> None:
        for _ in range(every):
            model.zero_grad()
            output = model(x)
            (output if isinstance(output, torch.Tensor) else output[0]).square().mean().backward()
        if watching is not None:
            watching.take_graphs()

    with tempfile.TemporaryDirectory() as folder, torcheer.Xray(model, x, folder=folder) as watching, torch.enable_grad():
        functions = (steps, partial(steps, watching))
        raw, used = interleave(rounds_in(SECONDS, *functions, least=4), *functions)
    return {"raw": asdict(raw), "tool": asdict(used), "every": every, "ratio": used.median / raw.median}


def grouping(few: int, many: int) -> dict[str, Any]:
    """Seconds to find out which operations are the same layer, and to label them, in a loop of so many."""
    import torcheer

    def seconds(operations: int, rounds: int) -> float:
        taken = []
        for _ in range(rounds):
            history = torcheer.log_forward_pass(tiny_loop(operations), torch.zeros(_TINY), layers_to_save="none")
            start = perf_counter()
            assert len(history.layer_labels) == 3
            taken.append(perf_counter() - start)
        return median(taken)

    return {"few": few, "few_seconds": seconds(few, 3), "many": many, "many_seconds": seconds(many, 1)}


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
        _looked_up(history, label)
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
    del warm
    peak, history = extra_peak(lambda: record(operations))
    del history
    looked_up_peak, history = extra_peak(lambda: _looked_up(record(operations), label))
    del history
    tracemalloc.start()
    record(operations)
    python_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "operations": operations,
        "peak_per_operation": _per(peak, operations),
        "looked_up_peak_per_operation": _per(looked_up_peak, operations),
        "python_peak_per_operation": _per(python_peak, operations),
    }


def _looked_up(history: Any, label: str) -> Any:
    return history, history[label]


def _per(value: int | None, count: int) -> float | None:
    return None if value is None else value / count


def xray_long_run(snapshots: int) -> dict[str, Any]:
    """A training with so many snapshots, at its beginning and at its end."""
    return measure_long_run(snapshots)


_STEPS = (training, layers_only, xray, xray_training, xray_long_run, taps, taps_of_nnsight)
_FILES = (saving, saved_loop, torchlens_saving, extraction_forward, extraction_whole, extraction_of_torchlens)
_ALL = (speed, plain_after_use, serve_plain_passes, tiny_operations, *_STEPS, grouping, held_memory, graph_only_peak, *_FILES)
MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {function.__name__: function for function in _ALL}
