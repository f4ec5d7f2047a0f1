"""`guard`: trainings that go wrong are stopped before the weights change and named right; healthy ones stay as they are."""

from __future__ import annotations

import copy
import math
import pickle
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torcheer
from torcheer._torch.randomness import RandomState
from torcheer.errors import InvalidArgument, NotFinite, NotFiniteWarning


class Net(nn.Module):
    """A linear layer and a function behind it."""

    def __init__(self, function=torch.tanh, units=4):
        super().__init__()
        self.fc = nn.Linear(4, units)
        self.function = function

    def forward(self, x):
        return self.function(self.fc(x))


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(self.table(x))


class WithLoss(nn.Module):
    """Returns its loss, and the logits that the loss is computed from, as language models do."""

    def __init__(self, loss):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.loss = loss

    def forward(self, x, y):
        logits = self.fc(x)
        return {"loss": self.loss(logits, y), "logits": logits}


def data(count=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(8, 4, generator=generator), torch.randn(8, 4, generator=generator)) for _ in range(count)]


def with_nan(batches, number, place):
    """The batches, one of which has a NaN among its inputs (0) or its targets (1)."""
    batches[number][place][3, 1] = math.nan
    return batches


def train(model, batches, loss=F.mse_loss, optimizer=None, accumulate=1, clip=None, **options):
    """Train under a guard. Returns the guard."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    with torcheer.guard(model, optimizer, **options) as watched:
        for number, (x, y) in enumerate(batches):
            if number % accumulate == 0:
                optimizer.zero_grad()
            loss(model(x), y).backward()
            if number % accumulate == accumulate - 1:
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
    return watched


def everything(model, optimizer=None):
    found = [tensor.detach().clone() for tensor in model.state_dict().values()]
    if optimizer is not None:
        found += [
            one.clone() for state in optimizer.state_dict()["state"].values() for one in state.values() if torch.is_tensor(one)
        ]
    return found


def same(ones, others):
    return len(ones) == len(others) and all(
        torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        for one, other in zip(ones, others, strict=True)
    )


@pytest.fixture(autouse=True)
def inside_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


# Twenty trainings that go wrong -----------------------------------------------------------------------------------------


def high_learning_rate():
    model = Net(lambda h: h)
    train(model, data(60), optimizer=torch.optim.SGD(model.parameters(), 1e4))


def log_of_negative_values():
    train(Net(torch.log), data())


def log_of_zero_in_the_model():
    train(Net(lambda h: (h * 0).abs().log()), data())


def infinity_that_becomes_nan_later():
    train(nn.Sequential(Net(lambda h: (h * 0).abs().log()), nn.Linear(4, 4)), data())


def sqrt_at_zero_in_the_backward_pass():
    train(Net(lambda h: (h - h.detach()).square().sum(1, keepdim=True).sqrt() + h), data())


def where_behind_sqrt():
    train(Net(lambda h: torch.where(h > 0, h.sqrt(), 0.0)), data())


def float16_overflow():
    train(Net(lambda h: (h * 1e4) ** 2).half(), [(x.half(), y.half()) for x, y in data()], lambda out, y: out.mean())


def float16_overflow_of_a_weight_gradient():
    train(Net(lambda h: h).half(), [(x.half() * 9, y) for x, y in data()], lambda out, y: (out * 60_000).sum())


def row_that_is_masked_whole():
    mask = torch.zeros(8, 4, dtype=torch.bool)
    mask[2] = True
    train(Net(lambda h: h.masked_fill(mask, -torch.inf).softmax(-1).cumsum(0)), data())


def branch_that_is_taken_at_random():
    train(Net(lambda h: h.log() if torch.rand(()) < 0.3 else h * torch.rand(())), data(20))


def float16_overflow_under_autocast():
    model = Net(lambda h: h * 1e6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torcheer.guard(model, optimizer):
        with torch.autocast("cpu", torch.float16):
            out = model(data()[0][0])
        out.float().square().mean().backward()
        optimizer.step()


def nan_in_the_data():
    train(Net(), with_nan(data(), 2, 0))


def nan_in_the_targets():
    train(Net(), with_nan(data(), 2, 1))


def deviation_of_one_value():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(Net(lambda h: h / h.std(1, keepdim=True), units=1), data(), lambda out, y: out.sum())


def division_by_a_deviation_of_zero():
    train(Net(lambda h: (h - h) / (h - h).std(0)), data())


def nan_in_a_weight():
    model = Net()
    with torch.no_grad():
        model.fc.bias[1] = math.nan
    train(model, data())


def infinity_in_one_row_of_an_embedding():
    model = Lookup()
    with torch.no_grad():
        model.table.weight[3] = math.inf
    train(model, [(torch.tensor([0, 1]), torch.zeros(2, 4)), (torch.tensor([2, 3]), torch.zeros(2, 4))])


def log_of_zero_in_the_loss():
    train(Net(lambda h: h * 0), data(), lambda out, y: out.log().mean())


def loss_inside_the_model():
    model = WithLoss(lambda logits, y: (logits - y).square().sum() / (y * 0).sum())
    optimizer = torch.optim.Adam(model.parameters())
    with torcheer.guard(model, optimizer):
        model(*data()[0])["loss"].backward()
        optimizer.step()


def second_of_three_accumulated_batches():
    train(Net(), with_nan(data(6), 4, 0), accumulate=3)


def second_of_two_optimizers():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    first, second = (torch.optim.SGD(one.parameters(), 0.1) for one in model)
    with torcheer.guard(model, first, second):
        for number, (x, _) in enumerate(data()):
            first.zero_grad(), second.zero_grad()
            inner = model[0](x)
            out = model(x)
            (inner.mean() + out.detach().mean()).backward() if number == 2 else out.mean().backward()
            if number == 2:
                (out * (out - out).sqrt()).sum().backward(inputs=list(model[1].parameters()))
            first.step(), second.step()


def overflow_that_no_scale_prevents():
    amp(fused=False)


def overflow_in_a_fused_optimizer():
    amp(fused=True)


def amp(fused):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu")
    with torcheer.guard(model, optimizer, scaler=scaler, patience=4):
        for number, (x, _) in enumerate(data(20)):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                out = model(x)
            scaler.scale((out.float() / (number < 6)).mean()).backward()
            scaler.step(optimizer)
            scaler.update()


def gradients_clipped_by_a_norm_of_nan():
    train(Net(torch.log), data(), clip=1.0)


def closure_of_an_optimizer():
    model = Net(torch.log)
    optimizer = torch.optim.Adam(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = model(data()[0][0]).square().mean()
        loss.backward()
        return loss

    with torcheer.guard(model, optimizer):
        optimizer.step(closure)


def compiled_by_torch_compile():
    model = Net(torch.log)
    train(torch.compile(model, backend="aot_eager", fullgraph=True), data(), optimizer=torch.optim.SGD(model.parameters(), 0.1))


def compiled_by_its_method():
    model = Net(torch.log)
    model.compile(backend="aot_eager", fullgraph=True)
    train(model, data())


WRONG = {  # step, phase, type of the operation, words of the reason
    high_learning_rate: (None, "parameter", "", "parameter fc.weight holds infinity"),
    log_of_negative_values: (0, "forward", "log", "log of"),
    log_of_zero_in_the_model: (0, "forward", "log", "log of 32 zeros"),
    infinity_that_becomes_nan_later: (0, "forward", "log", "infinity began at log_1_4: log of 32 zeros"),
    sqrt_at_zero_in_the_backward_pass: (0, "backward", "sqrt", "slope of sqrt"),
    where_behind_sqrt: (0, "backward", "sqrt", "0 × NaN"),
    float16_overflow: (0, "forward", "pow", "float16 overflow"),
    float16_overflow_of_a_weight_gradient: (0, "backward", "linear", "the gradients of fc.weight"),
    row_that_is_masked_whole: (0, "forward", "softmax", "a sample masked whole"),
    branch_that_is_taken_at_random: (None, "forward", "log", "log of"),
    float16_overflow_under_autocast: (0, "forward", "mul", "float16 overflow"),
    nan_in_the_data: (2, "forward", "input", "it was given to the model (1 value"),
    nan_in_the_targets: (2, "loss", "output", "1 of 32 values of the gradient"),
    deviation_of_one_value: (0, "forward", "std", "n − 1 = 0"),
    division_by_a_deviation_of_zero: (0, "forward", "div", "0/0"),
    nan_in_a_weight: (0, "parameter", "", "parameter fc.bias holds NaN (1 value of 4)"),
    infinity_in_one_row_of_an_embedding: (1, "parameter", "", "parameter table.weight holds infinity"),
    log_of_zero_in_the_loss: (0, "loss", "output", "the output is 0"),
    loss_inside_the_model: (0, "forward", "div", "division by 0 in 1 place"),
    second_of_three_accumulated_batches: (1, "forward", "input", "it was given to the model"),
    second_of_two_optimizers: (2, "loss", "output", "the gradient that arrives"),
    overflow_that_no_scale_prevents: (6, "overflow", "output", "the gradient that arrives"),
    overflow_in_a_fused_optimizer: (9, "overflow", "output", "the gradient that arrives"),
    gradients_clipped_by_a_norm_of_nan: (0, "forward", "log", "log of"),
    closure_of_an_optimizer: (0, "forward", "log", "log of"),
    compiled_by_torch_compile: (0, "forward", "log", "log of"),
    compiled_by_its_method: (0, "forward", "log", "log of"),
}


@pytest.mark.parametrize("training", WRONG, ids=lambda one: one.__name__)
def test_a_training_that_goes_wrong_is_named_right(training):
    step, phase, kind, words = WRONG[training]
    with pytest.raises(NotFinite) as caught:
        training()
    error = caught.value
    assert step is None or error.step == step
    assert error.phase == phase
    assert error.label.partition("_")[0] == kind, error.label
    assert words in error.reason
    assert error.reason in str(error)
    history = torcheer.load(error.path)
    if error.label:
        assert history[error.label].label
    else:
        assert error.module in error.reason


def test_the_error_says_the_line_and_what_the_operation_was_given():
    with pytest.raises(NotFinite) as caught:
        train(Net(torch.log), data())
    error = caught.value
    assert "self.function(self.fc(x))" in str(error.source)
    (operand,) = error.operands
    assert operand.startswith("linear_1_1: float32 (8, 4), -")
    assert error.parameters == ("fc.weight", "fc.bias")
    for words in (operand, str(error.source), "2 of 2 parameters", "torcheer.load("):
        assert words in str(error)
    assert error.diagnosis.history[error.label].nonfinite > 0


def test_the_batch_among_accumulated_ones_is_named():
    with pytest.raises(NotFinite, match="pass 2 of 3 since the last step"):
        second_of_three_accumulated_batches()


def test_a_loss_that_is_nan_with_finite_gradients_is_found_if_the_guard_is_given_the_loss():
    model = Net(torch.log)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with torcheer.guard(model, optimizer) as watched:
        for is_given in (False, True):
            loss = model(data()[0][0]).mean()
            loss.backward()
            if is_given:
                watched.note_loss(loss)
                with pytest.raises(NotFinite) as caught:
                    optimizer.step()
                assert caught.value.label == "log_1_2"
            else:
                optimizer.step()


def test_parameters_are_checked_on_request():
    model = Net()
    model.unused = nn.Parameter(torch.tensor([math.nan]))
    train(model, data())
    with pytest.raises(NotFinite, match="the loss or a parameter is not"):
        train(model, data(), parameters=True)


# The state ---------------------------------------------------------------------------------------------------------------


class Stateful(nn.Module):
    """Batch norm, dropout, a large buffer that is written in place, and a buffer that is replaced."""

    def __init__(self, function=torch.tanh):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("queue", torch.zeros(1 << 19))
        self.register_buffer("mean", torch.zeros(4))
        self.function = function

    def forward(self, x):
        h = F.dropout(self.norm(self.fc(x)), 0.5, self.training)
        self.queue[:8] = x.detach().mean()
        self.mean = self.mean * 0.9 + h.detach().mean(0) * 0.1
        return self.function(h)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_weights_buffers_optimizer_and_random_state_are_as_before_the_step(accumulate):
    batches = data(4)
    plain = Stateful()
    model = copy.deepcopy(plain)
    optimizers = [torch.optim.Adam(one.parameters(), 0.01) for one in (plain, model)]
    torch.manual_seed(3)
    train_plainly(plain, batches[:2], optimizers[0], accumulate)
    torch.manual_seed(3)
    bad = with_nan(batches, 3, 0)
    with pytest.raises(NotFinite):
        train(model, bad[:2] + bad[2 + 2 - accumulate :], optimizer=optimizers[1], accumulate=accumulate)
    assert same(everything(model, optimizers[1]), everything(plain, optimizers[0]))


def train_plainly(model, batches, optimizer, accumulate=1):
    for number, (x, y) in enumerate(batches):
        if number % accumulate == 0:
            optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        if number % accumulate == accumulate - 1:
            optimizer.step()


def test_a_skipped_step_leaves_no_trace_and_the_training_goes_on():
    batches = data(6)
    plain, model = Stateful(), Stateful()
    model.load_state_dict(plain.state_dict())
    train_plainly(plain.eval(), batches[:3] + batches[4:], first := torch.optim.Adam(plain.parameters(), 0.01))
    second = torch.optim.Adam(model.parameters(), 0.01)
    with pytest.warns(NotFiniteWarning, match="The step is skipped") as caught:
        watched = train(model.eval(), with_nan(batches, 3, 0), optimizer=second, action="skip")
    assert len(caught) == 1
    assert (watched.skipped, watched.struck, watched.steps) == (1, 1, 6)
    assert watched.error.label == "input_1_0"
    assert same(everything(model, second), everything(plain, first))


def test_skipped_steps_in_a_row_are_a_fault():
    batches = [(x * math.nan, y) for x, y in data(9)]
    model = Net()
    before = everything(model)
    with warnings.catch_warnings(), pytest.raises(NotFinite) as caught:
        warnings.simplefilter("ignore")
        train(model, batches, action="skip", patience=4)
    assert caught.value.step == 3
    assert same(everything(model), before)


def test_with_warn_the_training_is_the_plain_one():
    batches = with_nan(data(5), 2, 0)
    plain, model = Stateful(), Stateful()
    model.load_state_dict(plain.state_dict())
    torch.manual_seed(1)
    train_plainly(plain, batches, torch.optim.SGD(plain.parameters(), 0.1))
    torch.manual_seed(1)
    with pytest.warns(NotFiniteWarning, match="input_1_0") as caught:
        watched = train(model, batches, action="warn")
    assert len(caught) == 1
    assert watched.struck == 3
    assert same(everything(model), everything(plain))


def test_gradients_of_other_parameters_are_left_alone_when_the_step_runs_again():
    model = Net(torch.log)
    other = torch.ones(3, requires_grad=True)
    other.sum().backward()
    x = data()[0][0].requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torcheer.guard(model, optimizer), pytest.raises(NotFinite):
        model(x).square().mean().backward()
        gradients = [x.grad.clone(), model.fc.weight.grad.clone()]
        optimizer.step()
    assert same([x.grad, model.fc.weight.grad, other.grad], [*gradients, torch.ones(3)])


# Healthy trainings ---------------------------------------------------------------------------------------------------------


def clipped(model, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def validated(model, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(x * math.nan)
        model(x / 0)  # with a graph that nobody uses
        model.train()


def siamese(model, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        (model(x) - model(y)).square().mean().backward()
        optimizer.step()


def penalised(model, optimizer, batches):
    for x, _ in batches:
        optimizer.zero_grad()
        x = x.clone().requires_grad_()
        out = model(x)
        (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (out.mean() + gradient.square().mean()).backward()
        optimizer.step()


def scaled(model, optimizer, batches):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, backoff_factor=0.01)
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def with_infinite_values_that_nothing_uses(model, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        out = model(x)
        loss = F.mse_loss(out, y)
        (out / 0).exp()
        loss.backward()
        optimizer.step()


def large_gradients(model, optimizer, batches):
    """Whose squares overflow float32."""
    for x, y in batches:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        for parameter in model.parameters():
            parameter.grad *= 1e25
            parameter.grad.clamp_(-1e30, 1e30)
        optimizer.param_groups[0]["lr"] = 1e-30
        optimizer.step()


@pytest.mark.parametrize(
    "loop",
    [clipped, validated, siamese, penalised, scaled, with_infinite_values_that_nothing_uses, large_gradients],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW], ids=lambda one: one.__name__)
def test_a_healthy_training_is_not_stopped_and_stays_the_same_bit_for_bit(loop, make):
    plain, model = Stateful(), Stateful()
    model.load_state_dict(plain.state_dict())
    optimizers = [make(one.parameters(), lr=0.01) for one in (plain, model)]
    torch.manual_seed(5)
    loop(plain, optimizers[0], data(12))
    drawn = torch.rand(3)
    torch.manual_seed(5)
    with torcheer.guard(model, optimizers[1], parameters=loop is not validated) as watched:
        loop(model, optimizers[1], data(12))
    assert watched.struck == 0
    assert watched._trouble == ""
    assert torch.equal(torch.rand(3), drawn)
    assert same(everything(model, optimizers[1]), everything(plain, optimizers[0]))


def test_sparse_and_empty_gradients_are_checked():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 4, sparse=True)
            self.empty = nn.Parameter(torch.zeros(0))

        def forward(self, x):
            return self.table(x) + self.empty.sum()

    batches = [(torch.tensor([1, 1, 2]), torch.zeros(3, 4))] * 2
    assert train(Sparse(), batches).struck == 0
    with pytest.raises(NotFinite) as caught:
        train(Sparse(), [(x, y * math.nan) for x, y in batches])
    assert caught.value.parameters == ("table.weight",)


# Harmless --------------------------------------------------------------------------------------------------------------------


def hooks_on(model, optimizer):
    return [len(one) for one in (model._forward_hooks, model._forward_pre_hooks, optimizer._optimizer_step_pre_hooks)]


def test_nothing_stays_on_model_and_optimizer():
    model = Net(torch.log)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(NotFinite):
        train(model, data(), optimizer=optimizer)
    assert hooks_on(model, optimizer) == [0, 0, 0]
    watched = torcheer.guard(model, optimizer)
    watched.close()
    watched.close()
    assert hooks_on(model, optimizer) == [0, 0, 0]
    optimizer.step()


def test_copies_of_a_watched_model_are_not_watched():
    model = Net(F.relu)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torcheer.guard(model, optimizer) as watched:
        F.mse_loss(model(data()[0][0]), data()[0][1]).backward()
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other(data()[0][0]).sum().backward()
        copy.deepcopy(optimizer).step()
        assert len(watched._held) == 1
        assert watched.steps == 0


def test_a_watched_model_is_traced_exported_saved_and_transformed(tmp_path):
    model = Net(F.relu)
    x = data()[0][0]
    with torcheer.guard(model, torch.optim.SGD(model.parameters(), 0.1)) as watched:
        assert torch.equal(torch.jit.trace(model, x)(x), model(x))
        assert torch.equal(torch.export.export(model, (x,)).module()(x), model(x))
        torch.save(model.state_dict(), tmp_path / "weights.pt")
        torch.func.grad(lambda given: torch.func.functional_call(model, given, (x,)).sum())(dict(model.named_parameters()))
        assert torch.equal(torch.optim.swa_utils.AveragedModel(model)(x), model(x))
        assert watched._trouble == ""


def test_an_interrupt_while_the_step_runs_again_leaves_everything_as_it_was():
    model = Stateful(torch.log)
    optimizer = torch.optim.Adam(model.parameters())
    watched = torcheer.guard(model, optimizer)
    x, y = data()[0]
    F.mse_loss(model(x), y).backward()
    interrupts = []

    def interrupt(module, given, output):
        interrupts.append(module)
        raise KeyboardInterrupt

    before, handle = everything(model), model.norm.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    handle.remove()
    assert len(interrupts) == 1
    assert same(everything(model), before)
    with pytest.raises(NotFinite, match="log of"):
        optimizer.step()
    watched.close()


def test_a_model_that_raises_and_an_interrupt_do_not_disturb_the_guard():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torcheer.guard(model, optimizer):
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 7))
        for error in (KeyboardInterrupt, ValueError):
            with pytest.raises(error):
                loss = model(data()[0][0]).sum()
                loss.register_hook(lambda gradient, error=error: (_ for _ in ()).throw(error()))
                loss.backward()
        optimizer.zero_grad()
        model(with_nan(data(), 0, 0)[0][0]).sum().backward()
        with pytest.raises(NotFinite, match="input_1_0"):
            optimizer.step()


def test_a_full_disk_and_a_failing_replay_are_said_and_the_step_is_still_stopped(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotFinite, match="Its history could not be saved") as caught:
        train(Net(torch.log), data(), folder=tmp_path / "file")
    assert caught.value.path == ""
    assert caught.value.label == "log_1_2"

    calls = []

    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            calls.append(x)
            if len(calls) > 1:
                raise OSError("the stream ended")
            return self.fc(x).log()

    with pytest.raises(NotFinite, match="could not be run again") as caught:
        train(Once(), data())
    assert caught.value.phase == "unknown"


def test_a_fault_of_the_guard_does_not_stop_a_training(monkeypatch):
    def fails(*given):
        raise MemoryError("no memory")

    monkeypatch.setattr(RandomState, "now", fails)
    assert train(Net(), data()).steps == 4
    with pytest.raises(NotFinite, match="could not hold the step"):
        train(Net(torch.log), data())


def test_a_step_that_could_not_be_checked_is_made_and_said_once(monkeypatch):
    def fails(*given):
        raise RuntimeError("no such device")

    monkeypatch.setattr(sys.modules["torcheer.guard"], "_are_finite", fails)
    with pytest.warns(NotFiniteWarning, match="no such device") as caught:
        watched = train(Net(), data())
    assert len(caught) == 1
    assert watched.steps == 4


def test_an_unseen_model_is_said():
    inner = Net(torch.log)
    model = nn.Sequential(inner)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torcheer.guard(model, optimizer), pytest.raises(NotFinite, match="saw no forward pass of Sequential"):
        inner(data()[0][0]).square().sum().backward()
        optimizer.step()


def test_an_input_that_was_overwritten_is_said():
    model = Net(torch.log)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = data()[0][0]
    with torcheer.guard(model, optimizer), pytest.raises(NotFinite, match="written to in place"):
        model(x).square().sum().backward()
        x.zero_()
        optimizer.step()


def test_an_input_that_the_model_writes_to_is_copied_from_the_second_pass_on():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x.mul_(2)).tanh()

    batches = with_nan(data(), 2, 0)
    expected = batches[2][0].clone()
    with pytest.raises(NotFinite) as caught:
        train(InPlace(), batches)
    assert "written to in place" not in str(caught.value)
    assert same([caught.value.diagnosis.history["input_1_0"].activation], [expected])


def test_gradients_that_are_too_large_to_hold_are_said_and_those_of_the_loss_are_still_known():
    with pytest.raises(NotFinite) as caught:
        train(Net(), with_nan(data(), 2, 1), max_bytes=0)
    assert caught.value.phase == "loss"
    with pytest.raises(NotFinite, match="was not held"):
        sqrt = Net(lambda h: (h - h.detach()).square().sum(1, keepdim=True).sqrt() + h)
        train(sqrt, data(), max_bytes=0)


def test_an_output_gets_a_gradient_from_another_output_and_from_outside():
    model = WithLoss(F.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = data()[0]
    with torcheer.guard(model, optimizer), pytest.raises(NotFinite) as caught:
        out = model(x, y)
        (out["loss"] + (out["logits"] * 0).sqrt().sum()).backward()
        optimizer.step()
    assert caught.value.phase == "loss"


def test_an_optimizer_inside_a_wrapper_is_watched():
    class Wrapper(torch.optim.Optimizer):
        """As accelerate's, which is an optimizer only by name."""

        def __init__(self, optimizer):
            self.optimizer = optimizer

        @property
        def param_groups(self):
            return self.optimizer.param_groups

        def step(self, closure=None):
            self.optimizer.step(closure)

        def zero_grad(self, set_to_none=True):
            self.optimizer.zero_grad(set_to_none)

    model = Net()
    with pytest.raises(NotFinite):
        train(model, with_nan(data(), 2, 0), optimizer=Wrapper(torch.optim.SGD(model.parameters(), 0.1)))


def test_the_number_of_the_first_step_can_be_given():
    with pytest.raises(NotFinite) as caught:
        train(Net(), with_nan(data(), 2, 0), first_step=100, folder="here")
    assert caught.value.step == 102
    assert caught.value.path == "here/step_000102.safetensors"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda m, o: torcheer.guard(m), "needs the optimizer"),
        (lambda m, o: torcheer.guard(o, o), "takes the module"),
        (lambda m, o: torcheer.guard(m, "skip"), "takes optimizers of torch.optim; got str"),
        (lambda m, o: torcheer.guard(m, torch.optim.LBFGS(m.parameters())), "LBFGS"),
        (lambda m, o: torcheer.guard(m, o, action="stop"), "'raise', 'warn', 'skip'"),
        (lambda m, o: torcheer.guard(m, o, patience=0), "patience is a whole number"),
        (lambda m, o: torcheer.guard(m, o, scaler=3), "GradScaler"),
        (lambda m, o: torcheer.guard(m, o, folder=3), "folder says"),
        (lambda m, o: torcheer.guard(m, o).note_loss(3.0), "as a tensor; got float"),
    ],
)
def test_wrong_arguments_are_refused(make, words):
    model = Net()
    with pytest.raises(InvalidArgument, match=words):
        make(model, torch.optim.SGD(model.parameters(), 0.1))
