"""Logs and validates operators of torch's database, and survives those that end the process.

Operators run in a forked process, many after one another. When it dies, the one it was at is to blame, and another process
goes on with the rest.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

import torcheer
from operator_database import name_of
from torch_version import TORCH

SECONDS = 120  # for one operator
MORE_DTYPES = (torch.int64, torch.uint8, torch.bool)


@dataclass
class Result:
    """What became of the calls of one operator with one dtype."""

    name: str
    calls: int = 0
    valid: int = 0
    refused: int = 0  # torch itself raises
    wrong: int = 0
    died: int = 0
    tried: int = 0  # edges
    structure: int = 0  # edges left alone because they are structure
    notes: list[str] = field(default_factory=list)


Case = tuple[Any, torch.dtype]


def cases(operators: Sequence[Any], device: str = "cpu") -> list[Case]:
    """Every operator with its most ordinary dtype, and with integers and truth values where it takes them."""
    found: list[Case] = []
    for operator in operators:
        supported = operator.supported_dtypes(device)
        ordinary = next((d for d in (torch.float32, torch.complex64, torch.int64, torch.bool) if d in supported), None)
        if operator.name == "mvlgamma" and (2, 6) < TORCH < (2, 10):
            supported = supported & {torch.float32}  # integers end the process, without torcheer
        chosen = dict.fromkeys(([ordinary] if ordinary is not None else []) + [d for d in MORE_DTYPES if d in supported])
        found += [(operator, dtype) for dtype in chosen]
    return found


def case_name(case: Case) -> str:
    return f"{name_of(case[0])} {str(case[1]).removeprefix('torch.')}"


def check(case: Case, count: int, device: str = "cpu") -> Result:
    """Log and validate an operator on its first few samples, and in place where it has such a form."""
    operator, dtype = case
    result = Result(case_name(case))
    torch.default_generator.manual_seed(0)
    try:
        found = operator.sample_inputs_func(operator, device, dtype, False)
        samples = [sample for sample, _ in zip(found, range(count), strict=False)]
    except Exception as error:  # the database has none for this device
        result.notes.append(f"no samples: {type(error).__name__}")
        return result
    for sample in samples:
        _check_call(result, operator.op, (sample.input, *sample.args), sample.kwargs)
    if operator.inplace_variant is not None and samples:
        sample = samples[0]

        def in_place(first: Any, *args: Any, **kwargs: Any) -> Any:
            return operator.inplace_variant(first.clone(), *args, **kwargs)

        if isinstance(sample.input, Tensor):
            _check_call(result, in_place, (sample.input, *sample.args), sample.kwargs)
    return result


def _check_call(result: Result, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def call(*given: Any, **named: Any) -> Any:
        return func(*given, **named)

    result.calls += 1
    try:
        torch.default_generator.manual_seed(0)
        call(*args, **kwargs)
    except Exception:  # whatever torch raises
        result.refused += 1
        return
    try:
        report = torcheer.validate_forward_pass(call, args, kwargs)
    except Exception as error:
        result.wrong += 1
        result.notes.append(f"{type(error).__name__}: {error}"[:300])
        return
    for one in report.checks:
        if "changing" in one.name:
            result.tried += one.count
            result.structure += sum(times for why, times in one.exempt.items() if why.startswith("structure"))
    if report:
        result.valid += 1
    else:
        result.wrong += 1
        result.notes.append(str(report.first_disagreement)[:300])


def sweep(todo: Sequence[Case], count: int, device: str = "cpu") -> Iterator[Result]:
    """The results of all cases, in order; each runs where its death harms nobody."""
    done = 0
    while done < len(todo):
        for result in _in_a_process(todo[done:], count, device):
            done += 1
            yield result


def _in_a_process(todo: Sequence[Case], count: int, device: str) -> Iterator[Result]:
    """Results from one forked process, until it is through or dies; a death is the last result."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _work(todo, count, device, writing)
    os.close(writing)
    finished = 0
    try:
        with os.fdopen(reading, "rb") as lines:
            while finished < len(todo):
                ready, _, _ = select.select([lines], [], [], SECONDS)
                line = lines.readline() if ready else b""
                if not line:
                    break
                finished += 1
                yield Result(**json.loads(line))
    finally:
        if finished < len(todo):
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if finished < len(todo):
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        yield Result(case_name(todo[finished]), calls=1, died=1, notes=[how])


def _work(todo: Sequence[Case], count: int, device: str, writing: int) -> None:
    """What the forked process does; it never returns."""
    code = 1
    try:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 2)  # what a native abort says
        faulthandler.disable()
        for case in todo:
            text = json.dumps(asdict(check(case, count, device)))
            os.write(writing, text.encode() + b"\n")
        code = 0
    finally:
        os._exit(code)


def summary(results: Sequence[Result], started: float) -> str:
    """The table of docs/validation.md."""
    total = Result("all")
    for one in results:
        for name in ("calls", "valid", "refused", "wrong", "died", "tried", "structure"):
            setattr(total, name, getattr(total, name) + getattr(one, name))
    names = {one.name.rpartition(" ")[0] for one in results}
    return (
        f"{len(names)} operators  {total.calls} calls: {total.valid} valid  {total.refused} refused by torch  "
        f"{total.wrong} wrong  {total.died} died   {total.tried} edges tried  {total.structure} left alone (structure)   "
        f"{time.perf_counter() - started:.0f} s"
    )
