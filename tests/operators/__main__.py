"""`make operators`: python -m operators [--samples N] [--only PART]."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from operator_database import operators

from .sweep import Result, case_name, cases, summary, sweep


def main() -> int:
    parser = argparse.ArgumentParser(description="Log and validate every operator of torch's own database.")
    parser.add_argument("--samples", type=int, default=8, help="of each operator and dtype")
    parser.add_argument("--only", default="", help="a part of the operators' names")
    parser.add_argument("--out", type=Path, default=Path("build/operators.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    todo = [case for case in cases(operators()) if options.only in case_name(case)]
    started = time.perf_counter()
    results: list[Result] = []
    for result in sweep(todo, options.samples):
        results.append(result)
        if result.wrong or result.died:
            print(f"{'DIED' if result.died else 'WRONG'} {result.name}: {'; '.join(result.notes)}", flush=True)
    print(summary(results, started))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([asdict(one) for one in results], indent=1))
    return int(any(one.wrong or one.died for one in results))


if __name__ == "__main__":
    sys.exit(main())
