"""Blocks that are written in other ways: gates fused or split, grouped queries, patches cut by convolutions or by views."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torcheer as tl

WIDTH, INNER, HEADS, GROUPS, BATCH, LENGTH = 16, 32, 4, 2, 2, 5
EACH = WIDTH // HEADS
generator = torch.Generator().manual_seed(0)
QUERIES, KEYS, VALUES = (torch.randn(rows, WIDTH, generator=generator) * 0.4 for rows in (WIDTH, GROUPS * EACH, GROUPS * EACH))
GATE, UP = (torch.randn(INNER, WIDTH, generator=generator) * 0.4 for _ in range(2))
DOWN = torch.randn(WIDTH, INNER, generator=generator) * 0.4
PATCH = torch.randn(WIDTH, 3, 4, 4, generator=generator) * 0.2
tokens = torch.randn(BATCH, LENGTH, WIDTH, generator=generator)
image = torch.randn(2, 3, 8, 8, generator=generator)


def linear(*weights):
    weight = torch.cat(weights)
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight.data = weight.clone()
    return made


def heads(tensor, count=HEADS):
    return tensor.view(BATCH, LENGTH, count, EACH).transpose(1, 2)


def planted(function, *args):
    return function(*args)  # the fault


class Block(nn.Module):
    def __init__(self, fault=None):
        super().__init__()
        self.fault, self.norm = fault, nn.LayerNorm(WIDTH)
        torch.manual_seed(1)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.make()


# Gated layers -----------------------------------------------------------------------------------------------------------


class Gated(Block):
    def make(self):
        self.gate, self.up, self.down = linear(GATE), linear(UP), linear(DOWN)

    def both(self, x):
        return self.gate(x), self.up(x)

    def forward(self, x):
        return x + self.inner(self.norm(x))

    def inner(self, x):
        gate, up = self.both(x)
        if self.fault == "a scale":
            gate = planted(torch.mul, gate, 1.2)
        if self.fault == "rolled":
            up = planted(torch.roll, up, 1, -1)
        return self.down((planted(F.gelu, gate) if self.fault == "a function" else F.silu(gate)) * up)


class UpFirst(Gated):
    def both(self, x):
        return (self.up(x), self.gate(x))[::-1]


class Fused(Gated):
    def make(self):
        self.joined, self.down = linear(GATE, UP), linear(DOWN)

    def both(self, x):
        return self.joined(x).chunk(2, -1)


class FusedUpFirst(Fused):
    def make(self):
        self.joined, self.down = linear(UP, GATE), linear(DOWN)

    def both(self, x):
        return self.joined(x).split(INNER, -1)[::-1]


class Interleaved(Fused):
    def make(self):
        self.joined, self.down = linear(torch.stack([GATE, UP], 1).flatten(0, 1)), linear(DOWN)

    def both(self, x):
        found = self.joined(x)
        return found[..., ::2], found[..., 1::2]


class Convolved(Fused):
    def make(self):
        self.joined, self.down = nn.Conv1d(WIDTH, 2 * INNER, 1, bias=False), linear(DOWN)
        self.joined.weight.data = torch.cat([GATE, UP])[..., None]

    def both(self, x):
        return self.joined(x.transpose(1, 2)).transpose(1, 2).chunk(2, -1)


class Flat(Gated):
    def forward(self, x):
        return x + self.inner(self.norm(x).reshape(-1, WIDTH)).view(x.shape)


# Grouped queries --------------------------------------------------------------------------------------------------------


class Grouped(Block):
    def make(self):
        self.queries, self.keys, self.values = linear(QUERIES), linear(KEYS), linear(VALUES)

    def parts(self, x):
        return heads(self.queries(x)), heads(self.keys(x), GROUPS), heads(self.values(x), GROUPS)

    def forward(self, x):
        q, k, v = self.parts(self.norm(x))
        if self.fault == "a scale":
            q = planted(torch.mul, q, 1.3)
        if self.fault == "other heads":
            k, v = planted(torch.Tensor.repeat, k, 1, 2, 1, 1), v.repeat_interleave(2, 1)
        else:
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        weights = (q @ k.transpose(-2, -1) * EACH**-0.5).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))


class GroupedFused(Grouped):
    def make(self):
        self.joined = linear(QUERIES, KEYS, VALUES)

    def parts(self, x):
        q, k, v = self.joined(x).split([WIDTH, GROUPS * EACH, GROUPS * EACH], -1)
        return heads(q), heads(k, GROUPS), heads(v, GROUPS)


class ByGroup(Grouped):
    def make(self):
        parts = QUERIES.view(GROUPS, -1, WIDTH), KEYS.view(GROUPS, -1, WIDTH), VALUES.view(GROUPS, -1, WIDTH)
        self.joined = linear(torch.cat(parts, 1).flatten(0, 1))

    def parts(self, x):
        q, k, v = self.joined(x).view(BATCH, LENGTH, GROUPS, HEADS // GROUPS + 2, EACH).split([HEADS // GROUPS, 1, 1], 3)
        return q.reshape(BATCH, LENGTH, HEADS, EACH).transpose(1, 2), k.squeeze(3).transpose(1, 2), v.squeeze(3).transpose(1, 2)


class AllHeads(GroupedFused):
    def parts(self, x):
        return heads(self.joined(x), HEADS + 2 * GROUPS).split([HEADS, GROUPS, GROUPS], 1)


# Patches ----------------------------------------------------------------------------------------------------------------


class Patches(Block):
    def make(self):
        self.cut = nn.Conv2d(3, WIDTH, 4, 4, bias=False)
        self.cut.weight.data = PATCH.clone()

    def patches(self, x):
        return self.cut(x).flatten(2).transpose(1, 2)

    def forward(self, x):
        found = self.patches(x)
        found = self.norm(planted(torch.tanh, found) if self.fault == "a function" else found)
        return self.out(planted(torch.amax, found, 1) if self.fault == "a maximum" else found.mean(1))


class Viewed(Patches):
    def make(self):
        self.cut = linear(PATCH.flatten(1))

    def patches(self, x):
        return self.cut(x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(2, 4, 48))


class Unfolded(Viewed):
    def patches(self, x):
        return self.cut(F.unfold(x, 4, stride=4).transpose(1, 2))


KINDS = (
    (tokens, ("a scale", "a function", "rolled"), (Gated, UpFirst, Fused, FusedUpFirst, Interleaved, Convolved, Flat)),
    (tokens, ("a scale", "other heads"), (Grouped, GroupedFused, ByGroup, AllHeads)),
    (image, ("a function", "a maximum"), (Patches, Viewed, Unfolded)),
)
PAIRS = [(x, faults, one, other) for x, faults, kinds in KINDS for one in kinds for other in kinds if one is not other]


@pytest.mark.parametrize(("x", "faults", "one", "other"), PAIRS, ids=lambda one: getattr(one, "__name__", ""))
def test_blocks_that_are_written_differently_agree_and_a_fault_in_them_is_named(x, faults, one, other):
    comparison = tl.compare_models(one(), other(), x)
    assert comparison
    assert comparison.culprit is None
    for fault in faults:
        comparison = tl.compare_models(one(), other(fault), x)
        assert comparison.verdict == "different"
        assert "the fault" in comparison.culprit.b.source.text, comparison
