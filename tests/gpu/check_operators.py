"""Logs and validates every operator of torch's own database on CUDA, and reports whatever ends a process or a CUDA context.

A plain script, since the GPU machines have torch and nothing else:  PYTHONPATH=src:tests python tests/gpu/check_operators.py
[--device cpu] [--samples 2] [--workers 8] [--only PART]. Operators run in worker processes, each of which begins anew after one
that died, or that left behind a CUDA context in which nothing works any more (a device-side assert). A line for each such
operator and each log that is not valid, and a last line of counts; exits with 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from queue import Queue
from typing import Any

import torch

from operator_database import operators
from operators.sweep import Case, Result, case_name, cases, check, summary

BATCH = 60  # cases of a worker process
SECONDS = 240  # without a word from a worker
BROKEN = ("device-side assert", "CUDA error", "illegal memory access", "misaligned address")


def chosen(only: str, device: str) -> list[Case]:
    return [case for case in cases(operators(), device) if only in case_name(case)]


# In a worker ------------------------------------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> int:
    """Check the cases from `first` on, a line of JSON for each. Stops when the CUDA context is broken."""
    warnings.simplefilter("ignore")
    todo = chosen(options.only, options.device)[options.first : options.end]
    for case in todo:
        print(json.dumps({"begin": case_name(case)}), flush=True)
        result = _checked(case, options)
        print(json.dumps(asdict(result)), flush=True)
        if result.died:
            return 3
    return 0


def _checked(case: Case, options: argparse.Namespace) -> Result:
    result = Result(case_name(case), calls=1)
    try:
        result = check(case, options.samples, options.device)
        if options.device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        result.notes.append(f"{type(error).__name__}: {error}"[:300])
    if any(word in note for note in result.notes for word in BROKEN):
        result.died, result.wrong = 1, 0
    return result


# The workers' master ----------------------------------------------------------------------------------------------------


def run_batch(names: list[str], first: int, end: int, options: argparse.Namespace, told: Queue[Result]) -> None:
    """Check the cases of a batch, in as many processes as it takes."""
    while first < end:
        command = [sys.executable, __file__, "--worker", "--first", str(first), "--end", str(end)]
        command += ["--device", options.device, "--samples", str(options.samples), "--only", options.only]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
            watchdog = _Watchdog(worker)
            is_begun = False
            assert worker.stdout is not None
            for line in worker.stdout:
                watchdog.reset()
                said = _read(line)
                if said is None:
                    continue
                is_begun = "begin" in said
                if not is_begun:
                    told.put(Result(**said))
                    first += 1
            watchdog.stop()
            trouble = (worker.stderr.read() if worker.stderr is not None else "")[-300:]
        if first >= end or worker.returncode == 3:
            continue
        if is_begun:
            told.put(Result(names[first], calls=1, died=1, notes=[f"exit {worker.returncode}: {trouble}"]))
            first += 1
        elif worker.returncode != 0:
            told.put(Result(names[first], calls=0, died=1, notes=[f"the worker did not start: {trouble}"]))
            return


def _read(line: str) -> dict[str, Any] | None:
    try:
        said: dict[str, Any] = json.loads(line)
        return said
    except json.JSONDecodeError:  # something that torch printed
        return None


class _Watchdog:
    """Kills a worker from which nothing is heard."""

    def __init__(self, worker: subprocess.Popen[str]) -> None:
        self._worker = worker
        self._timer = threading.Timer(SECONDS, worker.kill)
        self._timer.start()

    def reset(self) -> None:
        self._timer.cancel()
        self._timer = threading.Timer(SECONDS, self._worker.kill)
        self._timer.start()

    def stop(self) -> None:
        self._timer.cancel()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help="be one of the worker processes")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--end", type=int, default=0)
    options = parser.parse_args()
    if options.worker:
        return work(options)
    where = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    print(f"torch {torch.__version__}, {where}", flush=True)
    started = time.perf_counter()
    names = [case_name(case) for case in chosen(options.only, options.device)]
    waiting: Queue[int] = Queue()
    for first in range(0, len(names), BATCH):
        waiting.put(first)
    told: Queue[Result] = Queue()
    crew = [threading.Thread(target=_labour, args=(names, waiting, options, told)) for _ in range(options.workers)]
    for one in crew:
        one.start()
    results: list[Result] = []
    while any(one.is_alive() for one in crew) or not told.empty():
        if told.empty():
            time.sleep(0.05)
            continue
        result = told.get()
        results.append(result)
        if result.wrong or result.died:
            print(f"{'DIED' if result.died else 'WRONG'}  {result.name}: {'; '.join(result.notes)[:600]}", flush=True)
    print(summary(results, started))
    if options.out is not None:
        options.out.write_text(json.dumps([asdict(one) for one in results], indent=1))
    print(f"{len(results)} of {len(names)} cases reported")
    return int(len(results) != len(names) or any(one.wrong or one.died for one in results))


def _labour(names: list[str], waiting: Queue[int], options: argparse.Namespace, told: Queue[Result]) -> None:
    while not waiting.empty():
        first = waiting.get()
        run_batch(names, first, min(first + BATCH, len(names)), options, told)


if __name__ == "__main__":
    sys.exit(main())
