"""A line that runs several times side by side, as `map` over queries, keys and values does, is no loop."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_recurrence import layers
from torch import nn

from catalogue.layers import linear
from models import log, made_of
from torcheer.graph import roll

x = torch.rand(2, 4)


class Heads(nn.Module):
    """The attention of ViT as it is often written: queries, keys and values are taken apart by `map`."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = nn.Linear(4, 12)

    def apart(self, t):
        return t.reshape(2, 2, 2).transpose(0, 1)

    def forward(self, t):
        q, k, v = map(self.apart, self.to_qkv(t).chunk(3, dim=-1))
        return (torch.softmax(q @ k.transpose(-2, -1), -1) @ v).transpose(0, 1).reshape(2, 4)


def test_map_over_queries_keys_and_values():
    history = log(Heads(), x)
    assert "purely feedforward" in str(history)
    assert [one for one in layers(history) if one.startswith("reshape")] == [f"reshape_{n}" for n in (1, 2, 3, 4)]
    assert not any(edge.is_feedback for edge in roll(history.graph).edges)


def test_map_over_queries_keys_and_values_in_a_shared_block_is_a_layer_for_each():
    """Three layers of as many passes as the block has calls."""

    def forward(self, t):
        return self.heads(self.heads(t))

    found = layers(log(made_of(forward, heads=Heads()), x))
    assert [one for one in found if one.startswith("reshape")] == [f"reshape_{n}×2" for n in (1, 2, 3, 4)]
    assert {one.rpartition("×")[2] for one in found} == {"2"}


@pytest.mark.parametrize("shared", [nn.ReLU(), nn.Sequential(nn.ReLU(), nn.Tanh()), F.relu])
def test_a_comprehension_over_a_shared_module_without_parameters(shared):
    history = log(
        made_of(
            lambda self, t: torch.cat([self.shared(part) for part in self.fc(t).split(2, dim=1)], 1),
            fc=nn.Linear(4, 6),
            shared=shared,
        ),
        x,
    )
    assert not history.is_recurrent
    assert len([one for one in history.operations if one.layer_type == "relu"]) == 3


def test_pooling_at_several_scales():
    history = log(
        nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            made_of(
                lambda self, t: torch.cat([t] + [F.interpolate(F.adaptive_avg_pool2d(t, n), size=8) for n in (1, 2, 4)], 1)
            ),
        ),
        torch.rand(1, 3, 8, 8),
    )
    assert not history.is_recurrent


def test_filling_a_mask_in_a_loop_is_no_recurrence():
    """A write of constants does not depend on what was there."""

    def forward(self, t):
        mask = t.new_zeros(2, 4)
        for row in range(2):
            for column in range(4):
                mask[row, column] = row + column
        for row in range(2):
            mask[row].fill_(row)
        return self.fc(t) + mask

    assert not log(made_of(forward, fc=linear()), x).is_recurrent


def test_new_tensors_made_in_a_comprehension():
    def forward(self, t):
        states = [torch.zeros(2, 4) for _ in range(3)]
        return self.fc(t) + torch.stack(states).sum(0)

    assert not log(made_of(forward, fc=linear()), x).is_recurrent


def test_two_lines_that_use_what_ran_side_by_side():
    def forward(self, t):
        a, b = [F.relu(one) for one in self.fc(t).chunk(2, 1)]
        a = torch.tanh(a)
        b = torch.tanh(b)
        return a * b

    assert not log(made_of(forward, fc=linear()), x).is_recurrent


def test_a_loop_over_what_was_computed_at_different_places():
    """As over different blocks: transformers joins masks in this way."""

    def forward(self, t):
        t = self.fc(t)
        both = torch.ones(2, 4)
        for one in (F.relu(t), torch.tanh(t), t > 0):
            both = both * one.to(both.device)
        return both

    history = log(made_of(forward, fc=linear()), x)
    assert not history.is_recurrent
    assert [one for one in layers(history) if one.startswith("mul")] == ["mul_1", "mul_2", "mul_3"]


def test_the_sum_of_different_things():
    def forward(self, t):
        t = self.fc(t)
        return sum([F.relu(t), torch.tanh(t), torch.sin(t)])

    assert not log(made_of(forward, fc=linear()), x).is_recurrent


def test_steps_of_a_sequence_that_feed_a_cell():
    def forward(self, t):
        h = torch.zeros(4)
        for n in range(2):
            h = torch.tanh(self.fc(F.relu(t[n]) * 2 + h))
        return h

    found = layers(log(made_of(forward, fc=linear()), x))
    assert found == ["zeros_1", "getitem_1×2", "relu_1×2", "mul_1×2", "add_1×2", "linear_1×2", "tanh_1×2"]


def test_what_each_round_of_a_loop_leaves_behind():
    def forward(self, t):
        found = []
        for _ in range(3):
            t = torch.sin(t)
            found.append(torch.cos(t) * 2)
        return torch.stack(found)

    assert layers(log(made_of(forward), x)) == ["sin_1×3", "cos_1×3", "mul_1×3", "stack_1"]


def test_results_written_into_a_tensor_round_by_round():
    def forward(self, t):
        out = torch.zeros(3, 2, 4)
        for n in range(3):
            t = torch.tanh(self.fc(t))
            out[n] = t
        return out

    assert layers(log(made_of(forward, fc=linear()), x)) == ["zeros_1", "linear_1×3", "tanh_1×3", "setitem_1×3"]


def test_a_recurrence_through_the_elements_of_a_tensor():
    def forward(self, t):
        t = self.fc(t)
        for n in range(3):
            t[:, n + 1] = t[:, n] * 2
        return t

    assert layers(log(made_of(forward, fc=linear()), x)) == ["linear_1", "getitem_1×3", "mul_1×3", "setitem_1×3"]


def test_scales_that_run_through_one_network():
    """Shared parameters: the steps between follow."""

    def forward(self, t):
        return sum(self.fc(F.relu(t * scale)).sum() for scale in (1, 2, 3))

    found = layers(log(made_of(forward, fc=linear()), x))
    assert found[:4] == ["mul_1×3", "relu_1×3", "linear_1×3", "sum_1×3"]


def test_only_what_feeds_a_shared_layer_follows_it():
    """Queries and keys are normalised by one layer with parameters, values are not."""

    def forward(self, t):
        q, k, v = [F.relu(one) for one in self.fc(t).chunk(3, 1)]
        return self.norm(q) + self.norm(k) + v

    found = layers(log(made_of(forward, fc=nn.Linear(4, 12), norm=nn.LayerNorm(4)), x))
    assert [one for one in found if one.startswith("relu")] == ["relu_1×2", "relu_2"]
    assert "layernorm_1×2" in found


def test_parts_side_by_side_in_a_loop_are_a_layer_each():
    def forward(self, t):
        for _ in range(3):
            t = torch.cat([F.relu(part) for part in self.fc(t).chunk(2, 1)], 1)
        return t

    found = layers(log(made_of(forward, fc=linear()), x))
    assert [one for one in found if one.startswith("relu")] == ["relu_1×3", "relu_2×3"]


@pytest.mark.parametrize("key", ["relu_1", "relu_2", "relu_2_7", "relu_3", 7, -3, lambda one: one.label == "relu_3_8"])
def test_what_is_kept_as_the_model_runs_is_what_its_label_means_afterwards(key):
    def forward(self, t):
        return torch.cat([F.relu(one) for one in self.fc(t).chunk(4, 1)], 1)

    net = made_of(forward, fc=linear())
    full, some = log(net, x), log(net, x, layers_to_save=[key])
    assert {one.label for one in some.saved} == {one.label for one in full.filter([key])}
    for one in some.saved:
        assert torch.equal(one.activation, full[one.label].activation)


def running(self, t):
    h = torch.zeros(4)
    for one in t:
        h = torch.tanh(h + one)
    return h


def running_over_parts(self, t):
    h = torch.zeros(4)
    for one in t.unbind(0):
        h = torch.tanh(one + h)
    return h


def running_over_kernels(self, t):
    kernel = torch.rand(4, 4)
    for n in range(2):
        t = F.relu(t @ kernel) + n
    return t


def fibonacci(self, t):
    other = t * 2
    for _ in range(6):
        t, other = other, t + other
    return other


def alternating(self, t):
    one, other = torch.sin(t), torch.cos(t)
    for n in range(4):
        t = t + (one if n % 2 else other)
    return t


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        (running, ["add_1×2", "tanh_1×2"]),
        (running_over_parts, ["add_1×2", "tanh_1×2"]),
        (running_over_kernels, ["matmul_1×2", "relu_1×2", "add_1×2"]),
        (fibonacci, ["add_1×6"]),
        (alternating, ["add_1×2", "add_2×2"]),
    ],
)
def test_loops_without_parameters(forward, expected):
    found = layers(log(made_of(forward), x))
    assert [one for one in found if "×" in one] == expected


def test_a_loop_over_a_list_of_inputs():
    def forward(self, *given):
        h = torch.zeros(4)
        for one in given:
            h = torch.tanh(h + one)
        return h

    assert layers(log(made_of(forward), x[0], x[1], x[0] + 1)) == ["zeros_1", "add_1×3", "tanh_1×3"]


def test_many_rounds_are_grouped_in_linear_time():
    def forward(self, t):
        for n in range(5_000):
            t = torch.sin(t) + F.relu(t[:1]) * n
        return t

    history = log(made_of(forward), x, layers_to_save="none")
    assert layers(history) == ["sin_1×5000", "getitem_1×5000", "relu_1×5000", "mul_1×5000", "add_1×5000"]


def test_the_condition_of_a_while_loop_is_one_layer():
    """Also the first time, when it looks at what the loop begins with."""

    def forward(t):
        while t.sum() < 30:
            t = t + 1
        return t

    history = log(forward, torch.zeros(2, 4))
    assert [(layer.layer_type, len(layer.passes)) for layer in history.layers][1:4] == [("sum", 5), ("lt", 5), ("add", 4)]


def test_the_condition_may_look_at_what_several_operations_carry_on():
    """The first round's condition looks at the input, later ones at what the last operation of a round made."""

    def forward(t):
        while t.sum() < 30 and t.max() < 100:
            t = t + 1
            t = t + t * 0.01
        return t

    history = log(forward, torch.zeros(2, 4))
    passes = [(layer.layer_type, len(layer.passes)) for layer in history.layers]
    assert passes[1:-1] == [("sum", 5), ("lt", 5), ("max", 4), ("lt", 4), ("add", 4), ("mul", 4), ("add", 4)]


@pytest.mark.parametrize("more", [torch.relu, lambda t: torch.relu(t).neg(), lambda t: torch.relu(t) + 1])
def test_a_loop_over_what_different_functions_made_is_no_loop_whatever_else_it_does(more):
    def forward(t):
        h = t
        for one in (torch.sin(t), torch.cos(t), torch.tan(t)):
            h = more(h * one)
        return h

    assert not any("×" in one for one in layers(log(forward, x)))


def test_a_loop_over_what_different_functions_made_in_a_shared_block_is_a_layer_for_each_round():
    def inner(self, t):
        t = h = self.fc(t)
        for one in (torch.sin(t), torch.cos(t)):
            h = torch.relu(h * one)
        return h

    def outer(self, t):
        return self.block(self.block(t))

    found = layers(log(made_of(outer, block=made_of(inner, fc=linear())), x))
    assert found == ["linear_1×2", "sin_1×2", "cos_1×2", "mul_1×2", "relu_1×2", "mul_2×2", "relu_2×2"]


@pytest.mark.parametrize("times", [2, 3])
def test_a_loop_that_carries_two_values_is_one_layer_for_each_step(times):
    def forward(a, b):
        for _ in range(times):
            a, b = torch.sin(a + b), torch.cos(b * 2)
        return a

    found = layers(log(lambda t: forward(t, t.exp()), x))
    assert [one for one in found if one.startswith(("add", "sin"))] == [f"add_1×{times}", f"sin_1×{times}"]
