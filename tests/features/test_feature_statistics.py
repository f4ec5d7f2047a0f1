"""What extracted features tell equals a direct computation, kept by reducers or worked out from stored values."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torcheer as tl
from torcheer import InvalidArgument, LayerNotFound, UnreadableFile, changes
from torcheer.reducers import Covariance, Histogram, Mean, TopK

torch.manual_seed(0)
PICTURES = torch.rand(50, 3, 8, 8)
MODEL = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(180, 7)).eval()
LOADER = DataLoader(TensorDataset(PICTURES, torch.arange(50) % 4), batch_size=6)
with torch.no_grad():
    BATCHES = [batch for batch, _ in LOADER]
    CONV = torch.cat([MODEL[1](MODEL[0](batch)) for batch in BATCHES])
    LAST = torch.cat([MODEL(batch) for batch in BATCHES])
ALL = [Mean(), Covariance(), TopK(4), Histogram()]


def extract(folder, **options):
    options = {"progress": False, "block": 10, **options}
    return tl.extract(MODEL, LOADER, ["1", "3"], to=folder, **options)


@pytest.fixture(scope="module", params=["kept", "stored", "both"])
def features(request, tmp_path_factory):
    keep = {"kept": ALL, "stored": None, "both": [*ALL, "activations"]}[request.param]
    return extract(tmp_path_factory.mktemp(request.param) / "features", keep=keep)


def by_units(values: torch.Tensor) -> np.ndarray:
    """Observations × units."""
    array = values.double().numpy()
    return (np.moveaxis(array, 1, -1) if array.ndim > 2 else array).reshape(-1, array.shape[1])


@pytest.mark.parametrize(("layer", "values"), [("1", CONV), ("3", LAST)])
def test_statistics_are_those_of_all_values(features, layer, values):
    rows = by_units(values)
    mean = features.mean(layer)
    np.testing.assert_allclose(mean.mean.numpy(), rows.mean(0), rtol=1e-10)
    np.testing.assert_allclose(mean.std.numpy(), rows.std(0), rtol=1e-9)
    np.testing.assert_allclose(mean.max.numpy(), rows.max(0))
    assert mean.count.tolist() == [len(rows)] * rows.shape[1]
    covariance = features.covariance(layer)
    np.testing.assert_allclose(covariance.covariance.numpy(), np.cov(rows.T, ddof=0), rtol=1e-8, atol=1e-12)
    histogram = features.histogram(layer)
    assert int(histogram.total.sum() + histogram.zeros.sum()) == rows.size
    assert histogram.zeros.tolist() == (rows == 0).sum(0).tolist()
    components = features.components(layer, 2)
    largest = np.linalg.eigvalsh(np.cov(rows.T, ddof=0))[::-1][:2]
    np.testing.assert_allclose(components.variances.numpy(), largest, rtol=1e-8)


@pytest.mark.parametrize(("layer", "values"), [("1", CONV), ("3", LAST)])
def test_the_top_samples_of_a_unit_are_those_of_a_sort(features, layer, values):
    for unit in range(values.shape[1]):
        scores = values[:, unit].double().reshape(50, -1).mean(1).numpy()
        wanted = sorted(range(50), key=lambda sample: (-scores[sample], sample))[:4]
        found = features.top(layer, unit, k=4)
        assert found.numbers.tolist() == wanted
        np.testing.assert_allclose(found.values.numpy(), scores[wanted], rtol=1e-12)
        assert found.ids is None
    assert [len(one) for one in features.top(layer, [0, 2], k=3)] == [3, 3]
    assert f"{layer}, unit 1: the 4 samples for which it is largest" in str(features.top(layer, unit=1, k=4))


def test_a_number_of_samples_that_was_not_kept_is_worked_out_or_refused(features):
    if features.layers:
        assert len(features.top("3", 0, k=9)) == 9
        smallest = features.top("3", 0, k=2, largest=False)
        assert smallest.numbers.tolist() == LAST[:, 0].argsort()[:2].tolist()
        most = features.top("1", 0, k=3, positions="max")
        assert most.numbers.tolist() == CONV[:, 0].amax((1, 2)).argsort(descending=True)[:3].tolist()
    else:
        with pytest.raises(InvalidArgument, match=r"TopK\(k=4\), Histogram\(\) was kept .* so TopK\(k=9\) is not known"):
            features.top("3", 0, k=9)
        assert len(features.top("3", 0)) == 4


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda features: features.top("3", 7), InvalidArgument, "a number from 0 to 6; got 7"),
        (lambda features: features.top("3", [0, -1]), InvalidArgument, "from 0 to 6; got -1"),
        (lambda features: features.top("3", []), InvalidArgument, "at least one unit"),
        (lambda features: features.top("3", 0, k=0), InvalidArgument, "1 or more"),
        (lambda features: features.top("conv", 0), LayerNotFound, "no layer 'conv' in these features; there are: 1, 3"),
        (lambda features: features.mean("conv"), LayerNotFound, "no layer 'conv'"),
        (lambda features: features.top("3", 0, pictures=3), InvalidArgument, "pictures are a dataset"),
    ],
)
def test_what_makes_no_sense_is_refused(features, call, error, message):
    with pytest.raises(error, match=message):
        call(features)


def test_a_sheet_shows_the_samples_a_unit_likes_best(features, tmp_path):
    sheet = features.top("1", unit=[0, 3], k=3, pictures=LOADER.dataset)
    sheet.save(tmp_path / "units.png")
    with Image.open(tmp_path / "units.png") as picture:
        assert min(picture.size) > 400
    shown = [axes.images[0].get_array() for axes in sheet.figure.axes]
    wanted = [number for one in features.top("1", [0, 3], k=3) for number in one.numbers.tolist()]
    for picture, number in zip(shown, wanted, strict=True):
        np.testing.assert_allclose(picture, PICTURES[number].permute(1, 2, 0).numpy(), atol=1e-6)
    assert [one.numbers.tolist() for one in sheet.samples] == [wanted[:3], wanted[3:]]


def test_means_of_features_replace_values_while_a_model_runs(features):
    """All of a layer by its key, and one unit."""
    wanted = CONV.mean((0, 2, 3))
    with torch.no_grad():
        with tl.intervene(MODEL, {"1": changes.mean(features)}):
            found = MODEL(PICTURES)
        expected = MODEL[3](wanted[:, None, None].expand(5, 6, 6).flatten())
        torch.testing.assert_close(found, expected.expand(50, 7))
        with tl.intervene(MODEL, {"1": changes.mean(features, at=(slice(None), 2))}):
            found = MODEL(PICTURES)
        inner = CONV.clone()
        inner[:, 2] = wanted[2]
        torch.testing.assert_close(found, MODEL[3](inner.flatten(1)))
    history = tl.log_forward_pass(MODEL, PICTURES[:2])
    torch.testing.assert_close(
        history.replay(changes={"1": changes.mean(features)})["output_1"].activation, expected.expand(2, 7)
    )
    with pytest.raises(LayerNotFound, match="no layer '0' in these features"):
        tl.intervene(MODEL, {"0": changes.mean(features)})
    with pytest.raises(InvalidArgument, match="use it as the change of a key"):
        changes.mean(features)(CONV)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return extract(tmp_path_factory.mktemp("stored") / "features", ids=[f"picture {at}" for at in range(50)])


def test_the_mean_of_a_layer_replaces_its_values(stored):
    changed = changes.mean(stored["1"])(CONV)
    torch.testing.assert_close(changed, CONV.mean((0, 2, 3))[:, None, None].expand(50, 5, 6, 6))


def test_components_and_nearest_samples_of_stored_values(stored):
    flat = CONV.flatten(1).double().numpy()
    found = stored["1"].components(3)
    lengths = np.linalg.svd(flat - flat.mean(0), compute_uv=False)
    np.testing.assert_allclose(found.variances.numpy(), lengths[:3] ** 2 / 50, rtol=1e-8)
    assert found.project().shape == (50, 3)
    assert stored["1"].components(2, samples=20).samples == 20
    nearest = stored["1"].nearest("picture 7", 5)
    cosines = flat @ flat[7] / np.linalg.norm(flat, axis=1) / np.linalg.norm(flat[7])
    wanted = [int(at) for at in np.argsort(-cosines) if at != 7][:5]
    assert nearest.numbers.tolist() == wanted
    assert nearest.ids == [f"picture {at}" for at in wanted]
    assert stored["1"].nearest(7, 5).numbers.tolist() == wanted
    sheet = stored["1"].nearest(7, 5, pictures=PICTURES)
    assert len(sheet.figure.axes) == 5


def test_top_samples_have_their_ids(stored):
    found = stored.top("3", 0, k=3)
    assert found.ids == [f"picture {number}" for number in found.numbers.tolist()]
    sheet = stored.top("3", 0, k=3, pictures={f"picture {at}": PICTURES[at] for at in range(50)})
    np.testing.assert_allclose(
        sheet.figure.axes[0].images[0].get_array(), PICTURES[found.numbers[0]].permute(1, 2, 0).numpy(), atol=1e-6
    )


def test_a_reducer_reads_stored_values(stored):
    found = stored["1"].reduce(Mean(unit_dim="all"))
    np.testing.assert_allclose(found.mean.numpy(), CONV.double().numpy().mean(0), rtol=1e-10, atol=1e-15)
    with pytest.raises(InvalidArgument, match="reduce takes a reducer"):
        stored["1"].reduce("mean")


def test_samples_keep_their_numbers_where_blocks_are_missing(tmp_path):
    features = extract(tmp_path / "features")
    next((tmp_path / "features").glob("block-00000000-*")).unlink()
    features = tl.open_features(tmp_path / "features")
    first = 50 - len(features["3"])
    assert first > 0
    assert features.top("3", 0, k=1).numbers.tolist() == [first + int(LAST[first:, 0].argmax())]
    assert min(features["3"].nearest(first, 20).numbers.tolist()) > first
    with pytest.raises(InvalidArgument, match="no sample 0"):
        features["3"].nearest(0)


def test_tokens_are_reduced_with_the_samples_they_are_of(tmp_path):
    model = nn.Sequential(nn.Embedding(9, 4)).eval()
    ids = torch.randint(0, 9, (10, 5), generator=torch.Generator().manual_seed(0))
    batches = [{"input": part, "attention_mask": torch.ones_like(part)} for part in ids.split(4)]
    features = tl.extract(
        model, batches, "0", to=tmp_path / "tokens", flatten="tokens", progress=False, keep=["activations", Mean(), TopK(3)]
    )
    values = model[0].weight.detach()[ids]
    np.testing.assert_allclose(features.mean("0").mean.numpy(), values.double().mean((0, 1)).numpy(), rtol=1e-12)
    flat = values[..., 1].flatten().tolist()
    wanted = sorted(range(50), key=lambda row: (-flat[row], row // 5))[:3]
    assert features.top("0", 1).numbers.tolist() == [row // 5 for row in wanted]
    assert features["0"].nearest(values[3, 2], 1).numbers.tolist() == [ids.eq(ids[3, 2]).nonzero()[0, 0].item()]


def bits(features) -> bytes:
    mean, covariance, top = features.mean("1"), features.covariance("1"), features.top("1", list(range(5)))
    tensors = [mean.mean, mean.variance, covariance.covariance, features.histogram("1").counts, *(one.values for one in top)]
    return b"".join(tensor.numpy().tobytes() for tensor in tensors)


def test_any_number_of_processes_gives_the_same_bits(tmp_path, monkeypatch):
    """One process; two, one after the other; three, of which one is missing and is done by a single one."""
    wanted = bits(extract(tmp_path / "one", keep=ALL))
    for world, ranks in ((2, (1, 0)), (3, (2, 0))):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        for rank in ranks:
            monkeypatch.setenv("RANK", str(rank))
            extract(tmp_path / f"by {world}", keep=ALL)
        monkeypatch.delenv("WORLD_SIZE")
        monkeypatch.delenv("RANK")
        assert bits(extract(tmp_path / f"by {world}", keep=ALL)) == wanted
        left = sorted(path.name for path in (tmp_path / f"by {world}").glob("reduced-*"))
        assert left == sorted(path.name for path in (tmp_path / "one").glob("reduced-*"))


def test_a_plan_with_reducers_that_make_no_sense_is_refused(tmp_path):
    extract(tmp_path / "features", keep=Mean())
    plan = json.loads((tmp_path / "features" / "plan.json").read_text())
    for wrong in ({"reducer": "os.system"}, {"reducer": "TopK", "k": -1}, 3):
        plan["settings"]["keep"]["reducers"]["1"] = [wrong]
        (tmp_path / "features" / "plan.json").write_text(json.dumps(plan))
        with pytest.raises(UnreadableFile, match="reducers that make no sense"):
            tl.open_features(tmp_path / "features").mean("1")


def test_reducers_may_be_given_by_their_class(tmp_path):
    features = extract(tmp_path / "features", keep=[Mean, Covariance])
    assert not math.isnan(float(features.mean("3").mean[0]))
    assert features.covariance("3").count == 50


def moments(values: torch.Tensor, **options):
    reducer = Mean(**options)
    state = reducer.begin()
    reducer.update(state, values, torch.arange(len(values)))
    return reducer.finish(state)


@pytest.mark.parametrize(
    ("shape", "options", "dims"),
    [
        ((6, 3, 4, 5), {}, (0, 2, 3)),
        ((6, 4, 5), {}, (0, 1)),
        ((6, 5), {}, (0,)),
        ((6, 4, 5), {"unit_dim": 1}, (0, 2)),
        ((6, 4, 5), {"unit_dim": "all"}, (0,)),
        ((6,), {}, (0,)),
    ],
)
def test_the_mean_of_each_unit_is_put_where_its_values_are(shape, options, dims):
    values = torch.randn(shape)
    changed = changes.mean(moments(values, **options))(values[:2])
    torch.testing.assert_close(changed, values.mean(dims, keepdim=True).expand(shape)[:2])


def test_the_same_part_is_taken_of_a_mean():
    values = torch.randn(6, 3, 4, 5)
    change = changes.mean(moments(values), at=(slice(None), 1))
    changed = change(values)
    torch.testing.assert_close(changed[:, 1], values[:, 1].mean().expand(6, 4, 5))
    assert torch.equal(changed[:, [0, 2]], values[:, [0, 2]])
    assert str(change) == "mean(<tensor (3, 1, 1)>, at=[:, 1])"


def test_a_mean_that_is_not_known_is_refused():
    with pytest.raises(InvalidArgument, match="1 of 2 units have no finite value"):
        changes.mean(moments(torch.tensor([[1.0, math.nan]])))


def test_a_unit_is_ablated_while_a_model_runs():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)).eval()
    data = torch.randn(20, 1, 6, 6)
    with torch.no_grad():
        model(data)
        inner = model[1](model[0](data))
        wanted = inner.clone()
        wanted[:, 2] = inner[:, 2].mean()
        expected = model[3](model[2](wanted))
        with tl.intervene(model, {"1": changes.mean(moments(inner), at=(slice(None), 2))}):
            torch.testing.assert_close(model(data), expected)
