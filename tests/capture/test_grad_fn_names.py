"""The names of autograd's nodes in a log are torch's own, also where they are not read from the nodes."""

from __future__ import annotations

import pytest
import torch

import torcheer
from torcheer.log import grad_fn_names


def program(weight: torch.Tensor, see=lambda tensor: tensor) -> torch.Tensor:
    """Functions with one node each, one with several, and results without any."""
    t = see(weight * 2)
    for _ in range(3):
        t = see(see(t[0:2]) + 1)  # a slice
        t = see(torch.stack([see(t[0]), see(t[1])]))  # two selections, by the same function
        t = see(see(t[:, [0, 1]]) * 1.5)  # an index, by the same function
        see(t.detach())
        t = see(torch.cat([t, see(torch.ones(2, 2))]))
    return see(t.sum())


@pytest.mark.parametrize("read", [13, 20, 4_000])
def test_nodes_are_named_as_torch_names_them_however_few_are_read(monkeypatch, read):
    """Functions whose earlier nodes differ are read on; the others take the name that they had."""
    names = []

    def see(tensor: torch.Tensor) -> torch.Tensor:
        names.append(type(tensor.grad_fn).__name__ if tensor.grad_fn is not None else None)
        return tensor

    weight = torch.rand(4, 2, requires_grad=True)
    program(weight, see)
    monkeypatch.setattr(grad_fn_names, "READ", read)
    history = torcheer.log_forward_pass(program, weight)
    assert [one.gradfunc for one in history.operations[1:-1]] == names


def test_nodes_of_a_long_recording_are_not_read_one_by_one(monkeypatch):
    """A chain of nodes that were read overflows the stack when it is freed."""
    reads = []
    read = grad_fn_names.NodeNames.read

    def counting(self, tensor: torch.Tensor) -> str | None:
        reads.append(tuple(tensor.shape))
        return read(self, tensor)

    def long(t: torch.Tensor) -> torch.Tensor:
        t = t[1] * t[2:3]  # operations 1 to 3; indexing has made two nodes by now
        for _ in range(20):
            t = t * 2  # 4 to 23
        for _ in range(5):
            t = t.relu()
        for _ in range(10):
            t = t[:]
        return t.unsqueeze(0).unsqueeze(0).unsqueeze(0)

    monkeypatch.setattr(grad_fn_names, "READ", 6)
    monkeypatch.setattr(grad_fn_names.NodeNames, "read", counting)
    history = torcheer.log_forward_pass(long, torch.rand(4, 2, requires_grad=True))
    # The input and five operations, the first relu, indices as long as six are not used up, the first unsqueeze, the output.
    assert len(reads) == 6 + 1 + 5 + 1 + 1
    assert [one.gradfunc for one in history.operations[4:29]] == ["MulBackward0"] * 20 + ["ReluBackward0"] * 5
