"""Logs and validates every operator of torch's own database on CUDA, and reports whatever ends a process or a CUDA context.

A plain script, since the GPU machines have torch and nothing else:  PYTHONPATH=src:tests python tests/gpu/check_operators.py
[--device cpu] [--samples 2] [--workers 8] [--only PART]. Operators run in worker processes, each of which begins anew after one
that died, or that left behind a CUDA context in which nothing works any more (a device-side assert). A line for each such
operator and each log that is not valid, and a last line of counts; exits with 1 if there is any.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import asdict

import torch
from workers import Told, master, this_script, worker

from operator_database import operators
from operators.sweep import Result, case_name, cases, check, summary

BATCH = 60  # cases of a worker process


def main() -> int:
    parser = argparse.ArgumentParser(description="Log and validate every operator of torch's own database.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--samples", type=int, default=2, help="of each operator and dtype")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--only", default="", help="a part of the operators' names")
    parser.add_argument("--worker", nargs="+", help="be a worker process for these cases")
    options = parser.parse_args()
    every = {case_name(case): case for case in cases(operators(), options.device)}

    def check_one(name: str) -> Told:
        try:
            result = check(every[name], options.samples, options.device)
            if options.device == "cuda":
                torch.cuda.synchronize()
            return asdict(result)
        except Exception as error:
            return asdict(Result(name, calls=1, wrong=1, notes=[f"{type(error).__name__}: {error}"[:300]]))

    if options.worker:
        warnings.simplefilter("ignore")
        return worker(options.worker, check_one)
    where = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    print(f"torch {torch.__version__}, {where}", flush=True)
    started = time.perf_counter()
    names = [name for name in every if options.only in name]
    command = this_script("--device", options.device, "--samples", str(options.samples))
    results: list[Result] = []
    for told in master(command, names, size=BATCH, workers=options.workers):
        results.append(_result(told))
        if results[-1].wrong or results[-1].died:
            what = "DIED " if results[-1].died else "WRONG"
            print(f"{what} {results[-1].name}: {'; '.join(results[-1].notes)[:600]}", flush=True)
    print(f"{summary(results, started)}; {len(results)} of {len(names)} cases reported")
    return int(len(results) != len(names) or any(one.wrong or one.died for one in results))


def _result(told: Told) -> Result:
    """What became of a case; a broken CUDA context is a death."""
    is_broken, death = told.pop("is_broken"), told.pop("death", None)
    if death is not None:
        return Result(told["name"], calls=1, died=1, notes=[death])
    result = Result(**told)
    if is_broken:
        result.died, result.wrong = 1, 0
    return result


if __name__ == "__main__":
    sys.exit(main())
