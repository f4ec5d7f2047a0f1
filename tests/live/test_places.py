"""Places hold for other runs: every operation of random programs and of real models is read live as the log kept it."""

from __future__ import annotations

import pytest
import torch
import torchvision
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tap_models import Net, Several
from torch import Tensor, nn

import torcheer
from models import Attending, Branching, Convolutional, Mlp
from programs import COLUMNS, ROWS, Program, programs
from tiny_transformers import IDS, SMALL, tiny
from torcheer import changes

IMAGE = torch.rand(2, 3, 64, 64)
vision = torchvision.models
OWN_ARGUMENT = ("contiguous", "to")  # may return their argument itself: a log cannot tell later uses of the two apart

ZOO = {
    "mlp": (lambda: Mlp(), (torch.rand(2, 4),), {}),
    "convolutional": (lambda: Convolutional(), (torch.rand(2, 3, 8, 8),), {}),
    "branching": (lambda: Branching(), (torch.rand(2, 4),), {}),
    "attending": (lambda: Attending(), (torch.rand(3, 2, 4),), {}),
    "net": (lambda: Net(), (torch.rand(2, 5, 8),), {}),
    "several": (lambda: Several(), (torch.rand(3),), {}),
    "lstm": (lambda: nn.LSTM(4, 5, num_layers=2), (torch.rand(3, 2, 4),), {}),
    "transformer": (lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), (torch.rand(2, 3, 8), torch.rand(2, 4, 8)), {}),
    "resnet18": (lambda: vision.resnet18(num_classes=10), (IMAGE,), {}),
    "mobilenet_v3_small": (lambda: vision.mobilenet_v3_small(num_classes=10), (IMAGE,), {}),
    "shufflenet_v2": (lambda: vision.shufflenet_v2_x0_5(num_classes=10), (IMAGE,), {}),
    "vit": (lambda: vision.VisionTransformer(64, 16, 2, 2, 32, 48, num_classes=10), (IMAGE,), {}),
    "swin": (lambda: vision.SwinTransformer([4, 4], 16, [2, 2], [2, 2], [4, 4], num_classes=10), (IMAGE,), {}),
    "gpt2": (lambda: tiny("gpt2", n_layer=2, n_embd=32, n_head=2, vocab_size=60, bos_token_id=0, eos_token_id=0), (), IDS),
    "bert": (lambda: tiny("bert", **SMALL), (), IDS),
    "t5": (
        lambda: tiny("t5", d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, vocab_size=60, decoder_start_token_id=0),
        (),
        {**IDS, "decoder_input_ids": IDS["input_ids"][:, :3]},
    ),
    "llama": (lambda: tiny("llama", num_key_value_heads=2, bos_token_id=0, eos_token_id=0, **SMALL), (), IDS),
    "mixtral": (
        lambda: tiny("mixtral", num_key_value_heads=2, num_local_experts=2, bos_token_id=0, eos_token_id=0, **SMALL),
        (),
        IDS,
    ),
}


def logged(name):
    make, args, kwargs = ZOO[name]
    model = make().eval()
    with torch.no_grad():
        return model, args, kwargs, torcheer.log_forward_pass(model, args, kwargs)


def can_be_watched(history, label):
    try:
        return bool(history.locate(label))
    except torcheer.InvalidArgument:
        return False


@pytest.mark.parametrize("name", ZOO)
def test_every_operation_of_a_model_is_read_as_the_log_kept_it(name):
    """Everything runs as logged, and nearly every operation can be watched."""
    model, args, kwargs, history = logged(name)
    labels = [one.label for one in history.operations]
    watched = [label for label in labels if can_be_watched(history, label)]
    assert len(watched) >= 0.98 * len(labels)
    with torch.no_grad(), torcheer.tap(model, watched, like=history) as values:
        model(*args, **kwargs)
    for one in history.operations:
        if one.label in watched and isinstance(one.tensor_contents, Tensor) and "empty" not in one.func_applied_name:
            assert torch.equal(values[one.label], one.tensor_contents), one.label


@pytest.mark.parametrize("name", ZOO)
def test_a_change_on_the_log_is_the_same_change_live(name):
    """Of six operations of each model: what a replay gives is what the model gives, bit for bit."""
    model, args, kwargs, history = logged(name)
    layers = [one for one in history.operations if _is_changeable(one) and can_be_watched(history, one.label)]
    for one in layers[:: max(1, len(layers) // 6)]:
        replayed = replayed_as_live(model, args, kwargs, history, one.label)
        assert replayed is None or replayed[one.label].changed_by == "scale(0.5)"


@pytest.mark.parametrize("name", ZOO)
def test_a_change_of_what_modules_get_and_give_is_the_same_on_the_log_and_live(name):
    """Where others read the same value too: the shortcut around a block is not changed with what the block is given."""
    model, args, kwargs, history = logged(name)
    keys = [key for call in history._log.modules if call.address for key in (f"input:{call.address}", call.address)]
    keys = [key for key in dict.fromkeys(keys) if _means_floats(history, key)]
    for key in keys[:: max(1, len(keys) // 6)]:
        replayed_as_live(model, args, kwargs, history, key)


def replayed_as_live(model, args, kwargs, history, key):
    """The replay with the values of a key halved, which gives what the model gives; None where a replay refuses it."""
    change = {key: changes.scale(0.5)}
    try:
        replayed = history.replay(changes=change)
    except torcheer.ReplayFailed:  # a view that is written to later
        return None
    with torch.no_grad(), torcheer.intervene(model, change, like=history):
        again = torcheer.log_forward_pass(model, args, kwargs)
    assert len(replayed.outputs) == len(again.outputs)
    for ours, theirs in zip(replayed.outputs, again.outputs, strict=True):
        assert torch.equal(ours.tensor_contents, theirs.tensor_contents), key
    return replayed


def _means_floats(history, key):
    """Whether a key means one floating-point value of one call, which the module was given once and did not hand back."""
    try:
        (match,) = history._run.lookup.meaning(key).matches
    except (torcheer.LayerNotFound, ValueError):
        return False
    record, call = history._log.operations[match.number], match.call
    is_clear = call.inputs.count(match.number) == 1 if match.is_input else match.number not in call.inputs
    return is_clear and record.dtype.is_floating_point and match.number >= 0


def _is_changeable(one):
    value = one.tensor_contents
    if one.is_output_layer or one.is_input_layer or one.func_applied_name in OWN_ARGUMENT:
        return False
    return isinstance(value, Tensor) and value.is_floating_point()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_every_operation_of_a_random_program_is_read_as_the_log_kept_it(steps):
    model, x = Program(steps), torch.randn(ROWS, COLUMNS)
    torch.manual_seed(0)
    history = torcheer.log_forward_pass(model, x, random_seed=0)
    labels = [one.label for one in history.operations if can_be_watched(history, one.label)]
    torch.manual_seed(0)
    with torcheer.tap(model, labels, like=history) as values:
        model(x)
    for one in history.operations:
        if one.label in labels:
            assert torch.equal(values[one.label], one.tensor_contents), (one.label, history.locate(one.label))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs, st.integers(0, 30))
def test_a_change_in_a_random_program_is_that_of_its_replay(steps, at):
    """In evaluation and without gradients; what a replay refuses is left out."""
    model, x = Program(steps).eval(), torch.randn(ROWS, COLUMNS)
    with torch.no_grad():
        history = torcheer.log_forward_pass(model, x, random_seed=0)
        assume(not history.python_reads)  # a replay takes the branch that was taken, the model perhaps another one
        labels = [one.label for one in history.operations if _is_changeable(one) and can_be_watched(history, one.label)]
        assume(labels)
        change = {labels[at % len(labels)]: changes.scale(0.5)}
        try:
            replayed = history.replay(changes=change)
        except torcheer.ReplayFailed:  # a view that is written to later
            return
        with torcheer.intervene(model, change, like=history):
            torch.manual_seed(0)
            outputs = model(x)
    for ours, theirs in zip(replayed.outputs, outputs, strict=True):
        assert torch.equal(ours.tensor_contents, theirs), (change, history.locate(next(iter(change))))


def test_a_call_made_by_another_function_is_at_one_place_however_often_it_ran():
    """Python 3.11 makes a call such as `tuple(…)` at another instruction once it ran a few times."""

    class Through(nn.Module):
        def forward(self, t):
            for _ in range(2):
                t = sum(tuple(one.sin() for one in t.split(2)), torch.zeros(())) + torch.stack(list(map(torch.cos, t))).sum()
                t = t.reshape(-1)[:2].repeat(2)
            return t

    model, t = Through(), torch.rand(4)
    first = torcheer.log_forward_pass(model, t)
    for _ in range(20):
        model(t)
    later = torcheer.log_forward_pass(model, t)
    for history in (first, later):
        keys = [one.label for one in history.operations if one.origin == "operation"]
        for _ in range(12):
            with torcheer.tap(model, keys, like=history) as values:
                model(t)
        assert all(torch.equal(values[key], history[key].activation) for key in keys)
