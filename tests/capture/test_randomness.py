"""A pass that sets random states is proved like any other, and leaves them as they were."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap
from torch.utils.checkpoint import checkpoint

import torcheer
from torcheer._torch.functions import facts
from torcheer._torch.functions.facts import draws_of

x = torch.arange(4.0)


def seeds(x):
    torch.manual_seed(3)
    return x + torch.rand(4)


def seeds_twice_alike(x):
    torch.manual_seed(0)
    y = torch.rand(4)
    torch.manual_seed(0)
    return x + y + torch.rand(4)


def seeds_between_dropouts(x):
    y = F.dropout(x)
    torch.random.manual_seed(5)
    return F.dropout(y + 1) + torch.randn_like(x)


def forks(x):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        y = torch.rand(4)
    return x + y + torch.rand(4)


def sets_the_state(x):
    state = torch.get_rng_state()
    y = torch.rand(4)
    torch.set_rng_state(state)
    return x + y + torch.rand(4)


def sets_the_state_of_the_generator(x):
    torch.default_generator.manual_seed(11)
    y = torch.empty(4).normal_()
    torch.default_generator.set_state(torch.Generator().manual_seed(2).get_state())
    return x + y + torch.bernoulli(torch.full((4,), 0.5))


def uses_a_generator_of_its_own(x):
    generator = torch.Generator().manual_seed(7)
    y = torch.rand(4, generator=generator)
    generator.manual_seed(7)
    return x + y + torch.empty(4).normal_(generator=generator) + torch.randperm(4, generator=generator) + torch.rand(4)


def seeds_python_and_numpy(x):
    np.random.seed(0)
    random.seed(0)
    return x * random.random() + torch.from_numpy(np.random.rand(4)) + torch.rand(4)


def draws_where_nobody_watches(x):
    torch.nn.init.normal_(torch.empty(3))
    with torch._C.DisableTorchFunction():
        torch.rand(7)
    return x + torch.rand(4)


def makes_modules(x):
    torch.manual_seed(2)
    layers = [nn.Linear(4, 4), nn.Conv1d(1, 1, 3, padding=1), nn.Embedding(4, 4), nn.LSTM(4, 4)]
    torch.manual_seed(3)
    for init in (nn.init.xavier_normal_, nn.init.kaiming_normal_, nn.init.orthogonal_, nn.init.trunc_normal_):
        torch.manual_seed(4)
        init(layers[0].weight)
    return layers[0](x) + layers[1](x[None])[0] + layers[2](torch.tensor(1)) + layers[3](x[None])[0][0]


class Remembers(nn.Module):
    """Draws with an argument that is seen there for the first time."""

    def __init__(self):
        super().__init__()
        self.odds = [torch.full((4,), 0.5)]

    def forward(self, x):
        torch.manual_seed(6)
        return x + torch.bernoulli(self.odds[0])


def draws_in_a_transform(x):
    return vmap(lambda t: F.dropout(t), randomness="different")(x.view(2, 2)).view(4) + torch.rand(4)


def seeds_in_a_checkpoint(x):
    def inner(t):
        torch.manual_seed(9)
        return F.dropout(t)

    return checkpoint(inner, x, use_reentrant=False) + torch.rand(4)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4, 2, dropout=0.5)

    def forward(self, x):
        torch.manual_seed(0)
        y = self.lstm(x.expand(3, 1, 4))[0]
        torch.manual_seed(0)
        return y + torch.rand(4)


MODELS = [
    seeds,
    seeds_twice_alike,
    seeds_between_dropouts,
    forks,
    sets_the_state,
    sets_the_state_of_the_generator,
    uses_a_generator_of_its_own,
    seeds_python_and_numpy,
    draws_where_nobody_watches,
    makes_modules,
    draws_in_a_transform,
    seeds_in_a_checkpoint,
    Recurrent(),
    Remembers(),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: getattr(model, "__name__", "recurrent"))
@pytest.mark.parametrize("seed", [None, 4])
def test_a_pass_that_sets_random_states_is_valid(model, seed):
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    report = torcheer.validate_forward_pass(model, x, random_seed=seed)
    assert report.is_valid, report
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: getattr(model, "__name__", "recurrent"))
def test_a_replay_of_such_a_pass_draws_the_same(model):
    history = torcheer.log_forward_pass(model, x)
    assert torch.equal(history.replay()["output"].tensor_contents, history["output"].tensor_contents)


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
