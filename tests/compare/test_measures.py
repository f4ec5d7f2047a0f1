"""How far two tensors are apart, by a plain computation in float64."""

from __future__ import annotations

import pytest
import torch

from torcheer.compare.measures import difference, difference_of_any


def test_the_cosine_of_large_tensors_is_exact():
    """Eight million float32 values of one sign: torch's own norm is wrong in the fourth digit."""
    one = torch.rand(8_000_000, generator=torch.Generator().manual_seed(0))
    other = one + 0.01 * torch.rand(8_000_000, generator=torch.Generator().manual_seed(1))
    expected = torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0).item()
    found = difference(one, other)
    assert found is not None
    assert 1 - found.cosine == pytest.approx(1 - expected, rel=0.1)


@pytest.mark.parametrize(
    ("one", "other", "is_apart"),
    [
        (torch.tensor(1.0), torch.tensor(1.0), False),
        (torch.tensor(1.0), torch.tensor(2.0), True),
        (torch.ones(0, 3), torch.ones(0, 5), True),
        (torch.ones(0, 3), torch.ones(0, 3), False),
    ],
)
def test_numbers_and_empty_tensors_are_compared_by_their_shapes(one, other, is_apart):
    found = difference_of_any(one, other)
    assert found is not None
    assert (found.largest > 0) is is_apart
