"""`extract`: whole datasets, in blocks, compared with plain hooks in a plain loop."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
import warnings

import numpy as np
import pytest
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, SubsetRandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import torcheer as tl
from models import Buffer, made_of, made_with, unchanged
from tiny_transformers import tiny
from torcheer.features.extract import ProgressReport
from torcheer.features.storage import open_storage
from torcheer.features.writer import BlockWriter


@made_with(first=lambda: nn.Linear(4, 6), second=lambda: nn.Linear(6, 3))
def Net(self, x: Tensor) -> Tensor:
    return torch.softmax(self.second(self.first(x).relu_()), -1)


@pytest.fixture
def net():
    torch.manual_seed(1)
    return Net().eval()


X, Y = torch.rand(100, 4), torch.arange(100)
LOADER = DataLoader(TensorDataset(X, Y), batch_size=8)


def plain(model, batches, layers, as_args=lambda batch: ((batch[0],), {})):
    """The oracle: hooks, copies, and a loop."""
    seen: dict[str, list[Tensor]] = {layer: [] for layer in layers}
    handles = []
    for layer in layers:
        keep = lambda module, args, out, layer=layer: seen[layer].append((out if isinstance(out, Tensor) else out[0]).clone())
        handles.append(model.get_submodule(layer).register_forward_hook(keep))
    with torch.no_grad():
        for batch in batches:
            args, kwargs = as_args(batch)
            model(*args, **kwargs)
    for handle in handles:
        handle.remove()
    return seen


def extract(*args, **kwargs):
    return tl.extract(*args, **{"progress": False, **kwargs})


def test_values_labels_and_samples_are_those_of_a_plain_loop(net, tmp_path):
    with unchanged(net):
        features = extract(net, LOADER, ["first", "second", "softmax_1"], tmp_path / "f", block=20)
    expected = plain(net, LOADER, ["first", "second"])
    assert torch.equal(features["first"][:], torch.cat(expected["first"]))
    assert torch.equal(features["second"][:], torch.cat(expected["second"]))
    assert torch.equal(features["softmax_1"][:], torch.cat([net(x) for x, _ in LOADER]))
    assert torch.equal(features.labels["labels"], Y)
    assert torch.equal(features.samples, Y)
    assert features.is_complete
    assert features.layers == list(features) == ["first", "second", "softmax_1"]
    assert "softmax_1" in repr(features)


def test_a_block_is_the_fewest_whole_batches_that_reach_its_size(net, tmp_path):
    extract(net, LOADER, "first", tmp_path, block=20)
    names = sorted(path.name for path in tmp_path.glob("block-*"))
    assert names[0] == "block-00000000-000000000000-000000024.safetensors"
    assert names[-1] == "block-00000004-000000000096-000000004.safetensors"
    assert len(names) == 5


def test_blocks_are_the_same_bytes_whatever_kind_of_data_the_batches_come_from(net, tmp_path):
    """A loader with workers, a list of its batches, and a generator of them."""
    kinds = {
        "loader": LOADER,
        "workers": DataLoader(TensorDataset(X, Y), batch_size=8, num_workers=2, prefetch_factor=1),
        "list": list(LOADER),
        "generator": (batch for batch in LOADER),
    }
    found = {}
    for name, data in kinds.items():
        extract(net, data, ["first", "second"], tmp_path / name, block=20)
        found[name] = {path.name: path.read_bytes() for path in (tmp_path / name).glob("block-*")}
    assert found["loader"] == found["workers"] == found["list"] == found["generator"]


def test_a_dataset_a_tensor_and_an_iterable_dataset_are_taken(net, tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(X)

    class Numbered:  # as those of Hugging Face, not torch's
        def __len__(self):
            return len(X)

        def __getitem__(self, at):
            return {"x": X[at], "name": f"sample {at}"}

    expected = net.first(X).relu()
    for number, data in enumerate((X, TensorDataset(X), Stream(), Numbered())):
        features = extract(net, data, "relu_1", tmp_path / str(number))
        torch.testing.assert_close(features["relu_1"][:], expected)
    assert features.labels["name"][:2] == ["sample 0", "sample 1"]


def test_types_and_transforms(net, tmp_path):
    features = extract(
        net, LOADER, {"a": "first", "b": "second"}, tmp_path, dtype="bfloat16", transform={"b": lambda t: t[:, :2]}
    )
    assert features["a"].dtype is torch.bfloat16
    assert features["b"].shape == (100, 2)
    assert torch.equal(features["b"][:], net.second(net.first(X).relu())[:, :2].bfloat16())
    assert np.asarray(features["b"]).dtype == np.float32


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.int8, torch.float8_e4m3fnuz),
        *(torch.uint16, torch.uint32, torch.uint64),
    ],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_type_comes_back(dtype, tmp_path):
    layer = extract(made_of(lambda self, x: (x * 3).to(dtype)).eval(), X, "output", tmp_path, block=30)["output"]
    expected = (X * 3).to(dtype).view(torch.uint8)
    assert layer.dtype is dtype
    assert torch.equal(layer[:].view(torch.uint8), expected)
    assert torch.equal(layer[[40, 2, 99, 41]].view(torch.uint8), expected[[40, 2, 99, 41]])


def test_a_bert_with_padding_in_batches_of_their_own_length(tmp_path):
    """Ragged layers, means that follow the mask, and tokens."""
    model = tiny("bert", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, vocab_size=60).eval()
    batches, lengths = [], []
    for size in (5, 3, 7, 4):
        count = torch.randint(1, size + 1, (6,))
        count[0] = size
        mask = (torch.arange(size) < count[:, None]).long()
        ids = torch.randint(0, 60, (6, size))
        encoding = transformers.BatchEncoding({"input_ids": ids, "attention_mask": mask, "topic": list("abcdef")})
        batches.append(encoding)
        lengths += count.tolist()
    named = lambda batch: ((), {name: batch[name] for name in ("input_ids", "attention_mask")})
    expected = plain(model, batches, ["encoder.layer.0"], named)["encoder.layer.0"]
    samples = [sample for batch in expected for sample in batch]

    ragged = extract(model, batches, "encoder.layer.0", tmp_path / "ragged", block=10)
    layer = ragged["encoder.layer.0"]
    assert layer.shape == (24, None, 16)
    assert layer.is_ragged
    assert all(torch.equal(one, other) for one, other in zip(layer, samples, strict=True))
    assert [one.shape for one in layer[4:8]] == [(5, 16), (5, 16), (3, 16), (3, 16)]
    padded = layer.pad(-1)[4:8]
    assert padded.shape == (4, 5, 16)
    assert torch.equal(padded[2, :3], samples[6])
    assert (padded[2, 3:] == -1).all()
    assert layer.pad().to_numpy().shape == (24, 7, 16)
    assert np.load(layer.pad(-1).export(tmp_path / "x.npy")).shape == (24, 7, 16)
    with pytest.raises(tl.InvalidArgument, match=r"ragged.*pad\(\)"):
        np.asarray(layer)
    assert ragged.labels["topic"][:7] == list("abcdefa")

    means = extract(model, batches, "encoder.layer.0", tmp_path / "means", transform="mean")["encoder.layer.0"]
    torch.testing.assert_close(means[:], torch.stack([one[:n].mean(0) for one, n in zip(samples, lengths, strict=True)]))

    tokens = extract(model, batches, "encoder.layer.0", tmp_path / "tokens", flatten="tokens", block=10)
    assert torch.equal(tokens["encoder.layer.0"][:], torch.cat([one[:n] for one, n in zip(samples, lengths, strict=True)]))
    assert tokens.tokens.samples.tolist() == [at for at, n in enumerate(lengths) for _ in range(n)]
    assert tokens.tokens.positions.tolist() == [at for n in lengths for at in range(n)]
    assert torch.equal(tokens["encoder.layer.0"][tokens.tokens.rows_of(13)], samples[13][: lengths[13]])


def test_a_gpt2_with_its_cache_an_lstm_and_a_unet(tmp_path):
    gpt = tiny("gpt2", n_layer=2, n_embd=32, n_head=2).eval()
    ids = torch.randint(0, 50, (10, 6))
    found = extract(gpt, [{"input_ids": part} for part in ids.split(4)], ["h.*", "h.1.mlp"], tmp_path / "gpt")
    assert torch.equal(found["h.1"][:], torch.cat(plain(gpt, ids.split(4), ["h.1"], lambda b: ((b,), {}))["h.1"]))
    assert list(found) == ["h.0", "h.1", "h.1.mlp"]

    lstm, x = nn.LSTM(4, 5, batch_first=True).eval(), torch.rand(9, 7, 4)
    turned = lambda tensor: tensor.movedim(1, 0)
    found = extract(lstm, x.split(4), "output", tmp_path / "lstm", transform={"output2": turned, "output3": turned})
    torch.testing.assert_close(found["output"][:], lstm(x)[0].detach())
    torch.testing.assert_close(found["output2"][:, 0], lstm(x)[1][0][0].detach())
    torch.testing.assert_close(found["output3"][:, 0], lstm(x)[1][1][0].detach())

    resnet = torchvision.models.resnet18().eval()
    x = torch.rand(5, 3, 33, 33)
    found = extract(
        resnet, [x[:3], x[3:]], ["bn1", "layer1.0", "avgpool"], tmp_path / "resnet", transform={"avgpool": nn.Flatten()}
    )
    expected = plain(resnet, [x[:3], x[3:]], ["bn1", "layer1.0", "avgpool"], lambda b: ((b,), {}))
    assert torch.equal(found["bn1"][:], torch.cat(expected["bn1"]))
    assert torch.equal(found["layer1.0"][:], torch.cat(expected["layer1.0"]))
    assert torch.equal(found["avgpool"][:], torch.cat(expected["avgpool"]).flatten(1))


class Backwards(Sampler[int]):
    def __iter__(self):
        return iter(range(99, -1, -1))

    def __len__(self):
        return 100


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shuffle": True}, "RandomSampler: it gives samples in a random order"),
        (
            {"sampler": SubsetRandomSampler(range(50))},
            r"SubsetRandomSampler: sample \d+ of the dataset comes in the place of sample \d+",
        ),
        ({"sampler": Backwards()}, "Backwards: sample 99 of the dataset comes in the place of sample 0"),
        ({"sampler": DistributedSampler(X, 2, 0)}, r"DistributedSampler, and extract\(\) divides the data among processes"),
        ({"batch_sampler": [[0, 2], [1, 3]]}, "sample 2 of the dataset comes in the place of sample 1"),
    ],
)
def test_a_loader_in_another_order_is_refused_with_the_reason(net, tmp_path, options, said):
    size = {} if "batch_sampler" in options else {"batch_size": 8}
    with pytest.raises(tl.InvalidArgument, match=said):
        extract(net, DataLoader(TensorDataset(X, Y), **size, **options), "first", tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_a_loader_without_a_batch_size_takes_the_items_of_its_dataset_as_batches(net, tmp_path):
    batches = [X[:8], X[8:24], X[24:27]]
    loader = DataLoader(batches, batch_size=None)
    expected = torch.cat(plain(net, [(batch,) for batch in batches], ["first"])["first"])
    features = extract(net, loader, ["first"], tmp_path / "f", block=10)
    assert torch.equal(features["first"][:], expected)
    assert features.is_complete
    blocks = sorted((tmp_path / "f").glob("block-*"))
    assert len(blocks) == 2
    blocks[0].unlink()
    assert torch.equal(extract(net, loader, ["first"], tmp_path / "f")["first"][:], expected)
    with pytest.raises(tl.InvalidArgument, match="sample 2 of the dataset comes in the place of sample 0"):
        extract(net, DataLoader(batches, batch_size=None, sampler=[2, 0, 1]), ["first"], tmp_path / "g")
    with pytest.raises(tl.InvalidArgument, match="data gave no batch"):
        extract(net, DataLoader([], batch_size=None), ["first"], tmp_path / "g")


@pytest.mark.parametrize("ids", ["sequence", "texts", "function", "item"])
def test_a_loader_that_shuffles_is_taken_where_samples_have_ids(net, tmp_path, ids):
    """Also in a second run, and in another process's share: the order is the same each time."""
    given = {"sequence": Y * 10, "texts": [f"s{at}" for at in range(100)], "function": lambda batch: batch[1] * 10, "item": 1}[
        ids
    ]
    state = torch.get_rng_state()
    features = extract(net, DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True), "first", tmp_path, ids=given, block=20)
    assert torch.equal(torch.get_rng_state(), state)
    next(tmp_path.glob("block-00000002-*")).unlink()
    features = extract(net, DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True), "first", tmp_path, ids=given, block=20)
    numbers = [int(str(one).lstrip("s")) for one in (features.ids if ids == "texts" else features.ids.tolist())]
    numbers = torch.tensor([number // 10 if ids in ("sequence", "function") else number for number in numbers])
    assert sorted(numbers.tolist()) == list(range(100))
    assert numbers.tolist() != list(range(100))
    torch.testing.assert_close(features["first"][:], net.first(X[numbers]))


@pytest.mark.parametrize("keep", [None, tl.reducers.TopK(5)], ids=["values", "kept"])
def test_samples_of_a_loader_that_shuffles_have_the_numbers_of_the_dataset(net, tmp_path, keep):
    """So that pictures, labels and neighbours are those of the sample."""
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
    features = extract(net, loader, "first", tmp_path, ids=[f"s{at}" for at in range(100)], block=20, keep=keep)
    assert features.samples.tolist() != Y.tolist()
    assert [f"s{number}" for number in features.samples.tolist()] == features.ids
    expected = net.first(X)[:, 2].topk(5).indices
    top = features.top("first", 2, k=5)
    assert top.numbers.tolist() == expected.tolist()
    assert top.ids == [f"s{number}" for number in expected.tolist()]
    shades = (Y / 100)[:, None, None].expand(100, 4, 4)
    figure = features.top("first", 2, k=5, pictures=TensorDataset(shades)).figure
    shown = [float(axes.images[0].get_array()[0, 0]) for axes in figure.axes if axes.images]
    assert shown == pytest.approx((expected / 100).tolist())
    if keep is None:
        cosine = torch.nn.functional.cosine_similarity(net.first(X), net.first(X[7]), dim=1)
        cosine[7] = -2
        assert features["first"].nearest("s7", k=3).numbers.tolist() == cosine.topk(3).indices.tolist()


def test_tokens_of_a_loader_that_shuffles_are_found_by_the_number_of_their_sample(tmp_path):
    values = torch.arange(30.0).reshape(10, 3, 1)
    loader = DataLoader(values, batch_size=4, shuffle=True)
    features = extract(nn.Identity().eval(), loader, "output", tmp_path, ids=range(10), flatten="tokens", block=4)
    for sample in range(10):
        assert torch.equal(features["output"][features.tokens.rows_of(sample)], values[sample])
    assert features.tokens.rows_of(10) == slice(0, 0)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_generator_of_a_loader_is_left_as_it_was(net, tmp_path, shuffle, workers):
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    given = {"batch_size": 40, "shuffle": shuffle, "generator": generator, "num_workers": workers}
    extract(net, DataLoader(TensorDataset(X, Y), **given), "first", tmp_path, ids=Y)
    assert torch.equal(generator.get_state(), before)


class OpenedInWorkers(Dataset):
    file = None

    def __len__(self):
        return 20

    def __getitem__(self, number):
        return OpenedInWorkers.file[number]


def open_file(worker):
    OpenedInWorkers.file = X


def test_a_dataset_that_is_opened_in_the_workers_is_read_there(net, tmp_path):
    loader = DataLoader(
        OpenedInWorkers(), batch_size=8, num_workers=2, worker_init_fn=open_file, multiprocessing_context="fork"
    )
    assert torch.equal(extract(net, loader, "first", tmp_path)["first"][:], torch.cat([net.first(x) for x in X[:20].split(8)]))


def test_a_sampler_that_divides_the_data_and_a_dataset_without_a_length_are_refused(net, tmp_path):
    divided = DistributedSampler(TensorDataset(X), num_replicas=2, rank=0)
    with pytest.raises(tl.InvalidArgument, match="extract\\(\\) divides the data among processes itself"):
        extract(net, DataLoader(TensorDataset(X), sampler=divided), "first", tmp_path, ids=Y)

    class Endless(Dataset):
        def __getitem__(self, number):
            return X[0]

    with pytest.raises(tl.InvalidArgument, match="an Endless has no length"):
        extract(net, Endless(), "first", tmp_path)
    with pytest.raises(tl.InvalidArgument, match=r"a tensor of shape \(0, 4\)"):
        extract(net, X[:0], "first", tmp_path)


def test_ids_that_do_not_fit_are_refused(net, tmp_path):
    for ids, said in (
        (["a"] * 3, "ids has 3 entries"),
        (lambda batch: [1.5] * 8, "8 whole numbers or texts"),
        ("name", "has no item 'name'"),
        (3.5, "ids is the name of an item"),
    ):
        with pytest.raises(tl.InvalidArgument, match=said):
            extract(net, LOADER, "first", tmp_path / "f", ids=ids)


def blocks(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_processes_that_begin_at_once_find_the_plan_of_each_other(net, tmp_path, monkeypatch, moment):
    """Another process writes the plan while this one looks at what is in the folder."""
    from torcheer.features.storage import LocalStorage

    extract(net, LOADER, "first", tmp_path / "other", block=20)
    data, listed = (tmp_path / "other" / "plan.json").read_bytes(), LocalStorage.names

    def names(storage):
        if moment == "before":
            storage.write("plan.json", data)
        found = listed(storage)
        storage.write("plan.json", data)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "names", names)
        features = extract(net, LOADER, "first", tmp_path / "ours", block=20)
    assert features.is_complete
    assert blocks(tmp_path / "ours") == blocks(tmp_path / "other")


def test_only_what_is_missing_is_run_and_the_bytes_are_the_same(net, tmp_path):
    extract(net, LOADER, "first", tmp_path, block=20, stop=False)
    whole = blocks(tmp_path)
    ran: list[int] = []
    net.first.register_forward_hook(lambda module, args, out: ran.append(len(out)))
    extract(net, LOADER, "first", tmp_path, block=20, stop=False)
    ran_when_done = len(ran)
    for number in (1, 3):
        next(tmp_path.glob(f"block-0000000{number}-*")).unlink()
    assert tl.open_features(tmp_path).missing == [1, 3]
    assert tl.open_features(tmp_path).samples.tolist() == [*range(24), *range(48, 72), *range(96, 100)]
    ran.clear()
    features = extract(net, LOADER, "first", tmp_path, block=20, stop=False)
    assert sum(ran[-6:]) == 48  # six batches, after those that find the places
    assert len(ran) - 6 <= ran_when_done + 1
    assert blocks(tmp_path) == whole
    assert features.is_complete


def test_a_generator_is_read_to_its_end_and_an_exhausted_one_is_named(net, tmp_path):
    extract(net, (b for b in LOADER), "first", tmp_path, block=20)
    whole = blocks(tmp_path)
    next(tmp_path.glob("block-00000001-*")).unlink()
    (tmp_path / "end.json").unlink()
    used = (batch for batch in LOADER)
    list(used)
    with pytest.raises(tl.InvalidArgument, match=r"data gave no batch.*A generator gives its batches once"):
        extract(net, used, "first", tmp_path, block=20)
    extract(net, (b for b in LOADER), "first", tmp_path, block=20)
    assert blocks(tmp_path) == whole


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ([X[:8]] * 14, "block 4 is of samples 96 to 111 of the data, and was of 96 to 99"),
        ([X[:8]] * 11, "block 3 is of samples 72 to 87 of the data, and was of 72 to 95"),
        ([X[:8]] * 9, "the data ended with sample 71, and there are blocks of later samples"),
        ([X[:8], X[:4], *[X[:8]] * 11], "block 0 is of samples 0 to 19 of the data, and was of 0 to 23"),
    ],
)
def test_other_numbers_of_samples_from_a_generator_are_noticed(net, tmp_path, now, said):
    extract(net, iter([*[X[:8]] * 12, X[:4]]), "first", tmp_path, block=20)
    (tmp_path / "end.json").unlink()
    whole = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(tl.FeaturesMismatch, match=said):
        extract(net, iter(now), "first", tmp_path, block=20)
    assert {path.name for path in tmp_path.iterdir()} == whole


def test_a_generator_that_goes_on_after_its_end_is_noticed(net, tmp_path):
    extract(net, iter([X[:8]] * 6), "first", tmp_path, block=24)
    with pytest.raises(tl.FeaturesMismatch, match="more samples than the 48 that it had"):
        extract(net, iter([X[:8]] * 9), "first", tmp_path, block=24)
    assert tl.open_features(tmp_path).is_complete


def changed_weight(net):
    with torch.no_grad():
        net.second.weight[1, 2] += 1e-3
    return {}


def changed_class(net):
    net.forward = lambda x: torch.softmax(net.second(net.first(x).tanh()), -1)
    return {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed_weight, "have other values: second.weight"),
        (lambda net: net.train() and {}, r"another mode \(training or not\): the model itself, first, second"),
        (changed_class, "the model runs other operations"),
        (lambda net: {"data": DataLoader(TensorDataset(X + 1, Y), batch_size=8)}, "the first batch has other values"),
        (lambda net: {"data": DataLoader(TensorDataset(X, Y), batch_size=4)}, "the first batch has other values"),
        (lambda net: {"data": DataLoader(TensorDataset(X[:50], Y[:50]), batch_size=8)}, "more or fewer"),
        (lambda net: {"block": 21}, "block is 21, and was 20"),
        (lambda net: {"dtype": "float16"}, "dtype is 'torch.float16', and was None"),
        (lambda net: {"layers": ["second"]}, "the layers are second, and were first"),
        (lambda net: {"transform": "mean"}, "transform is 'mean', and was None"),
        (lambda net: {"transform": lambda t: t + 1}, "transform is another one"),
        (lambda net: {"ids": 1}, "ids is 1, and was None"),
        (lambda net: {"keep": tl.reducers.Mean()}, "keep is another one"),
        (
            lambda net: {"model": nn.Sequential(nn.Linear(4, 4)).eval(), "layers": "0"},
            "the model is a Sequential, and was a Net",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::torcheer.TrainingModeWarning")
def test_what_changed_is_named_when_resuming(net, tmp_path, change, said):
    given = {"model": net, "data": LOADER, "layers": "first", "to": tmp_path, "block": 20}
    extract(**given)
    before = blocks(tmp_path)
    with pytest.raises(tl.FeaturesMismatch, match=said):
        extract(**{**given, **change(net)})
    assert blocks(tmp_path) == before


def test_another_precision_of_autocast_is_named_when_resuming(net, tmp_path):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert extract(net, LOADER, "first", tmp_path)["first"].dtype is torch.bfloat16
    with pytest.raises(tl.FeaturesMismatch, match=r"autocast is None, and was 'torch.bfloat16'"):
        extract(net, LOADER, "first", tmp_path)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda t: t + 1, lambda t: t + 2),
        (lambda t: t.relu(), lambda t: t.tanh()),
        ((lambda k: lambda t: t + k)(1), (lambda k: lambda t: t + k)(2)),
        ((lambda k: lambda t: t + k)(torch.ones(1)), (lambda k: lambda t: t + k)(torch.zeros(1))),
        (lambda t, by=1: t + by, lambda t, by=2: t + by),
        (nn.Linear(6, 2), nn.Linear(6, 2)),
        (torch.relu, torch.tanh),
    ],
)
def test_another_transform_is_noticed(net, tmp_path, one, other):
    extract(net, LOADER, "first", tmp_path, transform=one)
    extract(net, LOADER, "first", tmp_path, transform=one)
    with pytest.raises(tl.FeaturesMismatch, match="transform is another one"):
        extract(net, LOADER, "first", tmp_path, transform=other)


def test_a_folder_with_something_else_is_left_alone(net, tmp_path):
    (tmp_path / "thesis.txt").write_text("important")
    with pytest.raises(tl.FeaturesExist, match=r"holds other files \(thesis.txt\)"):
        extract(net, LOADER, "first", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    extract(net, LOADER, "first", tmp_path / "f")
    with pytest.raises(tl.FeaturesExist, match="resume=True to continue"):
        extract(net, LOADER, "first", tmp_path / "f", resume=False)


@pytest.mark.parametrize("kind", ["loader", "generator"])
def test_shares_of_several_processes_make_the_same_folder(net, tmp_path, kind, monkeypatch):
    data = lambda: LOADER if kind == "loader" else (batch for batch in LOADER)
    extract(net, data(), "first", tmp_path / "one", block=20)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    features = extract(net, data(), "first", tmp_path / "two", block=20)
    assert features.missing == [0, 2, 4]
    monkeypatch.setenv("RANK", "0")
    assert extract(net, data(), "first", tmp_path / "two", block=20).is_complete
    assert blocks(tmp_path / "one") == blocks(tmp_path / "two")
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(tl.InvalidArgument, match="RANK='2' and WORLD_SIZE='2'"):
        extract(net, data(), "first", tmp_path / "two", block=20)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("broken sample"), SystemExit])
def test_an_interrupt_leaves_whole_blocks_and_everything_as_it_was(net, tmp_path, error):
    def batches():
        yield from list(LOADER)[:7]
        raise error

    threads = threading.active_count()
    with unchanged(net), pytest.raises(error if isinstance(error, type) else ValueError):
        extract(net, batches(), ["first", "softmax_1"], tmp_path, block=20)
    assert threading.active_count() == threads
    features = tl.open_features(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert len(features["first"]) == 48
    assert torch.equal(features["first"][:], net.first(X[:48]))
    assert not features.is_complete


def test_a_model_that_raises_says_so_and_leaves_whole_blocks(net, tmp_path):
    batches = [*(x for x, _ in LOADER), torch.rand(3, 5)]
    with unchanged(net), pytest.raises(RuntimeError, match="shapes"):
        extract(net, batches, "first", tmp_path, block=20)
    assert len(tl.open_features(tmp_path)["first"]) == 96


def test_a_full_disk_is_told_and_the_rest_is_done_later(net, tmp_path, monkeypatch):
    from torcheer._files import files

    real, count = files.os.pwrite, []

    def full(*args):
        count.append(1)
        if len(count) > 5:
            raise OSError(28, "No space left on device")
        return real(*args)

    threads = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            extract(net, LOADER, "first", tmp_path, block=20)
    assert threading.active_count() == threads
    assert 0 < len(tl.open_features(tmp_path)["first"]) < 100
    assert extract(net, LOADER, "first", tmp_path, block=20).is_complete


@pytest.mark.parametrize(
    ("data", "layers", "options", "said"),
    [
        ([], "first", {}, "data gave no batch"),
        (X[:0], "first", {}, "data gave no batch"),
        (DataLoader(TensorDataset(X[:0])), "first", {}, "data gave no batch"),
        ({"x": X}, "first", {}, r"For a single batch: data=\[batch\]"),
        (3, "first", {}, "data is a DataLoader, a Dataset or an iterable of batches"),
        (torch.tensor(1.0), "first", {}, "its first dimension should be samples"),
        (LOADER, "first", {"block": 0}, "block is the least number of samples"),
        (LOADER, "first", {"keep": "mean"}, "keep takes reducers"),
        (LOADER, "first", {"keep": {"frist": None}}, "Did you mean 'first'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(net, tmp_path, data, layers, options, said):
    with pytest.raises(tl.InvalidArgument, match=said):
        extract(net, data, layers, tmp_path / "f", **options)
    assert not (tmp_path / "f").exists()


def test_a_collate_function_that_leaves_samples_out_is_noticed(net, tmp_path):
    loader = DataLoader(TensorDataset(X), batch_size=8, collate_fn=lambda items: torch.stack([x for (x,) in items][:-1]))
    with pytest.raises(tl.InvalidArgument, match="batch 0 has 7 samples where its sampler names 8"):
        extract(net, loader, "first", tmp_path / "a")
    assert extract(net, iter(loader), "first", tmp_path / "b")["first"].shape == (87, 6)


def test_labels_that_cannot_be_stored_are_named(net, tmp_path):
    odd = [(x, {"boxes": [1, 2]}) for x, _ in LOADER]
    with pytest.warns(UserWarning, match="'labels' of the batches is not stored"):
        assert extract(net, odd, "first", tmp_path / "a").labels == {}
    batches = list(LOADER)
    batches[3] = (batches[3][0], batches[3][1][:2])
    with pytest.raises(tl.InvalidArgument, match=r"batch 3 should have 'labels' for its 8 samples.*shape \(2,\)"):
        extract(net, batches, "first", tmp_path / "b")


def test_keeping_nothing_is_refused(net, tmp_path):
    with pytest.raises(tl.InvalidArgument, match="keep is empty"):
        extract(net, LOADER, "first", tmp_path, keep=[])


def test_a_damaged_block_is_named_before_the_others_are_run(net, tmp_path):
    extract(net, LOADER, "first", tmp_path, block=20)
    blocks = sorted(tmp_path.glob("block-*"))
    blocks[0].unlink()
    blocks[2].write_bytes(blocks[2].read_bytes()[:-50])
    with pytest.raises(tl.UnreadableFile, match=rf"{blocks[2].name} cannot be read.*Delete this file and extract again"):
        extract(net, LOADER, "first", tmp_path, block=20)
    assert not blocks[0].exists()
    blocks[2].unlink()
    assert extract(net, LOADER, "first", tmp_path, block=20).is_complete


def test_batches_that_do_not_fit_the_model_are_told_how_to_say_it(tmp_path):
    for batch in ((X,), {"a": X, "c": X}):
        with pytest.raises(tl.InvalidArgument, match=r"Define how the model is called with a batch: call=lambda model, batch"):
            extract(made_of(lambda self, a, b: a + b).eval(), [batch], "output", tmp_path)


def test_a_layer_that_is_the_last_does_not_end_the_pass(tmp_path):
    """So that it is noticed when a later batch calls it more often."""

    def forward(self, x):
        for _ in range(1 if bool((x == X[:8]).all()) else 2):
            x = self.inner(x)
        return x

    with pytest.raises(tl.PlaceNotReached, match="'inner' was called more often than the once"):
        extract(made_of(forward, inner=nn.Linear(4, 4), batches=0).eval(), [X[:8], X[8:16]], "inner", tmp_path)


def test_labels_and_ids_of_another_kind_than_before_are_refused(net, tmp_path):
    batches = [(X[:8], ["a"] * 8), (X[8:16], [1] * 8)]
    with pytest.raises(tl.InvalidArgument, match=r"batch 1 should have 'labels' for its 8 samples, texts as in the first"):
        extract(net, batches, "first", tmp_path / "labels")
    with pytest.raises(tl.InvalidArgument, match=r"the ids of batch 1 should be 8 whole numbers or texts, the same in"):
        extract(net, batches, "first", tmp_path / "ids", ids=1)


@pytest.mark.parametrize("dtype", [">i4", "<f8", ">f2", np.longdouble, np.clongdouble, np.uint16, bool])
def test_arrays_of_every_kind_are_labels(net, tmp_path, dtype):
    features = extract(net, [(X[:8], np.arange(8).astype(dtype))], "first", tmp_path)
    assert features.labels["labels"].tolist() == np.arange(8).astype(dtype).tolist()


@pytest.mark.parametrize("item", [2, -1])
def test_the_item_with_ids_is_no_label(net, tmp_path, item):
    features = extract(net, [(X, Y, Y + 500)], "first", tmp_path, ids=item)
    assert torch.equal(features.ids, Y + 500)
    assert {name: value.tolist() for name, value in features.labels.items()} == {"labels": Y.tolist()}


def test_batches_without_samples_are_nothing_special(net, tmp_path):
    empty = extract(net, [X[:0]], "first", tmp_path / "empty")
    assert empty.is_complete
    assert empty["first"][:].shape[0] == 0
    assert "0 samples, complete" in repr(empty)
    batches = [X[:0], X[:4], X[:0], X[4:8], X[:0]]
    features = extract(net, batches, "first", tmp_path / "some", block=4)
    assert torch.equal(features["first"][:], torch.cat([net.first(X[:4]), net.first(X[4:8])]))
    assert features.samples.tolist() == list(range(8))


def test_modules_in_training_mode_are_named(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4)).train()
    with unchanged(model), pytest.warns(tl.TrainingModeWarning, match=r"1 \(Dropout\), 2 \(BatchNorm1d\), the model itself"):
        extract(model, X, ["1", "2"], tmp_path / "a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extract(model.eval(), X, ["1", "2"], tmp_path / "b")


def test_random_models_give_the_same_whoever_runs_which_block(tmp_path, monkeypatch):
    model = made_of(lambda self, x: x + torch.rand_like(x) + random.random()).eval()
    extract(model, X, "output", tmp_path / "one", block=20)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in "10":
        torch.rand(3)
        monkeypatch.setenv("RANK", rank)
        extract(model, X, "output", tmp_path / "two", block=20)
    assert blocks(tmp_path / "one") == blocks(tmp_path / "two")


def test_progress_has_rate_size_and_time_left(net, tmp_path, capsys):
    said = []
    extract(net, LOADER, "first", tmp_path, block=20, progress=said.append)
    assert [one.samples for one in said] == [*range(8, 100, 8), 100]
    assert said[-1].total == 100
    assert said[-1].seconds_left == 0
    assert said[3].rate > 0
    assert "of 100 samples" in str(said[3])
    assert "on disk, 0:0" in str(said[3])
    extract(net, LOADER, "first", tmp_path / "other", block=20, progress=True)
    assert capsys.readouterr().err == ""  # it was quick, and this is no terminal


def test_progress_tells_the_size_of_the_block_in_work_and_forgets_one_that_is_given_up(tmp_path):
    wide = nn.Linear(4, 200_000).eval()
    told = []

    def wait(progress):
        time.sleep(0.1)  # the writer is behind the model
        told.append(progress.written)

    features = extract(wide, [X[:8]] * 6, "output", tmp_path / "whole", block=1024, progress=wait)
    assert told == sorted(told)
    assert 0 < told[-1] <= features.size_on_disk
    assert len(list((tmp_path / "whole").glob("block-*"))) == 1
    report = ProgressReport(False, None, 0)
    writer = BlockWriter(open_storage(tmp_path / "half"), 4096, report.wrote)
    writer.add({"a": torch.zeros(1_000_000)})
    while not report.written:
        time.sleep(0.01)
    writer.abandon()
    assert report.written == 0


def test_the_queue_holds_a_limited_number_of_bytes(tmp_path, monkeypatch):
    """While the disk is slow the model waits."""
    import time

    from torcheer.features import storage, writer

    monkeypatch.setattr(writer.BlockWriter.__init__, "__defaults__", (150_000,))
    waiting = []
    real = storage.TensorsInWork.add

    def slow(self, name, tensor):
        time.sleep(0.002)
        real(self, name, tensor)

    monkeypatch.setattr(storage.TensorsInWork, "add", slow)
    monkeypatch.setattr(writer, "_TOGETHER", 1)
    put = writer.BlockWriter._put
    monkeypatch.setattr(writer.BlockWriter, "_put", lambda self, step: (waiting.append(self._waiting), put(self, step))[1])
    x = torch.rand(400, 1000)
    features = extract(nn.ReLU().eval(), x.split(10), "output", tmp_path, block=100)
    assert 100_000 < max(waiting) <= 150_000
    assert torch.equal(features["output"][:], x)


def test_reducers_keep_what_they_find_instead_of_values(net, tmp_path):
    features = extract(net, LOADER, ["first", "second"], tmp_path, block=20, keep={"first": [tl.reducers.Mean()]})
    assert features.layers == ["second"]
    with pytest.raises(tl.LayerNotFound, match="the values of 'first' are not stored"):
        features["first"]
    assert "first   no values, but Mean\n" in f"{features}\n"
    with pytest.raises(tl.LayerNotFound, match=r"there are: first, second\. Did you mean 'first'"):
        features["fist"]
    assert sorted(path.name for path in tmp_path.glob("reduced-*")) == [
        "reduced-00-00000004.safetensors",
        "reduced-02-00000000.safetensors",
    ]
    both = extract(net, LOADER, ["first"], tmp_path / "both", keep=[tl.reducers.Mean(), "activations"])
    assert both["first"].shape == (100, 6)


def test_the_plan_is_plain_json_and_a_hostile_folder_is_refused(net, tmp_path):
    extract(net, LOADER, "first", tmp_path, block=20)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["format"] == "torcheer features"
    for damage in (
        b"",
        b"[]",
        b"{}",
        b'{"format":"torcheer features"}',
        b'{"format":"torcheer features","version":9}',
        b"[" * 100_000,
    ):
        (tmp_path / "plan.json").write_bytes(damage)
        with pytest.raises(tl.UnreadableFile, match=r"plan.json in .* is"):
            tl.open_features(tmp_path)
    wrong = [{name: 5} for name in plan if name not in ("format", "version")]
    for damaged in (
        *wrong,
        {"state": {"weight": 5}},
        {"layers": [5]},
        {"settings": {}},
        {"settings": {"keep": {"stored": []}}},
    ):
        (tmp_path / "plan.json").write_text(json.dumps({**plan, **damaged}))
        with pytest.raises(tl.UnreadableFile, match=r"plan.json in .* is damaged: "):
            tl.open_features(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    for damage in (b"", b"[]", b'{"blocks": 3}', b'{"blocks": -1, "samples": 100}', b'{"blocks": 1.5, "samples": 100}'):
        whole = (tmp_path / "end.json").read_bytes()
        (tmp_path / "end.json").write_bytes(damage)
        with pytest.raises(tl.UnreadableFile, match=r"end.json in .* is damaged. Delete this file and extract again"):
            repr(tl.open_features(tmp_path))
        (tmp_path / "end.json").unlink()
        assert extract(net, LOADER, "first", tmp_path, block=20).is_complete
        assert (tmp_path / "end.json").read_bytes() == whole
    block = next(tmp_path.glob("block-00000001-*"))
    for damage in (b"", b"\x00" * 50, block.read_bytes()[:-7]):
        whole = block.read_bytes()
        block.write_bytes(damage)
        with pytest.raises(tl.UnreadableFile, match="block-00000001"):
            tl.open_features(tmp_path)
        block.write_bytes(whole)
    block.rename(tmp_path / "block-00000001-000000000024-000000099.safetensors")
    with pytest.raises(tl.UnreadableFile, match="rows instead of 99"):
        tl.open_features(tmp_path)
    with pytest.raises(tl.FeaturesNotFound, match="there are no features in"):
        tl.open_features(tmp_path / "nowhere")


def test_a_random_sampler_over_a_stream_is_refused_too(net, tmp_path):
    class Wrapped:
        sampler = RandomSampler(X)

        def __iter__(self):
            return iter(LOADER)

    with pytest.raises(tl.InvalidArgument, match="RandomSampler"):
        extract(net, Wrapped(), "first", tmp_path / "f")


@pytest.mark.parametrize("around", ["inference_mode", "autocast", "default device", "default dtype", "enable_grad"])
def test_what_the_caller_has_switched_on_stays_and_does_no_harm(net, tmp_path, around):
    contexts = {
        "inference_mode": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "enable_grad": torch.enable_grad,
        "default device": lambda: torch.device("meta"),
        "default dtype": lambda: default_dtype(torch.float64),
    }
    batches = list(LOADER)
    with contexts[around]():
        features = extract(net, batches, ["first", "second", "input"], tmp_path / "f", block=20, ids=1)
        expected = plain(net, batches, ["first", "second"])
        read = features["first"][:], features["second"][[3, 99]], features["input"][:], features.samples, features.ids
    assert torch.equal(read[0], torch.cat(expected["first"]))
    assert torch.equal(read[1], torch.cat(expected["second"])[[3, 99]])
    assert torch.equal(read[2], X)
    assert torch.equal(read[3], Y)
    assert torch.equal(read[4], Y)
    assert read[0].dtype is (torch.bfloat16 if around == "autocast" else torch.float32)


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def test_batches_that_the_model_writes_to_are_left_as_they_were(tmp_path):
    model, batches = (
        made_of(lambda self, x: self.inner(x.mul_(2)), inner=nn.Linear(4, 4)).eval(),
        [x.clone() for x, _ in LOADER],
    )
    features = extract(model, batches, ["inner", "input"], tmp_path)
    assert torch.equal(torch.cat(batches), X)
    assert torch.equal(features["inner"][:8], model.inner(X[:8] * 2))
    assert torch.equal(features["input"][:], X)


def test_state_in_buffers_does_not_carry_over(tmp_path):
    def forward(self, x):
        self.count += 1
        return x + self.count

    model = made_of(forward, count=Buffer(torch.zeros(4))).eval()
    with unchanged(model):
        assert torch.equal(extract(model, LOADER, "output", tmp_path)["output"][:], X + 1)


def test_a_parameter_that_each_pass_writes_is_put_back(tmp_path):
    """Also where a pass adds other tensors that nobody made in a watched call, such as the sum of a batch norm."""

    def forward(self, x):
        with torch.no_grad():
            self.fc.weight.mul_(2)
            self.fc.bias.requires_grad_(False)
        return self.norm(self.fc(x)) * self.plain

    model = made_of(forward, fc=nn.Linear(4, 4), norm=nn.BatchNorm1d(4), plain=torch.ones(4)).eval()
    expected = torch.nn.functional.linear(X, model.fc.weight.detach() * 2, model.fc.bias.detach())
    with unchanged(model):
        assert torch.allclose(extract(model, LOADER, "fc", tmp_path)["fc"][:], expected)
    assert model.fc.bias.requires_grad


class Counting(nn.Module):
    """Adds how often it was called, which it keeps in one of several ways."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.calls, self.seen, self.plain, self.inner = kind, 0, [], torch.zeros(()), nn.Linear(4, 4)
        self.register_buffer("buffer", torch.zeros(()))
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        getattr(self, f"in_{self.kind}")()
        return x + self.buffer + self.calls + len(self.seen) + self.plain + self.weight + hasattr(self.inner, "mask")

    def in_new_buffer(self):
        self.buffer = self.buffer + 1

    def in_attribute(self):
        self.calls += 1

    def in_list(self):
        self.seen.append(None)

    def in_plain_tensor(self):
        self.plain += 1

    def in_parameter(self):
        self.weight.data.add_(1)

    def in_late_buffer(self):
        assert not hasattr(self.inner, "mask")
        self.inner.register_buffer("mask", torch.ones(2))


@pytest.mark.parametrize("kind", ["new_buffer", "attribute", "list", "plain_tensor", "parameter", "late_buffer"])
def test_each_batch_finds_the_model_as_the_first_did_wherever_it_keeps_what_it_saw(kind, tmp_path):
    model = Counting(kind).eval()
    with unchanged(model):
        assert torch.equal(extract(model, LOADER, "output", tmp_path)["output"][:], X + 1)
    assert not hasattr(model.inner, "mask")
    assert (model.calls, model.seen, model.plain.item()) == (0, [], 0)


@pytest.mark.parametrize("kind", ["attribute", "parameter", "list"])
def test_a_model_that_counts_and_then_raises_is_left_as_it_was(kind, tmp_path):
    model = Counting(kind).eval()
    batches = [X[:8], X[8:16], X[16:24, :3]]
    with unchanged(model), pytest.raises(RuntimeError, match="shapes"):
        extract(model, batches, "output", tmp_path, call=lambda model, x: model.inner(model(x)))
    assert (model.calls, model.seen) == (0, [])


def test_a_compiled_model_and_text_that_is_generated(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)).eval()
    features = extract(torch.compile(model, backend="eager"), LOADER, ["0", "1"], tmp_path / "compiled")
    assert torch.equal(features["0"][:8], model[0](X[:8]))

    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=60, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    gpt = transformers.GPT2LMHeadModel(config).eval()
    batches = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in torch.randint(1, 60, (3, 2, 4))]
    call = lambda model, batch: model.generate(**batch, min_new_tokens=3, max_new_tokens=3, do_sample=False)
    features = extract(gpt, batches, "transformer.h.1", tmp_path / "generated", call=call)
    assert [features[name].shape for name in features] == [(6, 4, 32), (6, 1, 32), (6, 1, 32)]


@pytest.fixture
def obeys_interrupts():
    """A job that a shell put into the background ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("obeys_interrupts")
def test_an_interrupt_from_outside_is_obeyed(tmp_path):
    """A real signal, while the model runs."""

    def forward(self, x):
        if list(tmp_path.glob("block-00000003-*")):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        return x + 1

    threads, model = threading.active_count(), made_of(forward).eval()
    with unchanged(model), pytest.raises(KeyboardInterrupt):
        extract(model, (X[:8] for _ in range(10_000)), "output", tmp_path, block=16)
    assert threading.active_count() == threads
    features = tl.open_features(tmp_path)
    assert torch.equal(features["output"][:], (X[:8] + 1).repeat(len(features["output"]) // 8, 1))


def test_the_thread_of_the_caller_keeps_its_priority(tmp_path):
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    tl.extract(nn.Sequential(nn.Linear(4, 3)).eval(), [torch.rand(2, 4)], ["0"], tmp_path / "features", progress=False)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


@pytest.mark.parametrize("where", ["model", "data"])
def test_what_has_no_values_is_refused_before_anything_is_written(where, tmp_path):
    model = nn.Sequential(nn.Linear(4, 3) if where == "model" else nn.ReLU()).eval()
    data = torch.rand(20, 4)
    if where == "model":
        model.to("meta")
    else:
        data = data.to("meta")
    with pytest.raises(tl.InvalidArgument, match="'0': only values can be stored; it is on the meta device"):
        tl.extract(model, data, ["0"], to=tmp_path / "features", progress=False)
    assert not (tmp_path / "features").exists()
