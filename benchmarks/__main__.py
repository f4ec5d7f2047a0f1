"""Measures everything, one process at a time, prints the tables and writes `build/benchmarks.json`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from statistics import median
from time import perf_counter
from typing import Any

from .limits import EXTRACTION, LAYERS_ONLY, TAPS, TRAINING, XRAY, judge
from .machine import describe_machine
from .models import CASES, ROOT
from .report import report
from .taps import WORKS
from .tools import TOOLS
from .worker import MeasurementFailed, measure

WRITTEN_TO = ROOT / "build" / "benchmarks.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--without-peers", action="store_true", help="measure no other tool")
    tools = ["torcheer", "keeping"] if parser.parse_args().without_peers else list(TOOLS)
    results: dict[str, Any] = {"machine": describe_machine()}
    results["speed"] = {
        case: {tool: _measured("speed", case, tool) if tool in tools else {} for tool in TOOLS} for case in CASES
    }
    results["plain_after_use"] = {tool: _after_use(tool) for tool in tools if tool not in ("keeping", "hooks")}
    results["tiny_operations"] = _measured("tiny_operations", 1_000, 100_000)
    results["training"] = {case: _measured("training", case) for case in TRAINING}
    results["layers_only"] = {case: _measured("layers_only", case) for case in LAYERS_ONLY}
    results["taps"] = {case: {work: _measured("taps", case, work) for work in WORKS} for case in TAPS}
    results["taps_of_nnsight"] = {
        case: {work: _measured("taps_of_nnsight", case, work) if len(tools) > 2 else {} for work in ("read", "changed")}
        for case in TAPS
    }
    results["xray"] = {case: _measured("xray", case) for case in XRAY}
    results["xray_training"] = {case: _measured("xray_training", case, 10) for case in ("resnet50", "alexnet")}
    results["xray_long_run"] = _measured("xray_long_run", 20_000)
    results["grouping"] = _measured("grouping", 100_000, 1_000_000)
    results["saving"] = _measured("saving", "gpt2_small")
    results["saved_loop"] = _measured("saved_loop", 100_000)
    results["torchlens_saving"] = _measured("torchlens_saving", "gpt2_small") if "torchlens" in tools else {}
    results["extraction"] = {
        case: {
            "forward": _measured("extraction_forward", case),
            "whole": _measured("extraction_whole", case),
            "torchlens": _measured("extraction_of_torchlens", case) if "torchlens" in tools else {},
        }
        for case in EXTRACTION
    }
    results["held_memory"] = {case: _measured("held_memory", case) for case in CASES if case != "gpt2_tiny"}
    results["held_memory"]["tiny_loop"] = _measured("held_memory", "tiny_loop", 10_000)
    results["graph_only_peak"] = _measured("graph_only_peak", 100_000)
    verdicts = judge(results)
    results["limits"] = [asdict(verdict) for verdict in verdicts]
    WRITTEN_TO.parent.mkdir(exist_ok=True)
    WRITTEN_TO.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    print("\n" + report(results, verdicts))
    print(f"written to {WRITTEN_TO}")
    return 1 if any(verdict.kept is None for verdict in verdicts) else 0


def _after_use(tool: str) -> dict[str, Any]:
    """Three fresh processes for ours, since a ratio of 1 has to be told from one that is nearly 1."""
    runs = [_measured("plain_after_use", "gpt2_tiny", tool) for _ in range(3 if tool == "torcheer" else 1)]
    if any("ratio" not in run for run in runs):
        return runs[0]
    return {key: median(run[key] for run in runs) for key in ("ratio", "noise")} | {"runs": runs}


def _measured(name: str, *arguments: str | int) -> dict[str, Any]:
    """One measurement; if it failed, why. The others go on."""
    print(f"{name} {' '.join(map(str, arguments))} …", end=" ", file=sys.stderr, flush=True)
    start = perf_counter()
    try:
        found = measure(name, *arguments)
    except MeasurementFailed as error:
        found = {"failed": str(error)}
    said = found.get("failed") or ("not installed" if found.get("not_installed") else f"{perf_counter() - start:.0f} s")
    print(said, file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
