"""Makes mutants, runs the tests on them, prints the score by folder and the survivors, writes `build/mutants.json`.

PYTHONPATH=tests python -m mutants [--count 150] [--seed 0] [--folder capture] [--only xray/store.py]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from .covering import find_covering
from .faults import Fault, choose
from .running import Nursery, Verdict, warm_up

_SOURCES = Path("src")
_BUILD = Path("build/mutants")
_EQUIVALENT = Path(__file__).with_name("equivalent.json")
_GOAL = 93.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="only faults in this folder of the package")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    covering = find_covering(_SOURCES, _BUILD / "coverage")
    faults = choose(_SOURCES, options.count, options.seed, options.folder)
    equivalent = {(e["file"], e["function"], e["before"], e["after"]) for e in json.loads(_EQUIVALENT.read_text())}
    waiting = [fault for fault in faults if fault.key not in equivalent]
    print(f"{len(faults)} mutants, {len(faults) - len(waiting)} of them known to make no difference", flush=True)
    work = [(fault, *covering.tests(fault)) for fault in waiting]
    with multiprocessing.get_context("spawn").Pool(options.jobs, _begin) as pool:
        verdicts = []
        for verdict in pool.imap_unordered(_judge, work, chunksize=1):
            verdicts.append(verdict)
            print(f"{verdict.outcome:19} {verdict.seconds:5.1f} s {verdict.tests:4} tests  {verdict.fault}", flush=True)
    return _report(verdicts)


def _begin() -> None:
    global _nursery
    warm_up()
    _nursery = Nursery(_SOURCES, _BUILD / f"sources-{multiprocessing.current_process().name}")


def _judge(work: tuple[Fault, list[str], float]) -> Verdict:
    return _nursery.judge(*work)


def _report(verdicts: list[Verdict]) -> int:
    noticed: dict[str, list[bool]] = defaultdict(list)
    survivors = []
    for verdict in sorted(verdicts, key=lambda each: (each.fault.file, each.fault.line)):
        is_noticed = verdict.outcome in ("noticed", "too long")
        noticed[verdict.fault.folder].append(is_noticed)
        if not is_noticed:
            survivors.append(verdict)
    print("\nfolder          mutants  noticed  score")
    for folder, found in sorted(noticed.items()):
        print(f"{folder:15} {len(found):7} {sum(found):8}  {100 * sum(found) / len(found):4.0f} %")
    total = [each for found in noticed.values() for each in found]
    score = 100 * sum(total) / len(total)
    print(f"{'all':15} {len(total):7} {sum(total):8}  {score:4.1f} %  (goal {_GOAL:.0f} %)")
    print("\nsurvivors:")
    for verdict in survivors:
        print(f"  {verdict.fault}  ({verdict.outcome})")
    _BUILD.mkdir(parents=True, exist_ok=True)
    Path("build/mutants.json").write_text(json.dumps({"score": score, "verdicts": [asdict(v) for v in verdicts]}, indent=1))
    return 0 if score >= _GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
