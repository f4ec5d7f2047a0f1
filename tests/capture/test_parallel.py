"""Wrappers of torch.distributed are looked through, and logging one of them talks to nobody."""

from __future__ import annotations

import pytest
import torch
import torch.distributed
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from models import Mlp, labels, log

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
