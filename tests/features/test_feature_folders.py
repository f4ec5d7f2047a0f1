"""Folders of features on this machine: files that are whole or not there. test_remote_storage.py has what holds everywhere."""

from __future__ import annotations

import pytest
import torch

from torcheer.errors import InvalidArgument, UnreadableFile
from torcheer.features.storage import open_storage


def test_a_file_is_replaced_whole_and_deleted_twice(tmp_path):
    storage = open_storage(str(tmp_path))
    storage.write_tensors("block", {"a": torch.zeros(1000)}, {})
    before = storage.read_tensors("block")
    storage.write_tensors("block", {"a": torch.ones(3)}, {})
    assert before.tensor("a").sum() == 0  # who has it open goes on reading the old one
    assert storage.read_tensors("block").tensor("a").tolist() == [1, 1, 1]
    storage.delete("block")
    storage.delete("block")
    assert storage.names() == []
    with pytest.raises(FileNotFoundError):
        storage.read_tensors("block")


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    storage = open_storage(str(tmp_path / "file" / "features"))
    assert (storage.names(), storage.read("plan")) == ([], None)
    with pytest.raises(InvalidArgument, match=r"features cannot be written to the folder .*Not a directory\. Give another"):
        storage.write("plan", b"")


def test_what_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"not tensors")
    with pytest.raises(UnreadableFile, match=r"file cannot be read: it does not begin"):
        open_storage(tmp_path).read_tensors("file")
    with pytest.raises(InvalidArgument, match=r"is a file"):
        open_storage(tmp_path / "file")
    with pytest.raises(InvalidArgument, match=r"given by its path or URL; got 3"):
        open_storage(3)


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path):
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(UnreadableFile, match=r"plan\.json cannot be read: Is a directory"):
        open_storage(tmp_path).read("plan.json")
