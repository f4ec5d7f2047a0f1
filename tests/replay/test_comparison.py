"""Comparing two values: bit by bit, with a tolerance where a function is not deterministic, and in words."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torcheer.replay.comparison import Agreement, difference, is_close, same_bits
from torcheer.replay.report import Check
from torcheer.replay.walk import tensors_of


class Other(Tensor):
    """A class of its own."""


ONE = torch.tensor([1.0, 2.0])
NAN = torch.tensor([1.0, float("nan")])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (ONE, ONE.clone(), True),
        (NAN, NAN.clone(), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (ONE, ONE.double(), False),
        (ONE, ONE.reshape(1, 2), False),
        (ONE, ONE.to_sparse(), False),
        (ONE, ONE.as_subclass(Other), False),
        (ONE, torch.nn.Parameter(ONE.clone()), True),
        (ONE.to("meta"), ONE.to("meta"), True),
        (ONE.to("meta"), ONE, False),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), True),
        (torch.tensor([1 + 1j]).conj(), torch.tensor([1 - 1j]), True),
        (None, None, True),
        (None, ONE, False),
    ],
)
def test_equal_means_the_same_type_shape_and_bits(one: object, other: object, same: bool) -> None:
    assert same_bits(one, other) is same
    assert same_bits(other, one) is same


@pytest.mark.filterwarnings("ignore:Sparse C")
@pytest.mark.parametrize("form", [torch.sparse_csr, torch.sparse_csc])
def test_compressed_matrices_are_compared_by_their_places_and_values(form: torch.layout) -> None:
    one = torch.eye(2).to_sparse(layout=form)
    assert same_bits(one, torch.eye(2).to_sparse(layout=form))
    assert not same_bits(one, (2 * torch.eye(2)).to_sparse(layout=form))
    assert not same_bits(one, torch.eye(2).flip(0).to_sparse(layout=form))


def test_freed_memory_is_equal_to_nothing_else() -> None:
    gone = torch.ones(2)
    gone.untyped_storage().resize_(0)
    assert not same_bits(gone, torch.ones(2))
    assert same_bits(gone, gone)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (ONE, None, "Tensor was logged, NoneType came"),
        (ONE, ONE.as_subclass(Other), "Tensor was logged, Other came"),
        (ONE, ONE.double(), "float32 (2,) was logged, float64 (2,) came"),
        (ONE, ONE.to("meta"), "float32 (2,) on cpu was logged, on meta came"),
        (ONE, ONE + torch.tensor([0.0, 1.0]), "1 of 2 values differ; at [1] 2.0 was logged, 3.0 came"),
        (torch.tensor(3), torch.tensor(4), "1 of 1 values differ; at [] 3 was logged, 4 came"),
        (torch.tensor([1 + 1j]), torch.tensor([2 + 1j]), "1 of 1 values differ; at [0] (1+1j) was logged, (2+1j) came"),
        (torch.eye(2).to_sparse(), torch.ones(2, 2).to_sparse(), "int64 (2, 2) was logged, int64 (2, 4) came"),
        (ONE, ONE.clone(), "no difference"),
    ],
)
def test_a_difference_is_said_in_words(one: Tensor, other: Tensor | None, said: str) -> None:
    assert difference(one, other) == said


@pytest.mark.parametrize(
    ("one", "other", "close"),
    [
        (ONE, ONE * (1 + 1e-6), True),
        (ONE, ONE * 1.01, False),
        (ONE.half(), ONE.half() * 1.005, True),
        (NAN, NAN + 1e-6, True),
        (NAN, ONE, False),
        (torch.tensor([float("inf"), 1.0]), torch.tensor([float("inf"), 1.1]), False),
        (ONE, ONE.double(), False),
        (ONE, ONE[:1], False),
        (ONE.to_sparse(), ONE.to_sparse(), False),
        (ONE, ONE.as_subclass(Other), False),
        (ONE.to("meta"), ONE.to("meta"), False),
        (torch.tensor([1]), torch.tensor([1]), False),
        (torch.zeros(0), torch.zeros(0), True),
        (torch.tensor([1 + 1j]), torch.tensor([1 + 1.000001j]), True),
    ],
)
def test_what_may_pass_as_equal_where_a_function_is_not_deterministic(one: Tensor, other: Tensor, close: bool) -> None:
    assert is_close(one, other) is close


def test_a_tolerance_is_used_and_counted_only_where_something_is_not_deterministic() -> None:
    check = Check("values")
    nearly = ONE * (1 + 1e-6)
    assert Agreement()(check, ONE, ONE.clone())
    assert not Agreement()(check, ONE, nearly)
    assert not check.exempt
    assert Agreement(["bmm", "mm"])(check, ONE, nearly)
    assert dict(check.exempt) == {"compared with a tolerance, bmm, mm is not deterministic": 1}
    assert not Agreement(["bmm"])(check, ONE, ONE * 2)


def test_the_validator_finds_the_tensors_in_every_plain_container() -> None:
    """Also the bounds of a slice, as in `x[a:b]`."""
    a, b, c = (torch.tensor(n) for n in range(3))
    for value in (slice(a, b, c), [a, (b, {"k": c})], {"x": a, "y": slice(b, c)}, ([], a, [[b], c])):
        assert [int(one) for one in tensors_of(value)] == [0, 1, 2]
    assert tensors_of((None, 1, "text", ...)) == []


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls nested tensors a prototype
def test_nested_tensors_that_differ_are_described():
    one, other = (torch.nested.nested_tensor([torch.full((2, 3), value), torch.ones(4, 3)]) for value in (1.0, 2.0))
    assert difference(one, other).startswith("6 of ")
    assert "(3, -1, 3) came" in difference(one, torch.nested.nested_tensor([torch.ones(2, 3)] * 2 + [torch.ones(1, 3)]))
