"""The worked examples at the top of the hard files (recurrence, loops, retention, identity, backward) are true."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

import torcheer


class Parts(nn.Module):
    """Linear layers by name, one ReLU, and a program that uses them."""

    def __init__(self, program, names: str, width: int = 2) -> None:
        super().__init__()
        self.program = program
        for name in names.split():
            setattr(self, name, nn.Linear(2, width))
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.program(self, x)


def passes(program, names: str, x: Tensor, width: int = 2) -> Iterator[tuple[str, int]]:
    """The layers of a program, inputs and outputs aside, by label without numbers, and how often each ran."""
    layers = torcheer.log_forward_pass(Parts(program, names, width), x).layers
    return ((one.layer_type, one.num_passes) for one in layers if one.layer_type not in ("input", "output"))


def test_six_operations_are_four_layers():
    """log/layers.py"""

    def program(self, x):
        for _ in range(2):
            x = self.act(self.fc(x))
        return self.act(self.head(x))

    assert [*passes(program, "fc head", torch.rand(1, 2))] == [("linear", 2), ("relu", 2), ("linear", 1), ("relu", 1)]


def test_a_module_without_parameters_runs_where_it_is_called():
    """log/layers.py"""

    def program(self, x):
        x = self.act(self.fc1(x))
        x = self.act(self.fc2(x))
        return x

    assert [*passes(program, "fc1 fc2", torch.rand(1, 2))] == [("linear", 1), ("relu", 1)] * 2


def test_rounds_are_not_told_apart_by_what_ran_before_the_loop():
    """log/layers.py"""

    def program(self, x):
        y, z, h = self.f(x), self.g(x), torch.zeros_like(x)
        for _ in range(3):
            h = torch.sigmoid(h + y) * z
        return h

    found = dict([*passes(program, "f g", torch.rand(1, 2))])
    assert [found[name] for name in ("add", "sigmoid", "mul")] == [3, 3, 3]


def test_reshapes_side_by_side_and_masks_are_no_loop():
    """log/layers.py"""

    def heads(one):
        return one.reshape(-1)

    def program(self, x):
        q, k, v = map(heads, self.to_qkv(x).chunk(3, dim=1))
        h = q - k - v
        for t in range(3):
            h = torch.sin(h + x[t].sum())
        for mask in (torch.cos(h), torch.tan(h)):
            h = h * mask
        return h

    found = [*passes(program, "to_qkv", torch.rand(3, 2), 6)]
    assert found.count(("reshape", 1)) == 3
    assert found.count(("mul", 1)) == 2
    assert {("getitem", 3), ("add", 3), ("sin", 3)} <= set(found)


def test_what_is_kept_is_copied_before_it_is_overwritten():
    """capture/keeper.py"""

    def program(x):
        y = x * 2
        z = y.t()
        y.relu_()
        return y, z.shape

    x = torch.tensor([[-1.0, 2.0], [3.0, -4.0]])
    history = torcheer.log_forward_pass(program, x)
    assert torch.equal(history["mul_1"].activation, x * 2)
    assert torch.equal(history["t_1"].activation, (x * 2).t())
    assert torch.equal(history["relu_1"].activation, (x * 2).relu())


def test_a_write_through_a_view_reaches_the_whole():
    """_torch/tensor_table.py"""

    def program(x):
        y = x * 2
        z = y[0]
        z.add_(1)
        return y + 1

    history = torcheer.log_forward_pass(program, torch.ones(2, 2))
    assert [one.parent_layers for one in history.operations[1:5]] == [
        ["input_1_0"],
        ["mul_1_1"],
        ["getitem_1_2"],
        ["mul_1_1", "add_1_3"],
    ]


def test_a_write_through_numpy_is_an_operation():
    """capture/identity.py"""

    def program(x):
        y = x * 2
        y.numpy()[:] = 0
        return y + 1

    history = torcheer.log_forward_pass(program, torch.ones(2))
    assert [one.layer_type for one in history.operations] == ["input", "mul", "numpywrite", "add", "output"]
    assert history["add_1"].parents == [history["numpywrite_1"]]


def test_the_nodes_of_a_backward_pass_are_those_of_its_operations():
    """capture/gradients.py"""
    fc = nn.Linear(2, 3)
    with torcheer.recording(fc, save_gradients=True) as history:
        y = fc(torch.ones(1, 2))
        loss = y.sum()
        loss.backward()
    ran = {one.name: (one.layer_label or one.param, one.role) for one in history.backward_passes[0].operations}
    assert ran["SumBackward0"] == ("sum_1_3", "result")
    assert ran["AddmmBackward0"] == ("linear_1_2", "result")
    assert ran["TBackward0"] == ("linear_1_2", "inside")
    assert ran["AccumulateGrad"] in (("weight", "accumulation"), ("bias", "accumulation"))
