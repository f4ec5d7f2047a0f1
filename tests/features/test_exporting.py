"""Features in other libraries, where these are installed; what is said where they are not is in test_features.py."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import torcheer as tl
from torcheer.errors import NotWritten

X = torch.rand(50, 3, 2)


@pytest.fixture
def features(tmp_path):
    model = nn.Sequential(nn.Identity(), nn.Flatten()).eval()
    batches = [(part, list("xy" * 10)[: len(part)]) for part in X.split(20)]
    return tl.extract(model, batches, ["0", "1"], tmp_path / "f", block=30, ids=range(50), progress=False)


def test_zarr_groups_have_every_layer(features, tmp_path):
    zarr = pytest.importorskip("zarr")
    assert np.array_equal(zarr.open_group(str(features["0"].export(tmp_path / "one.zarr")))["0"][:], X.numpy())
    group = zarr.open_group(str(features.export(tmp_path / "all.zarr")))
    assert sorted(group.array_keys()) == ["0", "1"]
    assert np.array_equal(group["1"][:], X.flatten(1).numpy())


def test_a_dataset_of_hugging_face_has_layers_labels_and_ids(features, tmp_path):
    pytest.importorskip("datasets")
    found = features.to_datasets(cache_dir=tmp_path / "cache")
    assert len(found) == 50
    assert np.array_equal(np.array(found[7]["0"], dtype=np.float32), X[7].numpy())
    assert found[7]["labels"] == "y"
    assert found[7]["id"] == 7
    assert torch.equal(torch.tensor(found[41]["1"]), X[41].flatten())


@pytest.mark.parametrize("what", ["folder", "file", "link", "group"])
@pytest.mark.parametrize("whole", [True, False], ids=["all layers", "one layer"])
def test_an_export_deletes_nothing_that_is_there(features, tmp_path, monkeypatch, what, whole):
    """zarr deletes whatever is in the folder of a new group, so only a new or an empty folder is handed to it."""
    monkeypatch.setitem(sys.modules, "zarr", SimpleNamespace(open_group=None))  # calling it raises
    (tmp_path / "home").mkdir()
    kept = tmp_path / "home" / (".zgroup" if what == "group" else "kept")
    kept.write_text("mine")
    path = tmp_path / "home" if what in ("folder", "group") else kept
    target = path.rename(tmp_path / "x.zarr") if what != "link" else tmp_path / "x.zarr"
    if what == "link":
        target.symlink_to(tmp_path / "home")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NotWritten, match="exists already"):
        (features if whole else features["0"]).export(target)
    assert sorted(tmp_path.rglob("*")) == before
