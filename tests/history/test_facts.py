"""A fact about an operation is declared once; layers, tables, printed text and the page's panel follow from the declaration."""

from __future__ import annotations

import torch
from torch import nn

import torcheer
from torcheer.log.operation import OperationFacts, facts_of
from torcheer.page import payload_of

COLUMNS = (
    "label type pass shape dtype device bytes saved function seconds gradfunc in_place parents children params num_params "
    "module modules_exited source"
).split()


def autocast_linear() -> torcheer.ModelHistory:
    with torch.autocast("cpu", torch.bfloat16):
        return torcheer.log_forward_pass(nn.Linear(2, 3), torch.rand(1, 2))


def test_every_fact_has_a_type_and_a_sentence():
    for cls in (torcheer.ModelHistory, torcheer.Operation, torcheer.Layer, torcheer.Module, torcheer.Call):
        for fact in facts_of(cls):
            assert fact.sentence or cls is torcheer.Layer, (cls, fact.name)
            assert fact.type or cls is torcheer.Layer, (cls, fact.name)


def test_columns_of_tables_are_those_that_facts_declare_in_their_order():
    (row, *_) = torcheer.log_forward_pass(nn.Linear(2, 3), torch.rand(1, 2)).to_rows()
    assert list(row) == COLUMNS == [fact.column for fact in facts_of(OperationFacts) if fact.column is not None]


def test_a_layer_with_one_pass_has_every_fact_of_its_operation():
    history = torcheer.log_forward_pass(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.rand(1, 2))
    layer, operation = history["relu_1"], history.operations[2]
    differing = {"lookup_keys", "grad", "layer", "passes", "parents", "children"}  # of a layer; not asked for; layers
    for fact in facts_of(torcheer.Operation):
        if fact.name not in differing:
            assert repr(getattr(layer, fact.name)) == repr(getattr(operation, fact.name)), fact.name


def test_a_fact_with_a_row_is_printed_and_shown_on_the_page():
    history = autocast_linear()
    assert history["linear_1"].autocast == "bfloat16 on cpu"
    assert history["linear_1"].activation.dtype is torch.bfloat16
    assert "\n\tAutocast: bfloat16 on cpu\n" in str(history["linear_1"])
    (node,) = [node for node in payload_of(history)["nodes"] if node["type"] == "linear"]
    assert node["rows"] == [("Autocast", "bfloat16 on cpu")]


def test_a_layer_prints_the_rows_that_its_passes_have():
    layer = nn.Linear(3, 3)

    def twice(x):
        with torch.autocast("cpu", torch.bfloat16):
            x = layer(x)
        with torch.autocast("cpu", torch.float16):
            return layer(x)

    history = torcheer.log_forward_pass(twice, torch.rand(1, 3))
    assert "\tAutocast: bfloat16 on cpu, float16 on cpu\n" in str(history["linear_1"])


def test_a_fact_without_a_value_has_no_row():
    history = torcheer.log_forward_pass(nn.Linear(2, 3), torch.rand(1, 2))
    assert history["linear_1"].autocast is None
    assert "Autocast" not in str(history["linear_1"])
    assert all("rows" not in node for node in payload_of(history)["nodes"])
