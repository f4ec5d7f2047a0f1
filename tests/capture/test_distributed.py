"""Two real processes that talk by gloo: what is logged, drawn and proven is true on each of them, and nobody waits for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torcheer
from distributed_programs import LEFT_OUT, PROGRAMS, WORLD
from models import Mlp, labels, log
from torch_version import TORCH
from torcheer.capture.interceptor import without_process_groups

_LIMIT = 900  # seconds for all programs together; a hang fails instead of blocking

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="this torch has no gloo"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What every program raised on every rank, as text, by name; a program that did not end is missing."""
    folder = tmp_path_factory.mktemp("distributed")
    tests = Path(__file__).parents[1]
    paths = [str(tests), str(Path(torcheer.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    logs = [folder / f"results_{rank}" for rank in range(WORLD)]
    ranks = []
    for rank, written in enumerate(logs):
        command = [
            sys.executable,
            str(tests / "distributed_programs.py"),
            str(rank),
            str(WORLD),
            str(folder / "store"),
            str(written),
        ]
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    deadline = time.monotonic() + _LIMIT
    try:
        for process in ranks:
            process.wait(max(1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [dict(map(json.loads, log.read_text().splitlines())) if log.exists() else {} for log in logs]


def test_programs_are_left_out_only_with_versions_that_docs_versions_names():
    several = {"every_collective_is_a_write", "sending_and_receiving"}
    alone = {
        "all_reduce_is_a_write",
        "an_asynchronous_all_reduce_has_the_value_it_ends_with",
        "validation_on_one_rank_alone_does_not_wait_for_the_other",
        "validation_of_a_model_runs_collectives_only_to_log_it",
    }
    expected = several if TORCH < (2, 12) else set()
    sharded = {"fsdp2", "a_guard_stops_all_ranks_of_fsdp2", "a_guard_stops_all_ranks_where_one_shard_alone_is_not_finite"}
    expected |= sharded if TORCH < (2, 8) else set()
    expected |= alone if TORCH < (2, 7) else set()
    assert set(LEFT_OUT) == expected


@pytest.mark.parametrize("rank", range(WORLD))
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_two_processes(results, name, rank):
    assert name in results[rank], "it did not end, or another program before it did not"
    error = results[rank][name]
    assert error is None, error


def test_arguments_of_collectives_are_written_without_their_process_group():
    class Group:
        group_name = "experts"

    assert without_process_groups(Group()) == "experts"
    assert without_process_groups((1, [Group(), 2.5])) == (1, ["experts", 2.5])
    operation = torch.distributed.ReduceOp.SUM
    assert without_process_groups(operation) == str(operation)
    assert without_process_groups(None) is None


x = torch.rand(3, 4)


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_distributed_data_parallel_is_looked_through(process_group):
    model = Mlp()
    wrapped = nn.parallel.DistributedDataParallel(model)
    history = log(wrapped, x)
    assert labels(history) == ["linear_1", "relu_1", "linear_2", "tanh_1"]
    assert history["fc1"].label == "linear_1_1"
    assert history.model_name == "Mlp"
    assert torch.equal(history["output"].tensor_contents, model(x))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_wrapper_inside_a_model_is_looked_through_too(process_group):
    history = log(nn.Sequential(nn.parallel.DistributedDataParallel(Mlp()), nn.ReLU()), x)
    assert history["0.fc1"].label == "linear_1_1"
    assert history["0"].label == "tanh_1_4"


class Summing(TorchDispatchMode):
    """Adds the result of `relu` up over all processes, by a method of the process group, as DTensor does inside a call."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.relu.default:
            torch.distributed.distributed_c10d._get_default_group().allreduce([result]).wait()
        return result


def test_a_call_in_which_a_collective_ran_is_never_run_again(process_group):
    """Other processes would have to take part, so a proof takes what was kept of it, and counts it."""

    def summed(t):
        with Summing():
            doubled = torch.relu(t * 2)
        return doubled + 1

    history = log(summed, x)
    report = history.validate()
    assert report
    assert not history.notes
    values, _, edges = (str(check) for check in report.checks)
    assert values.endswith(": 4 checked; exempt: 1 of a collective, which is not run again")
    assert edges.endswith(": 2 checked; exempt: 1 of a collective, which is not run again")
