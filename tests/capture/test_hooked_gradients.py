"""Backward hooks change gradients outside of the graph: such gradients are taken as they came, and said to be."""

import pytest
import torch
from torch import nn

import torcheer

x, baseline = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]]), torch.zeros(2, 3)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


class Rescaled:
    """Attribution as DeepLift makes it: hooks on activations, and gradients multiplied by quotients of differences."""

    def __init__(self, net):
        self.net = net
        self.handles = []

    def _before(self, module, inputs):
        module.given = inputs[0].clone().detach()

        def rescale(grad):
            given, reference = module.given.chunk(2)
            made, referred = module.made.chunk(2)
            slope = (made - referred) / (given - reference + 1e-9)
            return grad * torch.cat([slope, slope])

        self.handles.append(inputs[0].register_hook(rescale))
        return (inputs[0].clone(),)

    def _after(self, module, inputs, output):
        module.made = output.clone().detach()
        return output.clone()

    def __call__(self, x):
        x = x.detach().requires_grad_()
        for module in self.net.modules():
            if isinstance(module, nn.ReLU):
                self.handles.append(module.register_forward_pre_hook(self._before))
                self.handles.append(module.register_forward_hook(self._after))
        try:
            both = torch.cat([x, baseline])
            out = self.net(both)[:, 0]
            (gradient,) = torch.autograd.grad(torch.unbind(out), both)
        finally:
            for handle in self.handles:
                handle.remove()
            self.handles.clear()
            x.requires_grad_(False)
        slopes, _ = gradient.chunk(2)
        return slopes * (x - baseline)


def through_module_hooks(x):
    net = model()
    handle = net[1].register_full_backward_hook(lambda module, given, made: (given[0].clamp(min=0),))
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(net(x)[:, 0].sum(), x)
    handle.remove()
    return gradient * 2


def through_a_hook_on_a_parameter(x):
    net = model()
    handle = net[0].weight.register_hook(lambda gradient: gradient * 3)
    (gradient,) = torch.autograd.grad(net(x)[:, 0].sum(), net[0].weight)
    handle.remove()
    return gradient * 2


HOOKED = {"rescaled": Rescaled(model()), "modules": through_module_hooks, "parameter": through_a_hook_on_a_parameter}


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("name", HOOKED)
def test_gradients_that_hooks_change_are_logged_as_they_came_and_exempt(name):
    attribute = HOOKED[name]
    plain = attribute(x)
    history = torcheer.log_forward_pass(attribute, x)
    assert torch.equal(history.outputs[0].tensor_contents, plain)
    report = torcheer.validate_forward_pass(attribute, x)
    assert report.is_valid, report
    assert "a gradient that backward hooks may have changed" in str(report)


def test_the_same_inside_a_recording():
    attribute = Rescaled(model())
    plain = attribute(x)
    for options in ({}, {"save_gradients": True}):
        with torcheer.recording(attribute.net, **options) as history:
            recorded = attribute(x)
        assert torch.equal(recorded, plain)
        assert history.validate().is_valid


def test_without_hooks_a_gradient_is_proved():
    net = model()

    def saliency(x):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(net(x)[:, 0].sum(), x)
        x.requires_grad_(False)
        return gradient.abs()

    report = torcheer.validate_forward_pass(saliency, x.clone())
    assert report.is_valid, report
    assert "hooks may have changed" not in str(report)
    assert not x.requires_grad


def test_a_wrong_gradient_is_reported():
    net = model()
    history = torcheer.log_forward_pass(lambda x: torch.autograd.grad(net(x)[:, 0].sum(), x)[0] + 1, x.clone().requires_grad_())
    number = next(n for n, record in enumerate(history._log.operations) if record.function.func is torch.autograd.grad)
    history._log.values[number] = history._log.values[number] + 1
    history._log.versions[number] = history._log.values[number]._version
    assert history.validate().first_disagreement.where.startswith("grad_1")
