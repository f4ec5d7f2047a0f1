"""Shared by all tests: torchvision's declarations, one thread per worker, a fixed seed."""

from __future__ import annotations

import pytest
import torch

import torchvision_operators
from browser import browser, page  # noqa: F401  # fixtures
from firefox import firefox  # noqa: F401  # a fixture

torchvision_operators.declare()
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
