"""Parameters and buffers that a program overwrites: a tap gives what the model computed with, as plain hooks do."""

import pytest
import torch
from torch import nn

import torcheer
from models import Buffer, made_of

x = torch.rand(3, 4)


def hands(self, t):
    """Returns its parameter, a view of it, and its buffer."""
    return self.by, self.by.view(2, 2), self.shift


class Overwrites(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.hands, self.how = made_of(hands, by=nn.Parameter(torch.ones(4)), shift=Buffer(torch.ones(4))), how
        self.tied = self.hands.by
        self.takes = nn.Identity()

    def forward(self, t):
        by, _, shift = self.hands(t)
        y = t * self.takes(by) + shift
        self.how(self)
        return y * self.tied + shift


def multiply(model):
    model.hands.by.data.mul_(3)
    model.hands.shift.data.mul_(3)


def copy_over(model):
    model.hands.by.data.copy_(model.hands.by * 2)
    model.hands.shift.data.copy_(model.hands.shift * 2)


def give_memory(model):
    model.hands.by.data = model.hands.by.data + 1
    model.hands.shift.data = model.hands.shift + 1


def give_another_size(model):
    model.hands.by.data = torch.ones(1)


def write_counted(model):
    with torch.no_grad():
        model.hands.by.add_(1)
        model.hands.shift.add_(1)


def write_by_numpy(model):
    model.hands.by.detach().numpy()[:] = 5
    model.hands.shift.numpy()[:] = 5


def nothing(model):
    return


KINDS = [multiply, copy_over, give_memory, give_another_size, write_counted, write_by_numpy, nothing]


@pytest.mark.parametrize("calls", [1, 2, 3])
@pytest.mark.parametrize("how", KINDS, ids=lambda how: how.__name__)
def test_what_a_program_overwrites_is_read_as_it_was(how, calls):
    model, seen, given = Overwrites(how), [], []
    model.hands.register_forward_hook(lambda module, args, made: seen.append([one.detach().clone() for one in made]))
    model.takes.register_forward_pre_hook(lambda module, args: given.append(args[0].detach().clone()))
    with torcheer.tap(model, ["hands[0]", "hands[1]", "hands[2]", "input:takes"]) as values:
        for _ in range(1 if how is give_another_size else calls):
            model(x)
            assert torch.equal(values["hands[0]"], seen[-1][0])
    assert all(torch.equal(values[f"hands[{part}]"], seen[-1][part]) for part in range(3))
    assert torch.equal(values["input:takes"], given[-1])


def test_a_parameter_that_only_a_later_call_or_the_program_overwrites_is_read_as_it_was():
    model = Overwrites(nothing)
    with torcheer.tap(model, ["hands[0]", "hands[1]"]) as values:
        model(x)
        model.how = multiply
        model(x)
        model(x)
    before = model.hands.by.detach() / 3
    assert torch.equal(values["hands[0]"], before)
    assert torch.equal(values["hands[1]"], before.view(2, 2))
    model.hands.by.data.zero_()
    assert torch.equal(values["hands[0]"], before)


def test_a_parameter_that_nobody_overwrites_is_the_models_own():
    model = Overwrites(nothing)
    with torcheer.tap(model, ["hands[0]"]) as values:
        made = model(x)
    assert values["hands[0]"] is model.hands.by
    torch.autograd.grad(made.sum(), values["hands[0]"])
    torch.optim.SGD(model.parameters(), 0.1, foreach=True)
    with torch.no_grad():
        model.hands.by.add_(1)
    assert torch.equal(values["hands[0]"], torch.ones(4))


def test_a_parameter_that_is_swapped_for_another_is_read_as_it_was():
    model = nn.Sequential(nn.Identity(), made_of(lambda self, t: self.by, by=nn.Parameter(torch.ones(4))))
    with torch.no_grad(), torcheer.tap(model, ["1"]) as values:
        model(x)
        torch.utils.swap_tensors(model[1].by, nn.Parameter(torch.full((4,), 9.0)))
    assert torch.equal(values["1"], torch.ones(4))
    assert torch.equal(model[1].by, torch.full((4,), 9.0))


class Assigns(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.fc, self.how = nn.Linear(4, 4), how

    def forward(self, t):
        weight = self.fc.weight
        before = weight * 1
        self.how(weight)
        return self.fc(t) + before + (weight * 1)


@pytest.mark.parametrize(
    "how",
    [lambda w: w.data.mul_(2), lambda w: w.data.copy_(torch.ones(4, 4)), lambda w: setattr(w, "data", w.data * 3)],
    ids=["mul_", "copy_", "data ="],
)
def test_every_operation_around_a_parameter_that_is_overwritten_is_read_as_the_log_kept_it(how):
    torch.manual_seed(0)
    model = Assigns(how)
    x = torch.rand(4, 4)
    for _ in range(2):
        history = torcheer.log_forward_pass(model, x)
        keys = [layer.label for layer in history if not layer.label.startswith(("input", "output"))]
        with torcheer.tap(model, keys, like=history) as values:
            made = model(x)
        assert torch.equal(made, history["output"].activation)
        for key in keys:
            passes = [one.activation for one in history.operations if one.layer_label == key]
            assert len(passes) == 1 or len(values[key]) == len(passes)
            read = [values[key]] if len(passes) == 1 else values[key]
            assert all(map(torch.equal, read, passes)), key


def test_parameters_that_functional_call_and_parametrizations_hand_over_are_read():
    model, other = Overwrites(nothing), torch.full((4,), 7.0)
    with torcheer.tap(model, ["hands[0]"]) as values:
        torch.func.functional_call(model, {"hands.by": other, "tied": other}, (x,))
    assert torch.equal(values["hands[0]"], other)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    with torcheer.tap(layer, ["parametrizations.weight"]) as values:
        layer(x)
        layer.parametrizations.weight.original0.data.mul_(2)
        layer(x)
    assert torch.allclose(values["parametrizations.weight"], layer.weight)
