"""Xray: what is watched during training is what plain PyTorch sees, and the training never notices."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import time
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torcheer import InvalidArgument, LayerNotFound, TorcheerError
from torcheer.errors import RunInUse, SnapshotLost
from torcheer.xray import ChosenFilters, FirstFilters, Limits, TopVarianceFilters, Xray
from torcheer.xray.verify import compare_trainings


class Net(nn.Module):
    """Modules and functions, an in-place activation, normalisation and pooling in between."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.conv3 = nn.Conv2d(8, 48, 3)
        self.drop = nn.Dropout(0.3)
        self.fc1 = nn.Linear(48, 12)
        self.fc2 = nn.Linear(12, 4)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.norm(self.conv1(x)), 2), inplace=True)
        x = F.relu_(self.conv3(x)).mean((2, 3))
        return self.fc2(torch.tanh(self.fc1(self.drop(x))))


class Functional(nn.Module):
    """No submodule at all."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(6, 3, 3, 3) / 5)
        self.matrix = nn.Parameter(torch.randn(4, 6) / 3)

    def forward(self, x):
        return F.linear(F.relu(F.conv2d(x, self.kernel)).mean((2, 3)), self.matrix)


def sequential() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 9, 16),
        nn.ReLU(),
        nn.Linear(16, 4),
    )


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 3, 8, 8, generator=generator), torch.randint(0, 4, (6,), generator=generator)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


MODELS = {
    "modules": (Net, ["conv1", "conv3", "fc2"]),
    "sequential": (sequential, ["0", "4", "6"]),
    "functional": (Functional, ["conv2d_1", "linear_1"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_loop_of_the_story(name, data, folder):
    """One line to set up, two in the loop: every layer is there at every step."""
    make, layers = MODELS[name]
    torch.manual_seed(0)
    model, (x, y) = make(), data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    xray = Xray(model, x, layers, folder=folder)
    for batch in range(6):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if batch % 2 == 0:
            xray.take_graphs(batch)
            figure = xray.show_last_graphs()
    assert figure.axes
    assert xray.run.layers == layers
    assert xray.run.steps() == [0, 2, 4]
    for layer in layers:
        assert {"weight", "layer", "grad"} <= set(xray.run.kinds(layer))
    assert sorted(path.name for path in (folder / "figures").iterdir()) == [f"step_{step:08d}.png" for step in (0, 2, 4)]
    xray.close()


def plain_outputs(model: nn.Module, names: list[str], x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What plain forward hooks see in evaluation mode, copied at once."""
    seen: dict[str, torch.Tensor] = {}
    model = copy.deepcopy(model).eval()
    for name in names:
        module = model.get_submodule(name)
        module.register_forward_hook(lambda _, __, output, name=name: seen.__setitem__(name, output.detach().clone()))
    with torch.no_grad():
        model(x)
    return seen


def test_outputs_activations_and_weights_are_those_of_plain_torch(data, folder):
    """In-place activations do not turn an output into an activation."""
    model, (x, _) = Net(), data
    with Xray(model, x, ["conv1", "conv3", "fc1"], folder=folder, dtype=torch.float32, limits=Limits(channels=64)) as xray:
        xray.take_graphs()
    run = Xray.open(folder).run
    plain = plain_outputs(model, ["conv1", "norm", "conv3", "fc1"], x)
    assert torch.equal(torch.from_numpy(run.tensor("conv1", "layer")), plain["conv1"][0])
    assert torch.equal(torch.from_numpy(run.tensor("conv1", "activation")), F.relu(F.max_pool2d(plain["norm"], 2))[0])
    assert torch.equal(torch.from_numpy(run.tensor("conv3", "layer")), plain["conv3"][0])
    assert torch.equal(torch.from_numpy(run.tensor("conv3", "activation")), F.relu(plain["conv3"])[0])
    assert torch.equal(torch.from_numpy(run.tensor("fc1", "layer")), plain["fc1"])
    assert torch.equal(torch.from_numpy(run.tensor("fc1", "activation")), torch.tanh(plain["fc1"]))
    assert torch.equal(torch.from_numpy(run.tensor("conv1", "weight")), model.conv1.weight.detach())
    assert torch.equal(torch.from_numpy(run.tensor("fc1", "weight")), model.fc1.weight.detach())
    assert run.entry("conv1", "activation").source == "relu_1_4"


def plain_gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor, training: bool) -> dict[str, torch.Tensor]:
    """The gradients at the outputs of convolutions, by plain tensor hooks."""
    seen: dict[str, torch.Tensor] = {}
    model = copy.deepcopy(model).train(training)
    for name in ("conv1", "conv3"):

        def hook(_, __, output, name=name):
            output.register_hook(lambda gradient: seen.__setitem__(name, gradient.clone()))

        model.get_submodule(name).register_forward_hook(hook)
    F.cross_entropy(model(x), y).backward()
    seen["conv1.weight"] = model.conv1.weight.grad
    return seen


def test_gradients_as_they_stand_and_gradients_of_the_probe(data, folder):
    """The weight's is the user's own, the output's that of the probe's loss; the user's stay untouched."""
    model, (x, y) = Net(), data
    F.cross_entropy(model(x[:2]), y[:2]).backward()
    before = {name: param.grad.clone() for name, param in model.named_parameters()}
    with Xray(model, x, {"conv1": ["grad"], "conv3": ["grad"]}, folder=folder, loss_fn=F.cross_entropy, target=y) as xray:
        xray.take_graphs(scale=1024.0, clipped=1.0)
    run = xray.run
    assert torch.equal(torch.from_numpy(run.tensor("conv1", "grad")), before["conv1.weight"])
    assert "multiplied by 1024" in run.entry("conv1", "grad").note
    assert "clipped to norm 1" in run.entry("conv1", "grad").note
    plain = plain_gradients(model, x, y, training=False)
    assert torch.equal(torch.from_numpy(run.tensor("conv1", "layer_grad")), plain["conv1"][0])
    assert "of the probe's loss" in run.entry("conv1", "layer_grad").note
    assert run.entry("conv3", "layer_grad").statistics.norm == pytest.approx(plain["conv3"].norm().item(), rel=1e-5)
    assert all(torch.equal(param.grad, before[name]) for name, param in model.named_parameters())


def test_without_gradients_of_one_s_own_the_weight_s_is_the_probe_s(data, folder):
    """And no `.grad` appears."""
    model, (x, y) = Net(), data
    with Xray(model, x, {"conv1": ["grad"]}, folder=folder, loss_fn=F.cross_entropy, target=y) as xray:
        xray.take_graphs()
    assert torch.equal(torch.from_numpy(xray.run.tensor("conv1", "grad")), plain_gradients(model, x, y, False)["conv1.weight"])
    assert "of the probe's loss" in xray.run.entry("conv1", "grad").note
    assert all(param.grad is None for param in model.parameters())


def test_a_step_watches_the_user_s_own_pass(data, folder):
    """Outputs and gradients are those of the pass inside the block, in training mode."""
    model, (x, y) = Net(), data
    model.drop.p = 0.0
    plain = plain_gradients(model, x, y, training=True)
    with Xray(model, x[:1], ["conv1", "conv3"], folder=folder, every=2) as xray:
        for step in range(3):
            with xray.step(step):
                model.zero_grad()
                F.cross_entropy(model(x), y).backward()
    assert xray.run.steps() == [0, 2]
    assert torch.equal(torch.from_numpy(xray.run.tensor("conv1", "layer_grad", 0)), plain["conv1"][0])
    assert torch.equal(torch.from_numpy(xray.run.tensor("conv1", "grad", 0)), plain["conv1.weight"])
    assert xray.run.entry("conv1", "layer", 0).shape == (6, 8, 6, 6)


def test_a_step_that_leaves_nothing_behind_is_watched_all_the_same(folder):
    """The input is made inside and the loss does not survive the block."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())

    def train_step():
        model(torch.randn(2, 3)).sum().backward()

    with Xray(model, (1, 3), ["0"], folder=folder) as xray, xray.step(0):
        train_step()
    assert set(xray.run.kinds("0")) == {"weight", "layer", "activation", "grad", "layer_grad"}


def test_a_gradient_scaler_is_noted(data, folder):
    """What the loss was multiplied by is written down with the gradients."""
    model, (x, y) = Net(), data
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    with Xray(model, x, {"conv1": ["grad"]}, folder=folder) as xray, xray.step(0):
        scaler.scale(F.cross_entropy(model(x), y)).backward()
    assert "multiplied by 512" in xray.run.entry("conv1", "grad").note
    assert "multiplied by 512" in xray.run.entry("conv1", "layer_grad").note


def make_step(x, y):
    def train_step(model, optimizer):
        optimizer.zero_grad()
        F.cross_entropy(model(x + torch.randn_like(x) * 0.1), y).backward()
        optimizer.step()

    return train_step


@pytest.mark.parametrize("with_loss", [False, True])
def test_training_is_bit_identical(data, folder, with_loss):
    """Dropout, BatchNorm in training and frozen, momentum, random noise: not a bit differs."""
    model, (x, y) = Net(), data
    model.norm.eval()  # frozen on purpose
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss = {"loss_fn": F.cross_entropy, "target": y} if with_loss else {}
    before = copy.deepcopy(model.state_dict())
    with Xray(model, x, folder=folder, optimizer=optimizer, **loss) as xray:
        found = xray.verify(make_step(x, y), steps=4)
        assert found, str(found)
        assert found.compared > 40
        assert "bit-identical" in str(found)
        xray.take_graphs()
    assert not model.norm.training
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_no_steps_prove_nothing(data, folder):
    """A proof of zero steps would be true of anything."""
    with Xray(Net(), data[0], ["conv1"], folder=folder) as xray, pytest.raises(InvalidArgument, match="prove nothing"):
        xray.verify(lambda model: None, steps=0)


def test_a_watcher_that_disturbs_is_found_out(data):
    """The proof can fail: one that draws a random number is reported."""
    model, (x, y) = Net(), data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Disturbs:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def take_graphs(self):
            torch.rand(1)

    found = compare_trainings(model, optimizer, make_step(x, y), 3, Disturbs)
    assert not found
    assert "torch's random state" in found.differences
    assert "parameter fc2.weight" in found.differences
    assert "differ" in str(found)


def test_nothing_stays_on_the_model_or_the_optimizer(data, folder):
    """After closing, a model can be pickled, nobody holds it, and no hook is left."""
    model, (x, y) = Net(), data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    xray = Xray(model, x, folder=folder, optimizer=optimizer, loss_fn=F.cross_entropy, target=y)
    xray.take_graphs()
    pickle.loads(pickle.dumps(model))
    xray.close()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    gone = weakref.ref(model)
    del xray, optimizer, model
    gc.collect()
    assert gone() is None


def test_a_dropped_xray_writes_what_it_took(data, folder):
    """Whoever forgets to close loses nothing."""
    xray = Xray(Net(), data[0], folder=folder)
    xray.take_graphs()
    del xray
    gc.collect()
    assert Xray.open(folder).run.steps() == [0]


def test_by_default_convolutions_and_fully_connected_layers(data, folder):
    """Convolutions give output and activation, fully connected layers their activation, or their output where there is none."""
    with Xray(Net(), data[0], folder=folder) as xray:
        xray.take_graphs()
    run = xray.run
    assert {layer: run.kinds(layer) for layer in run.layers} == {
        "conv1": ["layer", "activation"],
        "conv3": ["layer", "activation"],
        "fc1": ["activation"],
        "fc2": ["layer"],
    }
    assert run.snapshot().notes == ()


def test_a_dictionary_says_which_kinds(data, folder):
    """As in the story."""
    layers = {
        "conv1": {"weight": True, "layer": True, "activation": True, "grad": True},
        "conv3": {"weight": True, "layer": False, "activation": True, "grad": False},
    }
    model, (x, y) = Net(), data
    F.cross_entropy(model(x), y).backward()
    with Xray(model, x, layers, folder=folder) as xray:
        xray.take_graphs()
    assert xray.run.kinds("conv1") == ["weight", "layer", "activation", "grad"]
    assert xray.run.kinds("conv3") == ["weight", "activation"]


@pytest.mark.parametrize(
    ("layers", "error", "said"),
    [
        (["convx"], LayerNotFound, "conv1"),
        (["?"], LayerNotFound, "for example, 'conv1'"),
        ([], InvalidArgument, "names nothing to watch"),
        ({"conv1": {"weight": False}}, InvalidArgument, "names nothing to watch"),
        ({"conv1": {"wieght": True}}, InvalidArgument, "Did you mean 'weight'"),
        ({"conv1": 3}, InvalidArgument, "a dictionary or a list"),
        (7.5, InvalidArgument, "a key is a label"),
        (99, LayerNotFound, "no layer 99"),
        ([nn.Linear(2, 2)], InvalidArgument, "named by its address or its class"),
        (["conv1:4"], LayerNotFound, "called 1 times"),
    ],
)
def test_layers_that_cannot_be_watched_are_told_before_anything_is_written(data, folder, layers, error, said):
    """With the nearest names, and no folder made."""
    with pytest.raises(error, match=said):
        Xray(Net(), data[0], layers, folder=folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": 0}, "every must be"),
        ({"budget": "lots"}, "budget must be"),
        ({"budget": 2.0}, "budget must be"),
        ({"selector": 5}, "selector must be"),
        ({"loss_fn": 5}, "loss_fn must be"),
        ({"optimizer": 5}, "optimizer must be"),
        ({"limits": 5}, "limits must be"),
        ({"max_bytes": "1 GB"}, "max_bytes must be"),
        ({"max_bytes": 0}, "max_bytes must be"),
        ({"dtype": torch.int8}, "dtype must be"),
        ({"seed": "x"}, "seed must be"),
    ],
)
def test_options_that_make_no_sense_are_told(data, folder, options, said):
    """Each by its name, with what was expected, before a snapshot could be lost."""
    with pytest.raises(InvalidArgument, match=said):
        Xray(Net(), data[0], folder=folder, **options)


@pytest.mark.parametrize("given", ["x", None, 3.5, (0, 3, 8, 8), [-1, 3, 8, 8]])
def test_an_input_that_is_none_is_told(given, folder):
    """What an input can be is listed."""
    with pytest.raises(InvalidArgument, match="an input is"):
        Xray(Net(), given, folder=folder)
    with pytest.raises(InvalidArgument, match=r"nn\.Module"):
        Xray(lambda x: x, torch.ones(1), folder=folder)


def test_a_loss_that_is_no_number_is_told(data, folder):
    """What came, and what was expected."""
    xray = Xray(Net(), data[0], ["conv1"], folder=folder, loss_fn=lambda output: output)
    with pytest.raises(InvalidArgument, match=r"one number.*\(6, 4\)"):
        xray.take_graphs()
    xray.close()


class Two(nn.Module):
    """Two inputs, one of them named."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, left, right):
        return torch.relu(self.a(left) + self.b(right))


@pytest.mark.parametrize(
    "given",
    [(torch.ones(1, 3), torch.ones(1, 2)), {"left": torch.ones(1, 3), "right": torch.ones(1, 2)}, [(1, 3), (1, 2)]],
    ids=["tuple", "dictionary", "sizes"],
)
def test_inputs_of_every_form(given, folder):
    """Positional, named, or made from sizes."""
    with Xray(Two(), given, ["a"], folder=folder) as xray:
        xray.take_graphs()
    assert xray.run.entry("a", "layer").shape == (1, 4)


def test_an_input_made_from_a_size_is_always_the_same(folder, tmp_path):
    """Fixed and seeded, and the random state is not touched."""
    torch.manual_seed(5)
    state = torch.get_rng_state()
    model = Net()
    torch.set_rng_state(state)
    outputs = []
    for number in range(2):
        with Xray(model, (2, 3, 8, 8), ["conv1"], folder=tmp_path / str(number)) as xray:
            xray.take_graphs()
        outputs.append(xray.run.tensor("conv1", "layer"))
    assert (outputs[0] == outputs[1]).all()
    assert torch.equal(torch.get_rng_state(), state)


class Reused(nn.Module):
    """One module three times, and one made outside of __init__."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 1)

    def forward(self, x):
        for _ in range(3):
            x = torch.relu(self.conv(x))
        if not hasattr(self, "late"):
            self.late = nn.Conv2d(2, 5, 1)
        return self.late(x)


def test_reused_modules_and_modules_made_late(folder):
    """Every call is watched, named by its number; what the forward pass makes is known once it is there."""
    model, x = Reused(), torch.randn(1, 2, 4, 4)
    model(x)
    with Xray(model, x, ["conv", "late"], folder=folder, dtype=torch.float32) as xray:
        xray.take_graphs()
    run = xray.run
    assert run.layers == ["conv:1", "conv:2", "conv:3", "late"]
    plain = torch.relu(model.conv(x))
    assert torch.equal(torch.from_numpy(run.tensor("conv:1", "activation")), plain[0])
    assert torch.equal(torch.from_numpy(run.tensor("conv:2", "layer")), model.conv(plain)[0])
    assert "pass 2 of 3" in run.entry("conv:2", "layer").note
    assert run.entry("late", "layer").shape == (1, 5, 4, 4)


def test_compiled_and_parallel_models_are_probed_as_they_are(data, folder):
    """Eagerly, under their plain addresses."""
    model = Net()
    with Xray(nn.DataParallel(torch.compile(model)), data[0], ["conv1"], folder=folder, dtype=torch.float32) as xray:
        xray.take_graphs()
    assert torch.equal(
        torch.from_numpy(xray.run.tensor("conv1", "layer")), plain_outputs(model, ["conv1"], data[0])["conv1"][0]
    )


class Dynamic(nn.Module):
    """A layer that does not run every time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.both = True

    def forward(self, x):
        x = torch.relu(self.first(x))
        return torch.relu(self.second(x)) if self.both else x


def test_a_layer_that_does_not_run_is_missing_that_time_only(folder):
    """And a note says so."""
    model = Dynamic()
    with Xray(model, (2, 3), ["first", "second"], folder=folder) as xray:
        for both in (True, False, True):
            model.both = both
            xray.take_graphs()
    assert xray.run.steps("second") == [0, 2]
    assert xray.run.steps("first") == [0, 1, 2]
    assert any(note.startswith("second: did not run") for note in xray.run.snapshot(1).notes)


def test_the_same_filters_at_every_step_in_every_kind_and_after_resuming(data, folder):
    """The choice is stored with the run."""
    model, (x, y) = Net(), data
    F.cross_entropy(model(x), y).backward()
    small = Limits(channels=5)
    for _ in range(2):
        with Xray(model, x, ["conv3"], folder=folder, resume=True, limits=small, loss_fn=F.cross_entropy, target=y) as xray:
            xray.take_graphs()
            xray.take_graphs()
    run = xray.run
    rows = {entry.rows for snapshot in run.snapshots for entry in snapshot.entries}
    assert len(run.snapshots) == 4
    assert len(rows) == 1
    assert len(next(iter(rows))) == 5
    channels = list(next(iter(rows)))
    assert torch.equal(torch.from_numpy(run.tensor("conv3", "weight")), model.conv3.weight.detach()[channels])


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (FirstFilters(), (0, 1, 2)),
        (ChosenFilters([7, 2]), (7, 2)),
        (ChosenFilters({"conv1": [5]}), (5,)),
        (lambda layer, count, limit, tensor: [count - 1], (7,)),
    ],
    ids=["first", "named", "by layer", "function"],
)
def test_selectors(data, folder, selector, expected):
    """First, named, or whatever a function says."""
    with Xray(Net(), data[0], ["conv1"], folder=folder, selector=selector, limits=Limits(channels=3)) as xray:
        xray.take_graphs()
    assert xray.run.entry("conv1", "weight").rows == expected
    assert xray.run.entry("conv1", "activation").rows == expected


def test_named_channels_are_those_of_the_output(data, folder):
    """The input channels are kept as they are, unless they are named too."""
    model = Net()
    with Xray(model, data[0], ["conv1"], folder=folder / "a", selector=ChosenFilters([7, 2])) as xray:
        xray.take_graphs()
    assert xray.run.entry("conv1", "weight").columns == (0, 1, 2)
    by_layer = ChosenFilters({"conv1": [7], "conv1/inputs": [1]})
    with Xray(model, data[0], ["conv1"], folder=folder / "b", selector=by_layer) as xray:
        xray.take_graphs()
    entry = xray.run.entry("conv1", "weight")
    assert (entry.rows, entry.columns) == ((7,), (1,))


def test_the_channels_that_vary_most(folder):
    """By variance of the first tensor seen, which is the weight."""
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU())
    with torch.no_grad():
        for channel, scale in enumerate((1.0, 9.0, 2.0, 8.0, 3.0, 7.0)):
            model[0].weight[channel] = torch.linspace(-scale, scale, 9).reshape(1, 3, 3)
    with Xray(model, (1, 1, 6, 6), ["0"], folder=folder, selector=TopVarianceFilters(), limits=Limits(channels=3)) as xray:
        xray.take_graphs()
    assert xray.run.entry("0", "weight").rows == (1, 3, 5)


def test_a_selector_that_chooses_nonsense_loses_the_snapshot_not_the_training(data, folder):
    """A warning tells, at the next call."""
    xray = Xray(Net(), data[0], ["conv1"], folder=folder, selector=lambda *_: [99], limits=Limits(channels=3))
    xray.take_graphs()
    with pytest.warns(SnapshotLost, match=r"step 0.*from 0 to 7.*\[99\]"):
        xray.flush()
    xray.close()


def test_a_disk_that_is_full_loses_snapshots_not_the_training(data, folder, monkeypatch):
    """A warning at the next call; later snapshots are written again."""
    xray = Xray(Net(), data[0], ["conv1"], folder=folder)
    with monkeypatch.context() as patched:
        patched.setattr(
            "torcheer.xray.store.write_tensors", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left"))
        )
        xray.take_graphs()
        with pytest.warns(SnapshotLost, match="step 0 was lost: OSError"):
            xray.flush()
    xray.take_graphs()
    xray.close()
    assert Xray.open(folder).run.steps() == [1]


def test_maps_are_half_precision_weights_and_gradients_are_not(data, folder):
    """Maps are rounded to float16; what does not fit is kept as it is."""
    model, (x, y) = Net(), data
    F.cross_entropy(model(x), y).backward()
    with Xray(model, x, ["conv1"], folder=folder) as xray:
        xray.take_graphs()
        with torch.no_grad():
            model.conv1.bias.fill_(1e6)
        xray.take_graphs()
    files = xray.run.files
    first, second = files.snapshots
    assert files.tensor(first, "conv1", "layer").dtype == torch.float16
    assert files.tensor(second, "conv1", "layer").dtype == torch.float32
    assert files.tensor(first, "conv1", "weight").dtype == torch.float32
    assert files.tensor(first, "conv1", "grad").dtype == torch.float32


def test_dead_units_are_dead_over_the_batch_and_several_snapshots(folder):
    """One snapshot proves nothing; a unit that lives for one sample is not dead."""
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU())
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 1.0], [-1.0, -1.0], [-1.0, 1.0], [-2.0, -2.0]]))
        model[0].bias.zero_()
    with Xray(model, x, ["0"], folder=folder) as xray:
        for step in range(5):
            if step == 3:
                with torch.no_grad():
                    model[0].weight[3] = 1.0
            xray.take_graphs()
    dead = [xray.run.entry("0", "activation", step).dead for step in range(5)]
    assert dead == [None, None, 2, 1, 1]
    assert xray.run.entry("0", "activation").units == 4


def test_the_update_ratio_is_how_far_a_step_moves_the_weight(data, folder):
    """Measured around the optimizer's step when it is known, a mean between snapshots when it is not."""
    model, (x, y) = Net(), data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = make_step(x, y)
    before = model.fc1.weight.detach().clone()
    with Xray(model, x, ["fc1"], folder=folder / "a", optimizer=optimizer) as exact:
        step(model, optimizer)
        after = model.fc1.weight.detach().clone()
        exact.take_graphs(1)
    expected = ((after - before).norm() / before.norm()).item()
    assert exact.run.entry("fc1", "weight").update_ratio == pytest.approx(expected, rel=1e-4)
    with Xray(model, x, ["fc1"], folder=folder / "c", optimizer=optimizer, every=4) as every_fourth:
        for number in range(9):
            before = model.fc1.weight.detach().clone()
            step(model, optimizer)
            every_fourth.take_graphs(number)
    expected = ((model.fc1.weight.detach() - before).norm() / before.norm()).item()
    assert every_fourth.run.entry("fc1", "weight", 8).update_ratio == pytest.approx(expected, rel=1e-4)
    after = model.fc1.weight.detach().clone()
    with Xray(model, x, ["fc1"], folder=folder / "b") as between:
        between.take_graphs(0)
        for _ in range(4):
            step(model, optimizer)
        between.take_graphs(4)
    moved = ((model.fc1.weight.detach() - after).norm() / after.norm()).item() / 4
    assert between.run.entry("fc1", "weight").update_ratio == pytest.approx(moved, rel=1e-4)
    assert "mean over 4 steps" in between.run.entry("fc1", "weight").note
    assert between.run.entry("fc1", "weight", 0).update_ratio is None


def test_pictures_without_a_batch_are_pictures(folder):
    """Three dimensions of a two-dimensional convolution are channels and pixels."""
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU())
    with Xray(model, torch.randn(3, 9, 7), ["0"], folder=folder, dtype=torch.float32) as xray:
        xray.take_graphs()
    assert xray.run.entry("0", "layer").layout == "maps"
    assert xray.run.tensor("0", "activation").shape == (5, 7, 5)
    assert xray.run.entry("0", "activation").units == 5


def test_a_tensor_under_two_names_is_written_twice(folder):
    """Two keys may mean the same layer."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU())
    with Xray(model, (1, 1, 4, 4), ["0", "0:1", "conv2d_1"], folder=folder) as xray:
        xray.take_graphs()
    assert (xray.run.tensor("0", "layer") == xray.run.tensor("conv2d_1", "layer")).all()


def test_activations_that_are_nearly_all_zero_are_still_seen(folder):
    """Where the range of most values is nothing, the whole range is used."""
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU())
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
    x = torch.zeros(1, 1, 20, 20)
    x[0, 0, 3, 3] = 0.25
    with Xray(model, x, ["0"], folder=folder) as xray:
        xray.take_graphs()
    assert xray.run.limits("0", "activation") == (0.0, 0.25)


class Odd(nn.Module):
    """Convolutions of other kinds, a transposed one, an embedding, normalisation, complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, 20)
        self.one = nn.Conv1d(20, 40, 3)
        self.up = nn.ConvTranspose2d(4, 6, 2)
        self.three = nn.Conv3d(1, 3, 2)
        self.norm = nn.LayerNorm(20)
        self.rnn = nn.LSTM(20, 5, batch_first=True)

    def forward(self, tokens):
        embedded = self.norm(self.embed(tokens))
        line = torch.relu(self.one(embedded.transpose(1, 2)))
        square = self.up(line[:, :36].reshape(len(tokens), 4, 9, -1))
        cube = self.three(square[:, :, :8, :8].reshape(len(tokens), 1, 6, 8, 8))
        return cube.mean() + self.rnn(embedded)[0].mean()


def test_layers_of_every_shape(folder):
    """One, two and three dimensions, transposed, embedded, recurrent: each is kept in a form that can be shown."""
    model = Odd()
    with Xray(
        model, torch.arange(22).reshape(1, 22) * 3, ["embed", "one", "up", "three", "norm", "rnn"], folder=folder
    ) as xray:
        xray.take_graphs()
        xray.show_last_graphs()
    run = xray.run
    forms = {(layer, kind): run.entry(layer, kind).layout for layer in run.layers for kind in run.kinds(layer)}
    assert forms["embed", "weight"] == forms["one", "layer"] == forms["rnn", "layer"] == forms["norm", "weight"] == "matrix"
    assert forms["one", "weight"] == forms["up", "weight"] == forms["three", "weight"] == "filters"
    assert forms["up", "layer"] == forms["three", "layer"] == "maps"
    assert run.tensor("up", "weight").shape == (6, 4, 2, 2)
    assert torch.equal(torch.from_numpy(run.tensor("up", "weight")), model.up.weight.detach().transpose(0, 1))
    assert "middle of 2 slices" in run.entry("three", "weight").note
    assert run.tensor("embed", "weight").shape == (256, 20)


def test_large_maps_are_thinned(folder):
    """And the entry says how."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU())
    with Xray(model, (1, 1, 300, 200), ["0"], folder=folder, dtype=torch.float32) as xray:
        xray.take_graphs()
    assert xray.run.tensor("0", "layer").shape == (2, 100, 67)
    assert "every 3rd pixel" in xray.run.entry("0", "layer").note


def test_a_run_goes_on_where_it_stopped(data, folder):
    """Steps count on, and one writer at a time is allowed."""
    model = Net()
    first = Xray(model, data[0], ["conv1"], folder=folder)
    first.take_graphs()
    first.take_graphs()
    with pytest.raises(RunInUse):
        Xray(model, data[0], ["conv1"], folder=folder)
    assert Xray.open(folder).run.steps()[:1] in ([], [0])
    first.close()
    with pytest.raises(TorcheerError, match="only reads"):
        first.take_graphs()
    with Xray(model, data[0], ["conv1"], folder=folder, resume=True) as second:
        second.take_graphs()
    assert second.run.steps() == [0, 1, 2]
    with pytest.raises(TorcheerError, match="only reads"):
        Xray.open(folder).take_graphs()


def test_a_folder_is_free_again_although_a_worker_was_forked(data, folder):
    """A forked process has the lock open, too; closing lets go of it all the same."""
    xray = Xray(Net(), data[0], ["conv1"], folder=folder)
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        xray.close()
        Xray(Net(), data[0], ["conv1"], folder=folder).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_run_that_was_opened_answers_everything_that_needs_no_model(data, folder):
    """And says so where it does."""
    with Xray(Net(), data[0], ["conv1"], folder=folder) as xray:
        xray.take_graphs()
    read = Xray.open(folder)
    assert repr(read) == f"Xray of Net: 1 snapshot of 1 layer in {folder}"
    assert read.cost["seconds"] == 0.0
    with pytest.raises(TorcheerError, match="opened to read"):
        read.verify(lambda model: None)


def test_every_and_steps_of_one_s_own(data, folder):
    """Only multiples are taken; a step that is no number is told."""
    with Xray(Net(), data[0], ["conv1"], folder=folder, every=3) as xray:
        taken = [xray.take_graphs() for _ in range(7)]
        assert taken == [True, False, False, True, False, False, True]
        assert xray.take_graphs(np.int64(99))
        with pytest.raises(InvalidArgument, match="step must be"):
            xray.take_graphs(-1)
    assert xray.run.steps() == [0, 3, 6, 99]


def test_a_budget_takes_fewer_snapshots(data, folder):
    """The first is always taken; then as many as the time that passed allows."""
    with Xray(Net(), data[0], ["conv1"], folder=folder, budget="5%") as xray:
        taken = 0
        for _ in range(40):
            taken += xray.take_graphs()
            time.sleep(0.002)
        assert 1 <= taken < 40
        assert xray.cost["skipped"] == 40 - taken


def test_what_is_saved_is_told(data, folder):
    """How many timestamps, which layers and kinds, how much on disk; as text and as a table."""
    with Xray(Net(), data[0], {"conv1": ["weight"], "fc1": ["layer", "activation"]}, folder=folder) as xray:
        for step in (0, 5):
            xray.take_graphs(step)
    saved = xray.saved()
    assert (saved.snapshots, saved.steps, saved.layers) == (2, [0, 5], ["conv1", "fc1"])
    assert saved.bytes == sum(path.stat().st_size for path in folder.glob("snapshots/*"))
    assert "2 snapshots, steps 0 to 5" in str(saved)
    assert list(saved.to_pandas()["kind"]) == ["weight", "layer", "activation"]
    assert [row.kept for row in saved.rows][0] == "8 of 8 filters, 3 of 3 input channels"


def test_in_distributed_training_only_rank_zero_watches(data, folder, monkeypatch):
    """Another process takes nothing and writes nothing."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: 1)
    xray = Xray(Net(), data[0], ["conv1"], folder=folder)
    assert not xray.take_graphs()
    assert not folder.exists()
    xray.close()
    with Xray(Net(), data[0], ["conv1"], folder=folder, rank=None) as every:
        assert every.take_graphs()


def test_without_a_folder_a_new_one_is_made(data, tmp_path, monkeypatch):
    """Named after the model and the time, never one that is there."""
    monkeypatch.chdir(tmp_path)
    with Xray(Net(), data[0], ["conv1"]) as one, Xray(Net(), data[0], ["conv1"]) as other:
        assert one.folder != other.folder
        assert one.folder.name.startswith("Net-")
        assert one.folder.parent.name == "xray"
