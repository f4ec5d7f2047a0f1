"""The model and the input that most tests of taps run."""

import pytest
import torch
from tap_models import Net


@pytest.fixture
def net():
    return Net().eval()


@pytest.fixture
def x():
    return torch.rand(2, 5, 8)
