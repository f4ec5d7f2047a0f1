"""Similarities equal a direct computation with NumPy, however little memory they may use; figures and tables show them."""

from __future__ import annotations

import io
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from torch import nn

import torcheer as tl
from torcheer import InvalidArgument, LayerNotFound
from torcheer.features import similarity as cka
from torcheer.features.similarity import similarity

rng = np.random.default_rng(0)
BASE = rng.normal(size=(40, 6))


def layers(seed: int, count: int = 40) -> dict[str, np.ndarray]:
    """Features that have something in common: narrow and wide ones, a convolution, tied and integer values, other dtypes."""
    draw = np.random.default_rng(seed)
    base = BASE[:count]
    return {
        "narrow": base @ draw.normal(size=(6, 3)) + draw.normal(size=(count, 3)),
        "wide": np.tanh(base @ draw.normal(size=(6, 90))),
        "conv": (base @ draw.normal(size=(6, 4 * 3 * 3))).reshape(count, 4, 3, 3).clip(0) + 10,
        "tied": (base @ draw.normal(size=(6, 5))).round().astype(np.int32),
        "float16": (base[:, :4] * draw.normal(size=(1, 4))).astype(np.float16),
    }


def flat(values) -> np.ndarray:
    return np.asarray(values).reshape(len(values), -1).astype(np.float64)


def direct_cka(x, y) -> float:
    x, y = flat(x), flat(y)
    x, y = x - x.mean(0), y - y.mean(0)
    return np.linalg.norm(x.T @ y) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))


def direct_debiased_cka(x, y) -> float:
    """From the definition of the unbiased HSIC, with whole kernel matrices and uncentred features."""

    def hsic(k, m):
        n, ones = len(k), np.ones(len(k))
        k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
        sums = (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
        return (np.trace(k @ m) + sums - 2 / (n - 2) * (ones @ k @ m @ ones)) / (n * (n - 3))

    k, m = (flat(one) @ flat(one).T for one in (x, y))
    return hsic(k, m) / math.sqrt(hsic(k, k) * hsic(m, m))


def direct_rsa(x, y) -> float:
    """Ranks by counting: how many distances are smaller, and half of those that are equal."""

    def ranks(values):
        correlations = np.corrcoef(flat(values))
        found = [1 - correlations[i, j] for i in range(len(values)) for j in range(i + 1, len(values))]
        rounded = np.round(found, 12)
        return np.array([(rounded < one).sum() + ((rounded == one).sum() - 1) / 2 for one in rounded])

    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


DIRECT = {"cka": direct_cka, "debiased": direct_debiased_cka, "rsa": direct_rsa}


def measured(name: str, a, b=None, **options):
    return similarity(a, b, "rsa" if name == "rsa" else "cka", debiased=name == "debiased", **options)


def assert_equals_direct(found, name, a, b) -> None:
    for one, x in a.items():
        for other, y in b.items():
            assert found[one, other] == pytest.approx(DIRECT[name](x, y), abs=1e-7), (one, other)


@pytest.mark.parametrize("name", DIRECT)
def test_similarities_within_a_model_are_those_of_a_direct_computation(name):
    a = layers(1)
    found = measured(name, a)
    assert_equals_direct(found, name, a, a)
    np.testing.assert_array_equal(found.matrix, found.matrix.T)
    np.testing.assert_allclose(found.matrix.diagonal(), 1, atol=1e-12)


@pytest.mark.parametrize("name", DIRECT)
def test_similarities_between_models_are_those_of_a_direct_computation(name):
    a, b = layers(1), dict(list(layers(2).items())[1:])
    assert_equals_direct(measured(name, a, b), name, a, b)


@pytest.mark.parametrize("name", DIRECT)
def test_tensors_of_torch_are_read_too(name):
    a = {key: torch.from_numpy(values) for key, values in layers(1).items()}
    np.testing.assert_array_equal(measured(name, a).matrix, measured(name, layers(1)).matrix)


def test_bfloat16_complex_and_truth_values_are_compared():
    values = torch.randn(30, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    a = {"complex": values, "brain": values.real.bfloat16(), "truth": values.real > 0}
    pairs = {
        "complex": torch.view_as_real(values).numpy(),
        "brain": values.real.bfloat16().float().numpy(),
        "truth": (values.real > 0).numpy(),
    }
    assert_equals_direct(similarity(a), "cka", pairs, pairs)


@pytest.mark.parametrize("memory", [30_000, 60_000, 200_000])
@pytest.mark.parametrize("name", ["cka", "debiased"])
def test_cka_is_the_same_with_little_memory(name, memory):
    """Sums over many tiles of samples, and over several groups of pairs of layers."""
    a, b = layers(1), layers(2)
    np.testing.assert_allclose(measured(name, a, b, memory=memory).matrix, measured(name, a, b).matrix, atol=1e-10)
    np.testing.assert_allclose(measured(name, a, memory=memory).matrix, measured(name, a).matrix, atol=1e-10)


@pytest.mark.parametrize("name", DIRECT)
def test_rows_are_read_a_few_columns_at_a_time(name, monkeypatch):
    """Also of convolutions, of chosen samples, of complex numbers and of arrays that must not be written to."""
    a = layers(1)
    a["complex"] = np.random.default_rng(5).normal(size=(40, 5, 2)).astype(np.complex64) * (1 + 2j)
    for values in a.values():
        values.flags.writeable = False
    monkeypatch.setattr("torcheer.features.similarity._ROOM", 9000)
    pairs = {key: np.stack([one.real, one.imag], -1) if np.iscomplexobj(one) else one for key, one in a.items()}
    assert_equals_direct(measured(name, a, memory=300_000 if name == "rsa" else 60_000), name, pairs, pairs)
    some = {key: torch.from_numpy(values[::2].copy()) for key, values in pairs.items()}
    assert_equals_direct(measured(name, some), name, some, some)


def test_both_ways_to_find_cka_agree(monkeypatch):
    used = []
    for name in ("_from_features", "_from_samples"):
        way = getattr(cka, name)
        monkeypatch.setattr(cka, name, lambda *given, way=way, name=name: used.append(name) or way(*given))
    narrow = {"a": rng.normal(size=(500, 4)), "b": rng.normal(size=(500, 3))}
    wide = {"a": rng.normal(size=(9, 40)), "b": rng.normal(size=(9, 50))}
    for features, way in ((narrow, "_from_features"), (wide, "_from_samples")):
        found = similarity(features)
        assert used.pop() == way
        assert_equals_direct(found, "cka", features, features)


def test_rsa_with_little_memory_ranks_layers_again():
    a, b = layers(1), layers(2)
    pairs = 40 * 39 // 2
    memory = 8 * pairs * 11  # two layers at a time
    np.testing.assert_array_equal(measured("rsa", a, b, memory=memory).matrix, measured("rsa", a, b).matrix)
    np.testing.assert_array_equal(measured("rsa", a, memory=memory).matrix, measured("rsa", a).matrix)


def test_what_does_not_fit_the_memory_says_how_many_samples_do():
    a = layers(1)
    with pytest.raises(InvalidArgument, match=r"distances of 40 samples need .* use fewer, samples=\d+") as caught:
        measured("rsa", a, memory=50_000)
    fitting = int(str(caught.value).split("samples=")[1].split(",")[0])
    found = measured("rsa", a, memory=50_000, samples=fitting)
    assert found.samples == fitting
    with pytest.raises(InvalidArgument, match="samples with 9 positions of a unit do not fit"):
        measured("cka", {"conv": a["conv"]}, memory=1000)


def test_the_first_samples_are_used_where_a_number_is_given():
    a = layers(1)
    found = similarity(a, samples=17)
    assert found.samples == 17
    first = {name: values[:17] for name, values in a.items()}
    assert_equals_direct(found, "cka", first, first)


def test_cka_does_not_depend_on_rotation_scale_or_offset():
    x = rng.normal(size=(60, 5))
    turned = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    for factor in (1e-300, 1e-30, 1.0, 1e100):
        assert similarity({"x": x, "y": (x @ turned + 3) * factor})["x", "y"] == pytest.approx(1, abs=1e-9)


def test_debiasing_matters_where_samples_are_few():
    """Independent features: the plain measure calls them similar, the debiased one does not."""
    a = {"x": rng.normal(size=(50, 2000)), "y": rng.normal(size=(50, 2000))}
    plain, debiased = similarity(a), similarity(a, debiased=True)
    assert plain["x", "y"] > 0.9
    assert abs(debiased["x", "y"]) < 0.2
    assert "debiased=True" in str(plain)
    assert "debiased=True" not in str(debiased)


def extracted(folder, layers, ids=None):
    """Layers as features on disk: an extraction whose model returns what it is given."""
    names = list(layers)
    model = nn.ModuleDict({name: nn.Identity() for name in names}).eval()
    batches = [
        {name: torch.as_tensor(values[begin : begin + 7]) for name, values in layers.items()}
        for begin in range(0, len(layers[names[0]]), 7)
    ]
    call = lambda model, batch: [model[name](batch[name]) for name in names]
    return tl.extract(model, batches, names, to=folder, call=call, ids=ids, block=10, progress=False)


@pytest.mark.parametrize("name", DIRECT)
def test_samples_are_matched_by_their_ids(name, tmp_path):
    a, b = layers(1), layers(2)
    ids = [f"picture {at}" for at in range(40)]
    order = np.random.default_rng(3).permutation(40)
    one = extracted(tmp_path / "a", a, ids)
    other = extracted(tmp_path / "b", {key: values[order] for key, values in b.items()}, [ids[at] for at in order])
    found = measured(name, one, other, samples=30)
    first = [{key: values[:30] for key, values in some.items()} for some in (a, b)]
    assert_equals_direct(found, name, *first)
    assert "rows: a, columns: b" in [text.get_text() for text in found.draw().figure.texts]


def test_features_with_missing_blocks_are_matched_by_the_numbers_of_their_samples(tmp_path):
    a, b = layers(1), layers(2)
    one, other = extracted(tmp_path / "a", a), extracted(tmp_path / "b", b)
    assert_equals_direct(similarity(one, other), "cka", a, b)
    for folder, block in (("a", 0), ("b", 1)):  # both lack one block, another one each
        next((tmp_path / folder).glob(f"block-{block:08d}-*")).unlink()
    with pytest.raises(InvalidArgument, match="14 are only in a and 14 only in b"):
        similarity(tl.open_features(tmp_path / "a"), tl.open_features(tmp_path / "b"))
    next((tmp_path / "b").glob("block-00000000-*")).unlink()
    next((tmp_path / "a").glob("block-00000001-*")).unlink()
    rest = [{key: values[28:] for key, values in some.items()} for some in (a, b)]
    assert_equals_direct(similarity(tl.open_features(tmp_path / "a"), tl.open_features(tmp_path / "b")), "cka", *rest)


def test_other_samples_are_refused(tmp_path):
    a, b = layers(1), layers(2, 30)
    with pytest.raises(InvalidArgument, match="a has 40 and b has 30"):
        similarity(a, b)
    ids = list(range(40))
    one, other = extracted(tmp_path / "a", a, ids), extracted(tmp_path / "b", layers(2), [99, *ids[1:]])
    with pytest.raises(InvalidArgument, match=r"1 are only in a and 1 only in b \(only in a: 0; only in b: 99\)"):
        similarity(one, other)
    with pytest.raises(InvalidArgument, match="same samples; they have x 4, y 5"):
        similarity({"x": np.ones((4, 2)), "y": np.ones((5, 2))})


@pytest.mark.parametrize("name", DIRECT)
def test_samples_that_are_not_finite_are_left_out_and_counted(name):
    a = {key: values.astype(np.float64) for key, values in layers(1).items()}
    a["narrow"][3, 1] = math.nan
    a["wide"][[5, 3], 2] = math.inf
    found = measured(name, a)
    rest = {key: np.delete(values, [3, 5], axis=0) for key, values in a.items()}
    assert_equals_direct(found, name, rest, rest)
    assert found.samples == 38
    assert "2 samples are left out" in str(found)


def test_samples_without_variance_are_left_out_of_rsa():
    a = layers(1)
    a["narrow"][7] = 0.5
    found = similarity(a, measure="rsa")
    rest = {key: np.delete(values, 7, axis=0) for key, values in a.items()}
    assert_equals_direct(found, "rsa", rest, rest)
    assert "all equal" in str(found)


@pytest.mark.parametrize("name", DIRECT)
def test_a_layer_that_never_changes_has_no_similarity_and_spoils_no_other(name):
    a = layers(1)
    dead = {**a, "dead": np.zeros((40, 3)), "nan": np.full((40, 2), math.nan)}
    found = measured(name, dead)
    assert all(math.isnan(found["dead", other]) and math.isnan(found[other, "nan"]) for other in dead)
    assert_equals_direct(found, name, a, a)
    assert "dead, nan" in str(found)
    between = measured(name, a, dead)
    assert_equals_direct(between, name, a, a)
    assert np.isnan(between.matrix[:, -2:]).all()
    assert "dead, nan" in str(between)


@pytest.mark.parametrize(("name", "least"), [("cka", 2), ("debiased", 4), ("rsa", 3)])
def test_too_few_samples_are_refused(name, least):
    values = rng.normal(size=(least, 3))
    measured(name, {"x": values})
    with pytest.raises(InvalidArgument, match=f"needs {least} samples or more; there are {least - 1}"):
        measured(name, {"x": values[1:]})


def test_layers_are_chosen_by_names_and_globs():
    a = {f"blocks.{at}.{part}": rng.normal(size=(9, 3)) for at in range(3) for part in ("mlp", "attn")}
    assert similarity(a, layers="blocks.*.mlp").layers_a == ["blocks.0.mlp", "blocks.1.mlp", "blocks.2.mlp"]
    found = similarity(a, a, layers={"a": ["blocks.1.mlp"], "b": "**.attn"})
    assert (found.layers_a, found.layers_b) == (["blocks.1.mlp"], ["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"])
    assert similarity(a, {"head": a["blocks.0.mlp"]}, layers=["head", "blocks.0.*"]).shape == (2, 1)
    with pytest.raises(LayerNotFound, match=r"'mlp' is not a layer of a; there are blocks\.0\.mlp"):
        similarity(a, layers=["mlp"])
    with pytest.raises(LayerNotFound, match="is a layer of b, which has head"):
        similarity(a, {"head": a["blocks.0.mlp"]}, layers=["blocks.0.mlp"])


def test_the_result_is_looked_up_printed_and_exported():
    a, b = layers(1), {"first": layers(2)["narrow"], "second": layers(1)["wide"] * 2}
    found = similarity(a, b)
    assert found.shape == (5, 2)
    assert found["wide"].keys() == {"first", "second"}
    assert found["wide", "second"] == pytest.approx(1)
    assert found.most_similar["wide"] == "second"
    table = found.to_pandas()
    assert (list(table.index), list(table.columns)) == (list(a), list(b))
    np.testing.assert_array_equal(np.asarray(found), table.to_numpy())
    text = str(found)
    assert "Linear CKA of 5 × 2 layers" in text
    assert f"{found['narrow', 'first']:.2f}  {found['narrow', 'second']:.2f}" in text
    assert "columns: 1 first, 2 second" in text
    assert "<img" in found._repr_html_()
    with pytest.raises(LayerNotFound, match="'third' is not among the layers first, second"):
        found["wide", "third"]


def test_many_layers_are_printed_by_the_most_similar_one():
    a = {f"block.{at}": BASE + at * 0.01 * rng.normal(size=BASE.shape) for at in range(30)}
    text = str(similarity(a))
    assert "most similar" in text
    assert len(max(text.splitlines(), key=len)) < 100


@pytest.mark.parametrize("count", [1, 12, 150])
def test_the_heat_map_has_a_cell_for_each_pair(tmp_path, count):
    """The colour in the middle of a cell is that of its number."""
    values = np.linspace(0, 1, count * count).reshape(count, count)
    found = similarity({f"encoder.layer.{at}.attention.output": rng.normal(size=(5, 2)) for at in range(count)})
    found.matrix = values
    drawn = found.draw(tmp_path / "map.png")
    with Image.open(tmp_path / "map.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert max(pixels.shape) < 6000
    axes = drawn.figure.axes[0]
    colors = axes.images[0].cmap
    for row, column in {(0, 0), (count - 1, 0), (count // 2, count // 3)}:
        at, down = axes.transData.transform((column - 0.3, row - 0.3))
        shown = pixels[pixels.shape[0] - 1 - int(down), int(at)]
        np.testing.assert_allclose(shown, np.array(colors(values[row, column])[:3]) * 255, atol=3)


@pytest.mark.parametrize("count", [12, 50])
def test_names_in_the_heat_map_do_not_overlap(count):
    found = similarity({f"encoder.layer.{at}.attention.output.dense": rng.normal(size=(5, 2)) for at in range(count)})
    figure = found.draw().figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    width, height = figure.get_size_inches() * figure.dpi
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        boxes = [label.get_window_extent(renderer) for label in axis.get_ticklabels()]
        assert len(boxes) == count
        assert not any(one.overlaps(other) for one, other in pairwise(boxes))
        assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height for box in boxes)


def test_figures_are_saved_in_the_form_of_their_ending(tmp_path):
    drawn = similarity(layers(1)).draw()
    for ending, begin in {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}.items():
        drawn.save(tmp_path / f"map.{ending}")
        assert (tmp_path / f"map.{ending}").read_bytes().startswith(begin)
    file = io.BytesIO()
    drawn.save(file)
    assert file.getvalue() == drawn.to_bytes("png")
    assert drawn._repr_mimebundle_()[0]["image/png"].startswith(b"\x89PNG")
    with pytest.raises(InvalidArgument, match=r"one of \.png, \.svg, \.pdf"):
        drawn.save(tmp_path / "map.bmp")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: similarity({"x": BASE}, measure="cca"), "'cka' or 'rsa'; got 'cca'"),
        (lambda: similarity({"x": BASE}, measure="rsa", debiased=True), "option of measure='cka'"),
        (lambda: similarity(BASE), "mapping from names of layers to arrays"),
        (lambda: similarity({}), "mapping from names of layers"),
        (lambda: similarity({"x": BASE}, "y"), "b is features"),
        (lambda: similarity({"x": [1, 2]}), "'x' must be features with a dimension of samples"),
        (lambda: similarity({"x": BASE}, samples=0), "samples is a whole number above 0"),
        (lambda: similarity({"x": BASE}, memory=1.5), "memory is a whole number"),
        (lambda: similarity({"x": BASE}, layers=3), "names or globs"),
        (lambda: similarity({"x": BASE}, layers={"c": "x"}), "got the keys"),
        (lambda: similarity({"x": torch.zeros(4, 2, device="meta")}), "device meta"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call()


@pytest.mark.parametrize("value", [1.0, 0.1, 1e30, -7.3])
def test_a_layer_that_is_the_same_for_every_sample_has_no_similarity(value):
    """Also where the mean of equal numbers is rounded: sixty times a sixtieth is not one."""
    found = tl.similarity({"x": torch.randn(60, 5), "same": torch.full((60, 3), value, dtype=torch.float64)})
    assert math.isnan(found["x", "same"])
    assert math.isnan(found["same", "same"])
    assert found["x", "x"] == pytest.approx(1)
    assert any("no similarity can be told of same" in note for note in found.notes)
