"""A pass that sets random states is proved like any other, and leaves them as they were."""

import pytest
import torch
from torch import nn

import torcheer
from catalogue import random_states
from models import unchanged
from torcheer._torch.functions import facts
from torcheer._torch.functions.facts import draws_of

x = torch.arange(4.0)


@pytest.mark.parametrize("name", random_states.ENTRIES)
def test_a_pass_that_sets_random_states_is_valid_with_a_seed(name):
    entry = random_states.ENTRIES[name]
    model = entry.make()
    with unchanged(model):
        report = torcheer.validate_forward_pass(model, entry.given(), random_seed=4)
    assert report.is_valid, report


def test_a_recording_that_seeds_is_valid():
    with torcheer.recording() as history:
        for seed in (1, 2, 1):
            torch.manual_seed(seed)
            y = torch.rand(3) * 2
    assert history.validate().is_valid
    assert y is not None


def test_ordinary_draws_note_no_state():
    history = torcheer.log_forward_pass(nn.Sequential(nn.Dropout(), nn.RReLU(), nn.Dropout()), x)
    assert not history._log.random_states


def test_every_operator_that_torch_says_draws_is_known():
    backward = {"_cudnn_attention_backward", "_scaled_dot_product_cudnn_attention_backward"}
    backward |= {"_scaled_dot_product_efficient_attention_backward"}
    chosen_inside = {  # called by others that are known, on other devices, or without drawing
        *(
            "_cudnn_attention_forward",
            "_cudnn_attention_forward_no_dropout_inplace",
            "_cudnn_init_dropout_state",
            "_fill_mem_eff_dropout_mask_",
            "_fused_sdp_choice",
            "_lstm_mps",
        ),
        *("_flash_attention_forward_no_dropout_inplace", "_nested_tensor_softmax_with_shape", "_triton_scaled_dot_attention"),
        *("_scaled_dot_product_attention_math_for_mps", "_scaled_dot_product_fused_attention_overrideable"),
    }
    unknown = set()
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        packet = getattr(torch.ops.aten, name, None) if space == "aten" else None
        if packet is None or name in backward | chosen_inside:
            continue
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
        is_random = any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)
        if is_random and draws_of(facts(overloads[0]).plain_name) is None:
            unknown.add(name)
    assert not unknown


def test_calls_that_do_not_draw_are_told_apart():
    assert not draws_of("dropout")((x, 0.5, False), {})
    assert not draws_of("dropout")((x,), {"p": 0.5, "training": False})
    assert draws_of("dropout")((x, 0.5), {})
    assert not draws_of("rand")((3,), {"generator": torch.Generator()})
    assert draws_of("rand")((3,), {"generator": None})
    assert not draws_of("scaled_dot_product_attention")((x, x, x, None, 0.0, False), {})
    assert draws_of("scaled_dot_product_attention")((x, x, x), {"dropout_p": 0.1})
    assert draws_of("add") is None
