"""Features combined, two at a time: the values are plain PyTorch's, and the numbers that are printed add up."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

import torcheer as tl
from models import log, made_with

x = torch.rand(5, 3)


@made_with(fc=lambda: nn.Linear(3, 3), act=nn.Tanh, head=lambda: nn.Linear(3, 2))
def Net(self, t: Tensor) -> Tensor:
    """A layer that runs twice, an activation that is reused, a result written in place."""
    for _ in range(2):
        t = self.act(self.fc(t))
    t = self.head(t)
    return t.mul_(2)


def per_sample(t: Tensor) -> Tensor:
    net = Net()
    params = {name: value.detach() for name, value in net.named_parameters()}

    def loss(params: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(net, params, (sample,)).square().sum()

    return vmap(grad(loss), in_dims=(None, 0))(params, t)["fc.weight"].sum(0)


TRANSFORMS = {
    "vmap": lambda t: vmap(lambda row: torch.sin(row) * row.sum())(t),
    "gradients of each sample": per_sample,
    "jvp": lambda t: jvp(torch.sin, (t,), (torch.ones_like(t),))[1],
    "jacobian": jacrev(lambda t: (t**2).sum(1)),
    "hessian": lambda t: hessian(lambda row: (row**3).sum())(t[0]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_have_the_same_graph_whatever_is_saved(name: str) -> None:
    """`layers_to_save` and `torch.func`: edges do not depend on what is kept, and what is counted is what is kept."""
    torch.manual_seed(0)
    whole = log(TRANSFORMS[name], x)
    edges = [(one.label, one.parent_layers, one.tensor_shape) for one in whole.operations]
    last = whole.operations[-2].layer_label
    for wanted, count in (("none", 0), ([last], len(whole[last].passes)), ("input", 1), ("output", 1)):
        history = log(TRANSFORMS[name], x, layers_to_save=wanted)
        assert [(one.label, one.parent_layers, one.tensor_shape) for one in history.operations] == edges
        assert history.num_tensors_saved == len(history.saved) == count
        saved = sum(one.tensor_fsize for one in history.saved if one.origin != "output" or wanted == "output")
        assert history.tensor_fsize_saved == saved
        assert f"; {count} tensor{'s' * (count != 1)} ({saved} B) saved." in str(history)
    assert whole.num_tensors_saved == len(edges)


@pytest.mark.parametrize("wanted", ["all", "none", ["fc"]])
@pytest.mark.parametrize("passes", [1, 2])
def test_gradients_of_a_recording_are_autograds_whatever_is_saved(wanted: object, passes: int) -> None:
    """`recording` and backward: every backward pass is told apart, and gradients of parameters are those of each."""
    net = Net()
    kept: list[Tensor] = []
    with torch.enable_grad():
        inner = net.fc(x)
        first = net.act(inner)
        again = net.act(net.fc(first))
        kept += [first, again]
        (net.head(again) * 2).square().mean().backward(inputs=[first, again, net.fc.weight])
    expected = {"first": kept[0].grad, "again": kept[1].grad, "weight": net.fc.weight.grad}
    net.zero_grad()
    with tl.recording(net, save_gradients=True, layers_to_save=wanted) as history:
        loss = net(x).square().mean()
        for n in range(passes):
            loss.backward(retain_graph=n + 1 < passes)
    assert len(history.backward_passes) == passes
    for number, passed in enumerate(history.backward_passes, 1):
        assert re.fullmatch(
            rf"Backward pass {number}: \d+ nodes, \d+ gradients of operations, 4 of parameters, \d\.\d{{3}}E-\d\d",
            repr(passed)[:-1],
        )
    assert torch.allclose(history["tanh_1:1"].grad, expected["first"])
    assert torch.allclose(history["tanh_1:2"].grad, expected["again"])
    assert torch.allclose(net.fc.weight.grad, expected["weight"] * passes)
    assert str(history).count("\tBackward pass ") == passes
    count = {"all": len(history.operations), "none": 1}.get(str(wanted), 3)  # the output stays, to run backward from
    assert history.num_tensors_saved == count


def written(t: Tensor, change: dict[str, float] | None = None) -> Tensor:
    """In-place calls on a tensor and on a view of it; `change` is added to what the calls of these names return."""
    change = change or {}
    doubled = t * 2
    doubled += change.get("mul_1", 0.0)
    doubled.add_(1)
    doubled += change.get("add_1", 0.0)
    part = doubled[1:]
    part.mul_(3)
    part += change.get("mul_2", 0.0)
    return doubled.sum(1) * part.mean()


def plain(t: Tensor) -> Tensor:
    doubled = t * 2
    doubled.add_(1)
    part = doubled[1:]
    part.mul_(3)
    return doubled.sum(1) * part.mean()


@pytest.mark.parametrize("key", [None, "mul_1", "add_1", "mul_2"])
@pytest.mark.parametrize("other", [False, True])
def test_a_replay_writes_in_place_as_the_model_would(key: str | None, other: bool) -> None:
    """`replay` and in-place writes: changes flow on through views, with the inputs of the log and with others."""
    history = log(plain, x)
    given = torch.rand(5, 3) if other else x
    changes = {key: lambda t: t + 5.0} if key else None
    replayed = history.replay(given if other else None, changes)
    expected = written(given, {key: 5.0} if key else None)
    assert torch.allclose(replayed["output"].activation, expected)
    assert torch.equal(history["output"].activation, plain(x))
    assert replayed.num_tensors_saved == history.num_tensors_saved
    assert [one.label for one in replayed.operations] == [one.label for one in history.operations]


def test_an_xray_of_a_reused_module_shows_every_call_and_counts_its_parameters_once(tmp_path: Path) -> None:
    net = Net()
    with tl.Xray(net, x, ["fc", "act"], folder=tmp_path / "run", dtype=torch.float32) as xray:
        net(x).square().mean().backward()
        xray.take_graphs()
    run = xray.run
    snapshot = run.snapshots[-1]
    assert run.layers == ["fc:1", "fc:2", "act:1", "act:2"]
    assert {one.layer: (one.parameters, one.units) for one in snapshot.summaries} == {"fc": (12, None), "head": (8, None)}
    with torch.no_grad():
        inner = net.fc(x)
        later = net.fc(net.act(inner))
    for layer, values in (("fc:1", inner), ("fc:2", later), ("act:1", inner.tanh()), ("act:2", later.tanh())):
        assert torch.allclose(torch.from_numpy(run.tensor(layer, "layer")), values)
        assert snapshot.find(layer, "layer").note == f"pass {layer[-1]} of 2"
    for layer in ("fc:1", "fc:2"):
        assert torch.equal(torch.from_numpy(run.tensor(layer, "weight")), net.fc.weight.detach())
        assert torch.equal(torch.from_numpy(run.tensor(layer, "grad")), net.fc.weight.grad)


def test_logs_in_several_threads_keep_to_themselves() -> None:
    """Each has its own graph, gradients and what it was told to save."""
    done: dict[int, tuple[int, int, float]] = {}

    def work(number: int) -> None:
        net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(number)))
        for _ in range(5):
            history = tl.log_forward_pass(net, x, layers_to_save=[f"linear_{number}"], save_gradients=True)
            history["output"].tensor_contents.sum().backward()
            gradient = history[f"linear_{number}"].grad
        done[number] = len(history.operations), history.num_tensors_saved, float(gradient.sum())

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == {number: (number + 2, 2, 15.0) for number in (1, 2, 3, 4)}
