"""Compiled models: probed without touching them; a recorded step, which would run uncompiled, is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torcheer import InvalidArgument, Xray

X = torch.ones(2, 4)


class Counting:
    """A compiler that counts how often compiled code runs, and computes a little differently, as compilers do."""

    def __init__(self) -> None:
        self.ran = 0

    def __call__(self, graph, _inputs):
        def run(*args):
            self.ran += 1
            return tuple(out * (1 + 1e-6) if out.is_floating_point() else out for out in graph.forward(*args))

        return run


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    yield Counting()
    torch._dynamo.reset()


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.second(self.first(x).relu())


def network():
    torch.manual_seed(0)
    return Network()


def compiled_whole(model, compiler):
    return torch.compile(model, backend=compiler)


def compiled_in_place(model, compiler):
    model.compile(backend=compiler)
    return model


def compiled_part(model, compiler):
    model.first = torch.compile(model.first, backend=compiler)
    return model


def compiled_function(model, compiler):
    return torch.compile(lambda x: model(x).square(), backend=compiler)


WAYS = [compiled_whole, compiled_in_place, compiled_part, compiled_function]


@pytest.mark.parametrize("compile", WAYS)
@pytest.mark.parametrize("is_known", [True, False])
def test_a_step_of_a_compiled_model_is_refused_before_it_runs(tmp_path, compiler, compile, is_known):
    """Whether the Xray was given the compiled model or the original; no gradient is made, and the model can still be used."""
    model = network()
    called = compile(model, compiler)
    given = called if is_known and isinstance(called, nn.Module) else model
    called(X)
    with Xray(given, X, ["second"], folder=tmp_path / "run") as xray:
        with pytest.raises(InvalidArgument, match=r"compiled.*take_graphs"), xray.step():
            called(X).sum().backward()
        assert all(param.grad is None for param in model.parameters())
        ran = compiler.ran
        called(X).sum().backward()
        assert compiler.ran > ran
        xray.take_graphs(5)
    assert xray.run.steps() == [5]


@pytest.mark.parametrize("compile", WAYS)
def test_a_compiled_training_is_bit_identical_with_take_graphs(tmp_path, compiler, compile):
    """Compiled code runs as often as without an Xray, and the weights agree in every bit."""
    finals = []
    for is_watched in (False, True):
        torch._dynamo.reset()
        model = network()
        called = compile(model, compiler)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        xray = Xray(model, X, ["second"], folder=tmp_path / "run") if is_watched else None
        compiler.ran = 0
        for _ in range(4):
            optimizer.zero_grad()
            called(X).sum().backward()
            if xray is not None:
                xray.take_graphs()
            optimizer.step()
        if xray is not None:
            xray.close()
        finals.append(([param.detach().clone() for param in model.parameters()], compiler.ran))
    assert finals[0][1] == finals[1][1] > 0
    assert all(torch.equal(one, other) for one, other in zip(finals[0][0], finals[1][0], strict=True))


def test_another_compiled_model_does_not_matter(tmp_path, compiler):
    """A step of a plain model is watched although something else in the process is compiled."""
    torch.compile(network(), backend=compiler)(X)
    model = network()
    with Xray(model, X, ["second"], folder=tmp_path / "run") as xray, xray.step():
        model(X).sum().backward()
    assert xray.run.steps("second", "layer_grad") == [0]
