"""What a loop uses of layers that ran before it does not tell its rounds apart."""

from __future__ import annotations

import pytest
import torch
from test_recurrence import layers
from torch import nn

from catalogue.layers import linear
from models import log, made_of

x = torch.rand(2, 4)


def found(forward, **modules):
    """The layers without parameters of a model."""
    return [one for one in layers(log(made_of(forward, **modules), x)) if not one.startswith(("input", "output", "linear"))]


@pytest.mark.parametrize("times", [2, 3, 5])
def test_a_loop_over_the_outputs_of_two_layers(times):
    def forward(self, t):
        y, z, h = self.f(t), self.g(t), torch.zeros_like(t)
        for _ in range(times):
            h = torch.sigmoid(h + y) * z
        return h

    expected = ["zeroslike_1", f"add_1×{times}", f"sigmoid_1×{times}", f"mul_1×{times}"]
    assert found(forward, f=linear(), g=linear()) == expected


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_a_loop_over_the_outputs_of_three_layers_in_any_order(order):
    def forward(self, t):
        made = [one(t) for one in (self.a, self.b, self.c)]
        first, second, third = (made[place] for place in order)
        h = first
        for _ in range(3):
            h = torch.tanh(h * first - second) + third
        return h

    assert found(forward, a=linear(), b=linear(), c=linear()) == ["mul_1×3", "sub_1×3", "tanh_1×3", "add_1×3"]


def test_values_that_take_several_rounds_to_arrive():
    """`a` depends on `c` from the third round on."""

    def forward(self, t):
        a, b, c, w = self.f(t), self.g(t), self.h(t), self.i(t)
        for _ in range(4):
            a, b, c = torch.sin(a + b), torch.cos(b + c), torch.tanh(c * w)
        return a

    expected = ["add_1×4", "sin_1×4", "add_2×4", "cos_1×4", "mul_1×4", "tanh_1×4"]
    assert found(forward, f=linear(), g=linear(), h=linear(), i=linear()) == expected


def test_what_a_round_begins_with_and_does_not_carry_on():
    def forward(self, t):
        y, z = [one(t) for one in (self.f, self.g)]
        h, seen = y, []
        for _ in range(3):
            seen.append(torch.relu(h).neg())
            h = torch.sigmoid(h + y) * z
        return h + torch.stack(seen).sum(0)

    expected = ["relu_1×3", "neg_1×3", "add_1×3", "sigmoid_1×3", "mul_1×3", "stack_1", "sum_1", "add_2"]
    assert found(forward, f=linear(), g=linear()) == expected


@pytest.mark.parametrize("blocks", [2, 3])
def test_such_a_loop_in_a_loop_over_different_blocks_is_a_layer_for_each(blocks):
    def forward(self, t):
        for f, g in zip(self.fs, self.gs, strict=True):
            y, z = f(t), g(t)
            for _ in range(3):
                t = torch.sigmoid(t + y) * z
        return t

    fs, gs = (nn.ModuleList(linear() for _ in range(blocks)) for _ in range(2))
    expected = [f"{kind}_{n}×3" for n in range(1, blocks + 1) for kind in ("add", "sigmoid", "mul")]
    assert found(forward, fs=fs, gs=gs) == expected


def test_such_a_loop_in_a_block_that_is_called_twice():
    def inner(self, t):
        y, z, h = self.f(t), self.g(t), t
        for _ in range(3):
            h = torch.sigmoid(h + y) * z
        return h

    def outer(self, t):
        return self.block(self.block(t))

    block = made_of(inner, f=linear(), g=linear())
    assert found(outer, block=block) == ["add_1×6", "sigmoid_1×6", "mul_1×6"]


@pytest.mark.parametrize("times", [2, 3])
def test_a_loop_that_begins_with_what_no_layer_made(times):
    def forward(self, t):
        y, z = [one(t) for one in self.layers]
        h = torch.zeros_like(t)
        for _ in range(times):
            h = torch.sigmoid(h) * y + torch.tanh(h) * z
        return h

    kinds = ["sigmoid_1", "mul_1", "tanh_1", "mul_2", "add_1"]
    assert found(forward, layers=nn.ModuleList([linear(), linear()])) == ["zeroslike_1", *(f"{one}×{times}" for one in kinds)]


def test_a_loop_over_the_outputs_of_different_layers_is_no_loop():
    def forward(self, t):
        h = t
        for one in (self.f(t), self.g(t), self.h(t)):
            h = torch.tanh(h * one)
        return h

    expected = [f"{kind}_{n}" for n in (1, 2, 3) for kind in ("mul", "tanh")]
    assert found(forward, f=linear(), g=linear(), h=linear()) == expected


def test_a_function_of_queries_keys_and_values_is_no_loop():
    def forward(self, t):
        q, k, v = (torch.relu(one.reshape(4, 2)).neg() for one in (self.q(t), self.k(t), self.v(t)))
        return torch.softmax(q @ k.transpose(0, 1), -1) @ v

    kinds = ("reshape", "relu", "neg")
    assert found(forward, q=linear(), k=linear(), v=linear())[:9] == [f"{kind}_{n}" for n in (1, 2, 3) for kind in kinds]


def test_what_a_loop_began_with_beside_what_it_ended_with_is_no_loop():
    def forward(self, t):
        y, z = [one(t) for one in (self.f, self.g)]
        h = y
        for _ in range(3):
            h = torch.sigmoid(h + y) * z
        return sum(torch.relu(one) for one in (y, h))

    assert [one for one in found(forward, f=linear(), g=linear()) if one.startswith("relu")] == ["relu_1", "relu_2"]


def test_different_functions_by_turns_are_no_loop():
    """Each round uses what another layer made."""

    def forward(self, t):
        y, z, h = self.f(t), self.g(t), t
        for which in (0, 1):
            h = torch.sigmoid(h + (y, z)[which])
        return h

    assert found(forward, f=linear(), g=linear()) == ["add_1", "sigmoid_1", "add_2", "sigmoid_2"]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("levels", [2, 3, 4])
def test_a_pyramid_over_the_outputs_of_different_layers_adds_each_level_once(levels, order):
    def forward(self, t):
        sides = [one(t) for one in list(self.sides)[::order]][::order]
        h = sides[-1]
        for side in reversed(sides[:-1]):
            h = side + torch.relu(h)
        return h

    adds = [one for one in found(forward, sides=nn.ModuleList(linear() for _ in range(levels))) if one.startswith("add")]
    assert adds == [f"add_{n}" for n in range(1, levels)]
