"""Which node of one model corresponds to which node of the other, on a page of two models that were not compared."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

import pytest
import torch
from tests.compare.porting_models import Decoder
from torch import Tensor, nn
from torch.nn import functional as F

from torcheer import InvalidArgument, log_forward_pass
from torcheer.page import make_page, payload_of
from torcheer.page.two_models import with_partners


def matched(one, other, x, y=None, **options):
    """The nodes of both models by key, as pairs; None where a model has no such node."""
    left = payload_of(log_forward_pass(one, x), **options)
    right = payload_of(log_forward_pass(other, x if y is None else y), **options)
    partners = with_partners(left, right)["partners"]
    keys = [[node["key"] for node in payload["nodes"]] for payload in (left, right)]
    pairs = [(key, keys[1][to] if to >= 0 else None) for key, to in zip(keys[0], partners, strict=True)]
    return [*pairs, *((None, key) for number, key in enumerate(keys[1]) if number not in partners)]


def alone(pairs):
    return [(one, other) for one, other in pairs if one is None or other is None]


@pytest.fixture
def decoder():
    torch.manual_seed(0)
    return Decoder(depth=5).eval().requires_grad_(False)


@pytest.fixture
def ids():
    return torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))


def test_every_node_of_a_model_is_its_own_partner(decoder, ids):
    assert all(one == other for one, other in matched(decoder, copy.deepcopy(decoder), ids))


def test_an_operation_that_was_put_in_has_no_partner_and_what_follows_has():
    layers = [nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)]
    pairs = matched(nn.Sequential(*layers), nn.Sequential(*layers[:2], nn.LayerNorm(4), layers[2]), torch.rand(2, 4))
    assert alone(pairs) == [(None, "layernorm_1_3:1")]
    assert ("linear_2_3:1", "linear_2_4:1") in pairs


@pytest.mark.parametrize("options", [{}, {"max_bytes": 1}])
def test_a_function_in_the_place_of_another_is_its_partner(options):
    one, other = (nn.Sequential(nn.Linear(4, 4), made(), nn.Linear(4, 4)) for made in (nn.ReLU, nn.GELU))
    assert ("relu_1_2:1", "gelu_1_2:1") in matched(one, other, torch.rand(2, 4), **options)
    pairs = matched(lambda x: F.relu(x.sin()).cos(), lambda x: F.gelu(x.sin()).cos(), torch.rand(2, 4), **options)
    assert ("relu_1_2:1", "gelu_1_2:1") in pairs
    assert not alone(pairs)


def test_two_operations_in_the_place_of_one_have_no_partner():
    pairs = matched(lambda x: F.relu(x.sin()).cos(), lambda x: (x.sin().tanh() * 3).cos(), torch.rand(2, 4))
    assert alone(pairs) == [("relu_1_2:1", None), (None, "tanh_1_2:1"), (None, "mul_1_3:1")]


def test_the_blocks_around_a_missing_block_keep_their_partners_although_their_numbers_change(decoder, ids):
    other = copy.deepcopy(decoder)
    del other.blocks[2]
    left = log_forward_pass(decoder, ids)
    pairs = dict(matched(decoder, other, ids))
    for operation in left.operations:
        place = operation.containing_module or ""
        is_missing = any(name.startswith("blocks.2:") for name in operation.containing_modules)
        assert (pairs[f"{operation.label}:1"] is None) is is_missing, place


def test_modules_of_other_names_are_found_by_their_parameters(decoder, ids):
    other = copy.deepcopy(decoder)
    other.blocks = nn.ModuleList(nn.Sequential(block) for block in other.blocks)
    other.norm, other.head = nn.Sequential(other.norm), nn.Sequential(other.head)
    assert not alone(matched(decoder, other, ids))


def test_a_model_corresponds_to_itself_with_another_batch_and_width(decoder, ids):
    assert not alone(matched(decoder, decoder, ids, ids[:1, :5]))
    narrow, wide = (nn.Sequential(nn.Linear(4, size), nn.ReLU(), nn.Linear(size, 2)) for size in (8, 16))
    assert not alone(matched(narrow, wide, torch.rand(2, 4)))


def test_a_long_model_without_modules_corresponds_to_itself_without_a_few_operations():
    """Every function runs often, and nothing but the order tells its runs apart."""

    def chain(missing: set[int]) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            for number in sorted({*range(700)} - missing):
                x = (torch.sin, torch.relu, torch.tanh)[number * number % 7 % 3](x)
            return x

        return run

    pairs = matched(chain(set()), chain({98, 99, 101, 602, 603, 605}), torch.rand(2), max_bytes=1)
    found = sorted((one.partition("_")[0], int(one.partition(":")[2])) for one, _ in alone(pairs))
    wanted = [("relu", 57), ("relu", 345), ("sin", 15), ("sin", 87), ("tanh", 29), ("tanh", 173)]
    assert [function for function, _ in found] == [function for function, _ in wanted]
    assert all(abs(one - other) < 5 for (_, one), (_, other) in zip(found, wanted, strict=True))  # one of a few in a row


def test_a_swapped_argument_or_branch_is_matched_by_what_it_reads():
    def one(x: Tensor) -> Tensor:
        low, high = x.exp(), x.sin()
        return low.sum(0) - high.sum(0)

    def other(x: Tensor) -> Tensor:
        high, low = x.sin(), x.exp()
        return low.sum(0) - high.sum(0)

    pairs = matched(one, other, torch.rand(2, 4))
    assert not alone(pairs)
    assert ("exp_1_1:1", "exp_1_2:1") in pairs


def test_only_the_first_payload_of_a_page_gets_partners(decoder, ids):
    history = log_forward_pass(decoder, ids)
    payloads = [payload_of(history, previews=False) for _ in range(2)]
    assert "partners" not in payloads[0]
    assert len(with_partners(*payloads)["partners"]) == len(payloads[0]["nodes"])
    assert "partners" not in payloads[0]
    assert "partners" not in payloads[1]


@pytest.mark.parametrize(
    "damage",
    [
        {"nodes": [{"key": "x:1"}]},
        {"nodes": [7]},
        {"modules": [{"key": "a:1", "address": "a", "class": "A", "parent": 3}]},
        {"edges": [{"from": 0}]},
        {"verdict": "equal: said by nobody", "partners": [90_000]},
    ],
)
def test_damaged_payloads_raise_or_are_matched_anew(damage, ids):
    right = payload_of(log_forward_pass(nn.ReLU(), torch.ones(2)))
    left = {**json.loads(json.dumps(right)), **damage}
    if "verdict" in damage:
        assert with_partners(left, right)["partners"] == [0, 1, 2]
    else:
        with pytest.raises(InvalidArgument, match="one of the two payloads is damaged"):
            make_page(left, compare=right)
