"""Functions that return their own argument: who reads which of the two is told apart where it can be."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torcheer
from models import made_of
from torcheer import changes

HAND_BACK = {
    "to": lambda x: x.to(torch.float32),
    "float": lambda x: x.float(),
    "contiguous": lambda x: x.contiguous(),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "reshape": lambda x: x.reshape(x.shape),
    "expand_as": lambda x: x.expand_as(x),
    "type_as": lambda x: x.type_as(x),
    "two of them": lambda x: x.to(torch.float32).contiguous(),
}


class Inner(nn.Module):
    """Works on what a function hands back; does not return it."""

    def __init__(self, function) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.function(x))


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        return x + self.inner(x)


@pytest.mark.parametrize("saved", ["all", ["add_1"]])
@pytest.mark.parametrize("name", HAND_BACK)
def test_a_shortcut_around_a_module_comes_from_what_the_module_was_given(name, saved):
    history = torcheer.log_forward_pass(Residual(Inner(HAND_BACK[name])), torch.rand(2, 4), layers_to_save=saved)
    assert history["add_1"].parent_layers == [history["mul_1"].layer_label, history["linear_1"].layer_label]
    assert history.validate() if saved == "all" else True


@pytest.mark.parametrize("name", HAND_BACK)
def test_a_change_of_what_was_handed_back_is_the_same_live_and_on_the_log(name):
    model, x = Residual(Inner(HAND_BACK[name])), torch.rand(2, 4)
    history = torcheer.log_forward_pass(model, x)
    label = history["linear_1"].parent_layers[0]
    with torcheer.intervene(model, {label: changes.scale(3)}, like=history):
        live = model(x)
    expected = x * 2 + model.inner.fc(x * 6)
    torch.testing.assert_close(live, expected)
    tried = history.replay(changes={label: changes.scale(3)})
    torch.testing.assert_close(tried["output"].tensor_contents, expected.detach())


def test_a_module_that_returns_what_was_handed_back_is_on_the_way():
    """Also where it is inside another one, which does not return it."""
    history = torcheer.log_forward_pass(Residual(nn.Sequential(nn.Dropout(), nn.Linear(4, 4))).eval(), torch.rand(2, 4))
    assert history["linear_1"].parent_layers == [history["dropout_1"].layer_label]
    assert history["add_1"].parent_layers == [history["mul_1"].layer_label, history["linear_1"].layer_label]


def test_what_was_written_to_after_it_was_handed_back_stays_written():
    def writes(self, x: Tensor) -> Tensor:
        x.contiguous().add_(1)
        return x.sum()

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        return self.inner(x) + x

    history = torcheer.log_forward_pass(made_of(forward, inner=made_of(writes)), torch.rand(3))
    assert history["add_2"].parent_layers == [history["sum_1"].layer_label, history["add_1"].layer_label]
    assert history.validate()


def test_a_parameter_that_was_handed_back_is_a_parameter_again_outside():
    """So that the module that used it as another dtype is not on the way of others."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner(lambda x: x @ self.weight.to(torch.float32))
            self.weight = nn.Parameter(torch.rand(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) @ self.weight

    history = torcheer.log_forward_pass(Tied(), torch.rand(2, 4))
    last = history[-2] if history[-1].is_output_layer else history[-1]
    assert [param.name for param in last.params] == ["weight"]
    assert history.validate()


def test_errors_inside_a_module_do_not_leave_it_on_the_way():
    def fails(self, x: Tensor) -> Tensor:
        x.to(torch.float32)
        raise ValueError

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        try:
            self.inner(x)
        except ValueError:
            return x + 1
        return x

    history = torcheer.log_forward_pass(made_of(forward, inner=made_of(fails)), torch.rand(3))
    assert history["add_1"].parent_layers == [history["mul_1"].layer_label]
