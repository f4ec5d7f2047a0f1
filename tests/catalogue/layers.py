"""Programs by their layers: which operations are the same layer. `×n` stands behind a layer of n passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catalogue.entry import Entry
from models import made_of

ENTRIES: dict[str, Entry] = {}
LAYERS: dict[str, list[str]] = {}
"""What the layers of an entry are, without inputs and outputs."""


def two_rows() -> Tensor:
    return torch.rand(2, 4)


def linear() -> nn.Linear:
    return nn.Linear(4, 4)


def cell() -> nn.Module:
    return made_of(lambda self, t, h: torch.tanh(self.i2h(t) + self.h2h(h)), i2h=linear(), h2h=linear())


def program(layers: str, given: Callable[[], Any] = two_rows, **parts: Callable[[], Any]) -> Callable[[Any], Any]:
    """The forward of a module with these parts, or a function where there are none, and its layers."""

    def add(forward: Any) -> Any:
        name = forward.__name__.replace("_", " ")
        assert name not in ENTRIES
        LAYERS[name] = layers.split()
        ENTRIES[name] = Entry(
            lambda: made_of(forward, **{part: make() for part, make in parts.items()}) if parts else forward, given
        )
        return forward

    return add


@program("linear_1×4 add_1×4 mul_1×4", fc=linear)
def a_loop_over_one_module_and_plain_operations(self, t):
    for _ in range(4):
        t = self.fc(t)
        t = t + 1
        t = t * 2
    return t


@program("linear_1×2 relu_1×2", fc=linear)
def two_lines_that_do_the_same_to_a_repeated_layer(self, t):
    t = F.relu(self.fc(t))
    t = F.relu(self.fc(t))
    return t


@program("linear_1×4 relu_1×4", fc=linear, act=nn.ReLU)
def a_loop_over_one_module_and_one_activation_module(self, t):
    for _ in range(4):
        t = self.act(self.fc(t))
    return t


@program("zeros_1 getitem_1×5 linear_1×5 linear_2×5 add_1×5 tanh_1×5", given=lambda: torch.rand(5, 2, 4), cell=cell)
def a_recurrent_cell(self, t):
    h = torch.zeros(2, 4)
    for step in range(5):
        h = self.cell(t[step], h)
    return h


@program("sin_1×3 add_1×3")
def a_loop_without_parameters(t):
    for i in range(3):
        t = torch.sin(t) + i
    return t


@program("add_1 add_2")
def the_same_expression_on_two_lines(t):
    a = t + 1
    b = t + 1
    return a, b


@program("mul_1×2 linear_1×6 add_1×6", fc=linear)
def nested_loops(self, t):
    for _ in range(2):
        t = t * 2
        for _ in range(3):
            t = self.fc(t) + 1
    return t


@program("linear_1 abs_1 max_1 lt_1 linear_2", fc=linear, head=linear)
def early_exit(self, t):
    for _ in range(10):
        t = self.fc(t)
        if t.abs().max() < 1e6:
            break
        t = F.relu(t)
    return self.head(t)


@program("linear_1×3 sigmoid_1×3 tanh_1×3 mul_1×3", fc=linear)
def a_diamond_inside_a_loop(self, t):
    for _ in range(3):
        h = self.fc(t)
        t = torch.sigmoid(h) * torch.tanh(h)
    return t


@program("linear_1×2 relu_1×2 relu_2×2 add_1×2", fc=linear)
def a_diamond_written_out_twice(self, t):
    h = self.fc(t)
    t = torch.relu(h) + torch.relu(h)
    h = self.fc(t)
    t = torch.relu(h) + torch.relu(h)
    return t


@program("linear_1 add_1", fc=linear)
def a_loop_of_one_iteration(self, t):
    for _ in range(1):
        t = self.fc(t) + 1
    return t


@program("relu_1×3 linear_1×3", fc=linear)
def a_first_iteration_downstream_of_nothing_joins_the_rest(self, t):
    for _ in range(3):
        t = self.fc(torch.relu(t))
    return t


@program("relu_1 linear_1 relu_2 linear_2 relu_3 linear_3", fcs=lambda: nn.ModuleList([linear() for _ in range(3)]))
def a_first_iteration_stays_alone_when_the_rest_are_several(self, t):
    for fc in self.fcs:
        t = fc(torch.relu(t))
    return t


@program("linear_1 linear_2 relu_1 add_1 linear_3 relu_2 add_2", stem=linear, fcs=lambda: nn.ModuleList([linear(), linear()]))
def a_stem_and_a_loop_over_different_blocks(self, t):
    t = self.stem(t)
    for fc in self.fcs:
        t = torch.relu(fc(t)) + 1
    return t


@program("chunk_1×2 chunk_2×2 cat_1×2")
def outputs_of_one_call_are_layers_of_their_own(t):
    for _ in range(2):
        a, b = t.chunk(2, -1)
        t = torch.cat([b, a], -1)
    return t


@program("getitem_1×3 mul_1×3", p=lambda: nn.Parameter(torch.rand(3, 4)))
def a_loop_over_the_parts_of_one_parameter_is_one_layer(self, t):
    for number in range(3):
        t = t * self.p[number]
    return t
