"""Figures of an Xray: what they show is what was kept, and every word in them can be read."""

from __future__ import annotations

import itertools
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from torcheer import InvalidArgument
from torcheer.errors import SnapshotNotFound
from torcheer.xray.captions import kept_of, statistics_in_words, totals_of
from torcheer.xray.colors import NONFINITE
from torcheer.xray.figures import Displays, figure_of, figure_of_snapshot
from torcheer.xray.tiles import make_mosaic
from xray_runs import make_entry, single, write_run

matplotlib = pytest.importorskip("matplotlib")
Figure = pytest.importorskip("matplotlib.figure").Figure
agg = pytest.importorskip("matplotlib.backends.backend_agg")

NAN, INF = float("nan"), float("inf")


def texts(figure) -> list[str]:
    """Every word of a figure that is seen."""
    return [text.get_text() for text in shown_texts(figure)]


def shown_texts(figure) -> list:
    return [text for text in figure.findobj(matplotlib.text.Text) if text.get_text().strip() and text.get_visible()]


def images(figure) -> list:
    """The pictures of a figure, without colour bars and what covers single pixels."""
    return [axes.images[0] for axes in figure.axes if axes.images]


def check_words_are_readable(figure) -> None:
    """No two texts touch, none leaves the figure, none is tiny."""
    canvas = agg.FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    width, height = canvas.get_width_height()
    boxes = []
    for text in shown_texts(figure):
        box = text.get_window_extent(renderer)
        assert min(box.x0, box.y0, width - box.x1, height - box.y1) >= 0, (text.get_text(), box, width, height)
        assert text.get_fontsize() >= 6
        boxes.append((text.get_text(), box))
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 3 or b.y1 <= a.y0 + 3  # lines have room above and below
        assert apart, (one, other, a, b)


def weights(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def with_holes() -> torch.Tensor:
    kept = weights(16, 16, 16)
    kept[3, 4:8, 4:8], kept[7] = NAN, INF
    return kept


SHAPES = {
    "colour filters": ("weight", weights(8, 3, 5, 5), "filters", {"update_ratio": 1.2e-3}),
    "filters and inputs": ("weight", weights(16, 16, 3, 3), "filters", {"shape": (128, 64, 3, 3)}),
    "many filters of few inputs": ("grad", weights(64, 3, 7, 7) * 1e-4, "filters", {}),
    "numbers of four digits": (
        "weight",
        weights(32, 8, 3, 3),
        "filters",
        {"shape": (2048, 8, 3, 3), "rows": tuple(range(1000, 1064, 2))},
    ),
    "filters of one pixel": (
        "weight",
        weights(32, 16, 1, 1),
        "filters",
        {"shape": (256, 64, 1, 1), "rows": tuple(range(0, 256, 8))},
    ),
    "depthwise filters": ("weight", weights(32, 1, 3, 3), "filters", {}),
    "maps": ("layer", weights(16, 32, 32), "maps", {"shape": (8, 64, 32, 32), "note": "the first of 8 samples"}),
    "activations": ("activation", weights(16, 16, 16).relu(), "maps", {"dead": 3, "units": 64}),
    "512 maps": ("activation", weights(512, 7, 7).relu(), "maps", {}),
    "maps of one pixel": ("activation", weights(64, 1, 1).relu(), "maps", {}),
    "one map": ("layer", weights(1, 28, 28), "maps", {}),
    "large maps": ("layer", weights(32, 128, 128), "maps", {}),
    "nothing but NaN": ("layer", torch.full((8, 16, 16), NAN), "maps", {}),
    "some NaN": ("layer", with_holes(), "maps", {}),
    "zeros": ("activation", torch.zeros(9, 14, 14), "maps", {}),
    "a constant": ("layer", torch.full((6, 10, 10), 3.3), "maps", {}),
    "one value": ("weight", torch.tensor([[0.7]]), "matrix", {}),
    "samples and units": (
        "activation",
        weights(8, 256).relu(),
        "matrix",
        {"shape": (8, 4096), "columns": tuple(range(0, 4096, 16))},
    ),
    "a vector": ("weight", weights(1, 64), "matrix", {"shape": (64,)}),
    "a tall matrix": ("weight", weights(256, 3), "matrix", {}),
    "tokens": ("layer", weights(32, 64), "matrix", {"shape": (2, 32, 64)}),
    "nothing": ("layer", torch.zeros(0, 4, 4), "maps", {}),
    "tiny values": ("grad", weights(4, 4) * 1e-30, "matrix", {}),
    "huge values": ("layer", weights(4, 4) * 1e37, "matrix", {}),
    "long words": (
        "layer_grad",
        weights(5, 20, 20),
        "maps",
        {"note": "before unscaling by 65536; clipped to a norm of 1.0; " * 3},
    ),
}
LONG = "encoder.blocks.11.attention.self_attention.output_projection.dense_with_$a_long_name$_and_then_some_more_of_it"


@pytest.mark.parametrize(
    ("name", "scale"), [*((name, "run") for name in SHAPES), ("maps", "frame"), ("colour filters", "frame")]
)
def test_every_word_of_a_figure_is_readable(tmp_path, name, scale):
    """Whatever is shown: no text overlaps another, none is cut."""
    kind, kept, layout, facts = SHAPES[name]
    layer = LONG if name == "long words" else "conv1"
    run = single(tmp_path, layer, kind, kept, layout, **facts)
    check_words_are_readable(figure_of(run, layer, kind, scale=scale))


def test_a_figure_shows_the_tensor_that_was_kept(tmp_path):
    """The array of its picture is the one of the tiles, with the limits of the run."""
    kept = weights(4, 20, 20)
    later = make_entry("conv1", "layer", kept * 3, "maps")
    run = write_run(tmp_path, {5: [(make_entry("conv1", "layer", kept, "maps"), kept)], 9: [(later, kept * 3)]})
    image = images(figure_of(run, "conv1", "layer", 5))[0]
    expected = make_mosaic(kept.numpy(), run.entry("conv1", "layer", 5)).values
    assert np.array_equal(image.get_array().filled(np.nan), expected, equal_nan=True)
    assert image.get_clim() == pytest.approx(run.limits("conv1", "layer"))
    own = images(figure_of(run, "conv1", "layer", 5, scale="frame"))[0]
    assert own.get_clim()[1] < image.get_clim()[1] / 2


def test_the_last_step_is_shown_by_default(tmp_path):
    """The last that has the layer, which need not be the last of the run."""
    kept = weights(2, 4, 4)
    entry, other = make_entry("conv1", "layer", kept, "maps"), make_entry("fc", "weight", weights(3, 3), "matrix")
    run = write_run(tmp_path, {5: [(entry, kept)], 7: [(entry, kept + 1)], 9: [(other, weights(3, 3))]})
    figure = figure_of(run, "conv1", "layer")
    assert "conv1 · output · step 7" in texts(figure)
    assert float(images(figure)[0].get_array()[0, 0]) == pytest.approx(float(kept[0, 0, 0]) + 1)


def test_a_figure_says_what_it_is_and_how_much_of_it(tmp_path):
    """Layer, kind in words, step, shape, part, note, statistics, scale."""
    kept = weights(16, 8, 8).relu()
    rows = tuple(range(0, 64, 4))
    facts = {"shape": (8, 64, 8, 8), "rows": rows, "note": "every 2nd pixel", "source": "relu_1_2", "dead": 3, "units": 64}
    words = texts(figure_of(single(tmp_path, "conv1", "activation", kept, "maps", **facts), "conv1", "activation"))
    assert "conv1 · activation · step 5" in words
    assert "relu_1_2 · 8 × 64 × 8 × 8 · 16 of 64 channels" in words
    assert "every 2nd pixel" in words
    assert "scale of the run" in words
    said = " · ".join(words)
    assert "whole tensor: mean 0." in said
    assert "dead 3 of 64 units" in said
    assert [word for word in words if word in map(str, rows)][:16] == list(map(str, rows))


def test_a_scale_of_one_step_is_labelled(tmp_path):
    """Nobody mistakes it for that of the run."""
    run = single(tmp_path, "conv1", "layer", weights(4, 8, 8), "maps")
    words = texts(figure_of(run, "conv1", "layer", scale="frame"))
    assert "scale of this step" in words
    assert "scale of the run" not in words


def test_what_is_not_finite_is_colored_and_said_in_red(tmp_path):
    """How many, and which pixels."""
    run = single(tmp_path, "conv1", "layer", with_holes(), "maps")
    figure = figure_of(run, "conv1", "layer")
    [said] = [text for text in shown_texts(figure) if "NaN" in text.get_text()]
    assert said.get_text() == "16 NaN, 256 infinite, of 4,096 values"
    assert matplotlib.colors.to_hex(said.get_color()) == "#c00000"
    cover = figure.axes[0].images[1].get_array()
    assert (cover[..., 3] > 0).sum() == 16 + 256
    assert np.allclose(cover[cover[..., 3] > 0][:, :3] * 255, NONFINITE)


def test_weights_have_both_signs_and_activations_do_not(tmp_path):
    """The scale of a weight lies around zero, even where all its values are positive."""
    kept = weights(4, 6).abs()
    entries = [make_entry("fc", kind, kept, "matrix") for kind in ("weight", "layer", "activation", "grad")]
    run = write_run(tmp_path, {5: [(entry, kept) for entry in entries]})
    for kind in ("weight", "grad"):
        low, high = images(figure_of(run, "fc", kind))[0].get_clim()
        assert low == -high
        assert images(figure_of(run, "fc", kind))[0].get_cmap().name == "torcheer diverging"
    for kind in ("layer", "activation"):
        assert images(figure_of(run, "fc", kind))[0].get_clim()[0] == 0
        assert images(figure_of(run, "fc", kind))[0].get_cmap().name == "torcheer sequential"


def test_the_numbers_of_a_color_bar_are_its_ends_and_its_middle(tmp_path):
    """The outer ones do not stand out over its ends."""
    run = single(tmp_path, "fc", "weight", weights(40, 40) * 1234.5, "matrix")
    figure = figure_of(run, "fc", "weight")
    canvas = agg.FigureCanvasAgg(figure)
    canvas.draw()
    (bar,) = [axes for axes in figure.axes if not axes.images and len(axes.get_xticks()) == 3]
    low, high = run.limits("fc", "weight")
    assert list(bar.get_xticks()) == pytest.approx([low, 0.0, high])
    room = bar.get_window_extent(canvas.get_renderer())
    labels = [label.get_window_extent(canvas.get_renderer()) for label in bar.get_xticklabels()]
    assert labels[0].x0 >= room.x0 - 8  # the points of the bar, where values lie beyond it, are wider than the axes
    assert labels[-1].x1 <= room.x1 + 8
    assert (labels[1].x0 + labels[1].x1) / 2 == pytest.approx((room.x0 + room.x1) / 2, abs=2)


def test_values_too_faint_for_the_scale_of_the_run_are_said(tmp_path):
    """A gradient that vanished is not taken for an empty picture."""
    kept = weights(4, 4)
    run = write_run(tmp_path, {s: [(make_entry("fc", "grad", kept * f, "matrix"), kept * f)] for s, f in ((1, 1.0), (2, 1e-3))})
    assert any("these reach 0.1" in word for word in texts(figure_of(run, "fc", "grad", scale="run")))
    assert not any("reach" in word for word in texts(figure_of(run, "fc", "grad", 1, scale="run")))
    assert any("scale of this step" in word for word in texts(figure_of(run, "fc", "grad")))  # what gradients have by default
    assert not any("reach" in word for word in texts(figure_of(run, "fc", "grad", scale="frame")))


def test_channels_that_have_no_room_for_numbers_are_numbered_by_row(tmp_path):
    """The first of each row, beside it."""
    run = single(tmp_path, "conv1", "activation", weights(512, 7, 7).relu(), "maps")
    figure = figure_of(run, "conv1", "activation")
    assert "first channel" in texts(figure)
    firsts = [
        tile.row
        for tile in make_mosaic(run.tensor("conv1", "activation"), run.entry("conv1", "activation")).tiles
        if not tile.left
    ]
    shown = [int(label.get_text()) for label in figure.axes[0].get_yticklabels()]
    assert shown[0] == 0
    assert len(shown) > 5
    assert set(shown) <= set(firsts)


def test_rows_and_columns_of_a_matrix_have_the_numbers_of_the_whole_tensor(tmp_path):
    """Where each label stands."""
    columns = tuple(range(0, 4096, 16))
    run = single(tmp_path, "fc", "layer", weights(8, 256), "matrix", shape=(8, 4096), columns=columns)
    axes = figure_of(run, "fc", "layer").axes[0]
    for at, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True):
        assert columns[round(at)] == int(label.get_text())
    assert len(axes.get_xticks()) > 5


@pytest.mark.parametrize("call", [figure_of_snapshot, lambda run, scale: figure_of(run, "conv1", "layer", scale=scale)])
def test_an_unknown_scale_is_refused(tmp_path, call):
    """The message names the two there are."""
    run = single(tmp_path, "conv1", "layer", weights(4, 8, 8), "maps")
    with pytest.raises(InvalidArgument, match=r"'run'.*'frame'.*'log'"):
        call(run, scale="log")


def test_a_users_style_does_not_spoil_a_figure(tmp_path):
    """Grids, smoothing, origin and the like are set by us."""
    run = single(tmp_path, "conv1", "weight", weights(8, 4, 3, 3), "filters")
    plain = pixels(figure_of(run, "conv1", "weight"))
    style = {"axes.grid": True, "image.interpolation": "bilinear", "image.origin": "lower", "image.aspect": "equal"}
    style |= {"figure.facecolor": "black", "text.color": "white", "axes.facecolor": "black", "text.usetex": True}
    style |= {"xtick.color": "red", "figure.dpi": 50, "figure.constrained_layout.use": True, "ytick.labelsize": 30}
    with matplotlib.rc_context(style):
        figure = figure_of(run, "conv1", "weight")
    assert np.array_equal(pixels(figure), plain)


def pixels(figure) -> np.ndarray:
    canvas = agg.FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).copy()


def test_a_pixel_of_the_figure_has_the_color_of_its_value(tmp_path):
    """Through everything that Matplotlib does with it."""
    kept = torch.tensor([[-1.0, 0.0, 1.0]])
    run = single(tmp_path, "fc", "weight", kept, "matrix", low=-1.0, high=1.0)
    figure = figure_of(run, "fc", "weight")
    drawn = pixels(figure)
    box = figure.axes[0].get_window_extent()
    row = drawn[len(drawn) - round((box.y0 + box.y1) / 2)]
    found = [tuple(row[round(box.x0 + box.width * share)][:3]) for share in (1 / 6, 3 / 6, 5 / 6)]
    assert found == [(0x08, 0x35, 0x72), (0xE4, 0xE6, 0xE7), (0x6A, 0x21, 0x1B)]


def test_figures_leave_pyplot_and_the_backend_alone(tmp_path):
    """Nothing is left open, no backend is chosen."""
    single(tmp_path / "run", "conv1", "layer", weights(4, 8, 8), "maps")
    code = f"""
import sys
from torcheer.xray.figures import figure_of
from torcheer.xray.figures import figure_of_snapshot
from torcheer.xray.run import Run
from torcheer.xray.store import FileManager
assert "matplotlib" not in sys.modules
run = Run(FileManager.open({str(tmp_path / "run")!r}))
figure_of(run, "conv1", "layer").savefig({str(tmp_path / "one.png")!r})
figure_of_snapshot(run).savefig({str(tmp_path / "all.png")!r})
import matplotlib
assert "matplotlib.pyplot" not in sys.modules
from matplotlib import rcsetup
backend = dict.__getitem__(matplotlib.rcParams, "backend")  # get_backend() would choose one
assert backend is rcsetup._auto_backend_sentinel, backend
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env={"PATH": "", "PYTHONPATH": ":".join(sys.path)})
    assert (tmp_path / "one.png").stat().st_size > 1000
    assert (tmp_path / "all.png").stat().st_size > 1000


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    """As for every optional package."""
    run = single(tmp_path, "conv1", "layer", weights(4, 8, 8), "maps")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        figure_of(run, "conv1", "layer")
    with pytest.raises(ImportError, match="pip install matplotlib"):
        figure_of_snapshot(run)


@pytest.mark.parametrize(
    ("kind", "shape", "layout", "facts", "said"),
    [
        ("layer", (16, 8, 8), "maps", {"shape": (4, 64, 8, 8)}, "16 of 64 channels"),
        ("layer", (1, 8, 8), "maps", {"shape": (4, 1, 8, 8)}, "1 of 1 channel"),
        ("weight", (8, 3, 5, 5), "filters", {}, "8 of 8 filters, inputs as red, green, blue"),
        ("grad", (8, 3, 5, 5), "filters", {}, "8 of 8 filters, 3 of 3 input channels"),
        ("weight", (8, 1, 5, 5), "filters", {}, "8 of 8 filters"),
        ("weight", (8, 16, 3, 3), "filters", {"shape": (128, 64, 3, 3)}, "8 of 128 filters, 16 of 64 input channels"),
        ("weight", (32, 16, 3, 3), "filters", {"shape": (16, 32, 3, 3)}, "32 of 32 filters, 16 of 16 input channels"),
        ("weight", (4, 256), "matrix", {"shape": (4, 8192)}, "4 of 4 units, 256 of 8,192 inputs"),
        ("layer", (8, 256), "matrix", {"shape": (32, 4096)}, "8 of 32 samples, 256 of 4,096 units"),
        ("layer", (8, 16), "matrix", {"shape": (2, 77, 16)}, "8 of 77 rows, 16 of 16 columns"),
        ("layer", (0, 8, 8), "maps", {"shape": (4, 0, 8, 8)}, "the tensor is empty"),
    ],
)
def test_how_much_is_shown_in_words(kind, shape, layout, facts, said):
    """Of how many; a transposed convolution has its input channels first."""
    kept = torch.zeros(shape)
    entry = make_entry("conv1", kind, kept, layout, **facts)
    assert kept_of(entry, make_mosaic(kept.numpy(), entry)) == said


def test_totals_of_a_vector_are_one_row():
    """A bias is a row of values."""
    assert totals_of(make_entry("fc", "weight", torch.zeros(1, 7), "matrix", shape=(7,))) == (1, 7)


def test_statistics_in_words_are_short():
    """Three digits, a true minus, and no percentage that rounds a few zeros away."""
    kept = torch.full((1, 10000), -0.0123456)
    kept[0, 0] = 0
    words = statistics_in_words(make_entry("fc", "layer", kept, "matrix"))
    assert words[0] == "mean −0.0123"
    assert "zeros <0.1 %" in words
    assert "min −0.0123 … max 0" in words
    assert statistics_in_words(make_entry("fc", "layer", torch.full((2, 2), NAN), "matrix")) == ["no finite value"]


def many_layers(folder: Path, names: list[str], notes: tuple[str, ...] = ()):
    found = []
    for at, name in enumerate(names):
        found.append((make_entry(name, "weight", weights(8, 3, 5, 5), "filters"), weights(8, 3, 5, 5)))
        if at % 2 == 0:
            found.append((make_entry(name, "layer", weights(8, 12, 12), "maps"), weights(8, 12, 12)))
            found.append((make_entry(name, "grad", weights(64, 3, 5, 5), "filters"), weights(64, 3, 5, 5)))
    return write_run(folder, {5: found, 6: found[:1]}, notes)


def test_every_word_of_a_snapshot_is_readable(tmp_path):
    """With every kind of picture there is, each in a row of its own."""
    found = [
        (make_entry(LONG if name == "long words" else name, kind, kept, layout, **facts), kept)
        for name, (kind, kept, layout, facts) in SHAPES.items()
    ]
    run = write_run(tmp_path, {5: found}, notes=["activation of fc2: nothing consumes it, " * 8])
    for names in (None, [entry.layer for entry, _ in found][8:16], [entry.layer for entry, _ in found][16:]):
        check_words_are_readable(figure_of_snapshot(run, layers=names))


def test_the_words_of_a_snapshot_have_sizes_by_what_they_are(tmp_path):
    """Each is drawn as large as it was when its line was broken: the title, the layers, what a picture is, and remarks."""
    figure = figure_of_snapshot(many_layers(tmp_path, ["a", "b"], notes=("loss scale 65536",)), 5)
    sizes = {text.get_text(): text.get_fontsize() for text in shown_texts(figure)}
    assert sizes["Stripes · step 5"] == 11
    assert sizes["a"] == sizes["b"] == 10
    (colors,) = (size for words, size in sizes.items() if words.startswith("colours: "))
    assert colors == sizes["loss scale 65536"] == 8


def test_a_picture_without_values_has_no_color_bar(tmp_path):
    """There is nothing that its colours could stand for; the picture beside it has one."""
    empty, full = torch.zeros(0, 4, 4), weights(3, 4, 4)
    found = [(make_entry(name, "layer", kept, "maps"), kept) for name, kept in (("a", empty), ("b", full))]
    run = write_run(tmp_path, {5: found})

    def bars(*layers: str) -> int:
        return sum(bool(axes.collections) for axes in figure_of_snapshot(run, layers=list(layers)).axes)

    assert (bars("a"), bars("b"), bars("a", "b")) == (0, 1, 1)


def test_layers_with_one_picture_each_stand_side_by_side(tmp_path):
    """A row each would leave most of the figure empty. Every picture has the name of its layer and its kind above it."""
    names = [LONG, "b", "c"]
    found = [(make_entry(name, "weight", weights(8, 3, 5, 5), "filters"), weights(8, 3, 5, 5)) for name in names]
    figure = figure_of_snapshot(write_run(tmp_path, {5: found}))
    places = [image.axes.get_position() for image in images(figure)]
    assert len({round(place.y1, 6) for place in places}) == 1
    assert len({round(place.x0, 6) for place in places}) == 3
    assert texts(figure).count("weight") == 3
    check_words_are_readable(figure)


@pytest.mark.parametrize("shape", [(3, 300), (300, 3), (200, 200), (1, 64)])
def test_a_matrix_of_any_shape_has_room_in_its_figure(tmp_path, shape):
    """With pixels that are at most as much wider than tall, or taller than wide, as it takes to see them."""
    figure = figure_of(single(tmp_path, "fc", "weight", weights(*shape), "matrix"), "fc", "weight")
    (place,) = (image.axes.get_position() for image in images(figure))
    assert 0 <= place.x0 < place.x1 <= 1
    assert 0 <= place.y0 < place.y1 <= 1
    width, height = figure.get_size_inches()
    assert 0.2 < width / height < 5


def test_rows_and_columns_of_a_figure_are_called_by_what_they_are(tmp_path):
    figure = figure_of(single(tmp_path, "fc", "weight", weights(30, 20), "matrix", axes=("unit", "input")), "fc", "weight")
    said = {text.get_text(): text.get_rotation() for text in shown_texts(figure)}
    assert (said["unit"], said["input"]) == (90, 0)


def test_pictures_of_a_kind_stand_below_each_other(tmp_path):
    """Their left edges line up, whatever numbers are beside them, and so do the tops of a row."""
    run = many_layers(tmp_path, ["a", "b", "c"])
    figure = figure_of_snapshot(run, 5)
    places = [image.axes.get_position() for image in images(figure)]
    assert len(places) == 7
    lefts = sorted({round(place.x0, 6) for place in places})
    assert len(lefts) == 3
    assert len({round(place.y1, 6) for place in places}) == 3


def test_a_kind_that_was_not_kept_of_a_layer_leaves_no_empty_place(tmp_path):
    """Every row begins at the left, without a gap, and each picture says which kind it is."""
    figure = figure_of_snapshot(many_layers(tmp_path, ["a", "b", "c"]), 5)
    rows = {}
    for image in images(figure):
        place = image.axes.get_position()
        rows.setdefault(round(place.y1, 6), []).append(round(place.x0, 6))
    lefts = sorted({left for row in rows.values() for left in row})
    assert all(sorted(row) == lefts[: len(row)] for row in rows.values())
    assert "not kept" not in texts(figure)


def test_a_figure_of_many_layers_shows_some_and_names_the_others(tmp_path):
    """Those of the first 24 pictures by itself; the layers that are named, if any are."""
    names = [f"layer{at}" for at in range(17)]
    run = many_layers(tmp_path, names, notes=("loss scale 65536",))
    words = texts(figure_of_snapshot(run, 5))
    assert [word for word in words if word in names] == names[:12]  # of two layers in turn, three pictures and one
    said = " ".join(words)
    assert "Left out: layer12, layer13, layer14, layer15, layer16." in said
    assert "loss scale 65536" in words
    chosen = texts(figure_of_snapshot(run, 5, layers=names[9:12]))
    assert [word for word in chosen if word in names] == names[9:12]
    assert not any("Left out" in word for word in chosen)


def test_a_layer_that_a_snapshot_lacks_is_said(tmp_path):
    """The last snapshot has only one of two layers."""
    run = many_layers(tmp_path, ["a", "b"])
    assert "Not in this snapshot: b." in texts(figure_of_snapshot(run))
    with pytest.raises(SnapshotNotFound, match=r"step 6.*'b'"):
        figure_of_snapshot(run, layers=["b"])
    with pytest.raises(SnapshotNotFound, match="layer 'x'"):
        figure_of_snapshot(run, layers=["x"])


@pytest.mark.parametrize(
    ("layers", "message"), [("conv1", "list of names"), ([], "1 to 40"), ([str(n) for n in range(41)], "got 41")]
)
def test_layers_that_make_no_figure_are_refused(tmp_path, layers, message):
    """A text, none, too many."""
    with pytest.raises(InvalidArgument, match=message):
        figure_of_snapshot(many_layers(tmp_path, ["a"]), layers=layers)


def a_figure():
    figure = Figure(figsize=(2, 1))
    figure.text(0.5, 0.5, "x")
    return figure


def test_without_a_notebook_a_figure_is_a_file_whose_path_is_printed(tmp_path, capsys):
    """A PNG, whole."""
    path = tmp_path / "figure.png"
    Displays().present(a_figure(), path, "a")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"Picture: {path}\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def notebook(monkeypatch):
    """A notebook that writes down what it is asked to show."""
    calls: list = []
    shell = types.SimpleNamespace(kernel=object(), execution_count=1)

    def show(picture, display_id):
        name = f"id{len(calls)}" if display_id is True else display_id
        calls.append(("display", name, picture))
        return types.SimpleNamespace(display_id=name)

    fake = types.ModuleType("IPython")
    fake.version_info = (9, 0)  # Matplotlib asks for it when the first figure of a process is made
    fake.get_ipython = lambda: shell
    fake.display = types.SimpleNamespace(
        display=show,
        update_display=lambda picture, display_id: calls.append(("update", display_id, picture)),
        Image=lambda **facts: facts,
    )
    monkeypatch.setitem(sys.modules, "IPython", fake)
    return types.SimpleNamespace(calls=calls, shell=shell)


def test_each_cell_shows_a_figure_once_and_then_updates_it(tmp_path, notebook, capsys):
    """A loop in a cell has one picture that changes; the next cell has its own. No file is written."""
    displays = Displays()
    for _ in range(3):
        displays.present(a_figure(), tmp_path / "a.png", "a")
    displays.present(a_figure(), tmp_path / "b.png", "b")
    notebook.shell.execution_count = 2
    displays.present(a_figure(), tmp_path / "a.png", "a")
    assert [call[:2] for call in notebook.calls] == [
        ("display", "id0"),
        ("update", "id0"),
        ("update", "id0"),
        ("display", "id3"),
        ("display", "id4"),
    ]
    assert notebook.calls[0][2]["data"].startswith(b"\x89PNG")
    assert (list(tmp_path.iterdir()), capsys.readouterr().out) == ([], "")


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_a_tensor_without_finite_values_has_no_color_bar(value, tmp_path):
    """The colours of a scale that no value is on would say nothing."""
    run = single(tmp_path / "run", "fc", "weight", torch.full((3, 4), value), "matrix")
    said = texts(figure_of(run, "fc", "weight"))
    assert "no value is finite" in said
    assert not {"−1", "scale of the run"} & set(said)
    assert "−1" not in texts(figure_of_snapshot(run))
