"""The version of torch that the tests run with, and what earlier versions lack."""

from __future__ import annotations

import pytest
import torch

TORCH = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))


def since(*version: int, lacks: str) -> pytest.MarkDecorator:
    """Skips a test on a torch before `version`, which lacks what the test is about."""
    return pytest.mark.skipif(version > TORCH, reason=f"torch {torch.__version__} lacks {lacks}")
