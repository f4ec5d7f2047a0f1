"""Projections that are written differently and agree in what flows on are no culprits; the operation after them is judged."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torcheer as tl

WIDTH, HEADS, BATCH, LENGTH = 16, 4, 2, 5
EACH = WIDTH // HEADS


def weights():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3 * WIDTH, WIDTH, generator=generator) * 0.4, torch.randn(3 * WIDTH, generator=generator) * 0.4


def linear(weight, bias):
    made = nn.Linear(weight.shape[1], weight.shape[0])
    made.weight.data, made.bias.data = weight.clone(), bias.clone()
    return made


def heads(tensor):
    return tensor.view(BATCH, LENGTH, HEADS, EACH).transpose(1, 2)


class Projections(nn.Module):
    """Queries, keys and values of each head; the subclasses write the same in other ways."""

    def __init__(self):
        super().__init__()
        self.make(*weights())


class Chunked(Projections):
    def make(self, weight, bias):
        self.qkv = linear(weight, bias)

    def forward(self, x):
        return [heads(part) for part in self.qkv(x).chunk(3, -1)]


class Permuted(Chunked):
    def forward(self, x):
        return list(self.qkv(x).view(BATCH, LENGTH, 3, HEADS, EACH).permute(2, 0, 3, 1, 4).unbind(0))


class Indexed(Chunked):
    def forward(self, x):
        found = self.qkv(x)
        return [found[..., i * WIDTH : (i + 1) * WIDTH].unflatten(-1, (HEADS, EACH)).transpose(1, 2) for i in range(3)]


class HeadsFirst(Projections):
    def make(self, weight, bias):
        weight = weight.view(3, HEADS, EACH, WIDTH).permute(1, 0, 2, 3).reshape(3 * WIDTH, WIDTH)
        self.qkv = linear(weight, bias.view(3, HEADS, EACH).permute(1, 0, 2).reshape(-1))

    def forward(self, x):
        return self.qkv(x).view(BATCH, LENGTH, HEADS, 3 * EACH).transpose(1, 2).chunk(3, -1)


class Three(Projections):
    def make(self, weight, bias):
        self.q, self.k, self.v = map(linear, weight.chunk(3), bias.chunk(3))

    def forward(self, x):
        return [heads(layer(x)) for layer in (self.q, self.k, self.v)]


class ThreeBackwards(Three):
    def forward(self, x):
        v, k, q = self.v(x), self.k(x), self.q(x)
        v, k, q = (part.view(BATCH, LENGTH, HEADS, EACH).swapaxes(1, 2).contiguous() for part in (v, k, q))
        return [q, k, v]


class KeysWithValues(Projections):
    def make(self, weight, bias):
        self.q, self.kv = linear(weight[:WIDTH], bias[:WIDTH]), linear(weight[WIDTH:], bias[WIDTH:])

    def forward(self, x):
        q = heads(self.q(x))
        kv = self.kv(x).view(BATCH, LENGTH, 2, HEADS, EACH).permute(2, 0, 3, 1, 4)
        return [q, kv[0], kv[1]]


class Convolved(Projections):
    def make(self, weight, bias):
        self.conv = nn.Conv1d(WIDTH, 3 * WIDTH, 1)
        self.conv.weight.data, self.conv.bias.data = weight[..., None].clone(), bias

    def forward(self, x):
        return [part.view(BATCH, HEADS, EACH, LENGTH).transpose(2, 3) for part in self.conv(x.transpose(1, 2)).chunk(3, 1)]


class Summed(Projections):
    def make(self, weight, bias):
        self.weight = nn.Parameter(weight.view(3, HEADS, EACH, WIDTH))
        self.bias = nn.Parameter(bias.view(3, 1, HEADS, 1, EACH))

    def forward(self, x):
        found = torch.einsum("btd,chkd->cbhtk", x, self.weight) + self.bias
        return [found[0], found[1], found[2]]


def planted(function, *args):
    return function(*args)  # the fault


class Attention(nn.Module):
    """Two blocks; the fault, if there is one, is in the second."""

    def __init__(self, projections, fault=None):
        super().__init__()
        self.fault = fault
        self.projections = nn.ModuleList([projections(), projections()])
        torch.manual_seed(1)
        self.outs = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2)])

    def forward(self, x):
        for fault, norm, projections, out in zip((None, self.fault), self.norms, self.projections, self.outs, strict=True):
            q, k, v = projections(norm(x))
            if fault == "a scale":
                q = planted(torch.mul, q, 1.3)
            elif fault == "heads in another order":
                v = planted(torch.flip, v, (1,))
            scores = q @ k.transpose(-2, -1) * EACH**-0.5
            weights = planted(F.softmax, scores, -2) if fault == "another dim" else F.softmax(scores, -1)
            x = x + out((weights @ v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x


OTHERS = (Permuted, Indexed, HeadsFirst, Three, ThreeBackwards, KeysWithValues, Convolved, Summed)
PAIRS = [*((Chunked, one) for one in OTHERS), *((one, ThreeBackwards) for one in OTHERS if one is not ThreeBackwards)]
pairs = pytest.mark.parametrize(("one", "other"), [*PAIRS, *((other, one) for one, other in PAIRS)])
x = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(3))


@pairs
def test_projections_that_are_written_differently_are_no_culprit(one, other):
    comparison = tl.compare_models(Attention(one), Attention(other), x)
    assert comparison
    assert comparison.culprit is None


@pytest.mark.parametrize("fault", ["a scale", "heads in another order", "another dim"])
@pairs
def test_a_fault_behind_projections_that_are_written_differently_is_named(one, other, fault):
    comparison = tl.compare_models(Attention(one), Attention(other, fault), x)
    assert comparison.verdict == "different"
    assert "the fault" in comparison.culprit.b.source.text, comparison


def test_inputs_that_are_swapped_are_told_from_copies_on_the_way():
    comparison = tl.compare_models(
        lambda x: x.sin().matmul((x.cos() + 2).T),
        lambda x: (x.cos() + 2).contiguous().clone().matmul(x.sin().contiguous().clone().T),
        torch.rand(3, 4),
    )
    assert comparison.verdict == "different"
    assert "clone" not in comparison.headline
    assert "contiguous" not in comparison.headline
