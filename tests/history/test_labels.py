"""Labels number layers by type and overall, in execution order; orphans do not count."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models import Mlp, labels, log
from torcheer import InvalidArgument

x = torch.rand(3, 4)


def test_numbers_follow_execution():
    history = log(lambda t: (t + 1).relu() + t.relu(), x)
    assert history.layer_labels == ["input_1_0", "add_1_1", "relu_1_2", "relu_2_3", "add_2_4", "output_1_5"]


def test_orphans_are_left_out_unless_asked_for():
    def model(t):
        torch.ones(2) * 3
        return t + 1

    assert labels(log(model, x)) == ["add_1"]
    assert labels(log(model, x, keep_orphans=True)) == ["ones_1", "mul_1", "add_1"]


def test_what_a_shown_operation_used_is_shown():
    def model(t):
        t * (torch.ones(4) + 1)  # depends on the input, leads nowhere
        return t + 1

    history = log(model, x)
    assert labels(history) == ["ones_1", "add_1", "mul_1", "add_2"]
    assert history["mul_1"].parent_layers == ["input_1_0", "add_1_2"]


def test_a_model_that_ignores_its_input_shows_what_made_its_output():
    history = log(lambda t: torch.ones(2) * 3, x)
    assert labels(history) == ["ones_1", "mul_1"]
    assert not history["output"].has_input_ancestor


def test_what_depends_on_an_input_is_no_orphan_even_if_nothing_uses_it():
    def model(t):
        t.relu()
        return t + 1

    assert labels(log(model, x)) == ["relu_1", "add_1"]


def test_a_counter_of_batches_is_an_orphan():
    history = log(nn.Sequential(nn.BatchNorm1d(4)).train(), x)
    assert labels(history) == ["batchnorm_1"]
    assert history["batchnorm_1"].bottom_level_module == "0"


@pytest.mark.parametrize(
    ("form", "expected"),
    [("{type}{type_number}", ["input1", "linear1", "relu1", "linear2", "tanh1", "output1"]), ("L{number:02d}", ["L00", "L01"])],
)
def test_labels_take_another_form(form, expected):
    history = log(Mlp(), x, layer_label_format=form)
    assert history.layer_labels[: len(expected)] == expected
    assert history[expected[1]].tensor_shape == (3, 8)
    assert history["linear_1"].label == expected[1]


def test_keys_in_another_form_can_be_saved():
    history = log(Mlp(), x, layer_label_format="{type}{type_number}", layers_to_save=["linear2"])
    assert [one.label for one in history.saved] == ["linear2"]


@pytest.mark.parametrize("form", ["{type}", "{nothing}", "x", "{type"])
def test_a_form_that_cannot_tell_layers_apart_is_refused(form):
    with pytest.raises(InvalidArgument, match="layer_label_format"):
        log(Mlp(), x, layer_label_format=form)


def test_distances_and_flags():
    history = log(lambda t: (t + 1) * t + torch.ones(4), x)
    mul, ones = history["mul_1"], history["ones_1"]
    assert (mul.min_distance_from_input, mul.max_distance_from_input) == (1, 2)
    assert (mul.min_distance_from_output, mul.max_distance_from_output) == (2, 2)
    assert ones.min_distance_from_input is None
    assert ones.is_output_ancestor
    assert history["input"].is_input_layer
    assert history["output"].is_output_layer
    assert history["add_1"].sibling_layers == ["mul_1_2"]
    assert history["input"].child_layers == ["add_1_1", "mul_1_2"]
