"""Features in folders, wherever these are: the same files, written whole; what `fsspec` opens is read by ranges of bytes."""

from __future__ import annotations

import multiprocessing
import pickle
import secrets

import fsspec
import numpy as np
import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torcheer as tl
from torcheer import InvalidArgument, UnreadableFile, reducers
from torcheer.features.storage import open_storage


class RenamingFileSystem(LocalFileSystem):
    """A file system in which half a file can be seen, and which renames: SFTP, as far as a test can have it."""

    protocol = ("renaming",)
    seen: list[str] = []

    @classmethod
    def _strip_protocol(cls, path):
        return LocalFileSystem._strip_protocol(str(path).removeprefix("renaming://"))

    def _open(self, path, mode="rb", **options):
        if "w" in mode:
            type(self).seen.append(path)
        return super()._open(path, mode, **options)

    def put_file(self, lpath, rpath, **options):
        type(self).seen.append(rpath)
        return super().put_file(lpath, rpath, **options)


class CountingFileSystem(RenamingFileSystem):
    """The same; it counts the bytes that are read."""

    protocol = ("counting",)
    read = 0

    @classmethod
    def _strip_protocol(cls, path):
        return LocalFileSystem._strip_protocol(str(path).removeprefix("counting://"))

    def cat_file(self, path, start=None, end=None, **options):
        found = super().cat_file(path, start, end, **options)
        type(self).read += len(found)
        return found


fsspec.register_implementation("renaming", RenamingFileSystem, clobber=True)
fsspec.register_implementation("counting", CountingFileSystem, clobber=True)


@pytest.fixture(params=["folder", "memory", "file", "local", "renaming"])
def url(request, tmp_path):
    """A folder that is not there yet."""
    if request.param == "folder":
        yield str(tmp_path / "inner" / "features")
    elif request.param == "memory":
        yield f"memory://{secrets.token_hex(4)}/inner"
        fsspec.filesystem("memory").store.clear()
    else:
        yield f"{request.param}://{tmp_path}/inner/features"


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)).eval()


def make_data(count=50):
    torch.manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(count, 6), torch.arange(count)), batch_size=8)


def extract(to, **options):
    return tl.extract(make_model(), make_data(), ["0", "2"], to, block=8, progress=False, **options)


def expected():
    model, x = make_model(), torch.cat([x for x, _ in make_data()])
    with torch.no_grad():
        return model[0](x), model(x)


def stored_bytes(url):
    storage = open_storage(url)
    return {name: storage.read(name) for name in storage.names()}


def test_what_is_written_is_read(url):
    storage = open_storage(url)
    assert storage.names() == []
    assert storage.read("plan.json") is None
    storage.write("plan.json", b"{}")
    storage.write("plan.json", b"{ }")
    storage.write_tensors("block", {"a/b": torch.arange(6).view(2, 3), "empty": torch.empty(0, 3)}, {"number": "1"})
    work = storage.new_tensors(100)
    work.add("c", torch.arange(2000.0))
    assert storage.names() == ["block", "plan.json"]
    work.finish("other", {})
    assert storage.sizes().keys() == {"block", "plan.json", "other"}
    assert storage.sizes()["plan.json"] == 3
    assert storage.read("plan.json") == b"{ }"
    file = storage.read_tensors("block")
    assert file.metadata == {"number": "1"}
    assert torch.equal(file.tensor("a/b"), torch.arange(6).view(2, 3))
    assert file.tensor("empty").shape == (0, 3)
    assert bytes(file.bytes("a/b")) == torch.arange(6).numpy().tobytes()
    assert torch.equal(storage.read_tensors("other").part("c", 40, 80).view(torch.float32), torch.arange(10.0, 20.0))
    storage.delete("block")
    storage.delete("block")
    with pytest.raises(FileNotFoundError):
        storage.read_tensors("block")
    work = storage.new_tensors(100)
    work.add("c", torch.arange(2000.0))
    work.abandon()
    assert storage.names() == ["other", "plan.json"]


def test_no_temporary_files_stay(url, tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    extract(url)
    assert list(folder.iterdir()) == []
    if not url.startswith("memory"):
        assert not [path for path in (tmp_path / "inner" / "features").iterdir() if path.name.startswith(".")]


def test_features_are_the_same_bytes_as_in_a_folder(url, tmp_path):
    features = extract(url)
    extract(tmp_path / "here")
    first, last = expected()
    assert features.is_complete
    assert torch.allclose(features["0"][:], first, atol=1e-6)
    assert torch.allclose(features["2"][:], last, atol=1e-6)
    assert torch.equal(features.labels["labels"], torch.arange(50))
    assert stored_bytes(url) == stored_bytes(tmp_path / "here")


def test_every_kind_of_index_reads_what_a_folder_gives(url, tmp_path):
    there, here = extract(url)["0"], extract(tmp_path / "here")["0"]
    for index in (3, -1, slice(2, 30), slice(40, 2, -7), [4, 1, 4, 49], np.array([], dtype=int), slice(5, 5)):
        assert torch.equal(there[index], here[index])
    assert torch.equal(there[2:30, 1], here[2:30, 1])
    assert torch.equal(there[torch.arange(50) % 3 == 0], here[torch.arange(50) % 3 == 0])
    assert np.array_equal(np.asarray(there), np.asarray(here))
    assert torch.equal(torch.cat(list(DataLoader(there, batch_size=7))), here[:])


class Broken(Exception):
    pass


def test_an_extraction_is_resumed(url, tmp_path):
    """What breaks in the fourth block leaves the others, and the second run makes only what is missing."""

    def break_after(count):
        def told(progress):
            if progress.samples > count:
                raise Broken

        return told

    with pytest.raises(Broken):
        tl.extract(make_model(), make_data(), ["0", "2"], url, block=8, progress=break_after(30))
    begun = tl.open_features(url)
    assert 0 < len(begun["0"]) < 50
    assert not begun.is_complete
    seen = []
    tl.extract(make_model(), make_data(), ["0", "2"], url, block=8, progress=lambda progress: seen.append(progress.total))
    assert 0 < seen[0] < 50
    assert begun.refresh().is_complete
    extract(tmp_path / "here")
    assert stored_bytes(url) == stored_bytes(tmp_path / "here")
    changed = make_model()
    changed[0].weight.data += 1
    with pytest.raises(tl.FeaturesMismatch, match=r"have other values: 0\.weight"):
        tl.extract(changed, make_data(), ["0", "2"], url, block=8, progress=False)


def test_reducers_merge_in_their_tree(url, tmp_path):
    keep = [reducers.Mean(), reducers.Covariance(), reducers.TopK(3)]
    extract(url, keep=keep)
    extract(tmp_path / "here", keep=keep)
    assert stored_bytes(url) == stored_bytes(tmp_path / "here")
    assert any(name.startswith("reduced-02") for name in stored_bytes(url))


def test_two_processes_share_the_work(url, monkeypatch):
    """Each makes its own blocks, as torchrun divides them; reducers too."""
    keep = ["activations", reducers.Mean()]
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        features = extract(url, keep=keep)
    assert features.is_complete
    assert torch.allclose(features["0"][:], expected()[0], atol=1e-6)


def test_a_file_gets_its_name_when_it_is_whole(tmp_path):
    """On a file system in which half a file could be seen, every file is written under a hidden name."""
    RenamingFileSystem.seen.clear()
    extract(f"renaming://{tmp_path}/features")
    names = [path.rpartition("/")[2] for path in RenamingFileSystem.seen]
    assert len(names) >= 8
    assert all(name.startswith(".") for name in names)


def test_what_cannot_be_sent_leaves_nothing(tmp_path, monkeypatch):
    def put_file(self, lpath, rpath, **options):
        with open(rpath, "wb") as file:
            file.write(b"half")
        raise OSError("the connection is gone")

    url = f"renaming://{tmp_path}/features"
    monkeypatch.setattr(RenamingFileSystem, "put_file", put_file)
    with pytest.raises(OSError, match="the connection is gone"):
        extract(url)
    assert [path.name for path in (tmp_path / "features").iterdir() if "block" in path.name] == []
    monkeypatch.undo()
    assert extract(url).is_complete


def test_a_few_rows_do_not_need_the_whole_block(tmp_path):
    """8 MB of features; what is read are headers and the rows that are asked for."""
    model = nn.Sequential(nn.Linear(4, 20_000)).eval()
    tl.extract(model, torch.randn(100, 4), ["0"], tmp_path / "features", block=100, progress=False)
    CountingFileSystem.read = 0
    layer = tl.open_features(f"counting://{tmp_path}/features")["0"]
    opened = CountingFileSystem.read
    assert opened < 200_000
    there = tl.open_features(tmp_path / "features")["0"]
    assert torch.equal(layer[50], there[50])
    assert torch.equal(layer[3:5], there[3:5])
    assert CountingFileSystem.read - opened == 3 * 80_000


def test_features_can_be_sent_to_other_processes(url):
    features = extract(url)
    copy = pickle.loads(pickle.dumps(features["0"]))
    assert torch.equal(copy[:], features["0"][:])


def read_in_worker(features, queue):
    queue.put(features["0"][:].sum().item())


def test_a_forked_process_opens_the_file_system_again(tmp_path):
    features = extract(f"renaming://{tmp_path}/features")
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    worker = context.Process(target=read_in_worker, args=(features, queue))
    worker.start()
    assert queue.get() == features["0"][:].sum().item()
    worker.join()


def test_what_cannot_be_opened_is_refused(url):
    with pytest.raises(InvalidArgument, match=r"nowhere://folder cannot be opened: Protocol not known: nowhere"):
        tl.open_features("nowhere://folder")
    with pytest.raises(tl.FeaturesNotFound, match="there are no features in"):
        tl.open_features(url)
    storage = open_storage(url)
    storage.write("plan.json", b"{}")
    with pytest.raises(UnreadableFile):
        tl.open_features(url)
    with pytest.raises(UnreadableFile, match=r"plan.json cannot be read: it does not begin"):
        storage.read_tensors("plan.json")
    with pytest.raises(InvalidArgument, match="is a file"):
        tl.open_features(f"{url}/plan.json")


def test_a_protocol_whose_library_is_missing_says_which(monkeypatch):
    def missing(url):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(InvalidArgument, match=r"s3://bucket/features cannot be opened: Install s3fs to access S3\."):
        tl.open_features("s3://bucket/features")


def test_a_store_that_cannot_be_reached_is_told_in_words(tmp_path, monkeypatch):
    def isfile(self, path):
        raise RuntimeError("Unable to locate credentials")

    monkeypatch.setattr(RenamingFileSystem, "isfile", isfile)
    with pytest.raises(InvalidArgument, match=r"renaming://.* cannot be reached: RuntimeError: Unable to locate credentials"):
        tl.open_features(f"renaming://{tmp_path}")


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
