"""Folders of features and runs of an Xray from strangers: a right answer or an error of ours, in little memory and time."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from torch import nn

import torcheer as tl
from forked import in_a_copy_of_the_process
from hostile_folders import call, check, extract, limited, samples, train, use_features
from torcheer.errors import InvalidArgument, NotWritten, RunExists, TorcheerError, UnreadableFile
from torcheer.xray.store import FileManager
from xray_runs import change_snapshot

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each folder is used in a copy of this process")


@pytest.mark.parametrize("kind", ["features", "xray"])
@pytest.mark.parametrize("first", [1000, 1010])
def test_damaged_folders_by_the_dozen(kind, first):
    """`make fuzz` uses some hundred."""
    outcomes, wrong = check(kind, range(first, first + 8))
    assert not wrong, "\n\n".join(wrong)
    assert sum(outcomes.values()) == 16


@pytest.fixture
def folder(tmp_path):
    """Features of 96 samples in four blocks."""
    return tmp_path / os.path.basename(extract(tmp_path / "features").location)


def claim(path, **tensors):
    """Give a block a header that claims tensors without a byte of data."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    entries = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in tensors.items()}
    text = json.dumps({"__metadata__": header["__metadata__"], **entries}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def test_blocks_that_are_said_to_be_missing_are_not_counted_beyond_reason(folder):
    (folder / "end.json").write_text(json.dumps({"blocks": 2**61, "samples": 2**61}))
    features = tl.open_features(folder)
    for ask in (lambda: features.missing, lambda: features.is_complete, lambda: repr(features)):
        with pytest.raises(UnreadableFile, match=r"end\.json .* 2,305,843,009,213,693,952 blocks .* Delete this file"):
            ask()
    (folder / "end.json").write_text(json.dumps({"blocks": 6, "samples": 96}))
    assert features.missing == [4, 5]


@pytest.mark.parametrize("shape", [[999_999_999_999, 0], [0, 0]])
def test_samples_without_a_byte_are_not_believed(folder, shape):
    """Neither in a name nor in the shape of a tensor that has no elements."""
    first, *others = sorted(folder.glob("block-*"))
    for one in others:
        one.unlink()
    claim(first, **{"layers/first#0": shape, "layers/second#0": shape})
    first.rename(folder / "block-00000000-000000000000-999999999999.safetensors")
    with pytest.raises(UnreadableFile, match=r"999,999,999,999 samples, which .* bytes cannot hold"):
        tl.open_features(folder)


@pytest.mark.parametrize(
    "name",
    [
        "block-²²²²²²²²-000000000000-000000024.safetensors",
        "block-٠٠٠٠٠٠٠٤-000000000096-000000024.safetensors",
        "block-000000004-000000000096-000000024.safetensors",
        "reduced-٠٠-٠٠٠٠٠٠٠٤.safetensors",
        "reduced-00-000000004.safetensors",
        "²²².safetensors",
    ],
)
def test_what_is_nearly_a_name_of_ours_is_a_file_of_others(folder, name):
    (folder / name).write_text("mine")
    features = tl.open_features(folder)
    assert len(features["first"]) == 96
    assert features.mean("second").mean.shape == (3,)
    extract(folder)
    assert (folder / name).read_text() == "mine"


def test_a_piece_is_numbered_in_digits_of_ours(folder):
    block = sorted(folder.glob("block-*"))[0]
    data = block.read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + length].replace(b'"layers/first#0"', b'"layers/first#\\u0660"').rstrip()
    block.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(UnreadableFile, match="belongs to no column"):
        tl.open_features(folder)


def test_a_block_that_vanishes_after_it_was_listed_is_told(folder, monkeypatch):
    from torcheer.features.storage import LocalStorage

    sizes = LocalStorage.sizes

    def vanishing(self):
        found = sizes(self)
        for path in self.folder.glob("block-00000002-*"):
            path.unlink()
        return found

    monkeypatch.setattr(LocalStorage, "sizes", vanishing)
    with pytest.raises(UnreadableFile, match=r"block-00000002.* is missing"):
        tl.open_features(folder)
    features = tl.open_features(folder)
    shutil.rmtree(folder)
    with pytest.raises(TorcheerError):
        features.mean("second")
    assert features.missing is None


def test_extract_writes_nothing_through_a_link(folder, tmp_path):
    """A link in the place of a file that is missing is replaced by the file; what the link leads to stays as it was."""
    mine = tmp_path / "mine"
    names = [path.name for path in (*folder.glob("block-*"), folder / "end.json")]
    for name in names[1:]:
        (folder / name).unlink()
        (folder / name).symlink_to(mine)
    assert extract(folder).is_complete
    assert not mine.exists()
    mine.write_text("mine")
    (folder / "end.json").unlink()
    (folder / "end.json").symlink_to(mine)
    with pytest.raises(UnreadableFile, match=r"end\.json"):
        extract(folder)
    assert mine.read_text() == "mine"


def test_a_folder_where_a_file_of_ours_is_deleted_is_told(tmp_path):
    from torcheer.features.storage import open_storage

    (tmp_path / "reduced-00-00000000.safetensors").mkdir()
    with pytest.raises(NotWritten, match=r"cannot be deleted: Is a directory"):
        open_storage(tmp_path).delete("reduced-00-00000000.safetensors")


@in_a_copy_of_the_process
def test_a_file_with_a_hole_of_terabytes_is_refused_in_little_memory():
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.mkdtemp())
    tl.extract(nn.Identity().eval(), torch.rand(40, 3), "output", folder, progress=False)
    for path in (folder / "plan.json", folder / "end.json"):
        shutil.copy(path, path.with_suffix(".old"))
        os.truncate(path, 1 << 42)
        with pytest.raises(UnreadableFile, match=r"bytes or more"):
            tl.open_features(folder).missing
        path.with_suffix(".old").rename(path)
    for path in folder.glob("block-*"):
        os.truncate(path, 1 << 42)
    limited(use_features, folder)
    shutil.rmtree(folder)


@pytest.fixture
def run(tmp_path):
    train(tmp_path / "run")
    return tmp_path / "run"


def test_a_training_writes_to_no_file_behind_a_link(run, tmp_path):
    mine = tmp_path / "mine"
    (run / "run.json").rename(mine)
    (run / "run.json").symlink_to(mine)
    text = mine.read_text()
    with pytest.raises(RunExists, match="is a link, and nothing is written through it"):
        train(run, resume=True)
    assert mine.read_text() == text
    assert len(FileManager.open(run).snapshots) == 4  # but it is read


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_a_lock_that_is_no_file_is_told(run, kind, tmp_path):
    lock = run / "writer.lock"
    lock.unlink()
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(tmp_path / "mine")
    with pytest.raises(NotWritten, match=r"cannot be written: writer\.lock"):
        train(run, resume=True)
    assert not (tmp_path / "mine").exists()


def test_a_snapshot_that_vanishes_after_it_was_listed_is_left_out_or_told(run):
    read = tl.Xray.open(run).run
    listed = read.having("0", "weight")
    for path in (run / "snapshots").glob("*1.safetensors"):
        path.unlink()
    with pytest.warns(UserWarning, match="skipped"):
        assert len(list(read.pictures("0", "weight", listed))) == 3
    assert len(tl.Xray.open(run).run.snapshots) == 3


def test_the_size_of_a_run_is_that_of_its_files_whatever_they_say(run):
    """Else a training would delete snapshots to make room for bytes that are not there."""
    path = run / "snapshots" / "00000001.safetensors"
    change_snapshot(path, ("bytes", 2**62))
    assert FileManager.open(run).bytes == sum(one.stat().st_size for one in path.parent.iterdir())
    train(run, 1, resume=True, max_bytes=50 << 20)
    assert len(FileManager.open(run).snapshots) == 5


def test_samples_are_what_they_were():
    """The generator of folders is of a model and data that are the same each time."""
    assert torch.equal(call(nn.Identity(), samples()[0]), samples()[0][0])
    with pytest.raises(InvalidArgument):
        tl.open_features(3)
