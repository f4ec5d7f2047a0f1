"""Extractions that torchrun divides among two processes are those of one process, byte by byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torchrun_program

import torcheer as tl

PROGRAM = Path(__file__).with_name("torchrun_program.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]  # standalone: on a port that is free


def run_by_two(folder, *tasks):
    paths = [str(Path(tl.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *TORCHRUN, str(PROGRAM), str(folder), *tasks]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


class Done(NamedTuple):
    folder: Path
    begun: dict[str, dict[str, bytes]]  # what was there of those that were left
    printed: str


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """What one process does, two processes do then, and one process again. A `+` goes on with what was left."""
    folder = tmp_path_factory.mktemp("torchrun")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torchrun_program.main(folder, ["one", "begun_by_one"])
        begun = {"begun_by_one": files(folder / "begun_by_one")}
        printed = run_by_two(folder, "two", "begun_by_two", "begun_by_one+", "ddp", "command")
        begun["begun_by_two"] = files(folder / "begun_by_two")
        torchrun_program.main(folder, ["begun_by_two+"])
    finally:
        torch.set_num_threads(threads)
    return Done(folder, begun, printed)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_processes_write_what_one_writes(done):
    one = files(done.folder / "one")
    assert sum(name.startswith("block-") for name in one) == 13
    assert any(name.startswith("reduced-03") for name in one)
    assert files(done.folder / "two") == one


def test_the_values_are_those_of_the_plain_model(done):
    features = tl.open_features(done.folder / "two")
    torch.manual_seed(1)
    pictures, model = torch.randn(100, 3, 6, 6), torchrun_program.make_model()
    with torch.no_grad():
        assert torch.allclose(features["0"][:], model[0](pictures), atol=1e-5)
        assert torch.allclose(features["4"][:], model(pictures), atol=1e-5)
    assert torch.equal(features.labels["labels"], torch.arange(100))


@pytest.mark.parametrize("name", ["begun_by_one", "begun_by_two"])
def test_what_some_processes_began_others_finish(done, name):
    blocks = [file for file in done.begun[name] if file.startswith("block-")]
    assert 0 < len(blocks) < 13
    assert files(done.folder / name) == files(done.folder / "one")


def test_a_model_that_is_wrapped_for_several_devices_gives_the_same(done):
    assert files(done.folder / "ddp") == files(done.folder / "one")


def test_the_command_runs_under_torchrun(done):
    assert done.printed.count("Features of Sequential in") == 1
    features, one = tl.open_features(done.folder / "command"), tl.open_features(done.folder / "one")
    assert features.is_complete
    assert all(torch.equal(features[name][:], one[name][:]) for name in ("0", "4"))
