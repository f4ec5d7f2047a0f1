"""How many operations a model has is the same number wherever it is said."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch import nn

import torcheer
from models import Branching, log
from torch_vis import track_computational_graph_execution
from torcheer.demo import AlexNet, Gpt2, SimpleRecurrent
from torcheer.graph import fold_repeats, roll
from torcheer.pictures import make_picture, picture_options

MODELS = {
    "alexnet": lambda: (AlexNet(num_classes=10).eval(), torch.rand(1, 3, 64, 64)),
    "recurrent": lambda: (SimpleRecurrent(), torch.rand(1, 5)),
    "decoder": lambda: (Gpt2(50, 12, 16, 2, 4), torch.randint(50, (2, 7))),
    "branching": lambda: (Branching(), torch.rand(2, 4)),
    "one layer": lambda: (nn.Linear(2, 2), torch.rand(1, 2)),
}


@pytest.fixture(params=MODELS, scope="module")
def history(request) -> torcheer.ModelHistory:
    torch.manual_seed(0)
    return log(*MODELS[request.param]())


def said(text: str) -> list[int]:
    """The numbers of operations in a text."""
    return [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) operations\b", text)]


def test_pictures_pages_texts_and_proofs_say_the_same(history):
    """`num_operations`: every operation, the inputs and the outputs, each pass on its own."""
    count = history.num_operations
    assert count == len(history.operations) == history.graph.num_operations
    assert f"{count} tensors" in str(history)
    payload = json.loads(history.to_json())
    assert payload["facts"]["operations"] == len(payload["nodes"]) == count
    assert said(str(history.validate())) == [count]
    assert f"/{count}:" in str(history.operations[0])


@pytest.mark.parametrize("options", [{}, {"nesting_depth": 1}, {"rolled": True}, {"fold_repeats": True}])
def test_a_picture_says_how_many_operations_it_stands_for(history, options):
    """However much is folded, rolled up or collapsed."""
    drawn = make_picture(history.graph, picture_options(options))
    (folded,) = said(" ".join(note for note in drawn.notes if "plumbing" in note)) or [0]
    found = said(" ".join(note for note in drawn.notes if "plumbing" not in note))
    assert all(count in (history.num_operations, history.num_operations - folded) for count in found)
    assert drawn.graph.num_operations == history.num_operations - folded
    assert history.num_operations in said(drawn.svg)


def test_views_that_leave_nothing_out_keep_the_number(history):
    for view in (roll, fold_repeats):
        assert view(history.graph).num_operations == history.num_operations


def test_torch_vis_says_the_same():
    model, x = nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.ones(1, 2)
    tracker = track_computational_graph_execution(model, x)
    assert tracker.history.graph.num_operations == log(model, x).num_operations == 4
