"""Models that draw, and set the states from which is drawn."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.checkpoint import checkpoint

from catalogue.entry import Entry
from models import made_of


def four() -> Tensor:
    return torch.arange(4.0)


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


def draws_in_a_transform(x):
    return vmap(lambda t: F.dropout(t), randomness="different")(x.view(2, 2)).view(4) + torch.rand(4)


def seeds_in_a_checkpoint(x):
    def inner(t):
        torch.manual_seed(9)
        return F.dropout(t)

    return checkpoint(inner, x, use_reentrant=False) + torch.rand(4)


def draws_with_an_argument_seen_there_first(self, x):
    torch.manual_seed(6)
    return x + torch.bernoulli(self.odds[0])


def seeds_around_a_recurrent_layer(self, x):
    torch.manual_seed(0)
    y = self.lstm(x.expand(3, 1, 4))[0]
    torch.manual_seed(0)
    return y + torch.rand(4)


def draws_from_all(x):
    return x * random.random() + float(np.random.rand()) + torch.rand(4)


ENTRIES = {
    **{
        one.__name__.replace("_", " "): Entry(lambda one=one: one, four)
        for one in (
            *(seeds, seeds_twice_alike, seeds_between_dropouts, forks, sets_the_state, sets_the_state_of_the_generator),
            *(uses_a_generator_of_its_own, seeds_python_and_numpy, draws_where_nobody_watches, makes_modules),
            *(draws_in_a_transform, seeds_in_a_checkpoint, draws_from_all),
        )
    },
    "draws with an argument seen there first": Entry(
        lambda: made_of(draws_with_an_argument_seen_there_first, odds=[torch.full((4,), 0.5)]), four
    ),
    "seeds around a recurrent layer": Entry(
        lambda: made_of(seeds_around_a_recurrent_layer, lstm=nn.LSTM(4, 4, 2, dropout=0.5)), four
    ),
}
