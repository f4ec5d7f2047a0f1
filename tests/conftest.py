"""Shared by all tests: torchvision's declarations, one thread per worker, a fixed seed, little garbage collection."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch

import torchvision_operators
from browser import browser, page  # noqa: F401  # fixtures
from command_line import refused, user_module  # noqa: F401  # fixtures
from firefox import firefox  # noqa: F401  # a fixture
from torch_version import TORCH
from torcheer.pictures import PictureOptions

torchvision_operators.declare()
torch.set_num_threads(1)
gc.disable()
PictureOptions.__init__.__kwdefaults__["time_limit"] = 300.0  # a busy machine is slow
os.fsync = lambda handle: None  # no test can take the power away, and a disk takes milliseconds


def pytest_collection_finish() -> None:
    """What is imported by now stays, so the garbage collector never looks at it: that would take a tenth of all time."""
    gc.freeze()
    gc.set_threshold(700, 10, 50)  # what tests import later stays too
    gc.enable()


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` also writes down the stack, for devices that there are not
    yield
    if TORCH < (2, 9) and getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", 0) is None:
        del torch._GLOBAL_DEVICE_CONTEXT.device_context  # torch.get_default_device() fails after set_default_device(None)
