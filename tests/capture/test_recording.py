"""A recording shows what it saw; what the code around a model gives it is an input, wherever it was made."""

import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import torcheer
from models import made_of


def kinds(history):
    return [operation.layer_type for operation in history.operations]


def given(history):
    return [layer.tensor_contents for layer in history.inputs]


class Drawn(IterableDataset):
    """Draws what it yields."""

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        for _ in range(6):
            yield (torch.randn(3, generator=generator),)


class Read(Dataset):
    """Makes tensors of NumPy arrays."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return (torch.from_numpy(np.full(3, index, dtype=np.float32)),)


def stacked(samples):
    return {"x": torch.stack([sample[0] for sample in samples]) * 2}


LOADERS = {
    "tensors": lambda: DataLoader(TensorDataset(torch.arange(18.0).view(6, 3)), batch_size=2),
    "shuffled": lambda: DataLoader(
        TensorDataset(torch.arange(18.0).view(6, 3)), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(1)
    ),
    "drawn": lambda: DataLoader(Drawn(), batch_size=2),
    "NumPy": lambda: DataLoader(Read(), batch_size=2),
    "a function that collates": lambda: DataLoader(Read(), batch_size=2, collate_fn=stacked),
    "a worker": lambda: DataLoader(Read(), batch_size=2, num_workers=1),
    "workers that stay": lambda: DataLoader(Read(), batch_size=2, num_workers=2, persistent_workers=True),
    "a worker that collates": lambda: DataLoader(Read(), batch_size=2, num_workers=1, collate_fn=stacked),
    "pinned": lambda: DataLoader(Read(), batch_size=2, pin_memory=torch.cuda.is_available()),
}


def batches(loader):
    return [batch["x"] if isinstance(batch, dict) else batch[0] for batch in loader]


@pytest.mark.parametrize("name", LOADERS)
def test_the_batches_of_a_loop_are_the_inputs(name):
    expected = batches(LOADERS[name]())
    model = nn.Linear(3, 2)
    with torcheer.recording(model) as history:
        for batch in LOADERS[name]():
            model(batch["x"] if isinstance(batch, dict) else batch[0]).sum()
    linear = [operation for operation in history.operations if operation.layer_type == "linear"]
    assert len(linear) == 3
    assert kinds(history).count("sum") == 3
    parents = [history[operation.parent_layers[0]] for operation in linear]
    assert all(parent.is_input_layer for parent in parents)
    assert all(map(torch.equal, [parent.tensor_contents for parent in parents], expected))
    assert not any(operation.tensor_shape == (0,) for operation in history.operations)
    assert "\t0 tensors" not in str(history)
    assert "not shown" not in str(history)
    assert history.validate().is_valid


def test_what_is_given_by_name_or_in_containers_is_an_input():
    with torcheer.recording() as history:
        made_of(lambda self, pair, *, mask: pair["x"] * mask + pair["y"])(
            {"x": torch.ones(2), "y": torch.full((2,), 3.0)}, mask=torch.zeros(2)
        )
    assert [tensor.tolist() for tensor in given(history)] == [[1, 1], [3, 3], [0, 0]]
    assert history["mul_1"].parent_layers == [history.inputs[0].label, history.inputs[2].label]


def test_what_a_model_made_is_no_input_of_the_next():
    first, second, loss = nn.Linear(3, 3), nn.Linear(3, 2), nn.CrossEntropyLoss()
    with torcheer.recording() as history:
        y = second(first(torch.ones(2, 3)).relu() * 2)
        loss(y, torch.zeros(2, dtype=torch.long)).backward()
        second(first.weight)
    assert len(history.inputs) == 2
    assert [tuple(tensor.shape) for tensor in given(history)] == [(2, 3), (2,)]


def test_a_tensor_that_enters_twice_is_one_input():
    model, x = nn.Linear(3, 3), torch.ones(1, 3)
    with torcheer.recording(model) as history:
        made = torch.zeros(1, 3)
        y = model(x) + model(x) + model(made) + model(made)
    assert len(history.inputs) == 2
    assert y is not None


def test_an_input_made_in_the_recording_can_be_replaced_in_a_replay():
    model = nn.Linear(3, 2)
    with torcheer.recording(model) as history:
        x = torch.ones(1, 3) * 2
        y = model(x)
    (entered,) = history.inputs
    assert entered.parent_layers == ["mul_1_1"]
    assert torch.equal(history.replay()["output"].tensor_contents, y)
    other = history.replay(inputs={entered.label: torch.zeros(1, 3)})
    assert torch.equal(other["output"].tensor_contents, model(torch.zeros(1, 3)))
    assert torch.equal(history.replay(changes={"mul_1": lambda t: t * 0})["output"].tensor_contents, model(torch.zeros(1, 3)))


def test_code_without_models_whose_results_are_gone_is_shown():
    with torcheer.recording() as history:
        for _ in range(2):
            (torch.ones(3) * 2).sum()
    assert kinds(history) == ["ones", "mul", "sum"] * 2


def test_a_model_without_inputs_whose_result_is_gone_is_shown():
    model = made_of(lambda self, count: self.linear(torch.zeros(count, 3)), linear=nn.Linear(3, 2))
    with torcheer.recording(model) as history:
        model(4)
    assert kinds(history) == ["zeros", "linear"]


def test_counters_inside_modules_are_hidden_as_in_a_log():
    model, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    with torcheer.recording(model) as history:
        y = model(x)
    assert [layer.label for layer in history] == [layer.label for layer in torcheer.log_forward_pass(model, x)]
    assert y is not None


def test_gradients_reach_an_input_made_in_the_recording():
    model = nn.Linear(3, 1)
    with torcheer.recording(model, save_gradients=True) as history:
        x = torch.ones(2, 3, requires_grad=True)
        model(x).sum().backward()
    assert torch.equal(history.inputs[0].grad_contents, x.grad)


def test_memory_counts_an_input_made_in_the_recording_once():
    model = nn.Identity()
    with torcheer.recording(model) as history:
        y = model(torch.zeros(1000))
    assert history.memory.peak == 4000
    assert y is not None


def test_memory_given_to_a_new_tensor_unseen_is_known():
    def model(x):
        y = torch.empty(0)
        y.set_(x.untyped_storage(), 0, (2, 2), (2, 1))
        return y * 2

    history = torcheer.log_forward_pass(model, torch.arange(4.0))
    assert "empty" not in kinds(history)
    assert torcheer.validate_forward_pass(model, torch.arange(4.0)).is_valid


def test_a_tensor_without_elements_that_is_used_as_it_is_stays_what_it_is():
    def model(x):
        return torch.cat([torch.empty(0), x])

    history = torcheer.log_forward_pass(model, torch.ones(2))
    assert kinds(history) == ["input", "empty", "cat", "output"]
    assert torcheer.validate_forward_pass(model, torch.ones(2)).is_valid


def test_recordings_inside_one_another_each_have_their_inputs():
    model = nn.Linear(3, 2)
    with torcheer.recording(model) as outer:
        y = model(torch.ones(1, 3))
        with torcheer.recording(model) as inner:
            z = model(torch.zeros(1, 3))
    assert [tensor.sum().item() for tensor in given(outer)] == [3, 0]
    assert [tensor.sum().item() for tensor in given(inner)] == [0]
    assert outer.validate().is_valid
    assert inner.validate().is_valid
    assert y is not z


def test_a_module_on_another_thread_is_exempt_not_a_disagreement():
    def forward(self, x):
        found = []
        thread = threading.Thread(target=lambda: found.append(self.there(x)))
        thread.start()
        thread.join()
        return self.here(x) + found[0]

    for follows in (True, False):
        with pytest.warns(torcheer.errors.UnseenWorkWarning), torch.set_grad_enabled(follows):
            report = torcheer.validate_forward_pass(
                made_of(forward, here=nn.Linear(3, 3), there=nn.Linear(3, 3)), torch.ones(2, 3)
            )
        assert report.is_valid, report
        assert "exempt" in str(report)


def test_modules_that_other_threads_run_all_the_time_do_not_disturb():
    busy, stop, ran = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), threading.Event(), threading.Event()

    def work():
        while not stop.is_set():
            busy(torch.ones(1, 3))
            ran.set()

    thread = threading.Thread(target=work)
    thread.start()
    ran.wait(300)
    try:
        for _ in range(5):
            assert torcheer.validate_forward_pass(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.ones(2, 3)).is_valid
    finally:
        stop.set()
        thread.join()


class Halving(torch.optim.Optimizer):
    """An optimizer of the user's own, with a counter as its state."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    count = self.state[parameter].setdefault("count", torch.zeros(()))
                    count += 1
                    parameter.mul_(0.5)


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adam,
        lambda params: torch.optim.Adam(params, fused=True),
        lambda params: torch.optim.AdamW(params, foreach=False),
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        Halving,
    ],
)
@pytest.mark.parametrize("steps", [1, 2])
def test_the_state_of_an_optimizer_is_no_output_of_a_recording(make, steps):
    model, x = nn.Linear(4, 3), torch.rand(2, 4)
    optimizer = make(model.parameters())
    with torcheer.recording(model) as history:
        for _ in range(steps):
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
    assert [one.parents[0].layer_type for one in history.outputs] == ["sum"]
    assert torch.equal(history.outputs[0].tensor_contents, loss)


def test_the_loss_of_a_closure_is_an_output_of_a_recording():
    model, x = nn.Linear(4, 3), torch.rand(2, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    with torcheer.recording(model) as history:
        loss = optimizer.step(closure)
    assert any(torch.equal(one.tensor_contents, loss) for one in history.outputs)


def test_what_a_recorded_step_reads_is_the_parameter_before_it():
    """The optimizer changes it for good, so the recording has the old value."""
    model, x = nn.Linear(2, 2), torch.rand(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.weight.detach().clone()
    with torcheer.recording(model) as history:
        model(x).sum().backward()
        optimizer.step()
    assert not torch.equal(model.weight, before)
    assert torch.equal(history["linear_1"].creation_args[1], before)


def test_a_gradient_that_was_read_is_kept_when_a_later_backward_adds_to_it():
    model, given = nn.Linear(4, 3), torch.rand(2, 4, requires_grad=True)
    seen = []
    with torcheer.recording(model) as history:
        for _ in range(2):
            model(given).sum().backward()
            seen += [(model.weight.grad * 2 / 2).clone(), (given.grad * 2 / 2).clone()]
    kept = [one.activation for one in history.operations if one.layer_type == "grad"]
    assert len(kept) == 4
    assert all(map(torch.equal, kept, seen))
