"""The modules that a callable holds are known by the names under which it holds them."""

from __future__ import annotations

import pytest
import torch

from catalogue.modules import HOLDERS
from models import log

x = torch.rand(2, 3)


@pytest.mark.parametrize("name", HOLDERS)
def test_modules_are_named_by_how_they_are_held(name):
    """Those that never run are there too, and nothing changes in them."""
    make, addresses = HOLDERS[name]
    history = log(make(), x)
    assert sorted(history.modules) == sorted(addresses)
    assert history.validate()
