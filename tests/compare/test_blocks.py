"""Blocks that only one of two models runs, or that run in another order, are named as blocks."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.compare.porting_models import Decoder
from torch import nn

import torcheer as tl
from torcheer.replay import machine
from torcheer.replay.machine import call_again


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Decoder().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def ids():
    return torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))


class Ordered(Decoder):
    """A decoder that runs its blocks in any order."""

    order: tuple[int, ...] = ()

    def forward(self, ids):
        x = self.tokens(ids)
        for place in self.order:
            x = self.blocks[place](x)
        return self.head(self.norm(x))


def ordered(model, *order):
    other = Ordered(depth=len(model.blocks)).eval().requires_grad_(False)
    other.load_state_dict(model.state_dict())
    other.order = order
    return other


def first_operation(history, address):
    return min((op for op in history.operations if f"{address}:1" in op.containing_modules), key=lambda op: op._number).label


@pytest.mark.parametrize("place", [0, 1, 4, 7])
def test_a_deleted_block_is_named_by_its_address_and_first_operation(model, ids, place):
    other = copy.deepcopy(model)
    del other.blocks[place]
    comparison = tl.compare_models(model, other, ids)
    culprit = comparison.culprit
    assert culprit.module == f"blocks.{place}"
    assert culprit.modules == (f"blocks.{place}",)
    assert culprit.label == first_operation(comparison.a, f"blocks.{place}")
    assert culprit.b is None
    count = sum(f"blocks.{place}:1" in op.containing_modules for op in comparison.a.operations)
    expected = f"different: 'blocks.{place}' runs in a and not in b ({count} operations, the first is {culprit.label})"
    assert comparison.headline == expected
    assert len(comparison.culprits) == 1


@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_skipped_block_is_named(model, ids, place):
    other = copy.deepcopy(model)
    other.skipped = place
    culprit = tl.compare_models(model, other, ids).culprit
    assert culprit.modules == (f"blocks.{place}",)
    assert culprit.a.layer_type == "layernorm"


def test_two_neighbouring_deleted_blocks_are_named_together(model, ids):
    other = copy.deepcopy(model)
    del other.blocks[4], other.blocks[3]
    comparison = tl.compare_models(model, other, ids)
    assert comparison.culprit.modules == ("blocks.3", "blocks.4")
    assert comparison.headline.startswith("different: 'blocks.3' and 'blocks.4' run in a and not in b (")


def test_two_deleted_blocks_are_two_culprits(model, ids):
    other = copy.deepcopy(model)
    del other.blocks[6], other.blocks[2]
    comparison = tl.compare_models(model, other, ids)
    assert [one.modules for one in comparison.culprits] == [("blocks.2",), ("blocks.6",)]


@pytest.mark.parametrize("place", [0, 3, 8])
def test_an_inserted_block_is_named(model, ids, place):
    other = copy.deepcopy(model)
    torch.manual_seed(5)
    other.blocks.insert(place, copy.deepcopy(Decoder(depth=1).blocks[0]))
    comparison = tl.compare_models(model, other.eval(), ids)
    assert comparison.culprit.a is None
    assert comparison.culprit.module == f"blocks.{place}"
    assert comparison.culprit.label == first_operation(comparison.b, f"blocks.{place}")
    assert "runs in b and not in a" in comparison.headline


def test_a_duplicated_block_is_named_by_its_second_call(model, ids):
    comparison = tl.compare_models(model, ordered(model, 0, 1, 2, 3, 3, 4, 5, 6, 7), ids)
    assert comparison.culprit.a is None
    assert comparison.culprit.modules == ("blocks.3:2",)
    assert comparison.culprit.module == "blocks.3"
    assert "'blocks.3:2' runs in b and not in a" in comparison.headline


def test_blocks_that_run_in_another_order_are_named(model, ids):
    comparison = tl.compare_models(model, ordered(model, 0, 1, 2, 4, 3, 5, 6, 7), ids)
    assert comparison.culprit.module in ("blocks.3", "blocks.4")
    assert f"'{comparison.culprit.module}' runs at another place in b" in comparison.headline
    assert not comparison.parameters


def test_blocks_whose_weights_are_swapped_are_told_by_their_parameters(model, ids):
    other = copy.deepcopy(model)
    other.blocks[2], other.blocks[5] = other.blocks[5], other.blocks[2]
    comparison = tl.compare_models(model, other, ids)
    assert comparison.culprit.module.startswith("blocks.2.")
    assert comparison.culprit.is_explained_by_parameters
    looks = {one.name: one.looks for one in comparison.parameters}
    assert looks["blocks.2.up.weight"] == "like blocks.5.up.weight of a"
    assert looks["blocks.5.up.weight"] == "like blocks.2.up.weight of a"


def test_a_deleted_head_is_named(model, ids):
    other = copy.deepcopy(model)
    other.head = nn.Identity()
    comparison = tl.compare_models(model, other, ids)
    assert comparison.culprit.module == "head"
    assert comparison.culprit.b is None
    assert comparison.headline == f"different: {comparison.culprit.label} in 'head' runs in a and not in b"
    backwards = tl.compare_models(other, model, ids)
    assert (backwards.culprit.module, backwards.culprit.a) == ("head", None)


class Residual(nn.Module):
    def __init__(self, adds=(True, True, True)):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.adds = nn.ModuleList(nn.Linear(6, 6) for _ in adds), adds

    def forward(self, x):
        for layer, is_added in zip(self.layers, self.adds, strict=True):
            x = x + layer(x).tanh() if is_added else layer(x).tanh()
        return x


def test_an_output_that_only_one_returns_is_named_unless_both_compute_it():
    class Two(nn.Module):
        def __init__(self, returned):
            super().__init__()
            torch.manual_seed(0)
            self.body, self.first, self.second, self.returned = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(5, 3), returned

        def forward(self, x):
            hidden = self.body(x).relu()
            return {
                "both": lambda: (self.first(hidden), self.second(hidden)),
                "one": lambda: self.first(hidden),
                "more": lambda: (self.first(hidden), hidden),
            }[self.returned]()

    x = torch.rand(2, 6)
    comparison = tl.compare_models(Two("both"), Two("one"), x)
    assert (comparison.culprit.module, comparison.culprit.b) == ("second", None)
    assert comparison.headline.endswith("runs in a and not in b; a returns 2 tensors, b returns 1")
    culprit = tl.compare_models(Two("one"), Two("both"), x).culprit
    assert (culprit.module, culprit.a) == ("second", None)
    same = tl.compare_models(Two("more"), Two("one"), x)
    assert same.verdict == "equal"
    assert "a returns 2 tensors, b returns 1" in str(same)


def test_another_width_is_named_where_it_begins():
    def model(width):
        return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))

    culprit = tl.compare_models(model(5), model(7), torch.rand(3, 6)).culprits[-1]
    assert culprit.module == "2"
    assert "its shape is (3, 5) in a and (3, 7) in b" in str(culprit)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_deleted_residual_is_named(place):
    other = Residual(tuple(number != place for number in range(3)))
    culprit = tl.compare_models(Residual(), other, torch.rand(4, 6)).culprit
    assert culprit.b is None
    assert culprit.label.startswith(f"add_{place + 1}")


def test_a_block_of_equal_weights_is_named_too(ids):
    torch.manual_seed(0)
    model = Decoder(depth=1).eval()
    model.blocks = nn.ModuleList(copy.deepcopy(model.blocks[0]) for _ in range(5))
    other = copy.deepcopy(model)
    del other.blocks[2]
    culprit = tl.compare_models(model, other, ids).culprit
    assert len(culprit.modules) == 1
    assert culprit.modules[0].startswith("blocks.")


def test_a_deleted_block_costs_two_runs_and_makes_only_the_calls_after_it_twice(model, ids, monkeypatch):
    made = []

    def counted(record, args, kwargs):
        made.append(record.number)
        return call_again(record, args, kwargs)

    monkeypatch.setattr(machine, "call_again", counted)
    other = copy.deepcopy(model)
    del other.blocks[6]
    a, b = tl.log_forward_pass(model, ids), tl.log_forward_pass(other, ids)
    tl.compare(a, b)
    assert len(made) < 1.5 * len(b.operations)
