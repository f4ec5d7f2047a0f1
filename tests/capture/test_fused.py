"""Attention that takes torch's fused path is logged on that path: what is logged is what the plain model computes."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import torcheer
from catalogue.modules import FUSED, PAD, attending, encoder, layer
from catalogue.modules import words as x

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def tensors(value):
    return [value] if isinstance(value, torch.Tensor) else [item for item in value if item is not None]


@pytest.mark.parametrize("case", FUSED)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_what_is_logged_is_what_the_plain_model_computes(case, context):
    model, named = FUSED[case].make(), FUSED[case].kwargs
    kind = "nativemultiheadattention" if "attention" in case else "transformerencoderlayerfwd"
    with context():
        plain = tensors(model(x(), **named))
        history = torcheer.log_forward_pass(model, x(), named)
    logged = [output.tensor_contents for output in history.outputs]
    assert all(map(torch.equal, logged, plain))
    assert len(logged) == len(plain)
    assert kind in [operation.layer_type for operation in history.operations]
    assert any("fused path" in note for note in history.notes)
    assert "fused path" in str(history)


def test_autocast_is_the_same_for_a_fused_call():
    model = layer()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model(x())
        history = torcheer.log_forward_pass(model, x())
        assert torcheer.validate_forward_pass(model, x()).is_valid
    assert plain.dtype is torch.bfloat16
    assert torch.equal(history.outputs[0].tensor_contents, plain)


def test_parameters_and_inputs_of_a_fused_call_are_its_parents():
    model = layer()
    with torch.no_grad():
        history = torcheer.log_forward_pass(model, x())
    fused = history["transformerencoderlayerfwd_1"]
    assert fused.parent_layers == ["input_1_0"]
    assert {parameter.name for parameter in fused.parent_params} == {name for name, _ in model.named_parameters()}
    assert torch.equal(history.replay().outputs[0].tensor_contents, history.outputs[0].tensor_contents)


def test_a_fused_call_has_its_place_in_the_program_and_needs_no_compiler():
    code = """
import sys, torch, torcheer
model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
with torch.no_grad():
    history = torcheer.log_forward_pass(model, torch.ones(2, 3, 16))
stack = history["transformerencoderlayerfwd_1"].stack
assert [line.function.split(".")[-1] for line in stack] == ["forward"], stack
assert "torch._dynamo" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


def test_modules_inside_a_fused_encoder_are_logged_as_ever():
    with torch.no_grad():
        history = torcheer.log_forward_pass(encoder(nn.LayerNorm(16)), x(), {"src_key_padding_mask": PAD})
    assert "layernorm_1" in {operation.label.rsplit("_", 1)[0] for operation in history.operations}
    assert history["norm"].layer_type == "layernorm"


@pytest.mark.parametrize("case", ["training", "gradients", "switched off", "a hook", "another mode", "an odd number of heads"])
def test_where_the_plain_model_does_not_fuse_the_log_shows_every_operation(case):
    class Watching(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    model, given = layer(dropout=0.0), x()
    if case == "an odd number of heads":
        model, given = nn.TransformerEncoderLayer(15, 3, 8, batch_first=True).eval(), torch.ones(2, 3, 15)
    model.train(case == "training")
    if case == "a hook":
        model.linear1.register_forward_hook(lambda *_: None)
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(case != "switched off")
        with torch.set_grad_enabled(case == "gradients"):
            if case == "another mode":
                with Watching():
                    plain = model(given)
                    history = torcheer.log_forward_pass(model, given)
            else:
                plain = model(given)
                history = torcheer.log_forward_pass(model, given)
                assert torcheer.validate_forward_pass(model, given).is_valid
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    assert torch.equal(history.outputs[0].tensor_contents, plain)
    assert "linear" in [operation.layer_type for operation in history.operations]
    assert "transformerencoderlayerfwd" not in [operation.layer_type for operation in history.operations]


def test_recordings_inside_one_another_both_see_the_fused_call():
    model = encoder()
    with torch.no_grad():
        plain = model(x(), src_key_padding_mask=PAD)
        with torcheer.recording(model) as outer:
            with torcheer.recording(model) as inner:
                y = model(x(), src_key_padding_mask=PAD)
            z = y + 1
    assert torch.equal(y, plain)
    for history in (outer, inner):
        kinds = [operation.layer_type for operation in history.operations]
        assert kinds.count("transformerencoderlayerfwd") == 2
        assert "detach" not in kinds
    assert [operation.layer_type for operation in outer.operations].count("add") == 1
    assert z is not None


class Raising(nn.TransformerEncoderLayer):
    def __init__(self, error):
        super().__init__(16, 2, 32, batch_first=True)
        self.error = error

    def forward(self, src, *args, **kwargs):
        super().forward(src)
        raise self.error


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_nothing_watches_any_more_after_a_fused_module_raised(error):
    with torch.no_grad(), pytest.raises(type(error)):
        torcheer.log_forward_pass(nn.Sequential(nn.Identity(), Raising(error)).eval(), x())
    assert _get_current_function_mode_stack() == _get_current_dispatch_mode_stack() == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_recording_goes_on_after_a_fused_module_raised(error):
    model = nn.Sequential(Raising(error("no"))).eval()
    with torch.no_grad(), torcheer.recording() as history:
        try:
            model(x())
        except error:
            pass
        y = nn.Linear(16, 2)(x())
    assert y.shape == (3, 5, 2)
    assert "linear" in [operation.layer_type for operation in history.operations]
    assert _get_current_function_mode_stack() == _get_current_dispatch_mode_stack() == []


def test_a_model_that_takes_another_path_while_it_is_watched_is_not_valid():
    def model(x):
        return x + 1 if torch.overrides.has_torch_function((x,)) else x + 2

    report = torcheer.validate_forward_pass(model, torch.ones(2))
    assert not report.is_valid
    assert "outputs equal" in str(report)
    assert "2.0 was logged, 3.0 came" in str(report)


def test_a_frozen_model_fuses_with_gradients_enabled_too():
    model = encoder().requires_grad_(False)
    history = torcheer.log_forward_pass(model, x(), {"src_key_padding_mask": PAD})
    assert torch.equal(history.outputs[0].tensor_contents, model(x(), src_key_padding_mask=PAD))
    asks = x().requires_grad_()
    history = torcheer.log_forward_pass(model, (), {"src": asks, "src_key_padding_mask": PAD})
    assert torch.equal(history.outputs[0].tensor_contents, model(asks, src_key_padding_mask=PAD))
    assert "linear" in [operation.layer_type for operation in history.operations]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("build", [layer, lambda **_: attending(need_weights=False)])
def test_a_fused_call_counts_what_its_operations_count(build, activation):
    model = build(activation=activation)
    every = torcheer.log_forward_pass(model, x()).cost
    with torch.no_grad():
        fused = torcheer.log_forward_pass(model, x()).cost
    assert fused.macs == every.macs
    assert fused.flops == pytest.approx(every.flops, rel=0.02)
    assert not fused.unknown


def test_keeping_what_leaves_modules_changes_nothing_of_a_fused_log():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2).eval()
    given, padding = torch.rand(2, 3, 4), torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad():
        whole = torcheer.log_forward_pass(model, given, {"src_key_padding_mask": padding})
        some = torcheer.log_forward_pass(model, given, {"src_key_padding_mask": padding}, layers_to_save="modules")
    assert [one.label for one in some.operations] == [one.label for one in whole.operations]
    assert torch.equal(some["layers.1"].activation.values(), whole["layers.1"].activation.values())
