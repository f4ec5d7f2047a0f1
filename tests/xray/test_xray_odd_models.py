"""Xray on layers that are not written as in a textbook, and in trainings that do not go as planned."""

import copy
import gc
import os
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from torcheer import RunInUse, TorcheerError, Xray
from torcheer.xray import Limits
from torcheer.xray.probe import Probe


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def take_once(model, given, layers, folder, **options):
    with Xray(model, given, layers, folder=folder, **options) as xray:
        xray.take_graphs()
    return xray.run


def test_the_weight_of_a_parametrized_layer_is_its_matrix_not_its_bias(folder):
    """Normalised weights are registered inside `parametrizations`, where only the bias is left outside."""
    model = nn.Sequential(spectral_norm(nn.Conv2d(1, 4, 3)), nn.ReLU(), weight_norm(nn.Conv2d(4, 4, 3)))
    run = take_once(model, (2, 1, 8, 8), ["0", "2"], folder)
    assert run.entry("0", "weight").source == "0.parametrizations.weight.original"
    assert run.entry("2", "weight").shape == (4, 4, 3, 3)
    assert (run.tensor("0", "weight") == model[0].parametrizations.weight.original.detach().numpy()).all()


def test_channels_of_a_convolution_are_channels_although_its_weight_is_not_watched(folder):
    """By default weights are not watched; what a layer returns has the same channels all the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU())
    x = torch.randn(3, 2, 12)
    run = take_once(model, x, None, folder)
    assert run.entry("0", "layer").axes == ("channel", "position")
    assert run.entry("0", "activation").units == 4
    expected = model.eval()(x)[0]
    assert torch.from_numpy(run.tensor("0", "activation")).allclose(expected, atol=1e-2)


def test_what_follows_a_convolution_has_its_channels_until_it_is_reshaped(folder):
    """A block, a function and a flattened output: each is shown as what it is."""
    block = nn.Sequential(nn.ConvTranspose1d(2, 5, 3), nn.ReLU())
    run = take_once(nn.Sequential(block, nn.Flatten(), nn.Tanh()), (3, 2, 6), ["0", "relu_1", "1"], folder)
    assert run.entry("0", "layer").axes == run.entry("relu_1", "layer").axes == ("channel", "position")
    assert run.entry("0", "weight").totals == (5, 2)  # filters, then input channels, although torch has them the other way
    assert run.entry("1", "layer").axes == run.entry("0", "activation").axes == ("sample", "unit")
    assert run.entry("0", "activation").units == 5 * 8


class Transposed(nn.Module):
    """A fully connected layer with its inputs first, as GPT-2 has them."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 40)), nn.Parameter(torch.zeros(40))

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], 40)


class Plain(nn.Module):
    """The same, written the usual way round."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(40, 6))

    def forward(self, x):
        return x @ self.weight.t()


@pytest.mark.parametrize(
    ("layer", "given"),
    [(nn.Embedding(90, 40), torch.arange(9).view(3, 3)), (Transposed(), torch.ones(2, 3, 6))],
    ids=["embedding", "addmm"],
)
def test_weights_with_inputs_first_keep_the_units_of_the_output(layer, given, folder):
    """The same units are kept of the weight and of what the layer returns, so that columns line up."""
    run = take_once(nn.Sequential(layer), given, ["0"], folder, limits=Limits(units=8))
    weight, output = run.entry("0", "weight"), run.entry("0", "layer")
    assert weight.axes == ("input", "unit")
    assert weight.totals == tuple(layer.weight.shape)
    assert weight.columns == output.columns
    assert len(weight.columns) == 8


def test_a_weight_that_is_turned_before_it_is_used_has_its_units_first(folder):
    """`x @ weight.t()` is an ordinary fully connected layer."""
    run = take_once(nn.Sequential(Plain()), (2, 6), ["0"], folder)
    assert run.entry("0", "weight").axes == ("unit", "input")


class Functions(nn.Module):
    """Only functions: a convolution, and a product with a parameter."""

    def __init__(self):
        super().__init__()
        self.filters, self.matrix = nn.Parameter(torch.randn(2, 1, 3, 3)), nn.Parameter(torch.randn(72, 5))

    def forward(self, x):
        return torch.sigmoid(F.relu(F.conv2d(x, self.filters)).flatten(1) @ self.matrix)


def test_a_product_with_a_parameter_is_a_fully_connected_layer(folder):
    """So it is watched by default, as `nn.Linear` is."""
    run = take_once(Functions(), (2, 1, 8, 8), None, folder)
    assert run.kinds("conv2d_1_1") == ["layer", "activation"]
    assert run.entry("matmul_1_4", "activation").source == "sigmoid_1_5"


def test_the_update_ratio_of_complex_weights_has_both_parts(folder):
    """The imaginary part moves too."""
    model = nn.Linear(3, 2, dtype=torch.complex64)
    with Xray(model, torch.randn(2, 3, dtype=torch.complex64), {"linear_1": ["weight"]}, folder=folder) as xray:
        xray.take_graphs(0)
        before = model.weight.detach().clone()
        with torch.no_grad():
            model.weight += 0.5j
        xray.take_graphs(1)
    expected = float((model.weight.detach() - before).norm() / before.norm())
    assert xray.run.entry("linear_1", "weight").update_ratio == pytest.approx(expected, rel=1e-5)


def test_a_frozen_weight_is_said_to_be_frozen(folder):
    """It will never have a gradient."""
    model = nn.Sequential(nn.Linear(3, 2).requires_grad_(False), nn.Linear(2, 1))
    notes = take_once(model, (1, 3), {"0": ["grad"], "1": ["grad"]}, folder).snapshot().notes
    assert notes == ("0: the weight is frozen, so it has no gradient", "1: the weight has no gradient yet")


def test_gradients_that_were_unscaled_inside_a_step_are_not_called_scaled(folder):
    """Those of the outputs still are: they were taken on the way."""
    model, x = nn.Linear(3, 2), torch.ones(1, 3)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=512.0)
    with Xray(model, x, {"linear_1": ["grad"]}, folder=folder) as xray, xray.step(0):
        scaler.scale(model(x).sum()).backward()
        scaler.unscale_(optimizer)
    assert xray.run.entry("linear_1", "grad").note == ""
    assert (xray.run.tensor("linear_1", "grad") == 1).all()
    assert "multiplied by 512" in xray.run.entry("linear_1", "layer_grad").note
    assert (xray.run.tensor("linear_1", "layer_grad") == 512).all()


@pytest.mark.parametrize("is_made_inside", [False, True])
def test_the_probe_runs_backward_inside_inference_mode(folder, is_made_inside):
    """Where validation is run, and a snapshot taken along with it."""
    model = nn.Linear(3, 2)
    options = {"folder": folder, "loss_fn": lambda output: output.sum()}
    with torch.inference_mode(is_made_inside):
        xray = Xray(model, (1, 3), {"linear_1": ["grad"]}, **options)
    with xray, torch.inference_mode():
        xray.take_graphs()
    assert (xray.run.tensor("linear_1", "layer_grad") == 1).all()
    assert model.weight.grad is None


def test_a_training_with_l_bfgs_is_verified(folder):
    """Its state holds lists of tensors; a change in one of them is a difference."""
    model, x = nn.Linear(3, 2), torch.arange(12.0).view(4, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def train_step(model, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = (model(x) - 1).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    with Xray(model, x, ["linear_1"], folder=folder, optimizer=optimizer) as xray:
        assert xray.verify(train_step, steps=2)

        def disturbed_step(model, optimizer, count=[0]):  # noqa: B006 - counts the steps of both trainings
            train_step(model, optimizer)
            count[0] += 1
            if count[0] == 2:
                optimizer.state[model.weight]["old_dirs"][0].add_(1)

        assert "optimizer state 0 old_dirs" in xray.verify(disturbed_step, steps=2).differences


def test_a_dropped_xray_leaves_nothing_on_the_optimizer(folder):
    """Also when nobody closes it."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    xray = Xray(model, (1, 3), ["linear_1"], folder=folder, optimizer=optimizer)
    assert optimizer._optimizer_step_pre_hooks
    del xray
    gc.collect()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_process_neither_frees_nor_writes_the_run(folder):
    """A process that was forked off the training ends, and the training is still the only one that writes."""
    xray = Xray(nn.Linear(3, 2), (1, 3), ["linear_1"], folder=folder)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            xray.take_graphs()
        except TorcheerError:
            xray.close()
            status = 0
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(RunInUse):
        Xray(nn.Linear(3, 2), (1, 3), ["linear_1"], folder=folder)
    xray.take_graphs()
    xray.close()
    assert xray.run.steps() == [0]


def test_a_training_that_goes_back_is_shown_as_it_went_on(folder):
    """After a crash at step 20 it goes on from step 5: the last graphs are those taken last, and no step is there twice."""
    model = nn.Linear(3, 2)
    with Xray(model, (1, 3), {"linear_1": ["weight"]}, folder=folder) as xray:
        for number, step in enumerate((0, 10, 20, 5, 10)):
            with torch.no_grad():
                model.weight.fill_(number)
            xray.take_graphs(step)
        figure = xray.show_last_graphs()
        assert any("step 10" in text.get_text() for text in figure.texts)
        assert xray.run.steps() == xray.saved().steps == [0, 5, 10, 20]
        assert (xray.run.tensor("linear_1", "weight", 10) == 4).all()


def test_a_run_that_goes_on_with_more_layers_knows_them(folder):
    """Whoever opens it is told of all that was watched."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    take_once(model, (1, 3), {"0": ["weight"]}, folder)
    take_once(model, (1, 3), {"1": ["weight"]}, folder, resume=True)
    assert [watch.name for watch in Xray.open(folder).layers] == ["0", "1"]
    assert "2 layers" in repr(Xray.open(folder))


def test_the_loop_of_the_story_runs_where_another_process_watches(folder, monkeypatch):
    """In distributed training the same two lines run in every process."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: 1)
    with Xray(nn.Linear(3, 2), (1, 3), ["linear_1"], folder=folder) as xray:
        assert not xray.take_graphs()
        assert xray.show_last_graphs() is None


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # torch's own
def test_a_parameter_without_elements_does_not_stop_a_training(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 0))
    with Xray(model, torch.rand(2, 4), ["0"], folder=tmp_path / "run") as xray:
        for step in range(2):
            xray.take_graphs(step)
    assert xray.run.steps() == [0, 1]


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_outputs_are_taken(layout, folder):
    """What is shown of a nested tensor is its first sample; statistics and dead units are those of all samples."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    with torch.no_grad():
        model[0].bias[2] = -100.0
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    given = torch.nested.nested_tensor(samples, layout=layout)
    with Xray(model, given, {"0": {"layer": True, "activation": True}}, folder=folder) as xray:
        for _ in range(3):
            xray.take_graphs()
    entry = xray.run.entry("0", "activation")
    expected = [model(sample).detach() for sample in samples]
    assert entry.shape == (2, -1, 6)
    assert entry.statistics.count == 5 * 6
    assert entry.statistics.max == pytest.approx(float(torch.cat(expected).max()))
    assert (entry.dead, entry.units) == (1, 6)
    assert "the first of 2 samples" in entry.note
    assert torch.from_numpy(xray.run.tensor("0", "activation")).allclose(expected[0], atol=1e-2)
    assert "2×?×6" in str(xray.saved())


def test_nested_outputs_whose_samples_have_different_units_are_taken(folder):
    """Units that differ from sample to sample are none that could be called dead."""
    given = torch.nested.nested_tensor([torch.randn(2), torch.randn(3)], layout=torch.jagged)
    with Xray(nn.Sequential(nn.ReLU()), given, ["0"], folder=folder) as xray:
        for _ in range(3):
            xray.take_graphs()
    entry = xray.run.entry("0", "layer")
    assert (entry.shape, entry.statistics.count, entry.dead) == ((2, -1), 5, None)


def test_a_batch_without_samples_has_no_dead_units(folder):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    with Xray(model, torch.empty(0, 3), folder=folder) as xray:
        for _ in range(4):
            xray.take_graphs()
    assert xray.run.entry("0", "activation").dead is None
    assert xray.run.summary("0").dead is None


def test_values_that_are_not_finite_are_in_no_scale_but_counted_where_they_are(folder):
    """One NaN among the weights of a layer is said of that layer's weights, not of their gradients."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    run = take_once(model, (2, 3), {"2": {"weight": True, "grad": True}}, folder)
    weight, rest = run.entry("2", "weight"), model[2].weight.detach().flatten()[1:]
    assert weight.statistics.nonfinite == 1
    assert (weight.statistics.min, weight.statistics.max) == (float(rest.min()), float(rest.max()))
    assert weight.low >= float(rest.min())
    assert weight.high <= float(rest.max())
    assert (run.summary("2").nonfinite, run.summary("2").grad_nonfinite) == (1, 0)
    assert (run.summary("0").nonfinite, run.summary("0").grad_nonfinite) == (0, 0)
    assert run.summary("2").norm == pytest.approx(float(torch.cat((rest, model[2].bias.detach())).norm()))


class ReadsInBackward(nn.Module):
    """A checkpointed block reads a buffer that the pass wrote."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, t):
        self.scale.mul_(2)
        return torch.utils.checkpoint.checkpoint(lambda u: self.fc(u).tanh() * self.scale, t, use_reentrant=False)


class ReturnsBuffer(ReadsInBackward):
    """Returns a buffer that gradients flow through."""

    def forward(self, t):
        self.scale += self.fc(t).sum(0)
        return self.scale


@pytest.mark.parametrize("make", [ReadsInBackward, ReturnsBuffer])
def test_gradients_of_a_probe_are_those_of_the_plain_model(make):
    model, given = make(), torch.rand(3, 4)
    twin = copy.deepcopy(model)
    twin(given).square().mean().backward()
    _, gradients, loss = Probe(model, given, loss_fn=lambda made: made.square().mean(), training=True).run_backward()
    for name, parameter in twin.named_parameters():
        assert torch.equal(gradients[name], parameter.grad), name
    assert loss > 0
    assert torch.equal(model.scale, torch.ones(4))
    assert all(parameter.grad is None for parameter in model.parameters())
