"""A model that returns its parameters, its inputs, or views of them: their gradients are in the log."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import torcheer


class Hands(nn.Module):
    def __init__(self, back):
        super().__init__()
        self.by, self.fc, self.back = nn.Parameter(torch.rand(4)), nn.Linear(4, 4), back
        self.tied = self.fc.weight

    def forward(self, t):
        return self.back(self, t)


BACK = {
    "a parameter": lambda model, t: model.by,
    "a parameter beside a result": lambda model, t: (model.fc(t), model.by),
    "a parameter that is used": lambda model, t: (model.by, t * model.by),
    "a parameter twice": lambda model, t: (model.by, model.by),
    "a tied parameter": lambda model, t: [model.tied, model.fc.weight.T],
    "a parameter of a module": lambda model, t: nn.Identity()(model.by),
    "a view of a parameter": lambda model, t: model.by[1:],
    "a parameter and a view of it": lambda model, t: (model.by, model.by.view(2, 2)),
    "all parameters": lambda model, t: dict(model.named_parameters()),
    "an input": lambda model, t: t,
    "a view of an input": lambda model, t: t[1:],
    "an input beside a result": lambda model, t: (t, model.fc(t)),
    "nested": lambda model, t: {"one": model.by, "others": [t, (model.fc.weight,)]},
}


def loss_of(outputs):
    tensors = [one for one in tree_leaves(outputs) if isinstance(one, torch.Tensor)]
    return sum((one.square().sum() * number for number, one in enumerate(tensors, 1)), torch.zeros(()))


@pytest.fixture(params=[False, True], ids=["a leaf", "an input with a past"])
def given_twice(request):
    torch.manual_seed(0)
    leaf = torch.rand(3, 4)
    given = [leaf.clone().requires_grad_() for _ in range(2)]
    if request.param:
        given = [one * 2 for one in given]
        for one in given:
            one.retain_grad()
    return given


@pytest.mark.parametrize("by", ["log_backward", "backward", "grad"])
@pytest.mark.parametrize("back", BACK.values(), ids=BACK)
def test_gradients_of_what_a_model_hands_back_are_those_of_the_plain_model(back, by, given_twice):
    model = Hands(back)
    twin, (given, twin_given) = copy.deepcopy(model), given_twice
    loss_of(twin(twin_given)).backward()
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    loss = loss_of([output.tensor_contents for output in history.outputs])
    if by == "log_backward":
        history.log_backward(loss)
    elif by == "backward":
        loss.backward()
    else:
        torch.autograd.grad(loss, [*model.parameters(), given], allow_unused=True)
    expected = {name: one.grad for name, one in twin.named_parameters() if one.grad is not None}
    assert history.param_grads.keys() == expected.keys()
    assert all(torch.allclose(history.param_grads[name], gradient) for name, gradient in expected.items())
    if twin_given.grad is not None:
        assert torch.allclose(history["input"].grad, twin_given.grad)
    if by != "grad":
        assert all(one.grad is None or torch.equal(one.grad, expected[name]) for name, one in model.named_parameters())
    assert len(history.backward_passes) == 1


@pytest.mark.parametrize("back", [BACK[name] for name in BACK if name != "a parameter twice"])
def test_a_training_step_has_the_gradients_of_what_its_model_hands_back(back):
    model, given = Hands(back), torch.rand(3, 4, requires_grad=True)
    twin, twin_given = copy.deepcopy(model), given.detach().clone().requires_grad_()
    sum(one.sum() for one in tree_leaves(twin(twin_given))).backward()
    history = torcheer.TrainingStep(model, given).log(save_gradients=True)
    expected = {name: one.grad for name, one in twin.named_parameters() if one.grad is not None}
    assert history.param_grads.keys() == expected.keys()
    assert all(torch.allclose(history.param_grads[name], gradient) for name, gradient in expected.items())
    assert len(history.backward_passes) == 1


def test_a_loss_of_a_parameter_alone_is_no_backward_pass_of_the_log():
    model, given = Hands(BACK["a parameter beside a result"]), torch.rand(3, 4)
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    model.by.sum().backward()
    assert history.backward_passes == []
