"""What `test_distributed.py` runs in two processes: each program is run by both ranks, in the same order.

    python distributed_programs.py RANK WORLD_SIZE STORE_FILE RESULTS_FILE

Writes one line of JSON for each program: its name, and what it raised, or null.
"""

from __future__ import annotations

import datetime
import inspect
import json
import math
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import torcheer
from models import Mlp, is_upstream
from torch_version import TORCH

WORLD = 2
PROGRAMS = {}
LEFT_OUT = []  # the names of programs that this torch cannot run, or whose collectives it does not announce


NEWER_NAMES = {"all_gather_into_tensor": "all_gather_single", "reduce_scatter_tensor": "reduce_scatter_single"}


def is_announced(name):
    """True where torch hands a collective to function modes; before torch 2.12 it does so for some of them or for none."""
    function = getattr(dist, NEWER_NAMES.get(name, name), None) or getattr(dist, name)
    return "has_torch_function" in inspect.unwrap(function).__code__.co_names


def program(*collectives, since=(2, 6)):
    """Add a program, if torch announces the collectives that it needs, and is of the version that can run it."""

    def add(function):
        if since <= TORCH and all(map(is_announced, collectives)):
            PROGRAMS[function.__name__] = function
        else:
            LEFT_OUT.append(function.__name__)
        return function

    return add


def mine(rank):
    """A tensor that is another one on each rank."""
    return torch.arange(12.0).reshape(3, 4) + 1 + 100 * rank


def equal(one, other):
    assert torch.equal(one, other), f"{one} is not {other}"


def use(history):
    """Everything that is done with a history: print, summarise, draw, make a page."""
    assert str(history)
    assert str(history.summary())
    with tempfile.TemporaryDirectory() as folder:
        history.draw(Path(folder) / "picture.dot")
        page = Path(folder) / "page.html"
        history.to_html(page)
        assert page.stat().st_size > 1000


def proven(history, exempt=None):
    report = history.validate()
    assert report.is_valid, report
    if exempt is not None:
        counted = sum(n for check in report.checks for why, n in check.exempt.items() if "collective" in why)
        assert counted >= exempt, report
    return report


@program("all_reduce")
def all_reduce_is_a_write(rank):
    def model(t):
        z = t * 2
        dist.all_reduce(z)
        return z + 1

    history = torcheer.log_forward_pass(model, mine(rank))
    equal(history["mul_1"].tensor_contents, mine(rank) * 2)
    total = (mine(0) + mine(1)) * 2
    equal(history["allreduce_1"].tensor_contents, total)
    equal(history["add_1"].tensor_contents, total + 1)
    assert history["allreduce_1"].parent_layers == ["mul_1_1"]
    assert history["add_1"].parent_layers == [history["allreduce_1"].label]
    use(history)
    report = proven(history, exempt=1)
    assert "1 of a collective, which is not run again" in str(report)


@program("all_reduce")
def an_asynchronous_all_reduce_has_the_value_it_ends_with(rank):
    def model(t):
        z = t * 2
        work = dist.all_reduce(z, async_op=True)
        other = t + 5
        work.wait()
        return z + other, z.view(-1)

    history = torcheer.log_forward_pass(model, mine(rank))
    total = (mine(0) + mine(1)) * 2
    equal(history["mul_1"].tensor_contents, mine(rank) * 2)
    equal(history["allreduce_1"].tensor_contents, total)
    equal(history["view_1"].tensor_contents, total.view(-1))
    assert is_upstream(history, "allreduce_1", "output_1")
    proven(history, exempt=1)


@program(
    "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all", "reduce", "scatter", "gather", since=(2, 12)
)
def every_collective_is_a_write(rank):
    both = [mine(0), mine(1)]

    def model(t):
        sent = t * 1
        pieces = [torch.zeros(3, 4) for _ in range(WORLD)]
        dist.all_gather(pieces, sent)
        whole = torch.zeros(6, 4)
        dist.all_gather_into_tensor(whole, sent)
        scattered = torch.zeros(3, 4)
        dist.reduce_scatter_tensor(scattered, whole)
        listed = torch.zeros(3, 4)
        dist.reduce_scatter(listed, [sent, sent])
        swapped = torch.zeros(4, 4)
        dist.all_to_all_single(swapped, torch.cat([sent, sent])[:4].clone())
        parts = [torch.zeros(3, 4) for _ in range(WORLD)]
        dist.all_to_all(parts, [sent + 0, sent + 1])
        shared = t * 3
        dist.broadcast(shared, 0)
        reduced = t * 4
        dist.reduce(reduced, 1)
        got = t * 5
        dist.scatter(got, [t * 6, t * 7] if rank == 0 else None)
        gathered = [torch.zeros(3, 4) for _ in range(WORLD)]
        dist.gather(sent, gathered if rank == 0 else None)
        return pieces, whole, scattered, listed, swapped, parts, shared, reduced, got, gathered

    plain = [tensor.clone() for tensor in torch.utils._pytree.tree_leaves(model(mine(rank)))]
    history = torcheer.log_forward_pass(model, mine(rank))
    for ours, theirs in zip(history.outputs, plain, strict=True):
        equal(ours.tensor_contents, theirs)
    gathered = [one.tensor_contents for one in history.operations if one.func_applied_name == "all_gather"]
    assert len(gathered) == WORLD
    for ours, theirs in zip(gathered, both, strict=True):
        equal(ours, theirs)
    for one in history.operations:
        if one.func_applied_name == "zeros":
            equal(one.tensor_contents, torch.zeros_like(one.tensor_contents))
    use(history)
    proven(history, exempt=9)


@program("send", "recv", "isend", "irecv")
def sending_and_receiving(rank):
    def model(t):
        sent, got = t * 2, t * 0
        if rank == 0:
            dist.send(sent, 1)
            dist.recv(got, 1)
        else:
            dist.recv(got, 0)
            dist.send(sent, 0)
        again = t * 0
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, got, 1 - rank), dist.P2POp(dist.irecv, again, 1 - rank)])
        for work in works:
            work.wait()
        return got + 1, again + 1

    history = torcheer.log_forward_pass(model, mine(rank))
    equal(history["recv_1"].tensor_contents, mine(1 - rank) * 2)
    equal(history["irecv_1"].tensor_contents, mine(rank) * 2)
    equal(history["output_1"].tensor_contents, mine(1 - rank) * 2 + 1)
    assert is_upstream(history, "recv_1", "output_1")
    assert is_upstream(history, "irecv_1", "output_2")
    assert any(read.func_name == "send" for read in history.python_reads)
    proven(history, exempt=2)


@program()
def functional_collectives(rank):
    def model(t):
        total = functional.all_reduce(t * 2, "sum", dist.group.WORLD)
        whole = functional.all_gather_tensor(t + 1, 0, dist.group.WORLD)
        return total + 1, functional.wait_tensor(whole) * 2

    history = torcheer.log_forward_pass(model, mine(rank))
    equal(history["output_1"].tensor_contents, (mine(0) + mine(1)) * 2 + 1)
    equal(history["output_2"].tensor_contents, (torch.cat([mine(0), mine(1)]) + 1) * 2)
    assert is_upstream(history, "input", "output_1")
    assert is_upstream(history, "input", "output_2")
    use(history)
    proven(history, exempt=2)


@program()
def a_collective_that_cannot_be_seen_serves_no_wrong_value(rank):
    group = dist.distributed_c10d._get_default_group()

    def model(t):
        z = t * 2
        group.allreduce([z]).wait()
        return z + 1

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = torcheer.log_forward_pass(model, mine(rank))
    assert any("collective" in str(one.message) for one in caught)
    equal(history["add_1"].tensor_contents, (mine(0) + mine(1)) * 2 + 1)
    try:
        history["mul_1"].tensor_contents
    except torcheer.ActivationLost:
        pass
    else:
        raise AssertionError("a value that was overwritten is served")


@program()
def a_collective_that_torch_does_not_announce_serves_no_wrong_value(rank):
    """Before torch 2.12 this is so for `recv` and others, before torch 2.7 for all of `torch.distributed`."""

    def model(t):
        z, got = t * 2, t * 3
        dist.all_reduce(z)
        if rank == 0:
            dist.send(z, 1)
        else:
            dist.recv(got, 0)
        return z + 1, got + 1

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = torcheer.log_forward_pass(model, mine(rank))
    total = (mine(0) + mine(1)) * 2
    equal(history["output_1"].tensor_contents, total + 1)
    equal(history["output_2"].tensor_contents, (total if rank else mine(rank) * 3) + 1)
    for label, expected, name in (("mul_1", mine(rank) * 2, "all_reduce"), ("mul_2", mine(rank) * 3, "recv")):
        try:
            equal(history[label].tensor_contents, expected)
        except torcheer.ActivationLost:
            assert not is_announced(name)
            assert any("collective" in str(one.message) for one in caught)


@program("all_reduce")
def validation_on_one_rank_alone_does_not_wait_for_the_other(rank):
    def model(t):
        z = t * 2
        dist.all_reduce(z)
        return z + 1

    history = torcheer.log_forward_pass(model, mine(rank))
    if rank == 0:
        for _ in range(3):
            proven(history, exempt=1)


@program("all_reduce")
def validation_of_a_model_runs_collectives_only_to_log_it(rank):
    def model(t):
        z = t * 2
        dist.all_reduce(z)
        return z + 1

    group = dist.distributed_c10d._get_default_group()
    before = group._get_sequence_number_for_group()
    report = torcheer.validate_forward_pass(model, mine(rank))
    assert report.is_valid, report
    assert "1 collective ran in this pass" in str(report), report
    assert group._get_sequence_number_for_group() == before + 1


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 4)

    def forward(self, t):
        return self.second(torch.relu(self.norm(self.first(t)))).tanh()


def same_everywhere(model):
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.data, 0)
    return model


def train(model, optimizer, rank):
    optimizer.zero_grad()
    model(mine(rank) / 100).sum().backward()
    optimizer.step()


@program()
def chosen_values_of_a_parallel_model_are_read_and_changed(rank):
    """Each rank sees its own values; the gradients that a training step shares flow through the change."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Mlp())
    plain = model.module
    history = torcheer.log_forward_pass(model, mine(rank))
    with torcheer.tap(model, ["fc1", "tanh_1"], like=history) as values:
        output = model(mine(rank))
    equal(values["fc1"], plain.fc1(mine(rank)))
    equal(values["tanh_1"], output)
    with torcheer.intervene(model, {"act": torcheer.changes.scale(0.5)}):
        model(mine(rank)).sum().backward()
    shared = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    losses = [torch.tanh(plain.fc2(plain.fc1(mine(one)).relu() * 0.5)).sum() for one in range(WORLD)]
    expected = torch.autograd.grad(sum(losses) / WORLD, list(plain.parameters()))
    for one, other in zip(shared, expected, strict=True):
        torch.testing.assert_close(one, other)


@program()
def distributed_data_parallel(rank):
    model = nn.parallel.DistributedDataParallel(Deep())
    plain = model.module
    model.eval()
    history = torcheer.log_forward_pass(model, mine(rank))
    equal(history["output"].tensor_contents, model(mine(rank)))
    assert history["first"].parent_layers == ["input_1_0"]
    use(history)
    proven(history)
    report = torcheer.validate_forward_pass(model, mine(rank))
    assert report.is_valid, report
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torcheer.recording(model) as recorded:
        train(model, optimizer, rank)
    assert str(recorded)
    weight = plain.first.weight.detach().clone()
    dist.all_reduce(weight)
    equal(weight / 2, plain.first.weight.detach())  # both ranks stepped alike


def fsdp_works(model, plain, rank):
    """Log, use and prove a sharded model; it computes, before and after, what the plain one does."""
    given = mine(rank)
    expected = plain(given)
    history = torcheer.log_forward_pass(model, given)
    assert torch.allclose(history["output"].tensor_contents, expected), (history["output"].tensor_contents, expected)
    for one in history.operations:
        if one.func_applied_name == "linear":
            arguments = [one.creation_args[0], one.creation_args[1], one.creation_args[2]]
            assert torch.allclose(torch.nn.functional.linear(*arguments), one.tensor_contents)
    use(history)
    proven(history)
    assert torch.allclose(model(given), expected)
    report = torcheer.validate_forward_pass(model, given)
    assert report.is_valid, report
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = model(given).detach().clone()
    for _ in range(2):
        train(model, optimizer, rank)
    assert not torch.equal(model(given), before)
    again = torcheer.log_forward_pass(model, given)
    assert torch.allclose(again["output"].tensor_contents, model(given))
    return history


@program()
def fsdp1(rank):
    plain = same_everywhere(Mlp())
    copy = Mlp()
    copy.load_state_dict(plain.state_dict())
    fsdp_works(FullyShardedDataParallel(copy, device_id=torch.device("cpu")), plain, rank)


@program()
def fsdp1_nested_with_original_parameters(rank):
    plain = same_everywhere(Mlp())
    copy = Mlp()
    copy.load_state_dict(plain.state_dict())
    copy.fc1 = FullyShardedDataParallel(copy.fc1, use_orig_params=True, device_id=torch.device("cpu"))
    fsdp_works(FullyShardedDataParallel(copy, use_orig_params=True, device_id=torch.device("cpu")), plain, rank)


@program(since=(2, 8))
def fsdp2(rank):
    plain = same_everywhere(Mlp())
    copy = Mlp()
    copy.load_state_dict(plain.state_dict())
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(copy.fc1, mesh=mesh)
    fully_shard(copy, mesh=mesh)
    fsdp_works(copy, plain, rank)


@program()
def tensor_parallel(rank):
    plain = same_everywhere(Mlp())
    copy = Mlp()
    copy.load_state_dict(plain.state_dict())
    mesh = init_device_mesh("cpu", (WORLD,))
    model = parallelize_module(copy, mesh, {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()})
    given = mine(0)
    history = torcheer.log_forward_pass(model, given)
    assert torch.allclose(history["output"].tensor_contents, plain(given), atol=1e-5)
    assert any(type(one.tensor_contents) is DTensor for one in history.operations)
    assert is_upstream(history, "input", "output")
    use(history)
    proven(history)
    report = torcheer.validate_forward_pass(model, given)
    assert report.is_valid, report
    assert torch.allclose(model(given), plain(given), atol=1e-5)


@program()
def dtensors(rank):
    mesh = init_device_mesh("cpu", (WORLD,))

    def model(t):
        sharded = distribute_tensor(t, mesh, [Shard(0)])
        product = sharded @ distribute_tensor(torch.eye(4) * 2, mesh, [Replicate()])
        product.mul_(2)
        return product.full_tensor(), product.redistribute(mesh, [Replicate()]).to_local(), product.sum().full_tensor(), product

    given = torch.arange(16.0).reshape(4, 4)
    history = torcheer.log_forward_pass(model, given)
    equal(history["output_1"].tensor_contents, given * 4)
    equal(history["output_2"].tensor_contents, given * 4)
    equal(history["output_3"].tensor_contents, (given * 4).sum())
    assert type(history["output_4"].tensor_contents) is DTensor
    assert history["output_4"].tensor_contents.placements == (Shard(0),)
    equal(history["output_4"].tensor_contents.to_local(), (given * 4).chunk(2)[rank])
    for label in ("output_1", "output_2", "output_3", "output_4"):
        assert is_upstream(history, "input", label), (label, history)
    matmul = next(one for one in history.operations if "matmul" in one.func_applied_name)
    equal(matmul.tensor_contents.to_local(), (given * 2).chunk(2)[rank])
    use(history)
    proven(history)


def guarded_until_it_stops(model, folder, *, bad_rank):
    """Train three steps; in the last one, a rank has NaN among its data. Returns the error of this rank."""
    stopped = None
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    rank = dist.get_rank()
    with torcheer.guard(model, optimizer, folder=folder) as watched:
        for step in range(3):
            given = mine(rank) / 100
            if step == 2:
                before = [gathered(one).clone() for one in model.parameters()]
                if rank == bad_rank:
                    given[1, 2] = math.nan
            try:
                optimizer.zero_grad()
                model(given).square().sum().backward()
                optimizer.step()
            except torcheer.NotFinite as error:
                stopped = error
                break
    assert stopped is not None, f"rank {rank} was not stopped"
    assert (stopped.step, watched.struck) == (2, 1), stopped
    for one, other in zip(model.parameters(), before, strict=True):
        equal(gathered(one), other)
    return stopped


def gathered(tensor):
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()


@program()
def a_guard_stops_all_ranks_of_ddp_and_the_rank_with_the_fault_says_where(rank):
    with tempfile.TemporaryDirectory() as folder:
        error = guarded_until_it_stops(nn.parallel.DistributedDataParallel(same_everywhere(Mlp())), folder, bad_rank=1)
        if rank == 1:
            assert (error.phase, error.label) == ("forward", "input_1_0"), error
            assert error.path.endswith("step_000002_rank1.safetensors")
            assert torcheer.load(error.path)["input_1_0"].nonfinite == 1
        else:
            assert error.phase == "unknown"
            assert "came from another rank" in str(error)


@program(since=(2, 8))
def a_guard_stops_all_ranks_of_fsdp2(rank):
    model = same_everywhere(Mlp())
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(model.fc1, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with tempfile.TemporaryDirectory() as folder:
        error = guarded_until_it_stops(model, folder, bad_rank=0)
    if rank == 0:
        assert (error.phase, error.label) == ("forward", "input_1_0"), error
    else:
        assert "came from another rank" in str(error), error


@program(since=(2, 8))
def a_guard_stops_all_ranks_where_one_shard_alone_is_not_finite(rank):
    model = same_everywhere(Mlp())
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tempfile.TemporaryDirectory() as folder, torcheer.guard(model, optimizer, folder=folder):
        model(mine(rank) / 100).sum().backward()
        if rank == 1:
            model.fc1.weight.grad.to_local()[0] = math.inf
        try:
            optimizer.step()
        except torcheer.NotFinite as error:
            message = str(error)
    assert "came from another rank" in message, message


def main():
    rank, world, store, results = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = sys.argv[5:] or list(PROGRAMS)
    timeout = datetime.timedelta(seconds=300)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timeout)
    with open(results, "w") as file:
        for name in names:
            torch.manual_seed(0)
            try:
                PROGRAMS[name](rank)
                error = None
            except BaseException:
                error = traceback.format_exc()
            file.write(json.dumps([name, error]) + "\n")
            file.flush()
            if error is not None:
                print(f"rank {rank}: {name}\n{error}", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
