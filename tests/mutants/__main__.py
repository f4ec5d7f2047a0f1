"""Makes mutants, runs the tests on them, prints the score by folder and the survivors, writes `build/mutants.json`.

PYTHONPATH=tests python -m mutants [--count 150] [--seed 0] [--only capture/] [--resume] [--list]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from .covering import Covering, find_covering
from .faults import Fault, choose
from .running import Nursery, Verdict, warm_up

_SOURCES = Path("src")
_BUILD = Path("build/mutants")
_RESULT = Path("build/mutants.json")
_EQUIVALENT = Path(__file__).with_name("equivalent.json")
_GOAL = 93.0
_KEY = ("file", "function", "line", "before", "after")  # of an entry of equivalent.json; "why" is the reason


def main() -> int:
    options = _options()
    faults = choose(_SOURCES, options.count, options.seed, options.only)
    equivalent = {tuple(entry[part] for part in _KEY) for entry in json.loads(_EQUIVALENT.read_text())}
    waiting = [fault for fault in faults if fault.key not in equivalent]
    print(f"{len(faults)} mutants, {len(faults) - len(waiting)} of them known to make no difference", flush=True)
    covering = find_covering(_SOURCES, _BUILD / "coverage", options.fresh)
    if options.list:
        for fault in waiting:
            print(f"{len(covering.tests(fault)):5} tests run  {fault}")
        return 0
    kept = _noticed_before() if options.resume else {}
    verdicts = [kept[fault.key] for fault in waiting if fault.key in kept]
    warm_up()
    nurseries = [Nursery(_SOURCES, _BUILD / f"sources-{n}") for n in range(options.jobs)]
    doubtful: set[str] = set()  # tests that fail on the mutants' ground without any fault
    waiting = [fault for fault in waiting if fault.key not in kept]
    quickest = min(covering.seconds, key=lambda name: covering.seconds[name])
    if _failing_anyway({quickest}, covering, nurseries[0]):
        sys.exit("The tests cannot be run as they are on mutants, so everything would seem to be noticed.")
    while waiting:
        found = []
        for verdict in _judged(waiting, covering, nurseries, options.budget, doubtful):
            found.append(verdict)
            _save(verdicts + found)
            by = f" by {verdict.noticed_by}" if verdict.noticed_by else f", {verdict.tests} of {verdict.covering} tests"
            print(f"{verdict.outcome} in {verdict.seconds:.0f} s{by}: {verdict.fault}", flush=True)
        failing = _failing_anyway({v.noticed_by for v in found if v.noticed_by}, covering, nurseries[0])
        doubtful |= failing
        verdicts += [verdict for verdict in found if verdict.noticed_by not in failing]
        waiting = [verdict.fault for verdict in found if verdict.noticed_by in failing]
    _save(verdicts)
    return _report(verdicts, options.budget)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only faults in files whose path in the package begins so: capture/")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests per mutant, the quickest first")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="run the whole suite again to see which test runs which line")
    parser.add_argument("--resume", action="store_true", help="keep what was noticed last time, run survivors and the rest")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    return parser.parse_args()


def _judged(
    faults: list[Fault], covering: Covering, nurseries: list[Nursery], budget_s: float, without: set[str]
) -> Iterator[Verdict]:
    """The verdict on each fault, in the order in which they are found."""
    waiting, running = list(reversed(faults)), []
    idle = list(nurseries)
    while waiting or running:
        while waiting and idle:
            fault = waiting.pop()
            tests = [name for name in covering.tests(fault) if name not in without]
            if not tests:
                yield Verdict(fault, "not run by any test", 0, 0, 0.0)
                continue
            nursery = idle.pop()
            nursery.start(fault, *covering.within(tests, budget_s), covering=len(tests))
            running.append(nursery)
        for nursery in list(running):
            outcome = nursery.outcome()
            if outcome is not None:
                running.remove(nursery)
                idle.append(nursery)
                yield nursery.verdict(outcome)
        time.sleep(0.02)


def _failing_anyway(tests: set[str], covering: Covering, nursery: Nursery) -> set[str]:
    """Those of these tests that fail without any fault, run as they are on mutants."""
    failing = set()
    for name in sorted(tests):
        nursery.start(None, [name], covering.seconds.get(name, 1.0))
        if nursery.wait() != "survived":
            print(f"fails without a fault, so it is left out: {name}", flush=True)
            failing.add(name)
    return failing


def _noticed_before() -> dict[tuple[str, ...], Verdict]:
    verdicts = json.loads(_RESULT.read_text())["verdicts"] if _RESULT.exists() else []
    found = [Verdict(**{**each, "fault": Fault(**each["fault"])}) for each in verdicts]
    return {verdict.fault.key: verdict for verdict in found if verdict.is_noticed}


def _save(verdicts: list[Verdict]) -> None:
    score = 100 * sum(verdict.is_noticed for verdict in verdicts) / max(1, len(verdicts))
    _RESULT.write_text(json.dumps({"score": score, "verdicts": [asdict(verdict) for verdict in verdicts]}, indent=1))


def _report(verdicts: list[Verdict], budget_s: float) -> int:
    noticed: dict[str, list[bool]] = defaultdict(list)
    survivors = []
    for verdict in sorted(verdicts, key=lambda each: (each.fault.file, each.fault.line)):
        noticed[verdict.fault.folder].append(verdict.is_noticed)
        if not verdict.is_noticed:
            survivors.append(verdict)
    print(f"\nEach mutant was tried with the tests that run its line, the quickest first, up to {budget_s:.0f} s of them.")
    print("folder          mutants  noticed  score")
    for folder, found in sorted(noticed.items()):
        print(f"{folder:15} {len(found):7} {sum(found):8}  {100 * sum(found) / len(found):4.0f} %")
    total = [each for found in noticed.values() for each in found]
    score = 100 * sum(total) / max(1, len(total))
    print(f"{'all':15} {len(total):7} {sum(total):8}  {score:4.1f} %  (goal {_GOAL:.0f} %)")
    print("\nsurvivors:")
    for verdict in survivors:
        tried = f"{verdict.tests} of {verdict.covering} tests" if verdict.tests else verdict.outcome
        print(f"  {verdict.fault}  ({tried})")
    return 0 if score >= _GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
