"""Odd things that people do while a block is open: copies, recursion, transforms. Plain hooks are the oracle."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from tap_models import Net, hooks_of
from torch import Tensor, nn

import torcheer
from models import made_of, made_with
from torcheer import changes


def assert_read_as_logged(model: nn.Module, x: Tensor) -> None:
    """Every operation of a model is read by a tap as a log of it kept it."""
    history = torcheer.log_forward_pass(model, x)
    labels = [one.label for one in history.operations if not one.is_input_layer and not one.is_output_layer]
    with torcheer.tap(model, labels, like=history) as values:
        model(x)
    for label in labels:
        assert torch.equal(values[label], history[label].tensor_contents), label


class Again(nn.Module):
    """Calls itself, directly or through a module inside."""

    class Caller(nn.Module):
        def forward(self, model: nn.Module, x: Tensor, depth: int) -> Tensor:
            return torch.cos(model(torch.sin(x), depth))

    def __init__(self, *, is_direct: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.caller = None if is_direct else self.Caller()

    def forward(self, x: Tensor, depth: int = 3) -> Tensor:
        y = torch.tanh(self.fc(x))
        if depth:
            y = self(y, depth - 1) if self.caller is None else self.caller(self, y, depth - 1)
        return torch.sigmoid(y)


@pytest.mark.parametrize("is_direct", [True, False])
def test_every_operation_of_a_model_that_calls_itself_is_read_as_the_log_kept_it(is_direct):
    model, x = Again(is_direct=is_direct), torch.rand(2, 4)
    assert_read_as_logged(model, x)


@pytest.mark.parametrize("is_direct", [True, False])
def test_one_round_of_a_model_that_calls_itself_is_changed_as_on_the_log(is_direct):
    model, x = Again(is_direct=is_direct), torch.rand(2, 4)
    history = torcheer.log_forward_pass(model, x)
    change = {"tanh_1:3": changes.scale(2)}
    with torcheer.intervene(model, change, like=history) as edits:
        live = model(x)
    assert edits.edits[0].times == 1
    assert torch.equal(live.detach(), history.replay(changes=change)["output"].tensor_contents)


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_that_is_made_in_a_block_is_the_plain_model(how):
    """In the block and after it; the block goes on with the model itself."""
    model, x = Net().eval(), torch.rand(2, 5, 8)
    history, plain = torcheer.log_forward_pass(model, x), model(x)
    with torcheer.intervene(model, {"softmax_2": changes.zero(), "cell": changes.scale(2)}, like=history):
        changed = model(x)
        if how == "deepcopy":
            copied = copy.deepcopy(model)
        elif how == "pickle":
            copied = pickle.loads(pickle.dumps(model))
        else:
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            copied = torch.load(file, weights_only=False)
        assert torch.equal(copied(x), plain)
        assert torch.equal(model(x), changed)
    assert torch.equal(copied(x), plain)
    assert torch.equal(model(x), plain)
    assert hooks_of(model) == 0


def test_a_model_that_was_pickled_in_a_block_is_read_without_torcheer(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with torcheer.tap(model, ["0"]):
        (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
        model(torch.ones(1, 2))
    program = (
        "import pickle, sys, torch\n"
        f"model = pickle.load(open({str(tmp_path / 'model.pickle')!r}, 'rb'))\n"
        "model(torch.ones(1, 2))\n"
        "assert 'torcheer' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_under_vmap_the_whole_batch_is_read():
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), torch.rand(5, 3)
    history = torcheer.log_forward_pass(model, x)
    with torcheer.tap(model, ["0", "tanh_1"], like=history) as values:
        torch.vmap(model)(x)
    torch.testing.assert_close(values["0"], model[0](x))
    torch.testing.assert_close(values["tanh_1"], model(x))


@pytest.mark.parametrize("key", ["0", "tanh_1"])
def test_under_transforms_values_are_changed_as_by_a_plain_hook(key):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), torch.rand(5, 3)
    history = torcheer.log_forward_pass(model, x)
    params = {name: param.detach() for name, param in model.named_parameters()}

    def loss(params: dict[str, Tensor]) -> Tensor:
        return torch.vmap(lambda row: torch.func.functional_call(model, params, (row,)))(x).square().sum()

    hook = model[0 if key == "0" else 1].register_forward_hook(lambda module, args, result: result * 3)
    expected = torch.func.grad(loss)(params)
    hook.remove()
    with torcheer.intervene(model, {key: changes.scale(3)}, like=history):
        found = torch.func.grad(loss)(params)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


@made_with(inner=lambda: nn.Linear(4, 4))
def Shortcut(self, x: Tensor) -> Tensor:
    """What the module inside is given goes past it, too."""
    x = x * 2
    return x + self.inner(x)


class Both(nn.Module):
    """What the module inside returns is used inside it, too."""

    @made_with(fc=lambda: nn.Linear(4, 4))
    def Inner(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.fc(x)
        return h, torch.tanh(h)

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: Tensor) -> Tensor:
        h, t = self.inner(x)
        return h * 3 + t


@pytest.mark.parametrize(("make", "key"), [(Shortcut, "input:inner"), (Both, "inner"), (Both, "inner.fc")])
def test_only_those_who_read_what_a_module_gets_or_gives_see_it_changed(make, key):
    """Plain hooks are the oracle, live and on the log; the log's arguments are those that were read."""
    model, x = make(), torch.rand(2, 4)
    module = model.get_submodule(key.removeprefix("input:"))
    if key.startswith("input:"):
        hook = module.register_forward_pre_hook(lambda module, args: (args[0] * 5,))
    else:
        hook = module.register_forward_hook(
            lambda module, args, result: result * 5 if isinstance(result, Tensor) else (result[0] * 5, result[1])
        )
    expected = model(x).detach()
    hook.remove()
    history = torcheer.log_forward_pass(model, x)
    change = {key: changes.scale(5)}
    with torcheer.intervene(model, change, like=history):
        assert torch.equal(model(x).detach(), expected)
    replayed = history.replay(changes=change)
    assert torch.equal(replayed["output"].tensor_contents, expected)
    if make is Shortcut:
        assert torch.equal(replayed["linear_1"].creation_args[0], x * 10)
        assert torch.equal(replayed["add_1"].creation_args[0], x * 2)
    assert any(key in note for note in replayed.notes)


class Hooked(nn.Module):
    """A model with hooks of its own, which change what its modules are given and return."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.first.register_forward_hook(lambda module, args, result: torch.sin(result))
        self.second.register_forward_pre_hook(lambda module, args: (torch.cos(args[0]),))
        self.second.register_forward_hook(lambda module, args, kwargs, result: torch.exp(result), with_kwargs=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) * 2


def test_with_hooks_of_the_model_every_operation_is_read_as_the_log_kept_it():
    """A module gives what its forward returned; what a hook makes of it is another operation."""
    model, x = Hooked(), torch.rand(2, 4)
    history = torcheer.log_forward_pass(model, x)
    keys = [one.label for one in history.operations if not one.is_input_layer and not one.is_output_layer]
    keys += ["first", "second", "second.0", "input:second", "input:second.0", "input:first"]
    assert {label.split("_")[0] for label in keys} >= {"sin", "cos", "exp"}
    with torcheer.tap(model, keys, like=history) as values:
        model(x)
    for key in keys:
        assert torch.equal(values[key], history[key].tensor_contents), key
    with torcheer.tap(model, ["first", "input:second"]) as values:
        model(x)
    assert torch.equal(values["first"], history["first"].tensor_contents)
    assert torch.equal(values["input:second"], history["input:second"].tensor_contents)


@pytest.mark.parametrize("key", ["first", "second", "input:second", "sin_1", "cos_1", "exp_1", "tanh_1"])
def test_with_hooks_of_the_model_a_change_is_that_of_the_log(key):
    model, x = Hooked(), torch.rand(2, 4)
    order = [list(module._forward_hooks.values()) for module in model.modules()]
    history = torcheer.log_forward_pass(model, x)
    change = {key: changes.scale(3)}
    with torcheer.intervene(model, change, like=history):
        live = model(x).detach()
    assert torch.equal(live, history.replay(changes=change)["output"].tensor_contents)
    assert [list(module._forward_hooks.values()) for module in model.modules()] == order


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def activate(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(torch.tanh(self.fc(x)))


@pytest.mark.parametrize("patched", [[0], [1], [2], [0, 1, 2], [1, 2]])
def test_forwards_that_a_program_put_others_around_are_read_as_the_log_kept_them(patched):
    """As libraries do that move modules between devices: `module.forward` is another function, which calls the class's."""
    model, x = nn.Sequential(*(Block() for _ in range(3))), torch.rand(2, 4)
    for at in patched:
        plain = model[at].forward
        model[at].forward = lambda x, plain=plain: plain(x) * 2
    assert_read_as_logged(model, x)


def test_a_forward_that_calls_itself_without_the_module_is_read_as_the_log_kept_it():
    def forward(self, x: Tensor, times: int = 3) -> Tensor:
        x = torch.tanh(x)
        return self.forward(x * 2, times - 1) if times else x

    model, x = made_of(forward), torch.rand(3)
    assert_read_as_logged(model, x)
