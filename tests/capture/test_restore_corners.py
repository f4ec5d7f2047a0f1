"""Restoring goes on to the end whatever one part of it raises, and names what it could not restore."""

from __future__ import annotations

import collections
import collections.abc
import functools
import io
import random
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.library import custom_op

import torch_vis
import torcheer
from models import log, same, unchanged, world
from torcheer import StateNotRestored

x = torch.rand(3, 4)


class Normed(nn.Module):
    """Changes statistics, the random state and itself."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.steps = 0

    def forward(self, t):
        self.steps += 1
        return self.norm(t) + torch.rand(4)


def expanded():
    return torch.rand(1, 4).expand(3, 4)


def overlapping():
    return torch.rand(8).as_strided((3, 4), (1, 1))


def every_other():
    return torch.rand(6, 8)[::2, ::2]


def read_only():
    array = np.random.default_rng(0).random((3, 4), dtype=np.float32)
    array.flags.writeable = False
    with pytest.warns(UserWarning, match="not writable"):
        return torch.from_numpy(array)


@pytest.mark.parametrize("make", [expanded, overlapping, every_other])
@pytest.mark.parametrize("training", [True, False])
def test_inputs_whose_memory_overlaps_are_no_obstacle(make, training):
    model, given = Normed().train(training), make()
    before = given.clone()
    with unchanged(model):
        log(model, given)
        assert torcheer.validate_forward_pass(model, given)
    assert model.steps == 0
    assert torch.equal(given, before)


def test_a_read_only_input_is_no_obstacle():
    model, given = Normed(), read_only()
    with unchanged(model):
        log(model, given)
        assert torcheer.validate_forward_pass(model, given)


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


def test_a_tensor_written_through_its_base_is_put_back_behind_an_expanded_view():
    base = torch.rand(1, 4)
    view = base.expand(3, 4)
    before = base.clone()

    def model(one, other):
        one.mul_(2)
        return one + other

    log(model, view[:1], view)
    log(model, base, view)
    assert torch.equal(base, before)


def test_an_expanded_buffer_is_put_back():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("one", torch.rand(1, 4))
            self.register_buffer("many", self.one.expand(3, 4))

        def forward(self, t):
            y = t + self.many
            self.one.add_(1)
            return y + self.many

    model = Model()
    with unchanged(model):
        log(model, x)
        assert torcheer.validate_forward_pass(model, x)


def test_of_two_copies_of_one_memory_the_earlier_counts():
    whole = torch.rand(8)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("first", whole[:5])
            self.register_buffer("second", whole[2:])

        def forward(self, t):
            self.first.mul_(2)
            self.second.add_(1)
            return t + self.first.sum() + self.second.sum()

    before = whole.clone()
    log(Model(), x)
    assert torch.equal(whole, before)


class Stubborn(nn.Module):
    """Refuses attributes, and holds containers that refuse to be emptied or filled."""

    class Items(dict):
        def clear(self):
            raise RuntimeError("not to be cleared")

        def update(self, *args, **kwargs):
            raise RuntimeError("not to be updated")

        def __setitem__(self, key, value):
            raise RuntimeError("not to be set")

    class Sequence(list):
        def clear(self):
            raise RuntimeError("not to be cleared")

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.items, self.sequence = Stubborn.Items(a=1), Stubborn.Sequence([1])
        self.counter, self.ordered = collections.Counter("aab"), collections.OrderedDict(a=1, b=2)
        self.closed = True

    def __setattr__(self, name, value):
        if getattr(self, "closed", False):
            raise AttributeError("closed")
        super().__setattr__(name, value)

    def forward(self, t):
        dict.__setitem__(self.items, "b", 2)
        self.sequence.append(2)
        self.counter.update("bc")
        self.ordered.move_to_end("a")
        self.__dict__["more"] = 1
        torch.rand(3), random.random()
        return self.norm(t)


def test_containers_and_modules_that_refuse_to_be_written_to_are_put_back():
    model = Stubborn()
    with unchanged(model):
        log(model, x)
        torcheer.validate_forward_pass(model, x)
    assert (model.items, model.sequence) == ({"a": 1}, [1])
    assert model.counter == collections.Counter("aab")
    assert list(model.ordered) == ["a", "b"]


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
    state = model.generators[1].get_state()
    with unchanged(model), pytest.warns(StateNotRestored, match=r"'generators'.*RuntimeError: no way back") as caught:
        history = log(model, x)
    assert len(caught) == 1
    assert torch.equal(model.generators[1].get_state(), state)
    assert model.last == {"seen": []}
    assert any("'generators'" in note for note in history.notes)
    assert history.is_complete


def test_an_interrupt_while_restoring_goes_on_after_everything_is_restored():
    model = Holds(KeyboardInterrupt())
    state, own = model.generators[1].get_state(), model.generators[0].getstate()
    with unchanged(model), pytest.raises(KeyboardInterrupt):
        log(model, x)
    assert torch.equal(model.generators[1].get_state(), state)
    assert model.generators[0].getstate() == own
    assert model.last == {"seen": []}


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
    with unchanged(model), pytest.raises(ValueError, match="mine") as caught:
        log(model, x)
    assert any("no way back" in note for note in caught.value.history.notes)


def test_a_model_that_is_an_argument_is_put_back():
    model = Normed()
    with unchanged(model):
        log(lambda module, t: module(t), model, x)
        assert torcheer.validate_forward_pass(lambda module, t: module(t), (model, x))
    assert model.steps == 0


# What runs where it cannot be watched ------------------------------------------------------------------------------


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("total", torch.zeros(4))
        self.count, self.seen, self.last = 0, [1], torch.zeros(1)

    def forward(self, t):
        self.count += 1
        self.seen.append(2)
        self.last = self.last + 1
        self.total.add_(1)
        return self.norm(t)


def scripted():
    return torch.jit.script(Counting())


def traced():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4)).train(), x, check_trace=False)


def loaded():
    file = io.BytesIO()
    torch.jit.save(scripted(), file)
    file.seek(0)
    return torch.jit.load(file)


def nested():
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(scripted()), traced())


def script_state(model):
    names = [
        (n, m, m._concrete_type.get_attributes()) for n, m in model.named_modules() if isinstance(m, torch.jit.ScriptModule)
    ]
    return {f"{n}.{key}": repr(getattr(m, key)) for n, m, keys in names for key in keys if hasattr(m, key)}


@pytest.mark.parametrize("make", [scripted, traced, loaded, nested])
@pytest.mark.parametrize("action", ["log", "validate"])
def test_what_runs_inside_torchscript_is_put_back(make, action):
    model = make()
    tensors = {k: v.clone() for k, v in model.state_dict().items()}
    before = script_state(model)
    if action == "log":
        log(model, x)
    else:
        assert torcheer.validate_forward_pass(model, x)
    assert same(dict(model.state_dict()), tensors)
    assert script_state(model) == before


def test_an_input_that_torchscript_writes_to_is_put_back():
    class Writes(nn.Module):
        def forward(self, t):
            return t.add_(1)

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


@custom_op("torcheer_tests::count_up", mutates_args={"counter"})
def count_up(t: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    counter.add_(1)
    return t * 2


class Counted(torch.autograd.Function):
    calls = torch.zeros(1)

    @staticmethod
    def forward(ctx, t, counter):
        counter.add_(1)
        Counted.calls.add_(1)
        return t * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


@pytest.mark.parametrize("kind", ["operator", "function"])
def test_state_behind_custom_operators_and_functions_is_put_back(kind):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("counter", torch.zeros(1))
            self.plain = torch.zeros(1)

        def forward(self, t):
            call = count_up if kind == "operator" else Counted.apply
            return call(call(t, self.counter), self.plain)

    model = Model()
    with unchanged(model):
        log(model, x)
        assert torcheer.validate_forward_pass(model, x)
    assert torch.equal(model.plain, torch.zeros(1))
    assert torch.equal(Counted.calls, torch.zeros(1))


def test_validation_puts_back_a_tensor_that_a_function_closes_over():
    memory = torch.zeros(4)

    def model(t):
        memory.add_(t.sum(0))
        return t + memory

    assert torcheer.validate_forward_pass(model, x)
    assert torch.equal(memory, torch.zeros(4))


def test_gradients_of_nested_parameters_are_put_back():
    """The memory of a nested tensor is not strided, so its values are copied, and not its bytes."""

    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]))

        def forward(self, t):
            self.weight.grad.mul_(2)
            return t + sum(part.sum() for part in self.weight.unbind())

    model = Nested()
    sum(part.sum() * n for part, n in zip(model.weight.unbind(), (5, 7), strict=True)).backward()
    before = model.weight.grad
    history = torcheer.log_forward_pass(model, torch.ones(3))
    assert model.weight.grad is before
    assert [part.unique().tolist() for part in before.unbind()] == [[5.0], [7.0]]
    assert not history.notes


# What autograd knows ---------------------------------------------------------------------------------------------------


class Stateful(nn.Module):
    """A layer, a buffer and a plain tensor; `does` is what the pass does with them."""

    def __init__(self, does):
        super().__init__()
        self.does = does
        self.fc = nn.Linear(4, 4)
        self.register_buffer("memory", torch.zeros(3, 4))
        self.plain = torch.zeros(3, 4)

    def forward(self, t):
        return self.does(self, t)


def switch_input(model, t):
    return model.fc(t.requires_grad_())


def assign_flag(model, t):
    t.requires_grad = True
    model.fc.weight.requires_grad = False
    return model.fc(t)


def freeze(model, t):
    model.requires_grad_(False)
    model.plain.requires_grad_()
    return model.fc(t) + model.plain


def write_input(model, t):
    return model.fc(t.mul_(model.fc.weight[0]))


def write_buffer(model, t):
    model.memory += model.fc(t)
    return model.memory * 2


def write_plain(model, t):
    model.plain.copy_(model.fc(t))
    return model.plain


def write_and_switch(model, t):
    t.mul_(model.fc.weight[0])
    model.plain.requires_grad_()
    model.memory.requires_grad_()
    model.memory.data.add_(1)
    return model.fc(t) + model.plain + model.memory


def detach_parameter(model, t):
    model.fc.weight.detach_()
    return model.fc(t)


@pytest.mark.parametrize(
    "does",
    [switch_input, assign_flag, freeze, write_input, write_buffer, write_plain, write_and_switch, detach_parameter],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("call", [torcheer.log_forward_pass, torcheer.validate_forward_pass])
def test_what_autograd_knows_of_tensors_is_put_back(does, call):
    model, given = Stateful(does), torch.rand(3, 4)
    tensors = [given, model.fc.weight, model.fc.bias, model.memory, model.plain]
    before = [(tensor.requires_grad, tensor.is_leaf, tensor.grad_fn) for tensor in tensors]
    assert call(model, given)
    assert [(tensor.requires_grad, tensor.is_leaf, tensor.grad_fn) for tensor in tensors] == before


class Slotted:
    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = tensor


# How to make what holds a tensor, and how to get it.
HELD = {
    "tuple": (lambda t: (t,), lambda held: held[0]),
    "tuples": (lambda t: ((1, (t,)),), lambda held: held[0][1][0]),
    "named tuple": (collections.namedtuple("One", "t"), lambda held: held.t),
    "tuple in a list": (lambda t: [(t,)], lambda held: held[0][0]),
    "frozenset": (lambda t: frozenset([t]), lambda held: next(iter(held))),
    "slots": (Slotted, lambda held: held.tensor),
    "partial": (lambda t: functools.partial(print, t), lambda held: held.args[0]),
    "list": (lambda t: [t], lambda held: held[0]),
    "object": (lambda t: types.SimpleNamespace(t=t), lambda held: held.t),
}


def run_backward_to(held, t):
    held.requires_grad_()
    with torch.enable_grad():
        (held * t).sum().backward()
    held.seen = True


def give_another_buffer(held, t):
    held.data = t * 2
    held.seen = True


@pytest.mark.parametrize("does", [run_backward_to, give_another_buffer], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("call", [torcheer.log_forward_pass, torcheer.validate_forward_pass])
def test_a_tensor_that_anything_holds_is_put_back(call, kind, does):
    make, get = HELD[kind]

    class Holding(nn.Module):
        def __init__(self):
            super().__init__()
            self.held = make(torch.zeros(3, 4))

        def forward(self, t):
            does(get(self.held), t)
            return get(self.held) * t

    model = Holding()
    tensor = get(model.held)
    assert call(model, x)
    assert torch.equal(tensor, torch.zeros(3, 4))
    assert (get(model.held) is tensor, tensor.grad, tensor.requires_grad, vars(tensor)) == (True, None, False, {})


def test_a_log_adds_nothing_to_the_gradients_that_follow():
    def gradient(logged):
        torch.manual_seed(0)
        model, given = Stateful(write_buffer), torch.rand(3, 4)
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

    model, given = Stateful(hook), torch.rand(3, 4, requires_grad=True)
    kept = model.fc.weight.register_hook(lambda gradient: gradient * 3)
    log(model, given)
    assert not given._backward_hooks
    assert list(model.fc.weight._backward_hooks) == [kept.id]
    assert not model.fc.bias._post_accumulate_grad_hooks


def test_what_autograd_knows_of_a_computed_input_that_is_overwritten_is_named():
    given = torch.rand(3, 4, requires_grad=True) * 2
    values = given.clone()
    with pytest.warns(StateNotRestored, match=r"an input of shape \(3, 4\).*its autograd state cannot be restored"):
        torcheer.log_forward_pass(Stateful(write_input), given)
    assert torch.equal(given, values)


@pytest.mark.parametrize("returned", [lambda memory: memory, lambda memory: memory[1:]], ids=["whole", "view"])
def test_an_output_that_is_restored_keeps_its_values_and_its_graph(returned):
    def written(model, t):
        model.memory += model.fc(t)
        return returned(model.memory)

    model, given = Stateful(written), torch.rand(3, 4)
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    output = history["output"].activation
    assert torch.equal(output, returned(model.fc(given)))
    assert not model.memory.any()
    history.log_backward(output.sum())
    plain = torch.autograd.grad(returned(model.fc(given)).sum(), model.fc.weight)[0]
    assert torch.equal(history.param_grads["fc.weight"], plain)


# What a pass does to a module or a tensor besides its values ----------------------------------------------------------


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


def register_unlike_before(model, t):
    model.register_buffer("memory", model.memory * 2, persistent="memory" in model._non_persistent_buffers_set)


def delete_and_register(model, t):
    memory = model.memory
    del model.memory
    model.register_buffer("memory", memory, persistent=True)


def replace_the_registries(model, t):
    model._buffers = dict(model._buffers)
    model.fc._parameters = {name: nn.Parameter(one * 2) for name, one in model.fc._parameters.items()}


def hook_backward(model, t):
    model.fc.register_full_backward_hook(lambda module, given, made: None)
    model.fc.register_forward_hook(lambda module, args, kwargs, made: None, with_kwargs=True, always_call=True)
    model.fc.register_forward_pre_hook(lambda module, args, kwargs: None, with_kwargs=True)


def put_attributes_on_tensors(model, t):
    model.fc.weight.tags.append("the pass's")
    for tensor in (model.fc.weight, model.fc.bias, model.memory, model.plain, t):
        tensor.seen = True


def facts_of_model(model, given):
    own = [{name: value for name, value in vars(one).items() if name not in ("does",)} for one in model.modules()]
    shown = [{name: value.copy() if hasattr(value, "copy") else value for name, value in one.items()} for one in own]
    tensors = [model.fc.weight, model.fc.bias, model.memory, model.plain, given]
    return [
        (*shown, *own),
        list(model.state_dict()),
        [tensor._version for tensor in tensors],
        [{name: list(value) if isinstance(value, list) else value for name, value in vars(one).items()} for one in tensors],
    ]


CHANGES = [register_unlike_before, delete_and_register, replace_the_registries, hook_backward, put_attributes_on_tensors]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("does", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("call", [torcheer.log_forward_pass, torcheer.validate_forward_pass])
def test_what_modules_and_tensors_are_registered_as_and_carry_is_put_back(call, does, persistent):
    model, given = Changing(does, persistent=persistent), torch.rand(3, 4)
    before = facts_of_model(model, given)
    call(model, given)
    for then, now in zip(before, facts_of_model(model, given), strict=True):
        assert same(then, now)


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
