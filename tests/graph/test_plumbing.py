"""What counts as plumbing, and what the page and pictures open at first."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import torcheer
from torcheer.graph import first_view, fold_plumbing, merge_calls, plumbing_of


def shown(program, *args) -> list[str]:
    """The titles of what is drawn without plumbing."""
    return [node.title for node in fold_plumbing(torcheer.log_forward_pass(program, args).graph).nodes]


def test_shape_functions_and_casts_fold_into_the_edge_they_stand_on():
    def program(x):
        return F.relu(x.reshape(2, 6).transpose(0, 1).double()).contiguous().sum()

    graph = fold_plumbing(torcheer.log_forward_pass(program, torch.ones(3, 4)).graph)
    assert [node.title for node in graph.nodes] == ["x", "relu", "sum", "output"]
    assert [(edge.source, edge.target, edge.positions) for edge in graph.edges][0] == (
        "input_1_0:1",
        "relu_1_4:1",
        ("args[0]",),
    )


def test_a_selection_that_drops_values_of_the_data_is_computed_with():
    assert shown(lambda x: x.exp()[:, -1].exp(), torch.ones(2, 3)) == ["x", "exp", "getitem", "exp", "output"]
    assert shown(lambda x: x.exp()[:, None].exp(), torch.ones(2, 3)) == ["x", "exp", "exp", "output"]


def test_values_that_are_joined_are_drawn_unless_nothing_joins_them():
    assert shown(lambda x: torch.cat([x.exp(), x.sin()]), torch.ones(2)) == ["x", "exp", "sin", "cat", "output"]
    assert shown(lambda x: torch.cat([torch.empty(0), x.exp()]).sin(), torch.ones(2)) == ["x", "exp", "sin", "output"]


def test_a_dropout_is_drawn_only_where_it_drops():
    x = torch.ones(2)
    assert shown(lambda x: F.dropout(x.exp(), 0.5, False).sin(), x) == ["x", "exp", "sin", "output"]
    assert shown(lambda x: F.dropout(x.exp(), 0.5, True).sin(), x) == ["x", "exp", "dropout", "sin", "output"]


def test_a_mask_that_leads_to_several_operations_is_one_chip():
    def program(x, attention_mask):
        mask = (1 - attention_mask[:, None].float()) * -1e9
        for _ in range(3):
            x = (x + mask).softmax(-1)
        return x

    history = torcheer.log_forward_pass(program, (torch.rand(2, 4), torch.ones(1, 4, dtype=torch.long)))
    found = plumbing_of(history.graph)
    assert [(chip.title, len(chip.nodes)) for chip in found.chips] == [("mask · 4 operations", 4)]
    graph = fold_plumbing(history.graph)
    assert [node.kind for node in graph.nodes].count("plumbing") == 1
    assert len(graph.nodes) == 2 + 1 + 6 + 1


def test_what_steers_by_whole_numbers_is_plumbing_and_a_choice_from_data_is_not():
    embedding = nn.Embedding(9, 4)

    def program(tokens):
        positions = torch.arange(tokens.shape[1])[None]
        x = embedding(tokens) + embedding(positions)
        best = x.sum(-1).argmax(-1)
        return x.gather(1, best[:, None, None].expand(-1, 1, 4))

    assert shown(program, torch.zeros(1, 3, dtype=torch.long)) == [
        *("tokens", "embedding", "embedding", "add", "sum", "argmax", "gather", "output")
    ]


def test_there_is_no_plumbing_where_nothing_else_would_be_left_and_where_the_pass_failed():
    assert shown(lambda x: x.reshape(4).t(), torch.ones(2, 2)) == ["x", "reshape", "t", "output"]
    assert shown(lambda x: x + 1, torch.ones(2, dtype=torch.long)) == ["x", "add", "output"]


def test_all_tensors_of_one_call_are_one_node():
    lstm = nn.LSTM(3, 4)
    graph = merge_calls(fold_plumbing(torcheer.log_forward_pass(lambda x: lstm(x)[0].split(2), torch.ones(4, 1, 3)).graph))
    assert [(node.title, node.num_operations) for node in graph.nodes if node.kind == "operation"] == [
        ("lstm", 3),
        ("split", 2),
    ]


class Wrapper(nn.Module):
    """A model around its body: an embedding, a stack of blocks, a norm; and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(9, 4), *(Block() for _ in range(5)), nn.LayerNorm(4))
        self.head = nn.Linear(4, 9)

    def forward(self, tokens):
        return self.head(self.body(tokens))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


def test_wrappers_are_open_at_first_and_stacks_are_closed():
    history = torcheer.log_forward_pass(Wrapper(), torch.zeros(1, 3, dtype=torch.long))
    view = first_view(history.graph)
    assert view.open == ("body:1",)
    assert view.closed == tuple(f"body.{number}:1" for number in range(1, 6))


def test_a_stack_that_is_all_there_is_opens():
    history = torcheer.log_forward_pass(nn.Sequential(*(Block() for _ in range(30))), torch.ones(1, 4))
    assert first_view(history.graph).open == ("0:1",)
