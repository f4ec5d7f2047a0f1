"""`tap` and `activation`: values at chosen places, compared with plain hooks."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
import torchvision
from tap_models import UNUSUAL, Attention, Function, Normed, Ragged, Several, Statement, hook_outputs, hooks_of
from torch import nn

import torcheer
from models import Stateful, made_of, unchanged
from torcheer._torch.internals import function_modes
from torcheer.errors import LayerNotFound
from torcheer.live.places import Stopped
from torcheer.live.reading import Take
from torcheer.live.watch import WatchedKeys
from torcheer.replay.comparison import same_bits

KEYS = [
    "blocks.1",
    "softmax_3",
    "softmax_3_40:1",
    "tanh_1",
    "tanh_1:2",
    "cell",
    "cell:2",
    "input:cell:2",
    "input:blocks.1",
    "input",
    "output",
    "input_1",
    "blocks.*",
    "blocks.*.out",
    "**.out",
    "softmax_*",
    nn.Linear,
    Attention,
    F.softmax,
    torch.tanh,
    3,
    -2,
    slice(2, 5),
    ["softmax_1", "cell"],
    lambda one: one.func_applied_name == "add",
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: getattr(key, "__name__", str(key)))
def test_every_kind_of_key_reads_what_the_log_holds(net, x, key):
    """The values, their number and their order are those of the operations that the key means."""
    history = torcheer.log_forward_pass(net, x)
    key = "softmax_3" if key == "softmax_3_40:1" else key
    expected = [history._log.values[number] for number in history._run.lookup.meaning(key).numbers]
    with torcheer.tap(net, [key], like=history) as values:
        net(x)
    found = values[key] if isinstance(values[key], list) else [values[key]]
    assert len(found) == len(expected) > 0
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("key", ["blocks.1", "cell", "blocks.2.qkv"])
def test_an_address_needs_no_history(net, x, key):
    """What is read is what a plain forward hook sees, one value for each call."""
    seen, handles = hook_outputs(net, key)
    net(x)
    for handle in handles:
        handle.remove()
    with torcheer.tap(net, key) as values:
        net(x)
    found = values[key] if isinstance(values[key], list) else [values[key]]
    assert len(found) == len(seen[key])
    assert all(torch.equal(one, other) for one, other in zip(found, seen[key], strict=True))


@pytest.mark.parametrize("key", ["second.*", "**.0", "*.1", "second.0", nn.Linear, "missing.*"])
def test_a_key_means_the_same_modules_with_and_without_a_history(key):
    shared = nn.Linear(2, 2)
    model = nn.Sequential(OrderedDict(first=nn.Sequential(shared, nn.ReLU()), second=nn.Sequential(shared, nn.Tanh())))
    history = torcheer.log_forward_pass(model, torch.rand(1, 2))
    found = []
    for like in (None, history):
        try:
            watched = WatchedKeys(model, [(key, Take())], like)
            found.append({spot.place.module for spot in watched.spots[0][1]})
        except LayerNotFound:
            found.append(None)
    assert found[0] == found[1]
    assert (found[0] is None) == (key == "missing.*")


def test_globs_classes_calls_and_inputs_need_no_history(net, x):
    with torcheer.tap(net, ["blocks.*", nn.Linear, "cell:2", "input:cell:2", "input", "output"]) as values:
        output = net(x)
    assert len(values["blocks.*"]) == 3
    assert len(values[nn.Linear]) == 3 * 2 + 3
    assert torch.equal(values["cell:2"], net.cell(values["input:cell:2"]))
    assert values["input"] is x
    assert values["output"] is output
    assert list(values) == ["blocks.*", nn.Linear, "cell:2", "input:cell:2", "input", "output"]
    assert "'blocks.*': (2, 5, 8), (2, 5, 8), (2, 5, 8)" in repr(values)


@pytest.mark.parametrize("kind", ["tuple", "dict", "dataclass"])
@pytest.mark.parametrize("is_logged", [False, True])
def test_each_tensor_of_what_a_module_returns_can_be_read(kind, is_logged):
    model, x = Several(), torch.rand(3)
    history = torcheer.log_forward_pass(model, x) if is_logged else None
    keys = [f"kinds.{kind}", f"kinds.{kind}[1]", f"kinds.{kind}[*]", f"input:kinds.{kind}", f"input:kinds.{kind}[1]"]
    with torcheer.tap(model, keys, like=history) as values:
        model(x)
    first, second, both, given, scale = (values[key] for key in keys)
    assert torch.equal(first, given * scale)
    assert torch.equal(second, given + scale)
    assert torch.equal(both[0], first)
    assert torch.equal(both[1], second)


def test_a_value_that_is_overwritten_in_place_later_is_read_as_it_was():
    """Also at later calls, also under inference mode; each time it is what the normalisation gave."""
    model, x = Normed().eval(), torch.randn(6, 4)
    expected = model.bn1(x)
    assert (expected < 0).any()
    with torcheer.tap(model, ["bn1", "relu"]) as values:
        for _ in range(3):
            model(x)
            assert torch.equal(values["bn1"], expected)
            assert torch.equal(values["relu"], expected.relu())
    assert torch.equal(values["bn1"], expected)
    with torch.inference_mode(), torcheer.tap(model, ["bn1"]) as values:
        model(x)
    assert torch.equal(values["bn1"], expected)


def test_the_first_normalisation_of_a_resnet_is_read_before_its_relu():
    model, x = torchvision.models.resnet18(num_classes=4).eval(), torch.rand(1, 3, 64, 64)
    expected = model.bn1(model.conv1(x))
    with torch.no_grad(), torcheer.tap(model, ["bn1"]) as values:
        model(x)
        model(x)
    torch.testing.assert_close(values["bn1"], expected)
    assert (values["bn1"] < 0).any()


def test_a_value_that_only_a_later_call_overwrites_is_refused_and_then_copied():
    class Model(nn.Module):
        overwrites = False

        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            y = self.fc(x)
            return y.mul_(2) if self.overwrites else y

    model, x = Model(), torch.rand(1, 4)
    with torch.no_grad(), torcheer.tap(model, ["fc"]) as values:
        model(x)
        model.overwrites = True
        model(x)
        with pytest.raises(torcheer.ActivationLost, match=r"'fc'.*overwritten in place"):
            values["fc"]
        model(x)
        assert torch.equal(values["fc"], model.fc(x))


def test_values_are_held_by_reference_with_their_graph(net, x):
    """A gradient flows from what was read; nothing is copied at the second call."""
    with torcheer.tap(net, ["blocks.1"]) as values:
        net(x)
        output = net(x)
    assert values["blocks.1"].grad_fn is not None
    (grad,) = torch.autograd.grad(output.sum(), values["blocks.1"])
    assert grad.abs().sum() > 0


def test_values_are_those_of_the_last_call_of_the_model(net, x):
    other = torch.rand(2, 5, 8)
    with torcheer.tap(net, ["blocks.0", "cell"]) as values:
        net(x)
        net(other)
    assert torch.equal(values["blocks.0"], net.blocks[0](other))
    assert len(values["cell"]) == 3


def test_a_module_that_is_called_by_itself_is_read_too(net, x):
    with torcheer.tap(net, ["blocks.0"]) as values:
        net.blocks[0](x)
        made = net.blocks[0](2 * x)
    assert torch.equal(values["blocks.0"], made)


def test_a_model_that_calls_itself_is_one_call():
    model, x = (
        made_of(lambda self, x, depth=2: self.fc(x) if depth == 0 else self.fc(self(x, depth - 1)), fc=nn.Linear(2, 2)),
        torch.rand(1, 2),
    )
    history = torcheer.log_forward_pass(model, x)
    with torcheer.tap(model, ["fc", "fc:2"], like=history) as values:
        model(x)
        model(x)
    assert len(values["fc"]) == 3
    assert torch.equal(values["fc:2"], model.fc(model.fc(x)))


def test_calls_inside_composites_are_read():
    """The softmax inside `F.multi_head_attention_forward`, and what `nn.MultiheadAttention` returns, are those of the log."""
    model, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.rand(2, 5, 8)
    history = torcheer.log_forward_pass(model, (x, x, x))
    with torcheer.tap(model, ["softmax_1", "output_1"], like=history) as values:
        _, pattern = model(x, x, x)
    assert torch.equal(values["softmax_1"], history["softmax_1"].tensor_contents)
    torch.testing.assert_close(values["softmax_1"].view(2, 2, 5, 5).mean(1), pattern)


def test_fused_attention_stays_fused():
    """A tap on an encoder layer, or on a function around one, does not change which path torch takes."""

    model, x = (
        made_of(
            lambda self, x: torch.tanh(self.encoder(torch.sin(x))) + 1,
            encoder=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        ).eval(),
        torch.rand(2, 5, 8),
    )
    with torch.no_grad():
        history = torcheer.log_forward_pass(model, x)
        assert "transformerencoderlayerfwd_1" in [layer.layer_label_short for layer in history]
        with torcheer.tap(model, ["encoder", "tanh_1"], like=history) as values:
            output = model(x)
        with torcheer.tap(model, ["encoder"]) as other:
            model(x)
    assert torch.equal(output, history["output"].tensor_contents)
    assert torch.equal(values["encoder"], history["encoder"].tensor_contents)
    assert torch.equal(other["encoder"], history["encoder"].tensor_contents)
    assert torch.equal(values["tanh_1"], history["tanh_1"].tensor_contents)


@pytest.mark.parametrize("mode", [lambda: torch.autocast("cpu", torch.bfloat16), torch.inference_mode])
def test_reading_works_under_autocast_and_in_inference_mode(net, x, mode):
    with mode():
        history = torcheer.log_forward_pass(net, x)
        with torcheer.tap(net, ["blocks.1", "softmax_2"], like=history) as values:
            net(x)
        for key in values:
            assert torch.equal(values[key], history[key].tensor_contents)
            assert values[key].dtype is history[key].tensor_contents.dtype


def test_a_compiled_model_runs_uncompiled_in_the_block(net, x):
    compiled = torch.compile(net, backend="eager")
    compiled(x)
    history = torcheer.log_forward_pass(compiled, x)
    with torcheer.tap(compiled, ["blocks.1", "softmax_2"], like=history) as values:
        compiled(x)
    assert torch.equal(values["blocks.1"], history["blocks.1"].tensor_contents)
    assert torch.equal(values["softmax_2"], history["softmax_2"].tensor_contents)
    torch._dynamo.reset()


def test_another_thread_that_runs_the_model_is_left_alone(net, x):
    """Its values are neither read nor counted; a place that only it reached says so."""
    history = torcheer.log_forward_pass(net, x)
    with torcheer.tap(net, ["blocks.1", "softmax_2"], like=history) as values:
        net(x)
        thread = threading.Thread(target=net, args=(2 * x,))
        thread.start()
        thread.join()
    assert torch.equal(values["softmax_2"], history["softmax_2"].tensor_contents)
    thread = threading.Thread(target=net, args=(x,))
    with pytest.raises(torcheer.PlaceNotReached, match=r"another thread"), torcheer.tap(net, ["blocks.1"]):
        thread.start()
        thread.join()


def test_blocks_may_be_nested(net, x):
    history = torcheer.log_forward_pass(net, x)
    with torcheer.tap(net, ["softmax_1", "blocks.0"], like=history) as outer:
        with torcheer.tap(net, ["softmax_1", "softmax_2"], like=history) as inner:
            net(x)
        assert function_modes() == []
    assert hooks_of(net) == 0
    assert torch.equal(outer["softmax_1"], inner["softmax_1"])
    assert torch.equal(inner["softmax_2"], history["softmax_2"].tensor_contents)


def test_reading_inside_a_recording_leaves_the_log_as_it_is(net, x):
    history = torcheer.log_forward_pass(net, x)
    with torcheer.tap(net, ["softmax_1", "blocks.0"], like=history):
        again = torcheer.log_forward_pass(net, x)
    assert [layer.label for layer in again] == [layer.label for layer in history]
    with torcheer.recording(net) as recorded, torcheer.tap(net, ["softmax_1"], like=history):
        output = net(x)
    assert output.shape == (2, 5, 8)
    assert [one.func_applied_name for one in recorded.operations] == [one.func_applied_name for one in history.operations]


def test_what_was_not_reached_is_named():
    model, x = Ragged(), torch.rand(1, 4)
    with (
        pytest.raises(torcheer.PlaceNotReached, match=r"'other' was not reached \(what 'other' returned\)"),
        torcheer.tap(model, ["other", "cell"]),
    ):
        model(x)
    with torcheer.tap(model, ["other", "cell"], strict=False) as values:
        model(x)
    assert values.notes == ["'other' was not reached (what 'other' returned)"]
    with pytest.raises(KeyError, match=r"'other' was not reached"):
        values["other"]
    assert len(values["cell"]) == 2


def test_not_reached_is_judged_over_the_whole_block():
    model, x = Ragged(), torch.rand(1, 4)
    with torcheer.tap(model, ["other", "cell"]) as values:
        model.times = 0
        model(x)
        model.times = 1
        model(x)
    assert values["cell"].shape == (1, 4)


@pytest.mark.parametrize("key", ["cell", "tanh_1", "tanh_1:1", "cell:2"])
def test_what_was_reached_more_often_than_logged_is_an_error(key):
    model, x = Ragged(), torch.rand(1, 4)
    history = torcheer.log_forward_pass(model, x)
    with torcheer.tap(model, [key], like=history):
        model(x)
        model(x)  # calls are counted anew
    model.times = 3
    with (
        pytest.raises(torcheer.PlaceNotReached, match=r"more often than the 2 times that were logged"),
        torcheer.tap(model, [key], like=history),
    ):
        model(x)
    with torcheer.tap(model, [key], like=history, strict=False) as values:
        model(x)
    assert "more often" in values.notes[0]


@pytest.mark.parametrize("key", ["cell", "tanh_1"])
def test_what_was_reached_less_often_than_logged_is_an_error(key):
    model, x = Ragged(), torch.rand(1, 4)
    history = torcheer.log_forward_pass(model, x)
    model.times = 1
    with (
        pytest.raises(torcheer.PlaceNotReached, match=rf"'{key}' was not reached.*time 2|'{key}' was not reached.*call 2"),
        torcheer.tap(model, [key], like=history),
    ):
        model(x)


def test_another_function_at_the_same_place_is_not_read():
    model, x = Ragged(), torch.rand(1, 4)
    history = torcheer.log_forward_pass(model, x)
    model.function = torch.sigmoid
    with (
        pytest.raises(torcheer.PlaceNotReached, match=r"'tanh_1' was not reached"),
        torcheer.tap(model, ["tanh_1"], like=history),
    ):
        model(x)


def test_an_exception_of_the_block_is_never_replaced(net, x):
    history = torcheer.log_forward_pass(net, x)
    with pytest.raises(ZeroDivisionError), torcheer.tap(net, ["softmax_1"], like=history):
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match=r"shapes|size"), torcheer.tap(net, ["softmax_1", "cell"], like=history):
        net(torch.rand(2, 5, 7))
    assert function_modes() == []
    assert hooks_of(net) == 0


@pytest.mark.parametrize("where", ["before", "inside", "after"])
def test_an_interrupt_leaves_nothing_behind(net, x, where):
    """Modes, hooks and the model are as before, and the block goes on to work where the interrupt was caught in it."""

    class Interrupting(nn.Module):
        is_on = True

        def forward(self, y):
            if self.is_on:
                raise KeyboardInterrupt
            return y

    interrupting = Interrupting()
    at = {"before": net.blocks[0].qkv, "inside": net.blocks[1].qkv, "after": net.cell}[where]
    history = torcheer.log_forward_pass(net, x)
    handle = at.register_forward_hook(lambda module, args, result: interrupting(result))
    before = hooks_of(net)
    with pytest.raises(KeyboardInterrupt), torcheer.tap(net, ["softmax_2", "blocks.1", "tanh_1"], like=history):
        net(x)
    assert function_modes() == []
    assert hooks_of(net) == before
    with torcheer.tap(net, ["softmax_2", "blocks.1", "tanh_1"], like=history) as values:
        with pytest.raises(KeyboardInterrupt):
            net(x)
        interrupting.is_on = False
        net(x)
        assert function_modes() == []
    assert torch.equal(values["softmax_2"], history["softmax_2"].tensor_contents)
    assert len(values["tanh_1"]) == 3
    handle.remove()


def test_stop_ends_the_block_when_everything_was_reached(net, x):
    ran = []
    net.cell.register_forward_hook(lambda *given: ran.append("cell"))
    with torcheer.tap(net, ["blocks.0", "blocks.1"], stop=True) as values:
        net(x)
        ran.append("rest of the block")
    assert ran == []
    assert values["blocks.1"].shape == (2, 5, 8)


def test_stop_waits_for_every_place(net, x):
    history = torcheer.log_forward_pass(net, x)
    with torcheer.tap(net, ["tanh_1:2", "softmax_1"], like=history, stop=True) as values:
        net(x)
    assert torch.equal(values["tanh_1:2"], history["tanh_1:2"].tensor_contents)
    with pytest.raises(torcheer.PlaceNotReached), torcheer.tap(net, ["blocks.0", "cell:9"], stop=True):
        net(x)


def test_stop_keeps_the_modes_of_the_program(net, x):
    """A mode that was put on inside the block is left by the program's own `with`, not by the stop."""
    history = torcheer.log_forward_pass(net, x)
    with torch.device("cpu"):
        before = function_modes()
        with torcheer.tap(net, ["softmax_2"], like=history, stop=True), torch.device("meta"):
            net(x)
        assert function_modes() == before
    assert function_modes() == []


def test_an_exception_handler_of_the_model_does_not_catch_the_stop():
    def forward(self, x):
        try:
            return self.fc(x)
        except Exception:
            return x

    model, after = made_of(forward, fc=nn.Linear(2, 2)), []
    with torcheer.tap(model, ["fc"], stop=True):
        model(torch.rand(1, 2))
        after.append(1)
    assert after == []


@pytest.mark.parametrize("is_logged", [False, True])
@pytest.mark.parametrize("key", ["softmax_3", "blocks.1", "tanh_1:2", "add_2", "input", "output", "view_2_17"])
def test_activation_is_the_one_line_pull(net, x, key, is_logged):
    history = torcheer.log_forward_pass(net, x)
    with unchanged(net):
        found = torcheer.activation(net, x, key, like=history if is_logged else None)
    assert torch.equal(found, history[key].tensor_contents)


def test_activation_of_several_keys_is_a_list(net, x):
    """Of a module that runs several times it is the first call, or every one that was logged."""
    one, first, second = torcheer.activation(net, x, ["blocks.1", "cell", "cell:2"])
    assert one.shape == (2, 5, 8)
    history = torcheer.log_forward_pass(net, x)
    (several,) = torcheer.activation(net, x, ["cell"], like=history)
    assert len(several) == 3
    assert torch.equal(several[0], first)
    assert torch.equal(several[1], second)


def test_labels_functions_and_globs_are_read_together():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Tanh()), torch.rand(2, 4)
    last, by_function, by_glob = torcheer.activation(model, x, ["tanh_1", torch.relu, "relu_*"])
    assert torch.equal(last, model(x))
    for found in (by_function, by_glob):
        assert all(map(torch.equal, found, [model[:2](x), model[:4](x)]))
        assert len(found) == 2


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("key", ["bn1", "batchnorm_1"])
def test_activation_leaves_the_model_as_it_was(key, is_training):
    model, x = Normed().train(is_training), torch.randn(6, 4)
    model.fc.register_forward_hook(lambda *given: pytest.fail("the pass did not stop"))
    with unchanged(model):
        value = torcheer.activation(model, x, key)
    assert torch.equal(value, copy.deepcopy(model).bn1(x))


def test_activation_leaves_a_model_that_changes_itself_as_it_was():
    model, x = Stateful(), torch.rand(2, 3)
    with unchanged(model):
        torcheer.activation(model, x, "mul_1")


@pytest.mark.parametrize("key", ["first", "relu_1", "last", "input:first"])
@pytest.mark.parametrize("is_logged", [False, True])
def test_activation_leaves_inputs_that_the_model_writes_to_as_they_were(key, is_logged):
    def forward(self, x, more):
        more["x"].mul_(2)
        return self.last(self.first(x) + more["x"])

    model, x, more = made_of(forward, first=nn.ReLU(inplace=True), last=nn.Linear(3, 3)), torch.randn(2, 3), torch.randn(2, 3)
    expected = {"first": x.relu(), "relu_1": x.relu(), "last": model.last(x.relu() + 2 * more), "input:first": x.clone()}[key]
    before = x.clone(), more.clone()
    history = torcheer.log_forward_pass(model, (x, {"x": more})) if is_logged else None
    value = torcheer.activation(model, (x, {"x": more}), key, like=history)
    assert torch.equal(value, expected)
    assert torch.equal(x, before[0])
    assert torch.equal(more, before[1])
    if key == "last":
        value.sum().backward()
        gradient = torch.autograd.grad(model.last(x.relu() + 2 * more).sum(), model.last.weight)[0]
        assert torch.equal(model.last.weight.grad, gradient)


GRADIENTS = {
    "replaced": lambda layer: setattr(layer.weight, "grad", torch.zeros(4, 4)),
    "removed": lambda layer: setattr(layer.weight, "grad", None),
    "added": lambda layer: layer(torch.ones(2, 4)).sum().backward(),
    "written to": lambda layer: layer.weight.grad.mul_(2),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("key", ["last", "linear_2"])
def test_activation_leaves_gradients_or_names_them(name, key):
    """As parameters they are not copied: what is written into one that is there is named."""

    class Training(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, t):
            GRADIENTS[name](self.first)
            return self.last(self.first(t))

    model = Training()
    gradient = model.first.weight.grad = torch.ones(4, 4)
    is_lost = name in ("added", "written to") and key == "last"
    named = pytest.warns(torcheer.StateNotRestored, match="the gradient of 'first.weight'") if is_lost else nullcontext()
    with named:
        torcheer.activation(model, torch.ones(2, 4), key)
    assert model.first.weight.grad is gradient
    assert model.first.bias.grad is None
    assert is_lost or torch.equal(gradient, torch.ones(4, 4))


def test_activation_with_named_arguments():
    a, b = torch.rand(2), torch.rand(2)
    assert torch.equal(
        torcheer.activation(
            made_of(lambda self, a, b: torch.sin(a) + torch.cos(b)), keys="cos_1", input_kwargs={"a": a, "b": b}
        ),
        torch.cos(b),
    )


def test_bad_input_is_refused_with_what_to_do(net, x):
    history = torcheer.log_forward_pass(net, x)
    wrong = torcheer.InvalidArgument
    with pytest.raises(wrong, match=r"must be an nn.Module; got function"):
        torcheer.tap(lambda t: t, ["a"])
    with pytest.raises(wrong, match=r"needs a key"):
        torcheer.tap(net, [])
    with pytest.raises(torcheer.LayerNotFound, match=r"like=history"):
        torcheer.tap(net, ["softmax_3"])
    with pytest.raises(wrong, match=r"like=history"):
        torcheer.tap(net, [3])
    with pytest.raises(torcheer.LayerNotFound, match=r"'frist' names no module of this model\. The nearest are 'first'"):
        torcheer.tap(nn.Sequential(OrderedDict(first=nn.ReLU())), ["frist"]).__enter__()
    with pytest.raises(torcheer.LayerNotFound, match=r"softmax_9"):
        torcheer.tap(net, ["softmax_9"], like=history)
    with pytest.raises(wrong, match=r"like is a history.*got int"):
        torcheer.tap(net, ["softmax_1"], like=3)
    with pytest.raises(wrong, match=r"no module 'blocks.1'"):
        torcheer.tap(Normed(), ["blocks.1"], like=history)
    with pytest.raises(wrong, match=r"means no operation"):
        torcheer.tap(net, [lambda one: False], like=history)
    with pytest.raises(wrong, match=r"needs a key"):
        torcheer.activation(net, x)
    values = torcheer.tap(net, ["cell"])
    with values:
        net(x)
    with pytest.raises(wrong, match=r"entered already"), values:
        pass
    with pytest.raises(KeyError, match=r"not watched; these are: 'cell'"):
        values["blocks.0"]


def test_what_ran_outside_of_modules_cannot_be_watched():
    fc, x = nn.Linear(2, 2), torch.rand(1, 2)
    with torcheer.recording(fc) as history:
        torch.tanh(fc(x))
    with pytest.raises(torcheer.InvalidArgument, match=r"outside of all modules"):
        torcheer.tap(fc, ["tanh_1"], like=history)


def test_a_wrong_number_of_tensors_is_told():
    model, x = Several(), torch.rand(3)
    with (
        pytest.raises(torcheer.PlaceNotReached, match=r"returned 2 tensors; tensor \[5\] was wanted"),
        torcheer.tap(model, ["kinds.tuple[5]"]),
    ):
        model(x)


def test_places_are_plain_data_that_prints(net, x):
    history = torcheer.log_forward_pass(net, x)
    (place,) = history.locate("softmax_2")
    assert place.kind == "function"
    assert place.module == "blocks.1"
    assert str(place).startswith("softmax_2_25: softmax in 'blocks.1', call 1 at ")
    assert history.locate("softmax_2") == [place]
    assert str(history.locate("cell:2")[0]) == "linear_7_46:2: what 'cell' returned, call 2"


def test_statements_that_write_in_place_are_read_after_the_write():
    model, x = Statement(), torch.rand(2, 4)
    history = torcheer.log_forward_pass(model, x)
    with torch.no_grad(), torcheer.tap(model, ["sigmoid_1", "act"], like=history) as values:
        model(x)
    assert torch.equal(values["sigmoid_1"], model.fc(x).sigmoid())
    assert torch.equal(values["act"], model.fc(model.fc(x).sigmoid()).relu())


def test_a_pass_of_a_watch_that_lasts_is_one_call_however_often_the_model_runs(net, x):
    take = Take()
    watched = WatchedKeys(net, [("cell", take)], None, lasts=True)
    ((_, (spot,)),) = watched.spots
    with watched.watch as watch:
        with watch.one_pass(stops=False):
            net(x)
            net(x)
        assert len(take.values[spot]) == 6
        with watch.one_pass(stops=True):
            net(x)
            pytest.fail("the pass was to end at the first call of the cell")
        assert len(take.values[spot]) == 1
        net(x)  # by others: neither stopped nor a part of the pass
        assert len(take.values[spot]) == 3
        with pytest.raises(Stopped), watch.one_pass(stops=True):
            raise Stopped(object())  # of another watch
    assert hooks_of(net) == 0


@pytest.mark.filterwarnings("ignore")  # torch warns that sparse tensors are in beta
@pytest.mark.parametrize("kind", UNUSUAL)
def test_values_of_unusual_layouts_and_dtypes_are_read(kind):
    model, x = nn.Sequential(nn.ReLU(), Function(UNUSUAL[kind])), torch.rand(3, 4)
    with torcheer.tap(model, ["1"]) as values:
        model(x * 2)
        model(x)
    expected = UNUSUAL[kind](x)
    assert repr(values).startswith("'1': (")
    for value in (values["1"], torcheer.activation(model, x, "1")):
        assert (value.dtype, value.layout, value.device) == (expected.dtype, expected.layout, expected.device)
        assert same_bits(value, expected)


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_a_model_that_is_checkpointed_as_a_whole_is_read_where_backward_runs_in_the_block(is_reentrant):
    model, t = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.rand(2, 4, requires_grad=True)
    with torcheer.tap(model, ["0", ""]) as values:
        made = torch.utils.checkpoint.checkpoint(model, t, use_reentrant=is_reentrant)
        made.sum().backward()
    assert torch.equal(values["0"], model[0](t))
    assert torch.equal(values[""], made)


def test_a_value_whose_memory_the_model_frees_is_the_copy_and_one_read_afterwards_is_lost():
    """torch ends the process where freed memory is read."""

    class Freeing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("memory", torch.rand(4, 3))
            self.before, self.after = nn.Identity(), nn.Identity()

        def forward(self, t):
            row = self.before(self.memory[0])
            y = t + row
            self.memory.untyped_storage().resize_(0)
            self.after(row)
            return y

    model = Freeing()
    expected = model.memory[0].clone()
    with torcheer.tap(model, ["before", "after"]) as values:
        model(torch.rand(4, 3))
    assert torch.equal(values["before"], expected)
    with pytest.raises(torcheer.ActivationLost, match="'after'"):
        values["after"]
