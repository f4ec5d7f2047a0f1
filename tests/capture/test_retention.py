"""What is kept never changes; what is not kept is not kept alive; nothing is kept twice."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import torcheer
from models import Convolutional, Mlp, autograd_function, log, made_of
from torcheer import ActivationLost, ActivationNotSaved, LayerNotFound, TorcheerError, UnseenWorkWarning
from torcheer._torch.containers import get_path
from torcheer._torch.internals import DisableTorchFunction
from torcheer.capture import Policy, Session
from torcheer.log.records import Log

x = torch.rand(3, 4)


def distinct_bytes(history):
    storages = {one.tensor_contents.untyped_storage().data_ptr(): one.tensor_contents for one in history.saved}
    return sum(t.untyped_storage().nbytes() for t in storages.values())


def test_activations_are_kept_by_reference():
    held = []

    def model(t):
        y = t * 2
        with torch._C.DisableTorchFunction():  # who asks for a pointer may write, so what is kept would be copied
            held.append(y.data_ptr())
        return y.view(-1) + 1

    history = log(model, x)
    assert history["mul_1"].tensor_contents.data_ptr() == held[0]
    assert history["view_1"].tensor_contents.data_ptr() == held[0]


def test_a_kept_activation_survives_what_the_user_does_next():
    model = Mlp()
    given = x.clone()
    kept = []

    def forward(t):
        hidden = model.fc1(t)
        kept.append(hidden)
        return hidden + model.fc1.weight.t().sum(), model.fc1.weight.t()

    history = log(forward, given)
    values = {one.label: one.tensor_contents.clone() for one in history.operations}
    with torch.no_grad():
        given.zero_()
        kept[0].zero_()
        model.fc1.weight.zero_()
    for label, expected in values.items():
        assert torch.equal(history[label].tensor_contents, expected), label


def test_an_optimizer_step_does_not_rewrite_history():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with torcheer.recording(model) as history:
        transposed = model.weight.t()
        out = x @ transposed
        out.sum().backward()
    before = history["t_1"].tensor_contents.clone()
    optimizer.step()
    out.data.zero_()
    assert torch.equal(history["t_1"].tensor_contents, before)
    assert not torch.equal(history["matmul_1"].tensor_contents, out)


def test_an_overwritten_storage_is_copied_once_for_all_its_views():
    def model(t):
        y = t * 1
        views = [y[0], y[1], y.t(), y.reshape(-1)]
        y.add_(1)
        return views[0] + 1

    history = log(model, x)
    before = [history[k].tensor_contents for k in ("mul_1", "getitem_1", "getitem_2", "t_1", "reshape_1")]
    assert len({t.untyped_storage().data_ptr() for t in before}) == 1
    assert torch.equal(before[0], x)
    assert torch.equal(before[3], x.t())


def test_keeping_everything_costs_the_bytes_of_the_distinct_activations():
    history = log(Convolutional().eval(), torch.rand(2, 3, 8, 8))
    # conv, batch norm and the in-place relu each hold values of their own; flatten and dropout share the pooled ones
    assert distinct_bytes(history) == 4 * (2 * 3 * 64 + 3 * 2 * 4 * 36 + 2 * 4 * 9 + 2 * 5)


def test_a_graph_only_log_keeps_no_activation_alive():
    alive = []

    def model(t):
        y = t * 2
        alive.append(weakref.ref(y))
        z = y + 1
        del y
        assert alive[0]() is None
        return z

    history = log(model, x, layers_to_save="none")
    assert history.num_tensors_saved == 0
    with pytest.raises(ActivationNotSaved, match=r"mul_1_1.*layers_to_save"):
        history["mul_1"].tensor_contents


@pytest.mark.parametrize("keeping", ["all", "none", ["linear_1"], "modules"])
def test_a_dropped_history_frees_its_memory_at_once(keeping):
    gc.collect()
    gc.disable()
    try:
        history = log(Mlp(), x, layers_to_save=keeping)
        str(history), history["linear_1"].lookup_keys, history["relu_1"].parent_layers
        parts = [weakref.ref(history), weakref.ref(history._index)]
        parts += [weakref.ref(one.tensor_contents) for one in history.saved]
        del history
        assert [part() for part in parts] == [None] * len(parts)
    finally:
        gc.enable()


def test_nothing_of_a_pass_stays_alive_without_its_history():
    gc.collect()
    gc.disable()
    try:
        alive = []

        def model(t):
            y = t * 2
            alive.append(weakref.ref(y))
            return y + 1

        log(model, x.clone())
        assert alive[0]() is None
    finally:
        gc.enable()


def test_a_value_overwritten_unseen_is_never_served():
    def model(t):
        y = t * 1
        with torch._C.DisableTorchFunction():  # as a compiled extension would
            y.add_(1)
        return y * 2

    with pytest.warns(UnseenWorkWarning, match="mul_1_1 was written to"):
        history = log(model, x)
    with pytest.raises(ActivationLost, match=r"mul_1_1.*could not be seen"):
        history["mul_1"].tensor_contents
    assert torch.equal(history["mul_2"].tensor_contents, (x + 1) * 2)
    assert "(lost: its memory was freed or overwritten unseen)" in str(history["mul_1"])
    assert "mul_1_1" in history["mul_1"]._repr_html_()


def test_the_users_own_changes_to_a_kept_tensor_are_the_users_own():
    history = log(Mlp(), x)
    history["linear_1"].tensor_contents.zero_()
    assert history["linear_1"].tensor_contents.sum() == 0


def saved(history):
    return [one.label for one in history.saved]


ALL = ["input_1_0", "linear_1_1", "relu_1_2", "linear_2_3", "tanh_1_4", "output_1_5"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("all", ALL),
        ("none", []),
        (None, []),
        ([], []),
        ("modules", ["linear_1_1", "relu_1_2", "linear_2_3", "tanh_1_4"]),
        (["linear_2_3"], ["linear_2_3"]),
        (["linear_2"], ["linear_2_3"]),
        (["linear_2:1", "input"], ["input_1_0", "linear_2_3"]),
        (["fc1"], ["linear_1_1"]),
        (["fc1:1", "output1"], ["linear_1_1", "output_1_5"]),
        ([0, 3], ["input_1_0", "linear_2_3"]),
        ([-1, -3], ["linear_2_3", "output_1_5"]),
        ([slice(1, 3)], ["linear_1_1", "relu_1_2"]),
        ([torch.relu, nn.Linear], ["linear_1_1", "relu_1_2", "linear_2_3"]),
        ("tanh_1", ["tanh_1_4"]),
        (lambda op: op.tensor_shape == (3, 8), ["linear_1_1", "relu_1_2"]),
        (lambda op: op.layer_label.startswith("linear"), ["linear_1_1", "linear_2_3"]),
        (lambda op: op.containing_module == "fc2", ["linear_2_3"]),
    ],
)
def test_exactly_what_was_asked_for_is_kept(wanted, expected):
    model = Mlp()
    history = log(model, x, layers_to_save=wanted)
    everything = log(model, x)
    assert [layer.label for layer in history] == ALL
    assert saved(history) == expected
    for one in history.saved:
        assert torch.equal(one.tensor_contents, everything[one.label].tensor_contents)
        if one.func_applied is not None:
            again = one.func_applied(*one.creation_args, **one.creation_kwargs)
            assert torch.equal(again, one.tensor_contents)


def test_arguments_overwritten_in_place_are_kept_as_they_were():
    def model(t):
        y = t * 1
        y.relu_()
        return y + 1

    for wanted in ("all", ["relu_1"]):
        history = log(model, x - 0.5, layers_to_save=wanted)
        assert torch.equal(history["relu_1"].creation_args[0], x - 0.5)


def made_again(one):
    """What the call of an operation gives for the arguments that the history shows."""
    args, kwargs = copy.deepcopy((one.creation_args, one.creation_kwargs))
    result = one.func_applied(*args, **kwargs)
    return get_path(args[0] if result is None else result, one._record.details.output_path)


def assert_calls_fit_their_inputs(history):
    with torch.no_grad():
        for one in history.operations:
            if one.func_applied is not None:
                assert torch.equal(made_again(one), one.activation), one.label


class Cache(nn.Module):
    """Holds a buffer, a frozen parameter and an attribute that nobody registered."""

    def __init__(self):
        super().__init__()
        self.register_buffer("buffer", torch.zeros(3, 4))
        self.weight = nn.Parameter(torch.zeros(3, 4), requires_grad=False)
        self.attribute = torch.zeros(3, 4)


WRITTEN_THROUGH_A_VIEW = {
    "copy_": lambda held, t: held[:2].copy_(t[:2]),
    "an index": lambda held, t: held[1].__setitem__(slice(2), t[0, :2]),
    "data": lambda held, t: held.data.add_(t),
    "detach": lambda held, t: held.detach().mul_(2).add_(1),
    "view": lambda held, t: held.view(-1)[3:].fill_(2),
    "out": lambda held, t: torch.mul(t, 2, out=held[:]),
    "index_copy_": lambda held, t: held.t().index_copy_(0, torch.tensor([2]), t[:1, :3]),
    "foreach": lambda held, t: torch._foreach_add_([held[0], held[2]], 1),
    "twice": lambda held, t: (held[:1].copy_(t[:1]), held[1:].copy_(t[1:])),
    "normalising": lambda held, t: nn.functional.batch_norm(t, held[0], held[1] + 1, training=True),
}


@pytest.mark.parametrize("name", ["buffer", "weight", "attribute"])
@pytest.mark.parametrize("way", sorted(WRITTEN_THROUGH_A_VIEW))
def test_inputs_that_were_written_through_a_view_are_shown_as_they_were_read(name, way):
    model = Cache()

    def forward(t):
        held = getattr(model, name)
        before = held * 1
        WRITTEN_THROUGH_A_VIEW[way](held, t)
        first = held * 3 + torch.cat([held, t]).sum()
        WRITTEN_THROUGH_A_VIEW[way](held, first)
        return torch.where(t > 0.5, held, before), held.t() @ first, held

    model.forward = forward
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            history = log(model, x)
            assert_calls_fit_their_inputs(history)
            assert torcheer.validate_forward_pass(model, x)
    some = log(model, x, layers_to_save=["where_1", "matmul_1"])
    assert_calls_fit_their_inputs(SimpleNamespace(operations=some.saved))


def test_an_output_that_was_written_through_a_view_has_what_was_returned_as_its_input():
    model = Cache()

    def forward(t):
        made = t * 2
        made[0].zero_()
        model.buffer[:2].copy_(t[:2])
        return model.buffer, made

    for keeping in ({}, {"save_gradients": True}, {"layers_to_save": ["output_1", "output_2"]}):
        for one in log(forward, x, **keeping).outputs:
            assert torch.equal(one.inputs[0], one.activation)


def test_inputs_of_a_recording_that_were_written_through_a_view_are_shown_as_they_were_read():
    model = Cache()
    with torcheer.recording(model) as history:
        model.buffer[:2].copy_(x[:2])
        model.buffer * 3
        model.buffer[1:].add_(1)
        model.buffer + 1
    assert_calls_fit_their_inputs(history)


@pytest.mark.parametrize("how", ["item", "tolist", "__float__"])
def test_what_left_for_python_is_the_value_of_the_operation_it_is_said_to_come_from(how):
    class Counting(Cache):
        def forward(self, t):
            made, counted = t * 2, self.buffer[0, :1]
            piece = made[0, :1]
            made.add_(1)
            self.buffer.data.add_(t)
            return t * sum(torch.tensor(getattr(one, how)()).sum() for one in (piece, counted, self.buffer[0, :1]))

    model = Counting()
    history = log(model, x)
    assert len(history.python_reads) == 3
    for read in history.python_reads:
        (label,) = read.parent_layers
        made = history[label].activation
        assert read.value is None or read.value == getattr(made, how)()
    assert torch.equal(history[history.python_reads[0].parent_layers[0]].activation, x[0, :1] * 2 + 1)
    assert torch.equal(history[history.python_reads[1].parent_layers[0]].activation, x[0, :1])
    assert torcheer.validate_forward_pass(model, x)


def test_orphans_do_not_shift_the_keys_that_are_kept():
    norm = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))

    def model(t):
        torch.ones(3) + 1  # an orphan
        return norm(t) + 1

    history = log(model, x, layers_to_save=["add_1", 2])
    assert saved(history) == ["linear_1_2", "add_1_3"]


class Block(nn.Module):
    """Only when it ends is it known which of its operations made its output."""

    def forward(self, t):
        more = t + 1
        more * 2
        return more


def test_what_is_kept_survives_a_write_after_arguments_in_its_memory_were_let_go():
    block = Block()

    def model(t):
        base = t * 3
        flat = base.view(-1)
        torch.ones(2).add_(1)  # from now on the recording knows what shares memory
        more = block(base)
        base.zero_()
        return more, flat

    history = log(model, x, layers_to_save=["view_1", "block"])
    assert torch.equal(history["view_1"].activation, (x * 3).view(-1))


def test_arguments_of_the_last_call_are_not_held_where_it_is_not_kept():
    history = log(nn.Sequential(Block()), x, layers_to_save=["0"], keep_orphans=True)
    assert saved(history) == ["add_1_1"]
    assert [number for number, one in history._log.details.items() if one.held] == []


def test_a_key_that_fits_nothing_is_an_error_with_near_matches():
    with pytest.raises(LayerNotFound, match="linear_1_1") as caught:
        log(Mlp(), x, layers_to_save=["linaer_1"])
    assert len(caught.value.history) == 6


def test_a_module_that_is_called_twice_keeps_both():
    shared = nn.Linear(4, 4)
    history = log(nn.Sequential(shared, nn.ReLU(), shared), x, layers_to_save=["0"])
    assert len(history.saved) == 2


def test_output_device_moves_what_is_kept():
    history = log(Mlp(), x, output_device="meta")
    assert history["linear_1"].tensor_contents.device.type == "meta"
    assert history["linear_1"].tensor_device == torch.device("cpu")


def test_a_postfunc_keeps_what_it_returns():
    model = Mlp()
    history = log(model, x, activation_postfunc=lambda t: t.mean().item())
    assert history["linear_1"].tensor_contents == model.fc1(x).mean().item()
    assert isinstance(history["linear_1"].tensor_contents, float)
    with pytest.raises(ActivationNotSaved, match="activation_postfunc"):
        history["relu_1"].creation_args


def test_a_postfunc_that_raises_says_where():
    def broken(t):
        raise RuntimeError("boom")

    with pytest.raises(TorcheerError, match=r"activation_postfunc raised RuntimeError: boom"):
        log(Mlp(), x, activation_postfunc=broken)


def test_clear_activations_keeps_the_graph():
    history = log(Mlp(), x)
    text = [layer.label for layer in history]
    alive = weakref.ref(history["linear_1"].tensor_contents)
    history.clear_activations()
    assert alive() is None
    assert history.saved == []
    assert [layer.label for layer in history] == text
    assert history["relu_1"].parent_layers == ["linear_1_1"]


def doubled_forward(ctx, t):
    _double(t)
    ctx.mark_dirty(t)
    return t


# Writes to its argument in place: torch counts one more write when `forward` is over.
Doubled = autograd_function("Doubled", doubled_forward, lambda ctx, gradient: gradient * 2)


def _double(t):
    t.view(-1).mul_(2)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_what_a_custom_function_marks_as_dirty_is_kept(mode):
    model = made_of(lambda self, t: Doubled.apply(self.fc(t)) + 1, fc=nn.Linear(4, 4))
    with mode():
        plain = model.fc(x) * 2
        history = torcheer.log_forward_pass(model, x)
        assert history.notes == []
        assert torch.equal(history["mul_1"].activation.view(3, 4), plain)
        assert torch.equal(history["fc"].activation, model.fc(x))
        assert torch.equal(history["output"].activation, plain + 1)
        assert torcheer.validate_forward_pass(model, x)


class _Plain:
    def mark_dirty(self, t):
        pass


def test_a_custom_function_whose_code_ran_before_its_class_was_defined_is_kept():
    def forward(ctx, t):
        t.mul_(2)
        ctx.mark_dirty(t)
        return t

    with torch.no_grad():
        torcheer.log_forward_pass(lambda t: forward(_Plain(), t + 1), x)
        late = type("Late", (torch.autograd.Function,), {"forward": staticmethod(forward)})
        history = torcheer.log_forward_pass(lambda t: late.apply(t + 1) + 1, x)
    assert history.notes == []
    assert torch.equal(history["mul_1"].activation, (x + 1) * 2)


@torch.jit.script
def _written_by_script(t: torch.Tensor) -> torch.Tensor:
    t.add_(1)
    return t * 2


@pytest.mark.filterwarnings("ignore::torcheer.StateNotRestored")
def test_an_input_or_a_living_tensor_overwritten_unseen_is_not_served_as_it_is_now():
    alive = []

    def model(t):
        alive.append(t * 3)
        return _written_by_script(t) + _written_by_script(alive[0])

    with pytest.warns(UnseenWorkWarning, match="input_1_0, mul_1_1"):
        history = torcheer.log_forward_pass(model, x.clone())
    for label in ("input_1_0", "mul_1_1"):
        with pytest.raises(ActivationLost, match=label):
            history[label].activation


class Fails(nn.Module):
    def __init__(self, seen):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.seen = seen

    def forward(self, t):
        y = torch.relu(self.fc(t))
        self.seen.append(weakref.ref(y))
        raise ValueError("no")


def values_of(history):
    return [weakref.ref(value) for value in history._log.values if isinstance(value, torch.Tensor)]


def logged(seen, **options):
    history = log(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), x, **options)
    seen += [weakref.ref(history), *values_of(history)]
    return history


def saving(seen, folder):
    logged(seen).save(folder / "run.safetensors", params=True)


def saving_gradients(seen, folder):
    history = logged(seen, save_gradients=True)
    history.log_backward(history["output"].activation.sum())
    seen += map(weakref.ref, history.backward_passes[0].gradients.values())
    history.save(folder / "run.safetensors")


def loading(seen, folder):
    logged(seen).save(folder / "run.safetensors", params=True)
    history = torcheer.load(folder / "run.safetensors")
    seen += [weakref.ref(layer.activation) for layer in history]
    seen.append(weakref.ref(history.random_state.torch))  # which is held as long as what the history knows
    assert history.validate()
    seen += values_of(history.replay())


def saving_in_vain(seen, folder):
    history = logged(seen)
    with suppress(TorcheerError):
        history.save(folder / "nowhere" / "run.safetensors")


def drawing(seen, folder):
    history = logged(seen)
    history.draw(folder / "run.svg")
    history.to_html(folder / "run.html")
    history.to_json()


def proving(seen, folder):
    history = logged(seen)
    assert history.validate()
    seen += values_of(history.replay(changes={"relu_1": lambda tensor: tensor * 0}))
    assert torcheer.validate_forward_pass(nn.Linear(4, 4), x)


def comparing(seen, folder):
    result = torcheer.compare_models(nn.Linear(4, 4), nn.Linear(4, 4), x)
    seen.append(weakref.ref(result))
    assert str(result)


def looking_up(seen, folder):
    history = logged(seen)
    assert repr(history)
    assert str(history.summary())
    assert history._repr_html_()
    with suppress(LayerNotFound):
        history["nothing"]


def failing(call):
    def fail(seen, folder):
        model = Fails(seen)
        seen.append(weakref.ref(model))
        try:
            call(model, folder)
        except ValueError as error:
            if hasattr(error, "history"):
                seen += [weakref.ref(error.history), *values_of(error.history)]

    return fail


def record(model, folder):
    with torcheer.recording(model):
        model(x)


def tap(model, folder):
    with torcheer.tap(model, ["fc"]):
        model(x)


def intervene(model, folder):
    with torcheer.intervene(model, {"fc": torcheer.changes.zero()}):
        model(x)


def step(model, folder):
    torcheer.TrainingStep(model, x).watch_modules()


FAILING = {
    "log": lambda model, folder: torcheer.log_forward_pass(model, x),
    "log with gradients": lambda model, folder: torcheer.log_forward_pass(model, x, save_gradients=True),
    "log to a file": lambda model, folder: torcheer.log_forward_pass(model, x, save_to=folder / "run.safetensors"),
    "validate": lambda model, folder: torcheer.validate_forward_pass(model, x),
    "summary": lambda model, folder: torcheer.summary(model, x),
    "activation": lambda model, folder: torcheer.activation(model, x, "fc"),
    "compare": lambda model, folder: torcheer.compare_models(model, model, x),
    "extract": lambda model, folder: torcheer.extract(model, [x], ["fc"], to=folder / "features", progress=False),
    **{call.__name__: call for call in (record, tap, intervene, step)},
}
CALLS = [saving, saving_gradients, loading, saving_in_vain, drawing, proving, comparing, looking_up]


@pytest.mark.parametrize(
    "call",
    [*(pytest.param(call, id=call.__name__) for call in CALLS)]
    + [pytest.param(failing(call), id=f"failing {name}") for name, call in FAILING.items()],
)
def test_what_a_call_held_is_free_when_the_call_is_over_and_not_when_the_collector_runs(call, tmp_path):
    call([], tmp_path)  # what is made once is made now
    seen = []
    gc.collect()
    gc.disable()
    try:
        call(seen, tmp_path)
        alive = [type(one()).__name__ for one in seen if one() is not None]
    finally:
        gc.enable()
    assert seen
    assert not alive


def test_values_that_were_tapped_are_free_with_the_tap():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    gc.collect()
    gc.disable()
    try:
        with torcheer.tap(model, ["0", "1"]) as values:
            model(x)
        seen = [weakref.ref(values["0"]), weakref.ref(values["1"]), weakref.ref(values)]
        del values
        with torcheer.intervene(model, {"0": torcheer.changes.zero()}):
            seen.append(weakref.ref(model(x)))
        assert not any(one() is not None for one in seen)
    finally:
        gc.enable()


def run(policy: Policy, model: nn.Module, x: torch.Tensor) -> Log:
    log = Log("model")
    Session(log, policy).run(model, (x,), {}, None)
    return log


def test_values_can_be_sent_elsewhere_as_they_are_made():
    """A policy that writes each tensor away sees all of them, in order and as they were, and the log holds what it returned."""
    written: list[torch.Tensor] = []

    def write(tensor: torch.Tensor, record: object) -> str:
        written.append(tensor.clone())
        return f"place {len(written)}"

    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(inplace=True))
    x = torch.randn(4, 3)
    log = run(Policy(take=write), model, x)
    names = [log.operations[number].function.name for number in range(len(log.rows))]
    assert names == ["input", "linear", "relu", "output"]
    assert log.values == ["place 1", "place 2", "place 3", "place 3"]  # the output is what relu made
    assert torch.equal(written[1], model[0](x))  # before it was overwritten
    assert torch.equal(written[2], model(x))


def test_without_parts_everything_is_kept_by_reference():
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    log = run(Policy(), model, x)
    assert torch.equal(log.values[1], model(x))
    assert Policy().is_plain
    assert not Policy(take=lambda tensor, record: None).is_plain


FUNCTIONS = (torch.sin, torch.cos, torch.exp, torch.tanh, torch.sigmoid)


def held_while_running(wanted) -> tuple[list[str], list[str]]:
    """Which of a chain of functions still have their memory when the model is about to return, and which are saved."""
    held = []

    def chain(t):
        memory = {}
        for function in FUNCTIONS:
            t = function(t)
            with DisableTorchFunction():  # a storage that is asked for in sight is taken to be handed out
                memory[function.__name__] = StorageWeakRef(t.untyped_storage())
        t = t * 1 * 1
        held.extend(name for name, one in memory.items() if not one.expired())
        return t

    history = log(chain, torch.rand(3), layers_to_save=wanted)
    return held, [one.layer_type for one in history.saved]


@pytest.mark.parametrize(
    ("wanted", "held", "saved"),
    [
        ("none", [], []),
        ([3], ["cos", "exp"], ["exp"]),
        ([1, 4], ["sin", "exp", "tanh"], ["sin", "tanh"]),
        (["exp_1"], ["cos", "exp"], ["exp"]),
        (["tanh_1_4"], ["exp", "tanh"], ["tanh"]),
        ([torch.sin, torch.tanh], ["sin", "exp", "tanh"], ["sin", "tanh"]),
        ("input", [], ["input"]),
        (lambda one: one.layer_type == "exp", ["cos", "exp"], ["exp"]),
        (torch.exp, ["cos", "exp"], ["exp"]),
        ([-3], ["sin", "cos", "exp", "tanh", "sigmoid"], ["mul"]),  # known only at the end
    ],
)
def test_a_key_that_is_known_while_the_model_runs_costs_no_more_than_what_it_means(wanted, held, saved):
    """That is the operation and its arguments, which are kept with it."""
    assert held_while_running(wanted) == (held, saved)
