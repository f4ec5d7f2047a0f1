"""A `kill -9` loses the block in work and no more; what is resumed ends bit-identical to an undisturbed run."""

from __future__ import annotations

import pytest
from kills import kill_and_resume


@pytest.mark.parametrize(("kills", "world"), [(5, 1), (5, 2)])
def test_what_was_killed_is_resumed_and_ends_with_the_same_bytes(kills, world):
    kill_and_resume(kills, world, seed=7 * world)
