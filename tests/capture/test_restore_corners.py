"""Restoring goes on to the end whatever one part of it raises, and names what it could not restore."""

from __future__ import annotations

import collections
import collections.abc
import random

import pytest
import torch
from torch import nn

import torch_vis
import torcheer
from catalogue.state import with_parts, write_buffer, write_input
from models import log, made_of, made_with, same, unchanged, world
from torcheer import StateNotRestored

x = torch.rand(3, 4)


@made_with(norm=lambda: nn.BatchNorm1d(4), steps=lambda: 0)
def Normed(self, t):
    """Changes statistics, the random state and itself."""
    self.steps += 1
    return self.norm(t) + torch.rand(4)


@pytest.mark.parametrize("inside", [True, False])
def test_inference_tensors_are_put_back(inside):
    with torch.inference_mode():
        model, given = Normed(), torch.rand(3, 4)
    given_before, before = given.clone(), world(model)
    with torch.inference_mode(inside):
        if inside:

            def function(t):
                return model(t.mul_(2))

            log(function, given)
        else:
            model.eval()
            log(model, given)
            model.train()
    assert torch.equal(given, given_before)
    assert same(world(model)["tensors"], before["tensors"])


class Failing(random.Random):
    """A generator that cannot be set back."""

    def __init__(self, error):
        self.error = error
        super().__init__(0)

    def setstate(self, state):
        if hasattr(self, "error") and self.error is not None:
            error, self.error = self.error, None if isinstance(self.error, KeyboardInterrupt) else self.error
            raise error
        super().setstate(state)


class Holds(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.generators = [Failing(error), torch.Generator()]
        self.last = {"seen": []}

    def forward(self, t):
        self.last["seen"].append(t.shape)
        return self.norm(t) + self.generators[0].random() + torch.rand(4, generator=self.generators[1])


def test_what_cannot_be_restored_is_named_and_everything_else_is_restored():
    model = Holds(RuntimeError("no way back"))
    with (
        unchanged(model.norm, model.generators[1], model.last),
        pytest.warns(StateNotRestored, match=r"'generators'.*RuntimeError: no way back") as caught,
    ):
        history = log(model, x)
    assert len(caught) == 1
    assert any("'generators'" in note for note in history.notes)
    assert history.is_complete


def test_an_interrupt_while_restoring_goes_on_after_everything_is_restored():
    model = Holds(KeyboardInterrupt())
    with unchanged(model), pytest.raises(KeyboardInterrupt):
        log(model, x)


def test_an_output_that_raises_when_it_is_looked_at_leaves_no_trace():
    class Output(collections.abc.Mapping):
        def __getitem__(self, key):
            raise KeyboardInterrupt

        def __iter__(self):
            raise KeyboardInterrupt

        def __len__(self):
            return 1

    class Model(Normed):
        def forward(self, t):
            super().forward(t)
            return Output()

    model = Model()
    with unchanged(model), pytest.raises(KeyboardInterrupt):
        log(model, x)
    assert model.steps == 0


def test_the_error_of_the_pass_is_not_hidden_by_a_warning():
    class Model(Holds):
        def forward(self, t):
            super().forward(t)
            raise ValueError("mine")

    model = Model(RuntimeError("no way back"))
    with unchanged(model.norm, model.last), pytest.raises(ValueError, match="mine") as caught:
        log(model, x)
    assert any("no way back" in note for note in caught.value.history.notes)


class Writes(nn.Module):
    def forward(self, t):
        return t.add_(1)


def test_an_input_that_torchscript_writes_to_is_put_back():
    model, given = torch.jit.script(Writes()), torch.rand(3, 4)
    before = given.clone()
    history = log(model, given)
    assert torch.equal(history["input"].activation, before)
    assert torch.equal(history["output"].activation, before + 1)
    torcheer.validate_forward_pass(model, given)
    assert torch.equal(given, before)


@pytest.mark.parametrize("track_tensor_ops", [True, False])
def test_what_could_not_be_restored_is_named_also_inside_an_except_block(track_tensor_ops):
    try:
        raise ValueError
    except ValueError:
        with pytest.warns(StateNotRestored, match="no way back"):
            torch_vis.track_computational_graph_execution(
                Holds(RuntimeError("no way back")), torch.rand(2, 4), track_tensor_ops=track_tensor_ops
            )


def test_an_input_that_a_compiled_function_writes_to_unseen_is_named():
    @torch.jit.script
    def write(t: torch.Tensor) -> torch.Tensor:
        return t.add_(1)

    given = torch.rand(3, 4)
    with (
        pytest.warns(StateNotRestored, match=r"an input of shape \(3, 4\).*written to by code that cannot be watched"),
        pytest.warns(torcheer.UnseenWorkWarning, match="input_1_0"),
    ):
        log(lambda t: write(t) * 2, given)
    before = given.clone()
    with pytest.warns(torcheer.UnseenWorkWarning, match="input_1_0"):
        torcheer.validate_forward_pass(lambda t: write(t) * 2, given)
    assert torch.equal(given, before)


def test_gradients_of_nested_parameters_are_put_back():
    """The memory of a nested tensor is not strided, so its values are copied, and not its bytes."""

    def forward(self, t):
        self.weight.grad.mul_(2)
        return t + sum(part.sum() for part in self.weight.unbind())

    model = made_of(forward, weight=nn.Parameter(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])))
    sum(part.sum() * n for part, n in zip(model.weight.unbind(), (5, 7), strict=True)).backward()
    with unchanged(model):
        history = log(model, torch.ones(3))
    assert not history.notes


# How to make what holds a tensor, and how to get it.


def test_a_log_adds_nothing_to_the_gradients_that_follow():
    def gradient(logged):
        torch.manual_seed(0)
        model, given = with_parts(write_buffer), torch.rand(4, 3)
        if logged:
            log(model, given)
        model(given).sum().backward()
        return model.fc.weight.grad

    assert torch.equal(gradient(logged=True), gradient(logged=False))


def test_hooks_that_the_pass_puts_on_tensors_are_removed():
    def hook(model, t):
        t.register_hook(lambda gradient: gradient * 2)
        model.fc.weight.register_hook(lambda gradient: gradient * 2)
        model.fc.bias.register_post_accumulate_grad_hook(lambda tensor: None)
        return model.fc(t)

    model, given = with_parts(hook), torch.rand(4, 3, requires_grad=True)
    kept = model.fc.weight.register_hook(lambda gradient: gradient * 3)
    log(model, given)
    assert not given._backward_hooks
    assert list(model.fc.weight._backward_hooks) == [kept.id]
    assert not model.fc.bias._post_accumulate_grad_hooks


def test_what_autograd_knows_of_a_computed_input_that_is_overwritten_is_named():
    given = torch.rand(4, 3, requires_grad=True) * 2
    values = given.clone()
    with pytest.warns(StateNotRestored, match=r"an input of shape \(4, 3\).*its autograd state cannot be restored"):
        torcheer.log_forward_pass(with_parts(write_input), given)
    assert torch.equal(given, values)


@pytest.mark.parametrize("returned", [lambda memory: memory, lambda memory: memory[1:]], ids=["whole", "view"])
def test_an_output_that_is_restored_keeps_its_values_and_its_graph(returned):
    def written(model, t):
        model.memory += model.fc(t)
        return returned(model.memory)

    model, given = with_parts(written), torch.rand(4, 3)
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    output = history["output"].activation
    assert torch.equal(output, returned(model.fc(given)))
    assert not model.memory.any()
    history.log_backward(output.sum())
    plain = torch.autograd.grad(returned(model.fc(given)).sum(), model.fc.weight)[0]
    assert torch.equal(history.param_grads["fc.weight"], plain)


class Changing(nn.Module):
    """A layer and a buffer; `does` is what the pass does with them."""

    def __init__(self, does, *, persistent=True):
        super().__init__()
        self.does = does
        self.fc = nn.Linear(4, 4)
        self.fc.weight.tags = ["mine"]
        self.register_buffer("memory", torch.ones(4), persistent=persistent)
        self.plain = torch.ones(4)

    def forward(self, t):
        self.does(self, t)
        return self.fc(t) * self.memory


def run_script(model, t):
    model.scripted(t)


def give_other_memory(model, t):
    model.fc.bias.data = model.fc.bias.data * 2
    model.memory.add_(1)


def give_memory_and_write(model, t):
    model.memory.data = model.memory.data * 2
    model.memory.add_(1)
    model.plain.add_(1)


def write_part(model, t):
    model.memory[:2].zero_()
    model.plain[0] = 3.0


class Adding(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.ones(4))

    def forward(self, t):
        self.total.add_(1)
        return t * self.total


def read_layer(model, given):
    torcheer.activation(model, given, keys="fc")


@pytest.mark.parametrize("does", [run_script, give_other_memory, give_memory_and_write, write_part], ids=lambda f: f.__name__)
@pytest.mark.parametrize("call", [torcheer.log_forward_pass, torcheer.validate_forward_pass, torcheer.summary, read_layer])
def test_autograd_can_use_what_it_saved_before_the_pass(call, does):
    model, weight = Changing(does), torch.rand(4, requires_grad=True)
    model.scripted = torch.jit.script(Adding())
    saved = [model.memory, model.plain, model.scripted.total]
    loss = sum((weight * tensor).sum() for tensor in saved)
    before = [tensor._version for tensor in saved]
    call(model, torch.rand(3, 4))
    assert [tensor._version for tensor in saved] == before
    assert all(torch.equal(tensor, torch.ones(4)) for tensor in saved)
    loss.backward()
    assert torch.equal(weight.grad, torch.full((4,), 3.0))


def test_what_is_kept_of_a_buffer_that_was_given_other_memory_and_written_to_is_not_lost():
    model = Changing(give_memory_and_write)
    history = log(model, torch.rand(3, 4))
    assert not history.notes
    assert torch.equal(history["setdata_1"].activation, torch.full((4,), 2.0))
    assert torch.equal(history["add_1"].activation, torch.full((4,), 3.0))
    assert history.validate()


def zero_gradients(model, t):
    model.zero_grad(set_to_none=False)


def run_backward(model, t):
    model.fc(t).sum().backward()


def watch_step(model, given):
    torcheer.TrainingStep(model, given).watch_modules()


def give_bias_other_memory(model, t):
    model.fc.bias.data = model.fc.bias.data * 2


def switch_gradients(model, t):
    model.fc.requires_grad_(False)


@pytest.mark.parametrize("does", [zero_gradients, run_backward], ids=lambda f: f.__name__)
@pytest.mark.parametrize("call", [torcheer.log_forward_pass, torcheer.validate_forward_pass, torcheer.summary, watch_step])
def test_autograd_can_use_a_gradient_that_it_saved_before_the_pass(call, does):
    model, weight = Changing(does), torch.rand(4, requires_grad=True)
    model.fc.bias.grad = torch.ones(4)
    loss = (weight * model.fc.bias.grad).sum()
    call(model, torch.rand(3, 4))
    assert torch.equal(model.fc.bias.grad, torch.ones(4))
    loss.backward()
    assert torch.equal(weight.grad, torch.ones(4))


def test_a_buffer_that_a_watched_step_lets_require_gradients_has_no_gradient_afterwards():
    model = Changing(lambda model, t: model.memory.requires_grad_())
    watch_step(model, torch.rand(3, 4))
    assert model.memory.grad is None
    assert not model.memory.requires_grad


@pytest.mark.parametrize("does", [give_bias_other_memory, switch_gradients], ids=lambda f: f.__name__)
def test_reading_an_activation_leaves_what_parameters_are_as_it_was(does):
    model = Changing(does)
    before = [(one.detach().clone(), one.data_ptr(), one.requires_grad) for one in model.parameters()]
    read_layer(model, torch.rand(3, 4))
    for one, (values, address, requires_grad) in zip(model.parameters(), before, strict=True):
        assert torch.equal(one, values)
        assert (one.data_ptr(), one.requires_grad) == (address, requires_grad)


def write_counted(model, t):
    with torch.no_grad():
        model.fc.bias.mul_(2)


def write_uncounted(model, t):
    model.fc.bias.data.mul_(2)


@pytest.mark.parametrize("does", [write_counted, write_uncounted], ids=lambda f: f.__name__)
def test_a_parameter_that_reading_an_activation_cannot_put_back_is_named(does):
    with pytest.warns(StateNotRestored, match=r"Not restored: 'fc.bias' \(it was written to by code that cannot be watched\)"):
        read_layer(Changing(does), torch.rand(3, 4))
