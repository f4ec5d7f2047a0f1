"""Outputs that are sparse, quantised or nested are compared by their values."""

import pytest
import torch

import torcheer as tl

x = torch.rand(3, 4) + 0.1
MAKERS = {
    "sparse": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "quantised": lambda t: torch.quantize_per_tensor(t, 0.01, 0, torch.quint8),
    "nested": lambda t: torch.nested.nested_tensor([t[0], t[1, :2]]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MAKERS)
def test_unusual_outputs_that_differ_are_different_and_equal_ones_are_not(kind):
    make = MAKERS[kind]
    with torch.no_grad():
        same = tl.compare_models(lambda t: make(t + 1), lambda t: make(t + 1), x)
        other = tl.compare_models(lambda t: make(t + 1), lambda t: make((t + 1).flip(1)), x)
    assert same, same
    assert not other
    assert "differs by" in other.headline
    assert "which operation makes it differ cannot be told" in str(other) or other.culprit is not None


@pytest.mark.filterwarnings("ignore")
def test_assert_close_raises_where_a_sparse_output_differs():
    with pytest.raises(AssertionError, match=r"output_1_4 differs by 5\.0e-01 of its scale"), torch.no_grad():
        tl.assert_close(
            tl.log_forward_pass(lambda t: (t + 1).to_sparse() * 2, x), tl.log_forward_pass(lambda t: (t + 1).to_sparse() * 3, x)
        )
