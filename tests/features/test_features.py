"""Reading features: like an array, compared with one tensor of everything."""

from __future__ import annotations

import pickle
import random
import shutil
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torcheer as tl
from torcheer.features import block_index

X, Y = torch.rand(103, 3, 2), torch.arange(103) % 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("features")
    loader = DataLoader(TensorDataset(X, Y), batch_size=5)
    tl.extract(nn.Identity().eval(), loader, "output", path, block=20, progress=False, ids=[f"s{at}" for at in range(103)])
    return path


@pytest.fixture
def layer(folder):
    return tl.open_features(folder)["output"]


MASK = torch.rand(103) > 0.5


@pytest.mark.parametrize(
    "key",
    [
        0,
        102,
        -1,
        -103,
        np.int64(7),
        torch.tensor(50),
        slice(None),
        slice(3, 4),
        slice(18, 45),
        slice(-5, None),
        slice(50, 10),
        slice(10, 90, 7),
        slice(90, 10, -3),
        slice(None, None, -1),
        [5, 1, 99, 1],
        [],
        [-1, -2],
        (slice(None), 0),
        (slice(7, 60), slice(1, 3), 1),
        (4, 1),
        (4, slice(None), 1),
        ([9, 70], 0),
        (slice(None), [0, 2]),
        (Ellipsis, 1),
        Ellipsis,
        None,
        torch.tensor([30, 2]),
        np.array([30, 2], dtype=np.uint8),
        range(3, 9),
        MASK,
        MASK.numpy(),
        MASK.tolist(),
        (),
        ([9, 70], [0, 2]),
        ([9, 70, 3], [0, 2, 1], [0, 1, 1]),
        ([9, 70], slice(None), [0, 1]),
        (torch.tensor([9, 70]), torch.tensor([0, 2])),
        ([9], [0, 2]),
        (torch.arange(103) < 2, [0, 2]),
        ([9, 70], torch.tensor([True, False, True])),
        ([9, 70], None, 0),
        (slice(3, 9), None, Ellipsis, 1),
        (3, [0, 2], [0, 1]),
    ],
    ids=str,
)
def test_every_kind_of_index_gives_what_a_tensor_gives(layer, key):
    if isinstance(key, slice) and (key.step or 1) < 0:
        expected = torch.from_numpy(X.numpy()[key].copy())
    elif isinstance(key, (np.ndarray, range)):
        expected = torch.from_numpy(X.numpy()[key])
    else:
        expected = X[key]
    assert torch.equal(layer[key], expected)
    assert layer[key].dtype is torch.float32


def test_what_a_layer_is(layer):
    assert layer.shape == (103, 3, 2)
    assert layer.ndim == 3
    assert len(layer) == 103
    assert layer.dtype is torch.float32
    assert layer.nbytes == X.numel() * 4
    assert not layer.is_ragged
    assert repr(layer) == "LayerFeatures('output', (103, 3, 2), torch.float32)"


@pytest.mark.parametrize(
    "key", [103, -104, [1, 103], [-104], 1.5, "a", [1.5], MASK[:50], [[1, 2], [3, 4]], {"a": 1}, (Ellipsis, Ellipsis)]
)
def test_what_is_no_sample_is_refused(layer, key):
    with pytest.raises(IndexError, match=r"'output'"):
        layer[key]


def test_what_is_returned_is_a_copy(layer):
    for key in (3, slice(2, 5), [2, 4]):
        layer[key].zero_()
    assert torch.equal(layer[:], X)


def test_iteration_in_batches_and_one_by_one(layer):
    assert [len(batch) for batch in layer.batches(40)] == [40, 40, 23]
    assert torch.equal(torch.cat(list(layer.batches(7))), X)
    assert torch.equal(torch.stack(list(layer)), X)
    with pytest.raises(tl.InvalidArgument, match="from 1; got 0"):
        next(layer.batches(0))


def test_arrays_of_numpy_in_memory_and_mapped(layer, tmp_path):
    assert np.array_equal(np.asarray(layer), X.numpy())
    assert np.asarray(layer, dtype=np.float64).dtype == np.float64
    assert np.array_equal(layer.to_numpy(), X.numpy())
    mapped = layer.to_numpy(tmp_path / "layer.npy")
    assert isinstance(mapped, np.memmap)
    assert np.array_equal(mapped, X.numpy())
    assert np.array_equal(np.load(layer.export(tmp_path / "other.npy")), X.numpy())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer.npy", "other.npy"]
    with pytest.raises(tl.InvalidArgument, match=r"exported to .npy or .zarr"):
        layer.export(tmp_path / "layer.csv")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_layer_is_a_dataset_for_loaders_with_workers(folder, workers):
    features = tl.open_features(folder)
    features["output"][0]  # a file is open before the workers start
    loader = DataLoader(features["output"], batch_size=25, num_workers=workers)
    assert torch.equal(torch.cat(list(loader)), X)
    pairs = list(DataLoader(features.dataset("output", "labels"), batch_size=25, num_workers=workers))
    assert torch.equal(torch.cat([x for x, _ in pairs]), X)
    assert torch.equal(torch.cat([y for _, y in pairs]), Y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.complex32, torch.bool, torch.uint16])
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 0), (7, 2, 2)])
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_exported_arrays_have_the_values_and_appear_whole(dtype, shape, tmp_path):
    values = (torch.rand(shape) * 9).to(dtype)
    layer = tl.extract(nn.Identity().eval(), [values], "output", tmp_path / "f", progress=False)["output"]
    expected = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64}.get(dtype, dtype)
    mapped = layer.to_numpy(tmp_path / "layer.npy")
    assert np.array_equal(mapped, values.to(expected).numpy())
    assert np.array_equal(np.asarray(layer), mapped)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "layer.npy"]


def test_an_array_that_cannot_be_written_is_told_by_its_name(layer, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the array cannot be written to '.*nowhere/x.npy': there is no folder"):
        layer.export(tmp_path / "nowhere" / "x.npy")


def test_layers_of_one_dimension_and_of_several_numbers_of_dimensions_are_printed(tmp_path):
    model = nn.Identity().eval()
    flat = tl.extract(model, [torch.rand(4)], "output", tmp_path / "flat", progress=False)
    assert "output  (4,) float32" in repr(flat)
    mixed = tl.extract(model, [torch.rand(4, 3), torch.rand(2, 3, 2)], "output", tmp_path / "mixed", progress=False)
    assert "output  (6, …) float32" in repr(mixed)
    assert [row.shape for row in mixed["output"][3:5]] == [(3,), (3, 2)]


def test_units_and_samples_may_be_numbers_of_numpy_and_torch(folder):
    features = tl.open_features(folder)
    for number in (np.int64(1), torch.tensor(1)):
        assert features.top("output", number, k=np.int64(3)).numbers.tolist() == features.top("output", 1, k=3).numbers.tolist()
        found = features["output"].nearest(number, k=2)
        assert found.numbers.tolist() == features["output"].nearest(1, k=2).numbers.tolist()
    for several in (np.array([0, 1]), torch.tensor([0, 1]), range(2)):
        assert [one.title for one in features.top("output", several)] == [one.title for one in features.top("output", [0, 1])]
    for wrong in (None, "a", 1.5, True):
        with pytest.raises(tl.InvalidArgument, match="a unit of 'output' is a number from 0 to 1"):
            features.top("output", wrong)
    with pytest.raises(tl.LayerNotFound, match="no layer or label 'label'; there are: output, labels"):
        features.dataset("output", "label")


def test_labels_ids_and_samples(folder):
    features = tl.open_features(folder)
    assert torch.equal(features.labels["labels"], Y)
    assert features.ids == [f"s{at}" for at in range(103)]
    assert torch.equal(features.samples, torch.arange(103))
    assert features.tokens is None
    assert "output" in features
    with pytest.raises(tl.LayerNotFound, match="Did you mean 'output'"):
        features["outptu"]
    with pytest.raises(tl.InvalidArgument, match="name the layers and labels"):
        features.dataset()
    assert pickle.loads(pickle.dumps(features))["output"].shape == (103, 3, 2)  # for workers; nothing of ours reads pickles


def test_features_are_read_while_they_are_written(tmp_path):
    """What is there is right at every moment; a refresh finds more."""
    seen: list[int] = []
    failures: list[object] = []
    started = threading.Event()

    def batches():
        for at in range(0, 100, 5):
            yield X[at : at + 5]
            started.set()
            threading.Event().wait(0.003)

    def read():
        started.wait()
        while not seen or seen[-1] < 100:
            features = tl.open_features(tmp_path)
            numbers = features.samples
            if not torch.equal(features["output"][:], X[numbers] if len(numbers) else features["output"][:]):
                failures.append(numbers)
            seen.append(len(numbers))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    tl.extract(nn.Identity().eval(), batches(), "output", tmp_path, block=10, progress=False)
    reader.join(300)
    assert not failures
    assert seen[-1] == 100
    assert len(set(seen)) > 2


def test_refresh_finds_new_blocks(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    features = tl.extract(nn.Identity().eval(), X, "output", tmp_path, block=32, progress=False)
    assert features.missing == [1, 3]
    assert "2 blocks are missing" in repr(features)
    monkeypatch.setenv("RANK", "1")
    tl.extract(nn.Identity().eval(), X, "output", tmp_path, block=32, progress=False)
    assert len(features["output"]) == 64
    assert torch.equal(features.refresh()["output"][:], X)
    assert features.is_complete


def test_many_files_are_read_with_a_few_open(tmp_path, monkeypatch):
    monkeypatch.setattr(block_index, "_OPEN", 40)
    x = torch.rand(300, 4)
    features = tl.extract(nn.Identity().eval(), x.split(1), "output", tmp_path, block=1, progress=False)
    assert len(list(tmp_path.glob("block-*"))) == 300
    order = torch.randperm(300)
    assert torch.equal(features["output"][order], x[order])
    assert len(features._blocks._files) == 40


def test_libraries_that_are_not_there_are_named(folder, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "zarr", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    features = tl.open_features(folder)
    for call in (lambda: features.export(tmp_path / "x.zarr"), lambda: features["output"].export(tmp_path / "x.zarr")):
        with pytest.raises(tl.InvalidArgument, match=r"needs the package zarr, which is not installed: pip install zarr"):
            call()
    with pytest.raises(tl.InvalidArgument, match=r"needs the package datasets"):
        features.to_datasets()
    with pytest.raises(tl.InvalidArgument, match=r"exported to a .zarr folder"):
        features.export(tmp_path / "x.npy")


def test_broken_files_are_refused_whatever_is_wrong_with_them(folder, tmp_path):
    """Bytes of headers and plans are changed at random: what opens gives tensors, what does not says which file it is."""
    rng, refused, said = random.Random(0), 0, []
    for _ in range(150):
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        shutil.copytree(folder, tmp_path / "x")
        path = rng.choice(sorted((tmp_path / "x").iterdir()))
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice([1, 3, 10])):
            data[rng.randrange(min(len(data), 600))] = rng.choice(b'{}[]",:#/09a \xff')
        path.write_bytes(bytes(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])]))
        try:
            features = tl.open_features(tmp_path / "x")
            assert repr(features)
            assert len(features.samples) == sum(1 for _ in features["output"])
            assert features.ids is not None
        except (tl.UnreadableFile, tl.LayerNotFound) as error:
            refused += 1
            said.append((path.name, str(error)))
    assert refused > 75
    assert [one for one in said if one[0] not in one[1] and "no layer" not in one[1]] == []


def test_the_model_itself_is_printed_with_the_key_that_finds_it(tmp_path):
    features = tl.extract(nn.Linear(4, 2).eval(), torch.rand(10, 4), [""], to=tmp_path, progress=False)
    assert str(features).endswith("\n  ''  (10, 2) float32")
    assert features[""].shape == (10, 2)


def test_a_layer_is_a_tensor_and_an_array_alike(tmp_path):
    x = torch.rand(70, 3)
    layer = tl.extract(nn.Identity().eval(), x, "output", tmp_path, progress=False)["output"]
    for read in (torch.as_tensor, torch.asarray, torch.tensor, torch.from_dlpack):
        assert torch.equal(read(layer), x)
    assert torch.equal(torch.as_tensor(layer, dtype=torch.float64), x.double())
    assert torch.equal(torch.as_tensor(layer[3:9]), x[3:9])
    assert torch.as_tensor(layer).data_ptr() != torch.as_tensor(layer).data_ptr()  # each is its own
    for dtype in (None, "float32", "float64", "int32"):
        assert np.array_equal(np.asarray(layer, dtype=dtype), np.asarray(x, dtype=dtype))
    with pytest.raises(ValueError, match="is a copy"):
        layer.__array__(copy=False)


def test_what_numpy_lacks_and_ragged_layers_are_read_by_torch_too(tmp_path):
    x = torch.rand(9, 3)
    layer = tl.extract(nn.Identity().eval(), x, "output", tmp_path / "half", dtype="bfloat16", progress=False)["output"]
    assert torch.equal(torch.as_tensor(layer), x.bfloat16())
    ragged = tl.extract(nn.Identity().eval(), [x, x[:, :2]], "output", tmp_path / "ragged", progress=False)["output"]
    with pytest.raises(tl.InvalidArgument, match="ragged"):
        torch.as_tensor(ragged)
    assert torch.as_tensor(ragged.pad()).shape == (18, 3)
