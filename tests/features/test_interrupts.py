"""An interrupt keeps nearly all that was run, says what is there, and the same call ends bit-identical."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from kills import kill_and_resume
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torcheer as tl
from torcheer._files.files import unfinished_name
from torcheer.errors import FeaturesMismatch, InvalidArgument, NotWritten
from torcheer.features.data import samples_of_block
from torcheer.features.storage import open_storage
from torcheer.reducers import Mean, TopK

SAMPLES = 2000


class Net(nn.Module):
    """A linear layer whose forward is interrupted after a number of samples."""

    seen, stops_at, error = 0, None, KeyboardInterrupt

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        Net.seen += len(x)
        if Net.stops_at is not None and Net.seen > Net.stops_at:
            raise Net.error
        return self.fc(x)


@pytest.fixture(autouse=True)
def fresh():
    Net.seen, Net.stops_at, Net.error = 0, None, KeyboardInterrupt


def data(kind):
    torch.manual_seed(1)
    x = torch.rand(SAMPLES, 4)
    loader = DataLoader(TensorDataset(x, torch.arange(SAMPLES)), batch_size=8)
    return {"tensor": x, "loader": loader, "batches": list(x.split(8)), "generator": (one for one in x.split(8))}[kind]


def work(kind, folder, **options):
    keep = {"fc": [Mean(), TopK(3), "activations"]}
    return tl.extract(Net().eval(), data(kind), ["fc"], to=folder, keep=keep, progress=False, **options)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["tensor", "loader", "batches", "generator"])
def test_an_interrupt_keeps_nearly_everything_says_so_and_the_same_call_does_the_rest(kind, tmp_path):
    work(kind, tmp_path / "whole")
    Net.seen, Net.stops_at = 0, 1000
    with pytest.raises(KeyboardInterrupt) as raised:
        work(kind, tmp_path / "half")
    there = len(tl.open_features(tmp_path / "half")["fc"])
    assert there >= 800
    of = f"{there:,} samples" if kind in ("batches", "generator") else f"{there:,} of 2,000 samples"
    assert str(raised.value) == f"{of} are in {tmp_path / 'half'}. The same call of extract() does the rest."
    Net.stops_at = None
    assert work(kind, tmp_path / "half").is_complete
    assert contents(tmp_path / "half") == contents(tmp_path / "whole")


def test_an_interrupt_with_words_and_an_error_of_the_model_get_a_note(tmp_path):
    for Net.error in (KeyboardInterrupt("stop"), ValueError("no"), SystemExit(3)):
        Net.seen, Net.stops_at = 0, 500
        with pytest.raises(type(Net.error)) as raised:
            work("loader", tmp_path)
        assert len(raised.value.args) == 1
        assert any("of 2,000 samples are in" in note for note in raised.value.__notes__)


def test_an_interrupt_before_the_first_block_says_that_nothing_is_there(tmp_path):
    Net.stops_at = 24
    with pytest.raises(KeyboardInterrupt, match=r"^0 of 2,000 samples are in"):
        work("loader", tmp_path)


def test_blocks_grow_with_what_is_there_and_a_given_size_is_kept(tmp_path):
    assert [samples_of_block(None, first) for first in (0, 255, 800, 10**6)] == [32, 32, 100, 1024]
    sizes = [int(name.split("-")[3].split(".")[0]) for name in sorted(contents_of_blocks(work("loader", tmp_path / "new")))]
    assert sizes == sorted(sizes[:-1]) + sizes[-1:]
    assert max(sizes) <= SAMPLES // 8 + 8
    work("loader", tmp_path / "given", block=500)
    next((tmp_path / "given").glob("block-*")).unlink()
    assert work("loader", tmp_path / "given").plan.settings["block"] == 500  # as the folder began
    with pytest.raises(FeaturesMismatch, match="block is 400, and was 500"):
        work("loader", tmp_path / "given", block=400)
    with pytest.raises(InvalidArgument, match="whole number from 1"):
        work("loader", tmp_path / "given", block=0)


def contents_of_blocks(features):
    from pathlib import Path

    return [path.name for path in Path(features.location).glob("block-*")]


def test_blocks_that_grow_are_the_same_whatever_the_number_of_processes(tmp_path, monkeypatch):
    work("loader", tmp_path / "one")
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        work("loader", tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("gone", ["folder", "moved", "plan"])
def test_a_folder_that_is_deleted_ends_the_extraction_at_the_next_block(gone, tmp_path):
    folder, told = tmp_path / "features", []

    def progress(progress):
        told.append(progress)
        if len(told) == 20:
            if gone == "moved":
                folder.rename(tmp_path / "elsewhere")
            elif gone == "plan":
                (folder / "plan.json").unlink()
            else:
                shutil.rmtree(folder)

    with pytest.raises(NotWritten, match=r"somebody deleted or moved the folder|there is no folder"):
        tl.extract(Net().eval(), data("batches"), ["fc"], to=folder, progress=progress)
    assert len(told) < 40


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
