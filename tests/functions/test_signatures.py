"""The positional arguments of a call have the names that its documentation gives them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from models import log

X = torch.rand(2, 4, 6)
IMAGE = torch.rand(1, 2, 8, 8)


@pytest.mark.parametrize(
    ("call", "x", "expected"),
    [
        (lambda x: x.transpose(1, 2), X, "·, dim0=1, dim1=2"),
        (lambda x: torch.transpose(x, 1, 2), X, "·, dim0=1, dim1=2"),
        (lambda x: x.sum(1, True), X, "·, dim=1, keepdim=True"),
        (lambda x: x.std(0, True), X, "·, dim=0, unbiased=True"),
        (lambda x: x.std(False), X, "·, unbiased=False"),
        (lambda x: torch.clamp(x, 0.1, 0.9), X, "·, min=0.1, max=0.9"),
        (lambda x: x.clamp(None, 0.9), X, "·, min=None, max=0.9"),
        (lambda x: x.to(torch.float64), X, "·, dtype=torch.float64"),
        (lambda x: x.to("cpu", torch.float64), X, "·, device='cpu', dtype=torch.float64"),
        (lambda x: torch.roll(x, 1, 0), X, "·, shifts=1, dims=0"),
        (lambda x: torch.cat([x, x], 1), X, "tensors=[·, ·], dim=1"),
        (lambda x: torch.flatten(x, 1), X, "·, start_dim=1"),
        (lambda x: x.softmax(-1), X, "·, dim=-1"),
        (lambda x: F.softmax(x, -1), X, "·, dim=-1"),
        (lambda x: x.chunk(2, 1)[0], X, "·, chunks=2, dim=1"),
        (lambda x: x.split(2, 1)[0], X, "·, split_size=2, dim=1"),
        (lambda x: F.pad(x, (1, 1)), X, "·, pad=(1, 1)"),
        (lambda x: F.max_pool2d(x, 3), IMAGE, "·, kernel_size=3"),
        (lambda x: F.avg_pool2d(x, 3, 2), IMAGE, "·, kernel_size=3, stride=2"),
        (lambda x: F.conv2d(x, torch.ones(2, 2, 3, 3), None, 2, 1), IMAGE, "·, ·, bias=None, stride=2, padding=1"),
        (lambda x: F.conv2d(x, torch.ones(2, 2, 3, 3), None, 1, "same"), IMAGE, "·, ·, bias=None, stride=1, padding='same'"),
        (lambda x: F.interpolate(x, None, 2.0), IMAGE, "·, size=None, scale_factor=2.0"),
        (lambda x: F.gelu(x, approximate="tanh"), X, "·, approximate='tanh'"),
        (lambda x: x.unfold(2, 2, 1), X, "·, dimension=2, size=2, step=1"),
        (lambda x: x.view(2, 24), X, "·, 2, 24"),
        (lambda x: x.permute(2, 0, 1), X, "·, 2, 0, 1"),
        (lambda x: x + 1, X, "·, other=1"),
        (lambda x: x[0], X, "·, 0"),
    ],
)
def test_arguments_have_their_names(call, x, expected):
    """Those of C functions too; what is given one by one (`view(2, 24)`) has none."""
    graph = log(call, x).graph
    said = [str(node.arguments) for node in graph.nodes if node.arguments is not None]
    assert any(text == expected or text.startswith(f"{expected}, ") for text in said), said


def test_names_are_those_python_knows():
    """For every function of torch.nn.functional that is written in Python, of which inspect can tell."""
    arguments = log(lambda x: F.dropout(x, 0.5, True, False), X).graph.node("dropout_1_1:1").arguments
    assert [name for name, _ in arguments.pairs()] == ["input", "p", "training", "inplace"]
