"""Files are written where their paths lead, and nothing but a file is replaced."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

import torcheer
from forked import run_in_a_copy
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
    with pytest.raises(NotWritten, match="a device, a pipe or a socket"):
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


def without_privileges(work):
    """Run something in a copy of this process that may not read and write everything, as root may."""

    def run():
        if os.geteuid() == 0:
            os.setuid(65534)  # nobody
        work()

    code, printed = run_in_a_copy(run)
    assert code == 0, printed


@pytest.fixture
def open_folder():
    """A folder that everybody may write to."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.mark.parametrize("name", ["history.safetensors", "table.csv", "streamed.safetensors"])
def test_a_file_that_is_read_only_stays_as_it_is(name, history, open_folder):
    path = open_folder / name
    path.write_bytes(b"mine")
    path.chmod(0o444)

    def work():
        with pytest.raises(NotWritten, match="the file there is read-only"):
            WRITERS[name](history, path)

    without_privileges(work)
    assert path.read_bytes() == b"mine"


def test_a_folder_that_may_not_be_looked_into_is_told(history, open_folder):
    closed = open_folder / "closed"
    closed.mkdir(mode=0)
    model, data = nn.Linear(4, 2).eval(), torch.rand(10, 4)

    def work():
        for folder in (closed, closed / "features"):
            with pytest.raises(torcheer.TorcheerError, match="Permission denied"):
                torcheer.open_features(folder)
            with pytest.raises(torcheer.TorcheerError, match="Permission denied"):
                torcheer.extract(model, data, [""], to=folder, progress=False)
        with pytest.raises(torcheer.TorcheerError, match="Permission denied"):
            torcheer.load(closed / "history.safetensors")
        with pytest.raises(torcheer.TorcheerError, match="Permission denied"):
            history.save(closed / "history.safetensors")

    without_privileges(work)
