"""Files are written where their paths lead, and nothing but a file is replaced."""

from __future__ import annotations

import os
import stat

import pytest
import torch
from torch import nn

import torcheer
from torcheer.errors import NotWritten

WRITERS = {
    "history.safetensors": lambda history, path: history.save(path),
    "picture.svg": lambda history, path: history.draw(path),
    "page.html": lambda history, path: history.to_html(path),
    "table.csv": lambda history, path: history.to_csv(path),
    "streamed.safetensors": lambda _, path: torcheer.log_forward_pass(nn.ReLU(), torch.ones(2), save_to=path),
}


@pytest.fixture(scope="module")
def history():
    return torcheer.log_forward_pass(nn.ReLU(), torch.ones(2))


@pytest.mark.parametrize("name", WRITERS)
def test_a_pipe_or_a_device_is_refused_and_stays_what_it_is(name, history, tmp_path):
    path = tmp_path / name
    os.mkfifo(path)
    with pytest.raises(NotWritten, match="no ordinary file"):
        WRITERS[name](history, path)
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert [one.name for one in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("is_there", [True, False], ids=["there", "new"])
def test_a_link_is_followed_to_the_file_it_leads_to(name, is_there, history, tmp_path):
    target, link = tmp_path / "elsewhere" / name, tmp_path / name
    target.parent.mkdir()
    if is_there:
        target.write_bytes(b"old")
    link.symlink_to(target)
    WRITERS[name](history, link)
    assert link.is_symlink()
    assert target.read_bytes() not in (b"", b"old")
    assert [one.name for one in target.parent.iterdir()] == [name]
