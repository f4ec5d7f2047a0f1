"""Compiled models: probed without touching them; a recorded step, which would run uncompiled, is refused."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from torcheer import InvalidArgument, Xray

X = torch.ones(2, 4)

pytestmark = [
    # torch's compiler reads the `.grad` of every tensor it is given
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    # recording sets hooks
    pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks"),
]


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
        self.activation = torch.relu

    def forward(self, x):
        return self.second(self.activation(self.first(x)))


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


def compiled_forward(model, compiler):
    model.first.forward = torch.compile(model.first.forward, backend=compiler)
    return model


def compiled_activation(model, compiler):
    """A function that calls no module."""
    model.activation = torch.compile(lambda x: torch.relu(x) * 2, backend=compiler)
    return model


def compiled_loss(model, compiler):
    """A function of what the model returned."""
    loss = torch.compile(lambda y: y.square().mean(), backend=compiler)
    return lambda x: loss(model(x))


WAYS = [
    *(compiled_whole, compiled_in_place, compiled_part, compiled_function),
    *(compiled_forward, compiled_activation, compiled_loss),
]


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


def test_a_compiled_optimizer_inside_a_step_is_refused_before_it_changes_a_weight(tmp_path, compiler):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend=compiler)
    model(X).sum().backward()
    before = [param.detach().clone() for param in model.parameters()]
    watched = Xray(model, X, ["second"], folder=tmp_path / "run")
    with watched as xray, pytest.raises(InvalidArgument, match=r"compiled.*take_graphs"), xray.step():
        step()
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_code_that_compiled_code_calls_uncompiled_is_watched(tmp_path, compiler):
    """`torch.compiler.disable` runs the model as it is; what is compiled around it does nothing by itself."""
    model = network()
    uncompiled = torch.compiler.disable(model.forward)
    called = torch.compile(lambda x: uncompiled(x), backend=compiler)
    called(X)
    with Xray(model, X, ["second"], folder=tmp_path / "run") as xray, xray.step():
        called(X).sum().backward()
    assert xray.run.steps("second", "layer_grad") == [0]


@pytest.mark.parametrize("compile", [compiled_activation, compiled_function])
def test_compiled_code_that_torch_was_told_to_run_uncompiled_is_watched(tmp_path, compiler, compile):
    model = network()
    called = compile(model, compiler)
    with Xray(model, X, ["second"], folder=tmp_path / "run") as xray, torch.compiler.set_stance("force_eager"), xray.step():
        called(X).sum().backward()
    assert xray.run.steps("second", "layer_grad") == [0]


def test_what_is_compiled_for_the_first_time_inside_a_step_is_refused(tmp_path):
    """Torch imports its compiler only when something is compiled."""
    program = """
        import sys, torch
        from torcheer import InvalidArgument, Xray
        model, x = torch.nn.Linear(4, 3), torch.ones(2, 4)
        xray = Xray(model, x, folder=sys.argv[1])
        assert "torch._dynamo.eval_frame" not in sys.modules
        try:
            with xray.step():
                torch.compile(lambda y: y.square().sum(), backend="eager")(model(x)).backward()
        except InvalidArgument as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "run")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "compiled code" in ran.stdout
