"""Arguments that point at parameters and buffers: they belong to the model, and are not served once they have changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torcheer
from models import Buffer, Mlp, log, made_of
from torcheer import InvalidArgument, ParameterChanged

x = torch.rand(3, 4)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Mlp()


def test_arguments_that_were_parameters_are_not_the_new_weights_after_a_step(model):
    history = log(model, x)
    before = model.fc1.weight.detach().clone()
    assert torch.equal(history["fc1"].creation_args[1], before)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    optimizer.step()
    for ask in ("creation_args", "creation_kwargs", "inputs"):
        with pytest.raises(ParameterChanged, match=r"linear_1_1 used 'fc1\.weight', which was changed after this pass"):
            getattr(history["fc1"], ask)
    assert torch.equal(history["act"].inputs[0], history["fc1"].activation)  # no parameter among them
    assert not torch.equal(model.fc1.weight, before)


@pytest.mark.parametrize(
    "change",
    [
        lambda linear: linear.load_state_dict({name: value + 1 for name, value in linear.state_dict().items()}),
        lambda linear: linear.half(),
        lambda linear: setattr(linear.weight, "data", linear.weight.data + 1),
        lambda linear: nn.init.zeros_(linear.weight),
    ],
)
def test_every_change_that_torch_counts_or_that_moves_memory_is_noticed(model, change):
    history = log(model, x)
    change(model.fc1)
    with pytest.raises(ParameterChanged, match=r"fc1\.weight"):
        history["fc1"].inputs
    assert history["fc2"].inputs[1] is model.fc2.weight
    with pytest.raises(InvalidArgument, match="changed since"):
        history.replay()


def test_frozen_parameters_can_be_read_after_a_step(model):
    model.fc1.requires_grad_(False)
    history = log(model, x)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(x).sum().backward()
    optimizer.step()
    assert history["fc1"].inputs[1] is model.fc1.weight
    with pytest.raises(ParameterChanged, match=r"fc2\.weight"):
        history["fc2"].inputs


def test_a_parameter_that_a_module_was_given_is_not_shown_changed():
    model = made_of(
        lambda self, t: self.takes(t, self.weight),
        weight=nn.Parameter(torch.eye(4)),
        takes=made_of(lambda self, t, weight: t @ weight),
    )
    history = log(model, x)
    assert history.modules["takes:1"].args[1] is model.weight
    with torch.no_grad():
        model.weight.add_(1)
    with pytest.raises(ParameterChanged, match="'weight'"):
        history.modules["takes:1"].args


def step(model, optimizer, *inputs):
    model(*inputs).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_the_step_of_a_fused_optimizer_is_noticed(optimizer):
    """torch counts no write of a fused optimizer."""
    model = nn.Sequential(nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 100))
    history = log(model, x)
    step(model, optimizer(model.parameters(), lr=0.1, fused=True), x)
    for key in ("0", "2"):
        with pytest.raises(ParameterChanged, match=rf"used '{key}\.weight', which was changed"):
            history[key].creation_args
    with pytest.raises(InvalidArgument, match="changed since"):
        history.replay()


@pytest.mark.parametrize(
    "change",
    [
        lambda linear: linear.weight.data.mul_(2),
        lambda linear: torch._foreach_add_([linear.weight.data], 1),
        lambda linear: linear.weight.data.view(-1).detach().fill_(3),
        lambda linear: linear.weight.data.numpy().fill(3),
        lambda linear: linear.weight.data[-1].fill_(3),
    ],
)
@pytest.mark.parametrize("size", [4, 300])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_writes_that_torch_does_not_count_are_noticed(change, size, dtype):
    model, t = nn.Linear(4, size).to(dtype), x.to(dtype)
    if dtype is torch.bfloat16 and "numpy" in change.__code__.co_names:
        return
    history = log(model, t)
    before = model.weight._version
    change(model)
    assert model.weight._version == before
    with pytest.raises(ParameterChanged, match="'weight'"):
        history["linear_1"].inputs


@pytest.mark.parametrize("size", [1, 3, 100, 1000])
def test_every_element_of_a_small_parameter_is_watched(size):
    model = made_of(lambda self, t: t * self.scale, scale=nn.Parameter(torch.ones(size)))
    for place in {0, size // 2, size - 1}:
        history = log(model, torch.rand(size))
        assert history["mul_1"].inputs[1] is model.scale
        model.scale.data[place] += 1
        with pytest.raises(ParameterChanged):
            history["mul_1"].inputs


def test_an_embedding_of_which_a_step_changed_few_rows_is_not_shown_as_the_old_one():
    """Where one parameter was changed by writes that torch does not count, those beside it cannot be vouched for."""
    model = nn.Sequential(nn.Embedding(10_000, 32), nn.Linear(32, 4))
    words = torch.tensor([4321])
    history = log(model, words)
    assert history["0"].inputs[0] is model[0].weight
    step(model, torch.optim.Adam(model.parameters(), fused=True), words)
    with pytest.raises(ParameterChanged, match=r"used '0\.weight', which may have been changed"):
        history["0"].inputs


def test_frozen_parameters_can_be_read_after_the_step_of_a_fused_optimizer():
    model = nn.Sequential(nn.Embedding(10_000, 32), nn.Linear(32, 4), nn.Linear(4, 4))
    for part in (model[0], model[1]):
        part.requires_grad_(False)
    history = log(model, torch.tensor([4321]))
    step(model, torch.optim.Adam(model[2].parameters(), fused=True), torch.tensor([4321]))
    assert history["0"].inputs[0] is model[0].weight
    assert history["1"].inputs[1] is model[1].weight
    with pytest.raises(ParameterChanged):
        history["2"].inputs


def test_parameters_made_in_inference_mode_are_watched_too():
    """torch counts no writes to inference tensors."""
    with torch.inference_mode():
        model = nn.Linear(4, 4)
        history = log(model, x)
        assert history["linear_1"].inputs[1] is model.weight
        model.weight.fill_(2)
    with pytest.raises(ParameterChanged):
        history["linear_1"].inputs


def test_running_statistics_that_a_later_pass_moved_are_not_shown_as_the_old_ones():
    """torch counts no write of batch_norm to its running statistics."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    history = log(model, x)
    assert history["1"].inputs[1] is model[1].running_mean
    model.train()(x)
    with pytest.raises(ParameterChanged, match=r"'1\.running_mean'"):
        history["1"].inputs
    assert history["0"].inputs[1] is model[0].weight


def test_what_a_logged_pass_itself_does_to_running_statistics_is_no_change():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    history = log(model, x)
    assert torch.equal(history["1"].inputs[1], model[1].running_mean)
    assert history.validate()


def averaging(self, t):
    """Writes to its buffers when it runs."""
    result = self.norm(t) * self.average[0].clone()
    self.average.mul_(0.9).add_(t.detach().mean(0))
    return result


@pytest.mark.parametrize(
    "call",
    [
        torcheer.log_forward_pass,
        torcheer.validate_forward_pass,
        lambda model, given: torcheer.activation(model, given, "norm"),
        lambda model, given: torcheer.TrainingStep(model, given).watch_modules(),
    ],
)
def test_a_write_that_a_later_pass_took_back_is_no_change(call, tmp_path):
    """Also for autograd, which compares how often torch counted a write to what it saved."""
    model = made_of(averaging, norm=nn.BatchNorm1d(4), average=Buffer(torch.ones(100, 4))).train()
    history = log(model, x)
    waiting = model.norm.weight * model.average[0]
    counted = [tensor._version for tensor in model.state_dict().values()]
    call(model, x)
    assert [tensor._version for tensor in model.state_dict().values()] == counted
    waiting.sum().backward()
    assert history.validate()
    assert torcheer.load(history.save(tmp_path / "run.safetensors", params=True)).validate()
    model(x)
    with pytest.raises(InvalidArgument, match="changed since this history was logged"):
        history.validate()


def test_what_is_kept_of_memory_that_a_pass_gave_a_parameter_is_not_lost():
    class Model(nn.Linear):
        @torch.no_grad()
        def forward(self, t):
            self.weight.data = self.weight * 2
            self.weight.add_(1)
            return super().forward(t) + self.weight.mul_(2)

    model = Model(4, 4)
    history = log(model, x[:1])
    assert history.notes == []
    last = history.filter(type="mul")[-1]
    assert torch.equal(last.activation, (model.weight * 2 + 1) * 2)


def test_what_is_kept_of_memory_that_a_pass_gave_a_view_is_not_lost():
    def model(t):
        view = t[0]
        t.add_(1)
        view.data = view * 2
        return view + 0

    given = torch.ones(2, 3)
    history = log(model, given)
    assert history.notes == []
    assert torch.equal(history["setdata_1"].activation, torch.full((3,), 4.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Parameter(torch.rand(64, 32, 3, 3).to(memory_format=torch.channels_last)),
        lambda: nn.Parameter(torch.rand(300, 400).t()),
        lambda: nn.Parameter(torch.rand(500, 500)[3:, 7:]),
        lambda: nn.Parameter(torch.rand(5).expand(400, 5)),
        lambda: nn.Parameter(torch.tensor([float("nan")] * 9)),
        lambda: nn.Parameter(torch.rand(0, 4)),
        lambda: nn.Parameter(torch.rand(3, dtype=torch.complex64)),
        lambda: nn.Parameter(torch.ones(4, device="meta")),
        lambda: nn.Parameter(torch.eye(4).to_sparse()),
    ],
)
def test_parameters_of_every_layout_are_unchanged_until_they_are_changed(make):
    parameter = make()
    history = log(lambda t: (parameter * 1, t), x)
    assert history["mul_1"].inputs[0] is parameter
    if parameter.numel() and parameter.layout is torch.strided and parameter.device.type == "cpu":
        parameter.data.fill_(7)
        with pytest.raises(ParameterChanged):
            history["mul_1"].inputs


def test_a_parameter_whose_memory_was_freed_is_not_read():
    parameter = nn.Parameter(torch.rand(40))
    history = log(lambda t: t * parameter, torch.rand(40))
    parameter.untyped_storage().resize_(0)
    with pytest.raises(torcheer.ActivationLost):
        history["mul_1"].inputs
