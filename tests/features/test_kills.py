"""A `kill -9` loses the block in work and no more; what is resumed ends bit-identical to an undisturbed run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kills import kill_and_resume

from torcheer._files.files import unfinished_name
from torcheer.features.storage import open_storage


@pytest.mark.parametrize(("kills", "world"), [(5, 1), (5, 2)])
def test_what_was_killed_is_resumed_and_ends_with_the_same_bytes(kills, world):
    kill_and_resume(kills, world, seed=7 * world)


def test_what_a_process_that_ended_left_half_written_is_deleted_and_nothing_else(tmp_path):
    child = os.fork()
    if not child:
        for name in ("end.json", "mine.txt"):
            Path(unfinished_name(tmp_path / name)).touch()
        os._exit(0)
    os.waitpid(child, 0)
    of_others = {path.name for path in tmp_path.iterdir() if "mine" in path.name}
    kept = [unfinished_name(tmp_path / "end.json"), str(tmp_path / ".end.json.torcheer-0123456789ab")]  # of this one; of none
    left = next(path.name for path in tmp_path.iterdir() if path.name.startswith(".end"))
    kept.append(str(tmp_path / left.replace(left[-20:-14], "000000")))  # of another machine
    for name in kept:
        Path(name).touch()
    open_storage(tmp_path).clean_up()
    assert {path.name for path in tmp_path.iterdir()} == {*of_others, *(Path(name).name for name in kept)}
