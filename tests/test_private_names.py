"""The next torch may lack any private name that torcheer uses: names are taken away in turn, and everything works or says so.

With the other tests, one name of each place in torch, and all names of a place together; each name with `make sweeps`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import torcheer
from sweeps import one_of_each
from torcheer._torch.internals import USES, missing_notes

PROGRAM = Path(__file__).parent / "without_private_names.py"
NOTED = ["torch.Tensor._version", "torch._C._current_graph_task_id"]
NAMES = [*NOTED, *(name for name in one_of_each(USES, lambda name: name.rpartition(".")[0]) if name not in NOTED)]


def run_without(way: str, names: Iterable[str] = NAMES) -> dict[str, dict[str, str]]:
    """For each name, or several names joined by commas, what came of each step."""
    environment = {**os.environ, "PYTHONPATH": str(Path(torcheer.__file__).parents[1])}
    command = [sys.executable, str(PROGRAM), way, *names]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=1700)
    return dict(map(json.loads, ran.stdout.splitlines()))


@pytest.fixture(scope="module")
def hidden() -> dict[str, dict[str, str]]:
    return run_without("hidden")


@pytest.fixture(scope="module")
def deleted() -> dict[str, dict[str, str]]:
    return run_without("deleted")


@pytest.mark.parametrize("name", NAMES)
def test_without_a_private_name_everything_works_or_says_what_is_missing(hidden, name):
    results = dict(hidden[name])
    notes = results.pop("notes")
    assert len(results) == 12
    for step, result in results.items():
        assert result == "ok" or (result.startswith("MissingInTorch") and f"has no {name}, which" in result), (
            f"{step}: {result}"
        )
    assert all(name in note for note in notes if "has no torch." in note)


@pytest.mark.parametrize("name", NAMES)
def test_a_torch_that_lacks_a_private_name_logs(deleted, name):
    results = dict(deleted[name])
    if results["import"] == "torch":
        return  # plain torch needs it: it cannot vanish alone
    results.pop("notes")
    assert set(results.values()) == {"ok"}, results


def by_place() -> dict[str, list[str]]:
    """The private names of each module or class of torch."""
    places: dict[str, list[str]] = {}
    for name in USES:
        places.setdefault(name.rpartition(".")[0], []).append(name)
    return {place: names for place, names in places.items() if len(names) > 1} | {"anywhere": list(USES)}


def test_without_all_private_names_of_a_place_everything_works_or_says_what_is_missing():
    """A stand-in may not need another name that is missing, too."""
    places = by_place()
    assert len(places) > 5
    for names, results in run_without("hidden", [",".join(names) for names in places.values()]).items():
        results.pop("notes")
        assert results["import"] == "ok"
        for step, result in results.items():
            named = any(f"has no {name}, which" in result for name in names.split(","))
            assert result == "ok" or (result.startswith("MissingInTorch") and named), f"{step} without {names}: {result}"


def test_some_names_can_be_deleted_and_some_are_noted(hidden, deleted):
    """Otherwise the two tests above would say nothing."""
    assert sum(results["import"] != "torch" for results in deleted.values()) > len(NAMES) / 2
    noted = [name for name, results in hidden.items() if any(f"has no {name}:" in note for note in results["notes"])]
    assert set(NOTED) < set(noted)
    assert any("MissingInTorch" in result for results in hidden.values() for result in results.values())


def test_a_tested_torch_lacks_nothing():
    assert missing_notes() == []
