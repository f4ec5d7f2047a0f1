"""The report of a run: what is in the file, and what a person finds who opens it, in a browser without a network."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from browser import until
from torcheer import Xray
from torcheer._text import Progress
from torcheer.errors import InvalidArgument, SnapshotNotFound, ViewerNotBuilt
from torcheer.page.schema import REPORT, required
from torcheer.xray.colors import NONFINITE, ColorScale
from torcheer.xray.records import Entry, Snapshot
from torcheer.xray.report import LEVELS, Album, quantise, read_numbers, write_report
from torcheer.xray.run import Run, evenly, limits_of
from torcheer.xray.store import FileManager
from xray_runs import make_entry, write_run

HOSTILE = ('</script><img src="x" onerror="alert(1)">', "\"'><b>bold</b>&amp;\u202egnp.exe", "x" * 5000)
Found = list[tuple[Entry, Tensor]]


def with_entry(found: Found, layer: str, kind: str, kept: Tensor, layout: str, **facts) -> None:
    found.append((make_entry(layer, kind, kept, layout, **facts), kept))


def convolutional(step: int) -> Found:
    """Colour filters, feature maps, a matrix and its gradient, all different at every step."""
    generator = torch.Generator().manual_seed(step)
    found: Found = []
    with_entry(found, "conv", "weight", torch.randn(6, 3, 5, 5, generator=generator), "filters", update_ratio=1e-3 * (step + 1))
    maps = torch.randn(4, 9, 9, generator=generator).relu() * (1 + step)
    with_entry(found, "conv", "activation", maps, "maps", rows=(2, 3, 5, 11), shape=(8, 16, 9, 9), dead=step % 4, units=16)
    with_entry(found, "fc", "weight", torch.randn(8, 12, generator=generator), "matrix", update_ratio=1e-5)
    with_entry(found, "fc", "grad", torch.randn(8, 12, generator=generator) * 10.0**-step, "matrix")
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return write_run(tmp_path_factory.mktemp("run") / "run", {10 * step: convolutional(step) for step in range(6)})


@pytest.fixture(scope="module")
def report(run, tmp_path_factory) -> Path:
    return write_report(run, tmp_path_factory.mktemp("page") / "report.html")


def facts_of(path: Path) -> dict:
    return json.loads(re.search(r'id="facts">(.*?)</script>', path.read_text(), flags=re.DOTALL)[1])


def block_of(path: Path, name: str) -> bytes:
    return zlib.decompress(base64.b64decode(re.search(rf'id="{name}">(.*?)</script>', path.read_text())[1]))


def test_the_report_is_one_file_that_refers_to_nothing_outside(report):
    text = report.read_text()
    assert not re.search(r"""(src|href|action)\s*=\s*["']?[^"'>]""", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))
    assert not re.search(r"(https?:)?//[a-z]+\.[a-z]", text)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_the_same_run_makes_the_same_file(run, report, tmp_path):
    assert write_report(run, tmp_path / "again.html").read_bytes() == report.read_bytes()


def test_a_run_without_snapshots_is_refused_in_words(tmp_path):
    with pytest.raises(SnapshotNotFound, match="take_graphs"):
        write_report(write_run(tmp_path / "run", {}), tmp_path / "report.html")
    with pytest.raises(SnapshotNotFound, match="no snapshot with a layer"):
        write_report(write_run(tmp_path / "other", {0: []}), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("path", [".", "nowhere/report.html", "file/report.html"])
def test_a_path_that_cannot_be_written_is_told(run, tmp_path, path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(InvalidArgument, match=r"the report cannot be written to .*(folder)"):
        write_report(run, tmp_path / path)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("arguments", "word"), [({"path": 7}, "path"), ({"max_bytes": "5 MB"}, "max_bytes"), ({"max_bytes": 0}, "max_bytes")]
)
def test_an_argument_of_the_wrong_sort_is_named(run, tmp_path, arguments, word):
    with pytest.raises(InvalidArgument, match=word):
        write_report(run, **({"path": tmp_path / "report.html"} | arguments))


def test_without_the_built_program_the_error_says_how_to_build_it(run, tmp_path, monkeypatch):
    """An editable install may have none; nothing is written then."""
    monkeypatch.setattr("torcheer.page.document.resources.files", lambda package: tmp_path)
    with pytest.raises(ViewerNotBuilt, match="make web"):
        write_report(run, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_the_facts_are_as_their_format_says(report):
    """Every key that has no default is there, and no other than the declared ones."""
    facts = facts_of(report)
    parts = [("report", facts)] + [("series", one) for one in facts["series"]] + [("finding", one) for one in facts["findings"]]
    parts += [(name, one) for series in facts["series"] for name in ("form", "chunk") for one in series[f"{name}s"]]
    assert {name for name, _ in parts} == set(REPORT)
    for name, found in parts:
        assert set(required(REPORT[name])) <= set(found) <= set(REPORT[name]), name


def test_a_report_that_was_there_stays_when_writing_fails(run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidArgument, match="No space left"):
        write_report(run, path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_the_statistics_of_every_step_are_in_the_file(run, report):
    """Byte planes of float32, by series, field and snapshot."""
    facts = facts_of(report)
    planes = np.frombuffer(block_of(report, "statistics"), np.uint8).reshape(4, -1)
    table = planes.T.copy().view("<f4").reshape(len(facts["series"]), len(facts["fields"]), len(facts["steps"]))
    for number, series in enumerate(facts["series"]):
        for at, step in enumerate(facts["steps"]):
            entry = run.entry(facts["layers"][series["layer"]], series["kind"], step)
            row = dict(zip(facts["fields"], table[number, :, at].tolist(), strict=True))
            for name in ("count", "mean", "std", "min", "max", "norm", "zeros", "nan", "inf"):
                assert row[name] == pytest.approx(getattr(entry.statistics, name), rel=1e-6)
            assert (row["low"], row["high"]) == pytest.approx(limits_of(entry), rel=1e-6)


def test_no_bin_of_a_histogram_is_lost(tmp_path):
    kept = torch.zeros(1000, 1000)
    kept[0, 0] = -3e5
    path = write_report(
        write_run(tmp_path / "run", {0: [(make_entry("fc", "weight", kept, "matrix"), kept)]}), tmp_path / "report.html"
    )
    codes = np.frombuffer(block_of(path, "histograms"), np.uint8)
    assert np.flatnonzero(codes).tolist() == [0, len(codes) // 2]
    part = facts_of(path)["least_fraction"] ** (1 - (int(codes[0]) - 1) / 254)
    assert part == pytest.approx(1e-6, rel=0.05)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_a_code_stands_for_its_value_to_within_half_a_step(scale):
    values = torch.randn(50, 40) * scale
    frame = quantise(values.numpy(), make_entry("fc", "weight", values, "matrix"))
    back = frame.low + frame.codes * ((frame.high - frame.low) / LEVELS)
    wrong = np.abs(back - values.double().numpy())
    inside = np.abs(values.numpy()) <= frame.high
    assert wrong[inside].max() <= (frame.high - frame.low) / LEVELS / 2 * 1.0001
    assert inside.mean() > 0.99


def test_zero_and_what_is_not_finite_have_codes_of_their_own():
    values = torch.tensor([[0.0, float("nan"), float("inf"), float("-inf"), -1.0, 1.0]])
    frame = quantise(values.numpy(), make_entry("fc", "weight", values, "matrix"))
    assert frame.codes.tolist() == [[LEVELS // 2, 255, 254, 253, 0, LEVELS]]
    nothing = quantise(
        torch.full((2, 2), float("nan")).numpy(), make_entry("fc", "weight", torch.full((2, 2), float("nan")), "matrix")
    )
    assert nothing.codes.tolist() == [[255, 255], [255, 255]]


@pytest.mark.parametrize(("count", "number"), [(1, 12), (2, 2), (300, 2), (300, 12), (7, 5), (12, 12), (5, 40)])
def test_steps_are_chosen_evenly_with_the_first_and_the_last(count, number):
    chosen = evenly(count, number)
    gaps = np.diff(chosen)
    assert (chosen[0], chosen[-1], len(chosen)) == (0, count - 1, min(count, number))
    assert gaps.size == 0 or gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize(
    ("shape", "kept", "values"),
    [
        ((2, 4, 5), (2, 2, 3), [0, 2, 4, 10, 12, 14, 20, 22, 24, 30, 32, 34]),  # maps: pixels of every channel
        ((4, 5), (2, 3), [0, 2, 4, 10, 12, 14]),  # a matrix: rows and columns
        ((5, 1, 2, 2), (3, 1, 2, 2), [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]),  # filters: whole ones
    ],
)
def test_thinned_pictures_keep_every_second_pixel_row_or_filter(tmp_path, shape, kept, values):
    tensor = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    layout = {2: "matrix", 3: "maps", 4: "filters"}[len(shape)]
    run = write_run(tmp_path, {1: [(make_entry("a", "weight", tensor, layout, is_color=False), tensor)]})
    snapshots = run.snapshots
    album = Album(run, snapshots, read_numbers(run, snapshots, Progress("", 1, "")).pictured)
    pictures = album.packed([0], stride=2)
    ((chunk,),) = pictures.chunks
    assert (chunk["kept"], pictures.codes) == (list(kept), math.prod(kept))
    codes = np.frombuffer(zlib.decompress(base64.b64decode(pictures.blocks[0])), np.uint8)
    assert np.rint(codes * chunk["frames"][0][1] / LEVELS).tolist() == values


def noisy(tmp_path: Path, steps: int, side: int = 64) -> Run:
    def found(step: int) -> Found:
        kept = torch.randn(8, side, side, generator=torch.Generator().manual_seed(step))
        return [(make_entry("conv", "layer", kept, "maps"), kept)]

    return write_run(tmp_path / "run", {step: found(step) for step in range(steps)})


def test_the_limit_is_kept_with_fewer_steps_which_the_page_names(tmp_path, page):
    path = write_report(noisy(tmp_path, 30), tmp_path / "report.html", max_bytes=900_000)
    kept = facts_of(path)["pictures"]
    assert 700_000 < path.stat().st_size <= 900_000
    assert 12 <= len(kept) < 30
    assert (kept[0], kept[-1]) == (0, 29)
    assert set(np.diff(kept)) <= {1, 2}
    opened(page, path)
    assert f"pictures of {len(kept)} of 30 snapshots" in page.inner_text("#notes summary")
    page.click("#notes summary")
    left = [at for at in range(30) if at not in kept]
    named = (
        f"of steps {', '.join(map(str, kept))} only" if len(kept) < len(left) else f"but for steps {', '.join(map(str, left))}."
    )
    assert named in page.inner_text("#notes")
    move_to(page, left[0])
    assert re.search(r"Picture of step \d+, the nearest in this file", page.inner_text("#picture-about"))


def test_where_a_dozen_steps_do_not_fit_pictures_are_thinned_before_steps(tmp_path, page):
    path = write_report(noisy(tmp_path, 14), tmp_path / "report.html", max_bytes=300_000)
    facts = facts_of(path)
    assert path.stat().st_size <= 300_000
    assert facts["stride"] == 2
    assert len(facts["pictures"]) >= 12
    opened(page, path)
    assert "every 2nd pixel" in page.text_content("#notes")


def test_a_limit_that_is_too_small_says_which_one_works(tmp_path):
    run = noisy(tmp_path, 3)
    with pytest.raises(InvalidArgument, match="too small") as raised:
        write_report(run, tmp_path / "report.html", max_bytes=2000)
    enough = int(re.search(r"max_bytes=(\d+)", str(raised.value))[1])
    assert write_report(run, tmp_path / "report.html", max_bytes=enough).stat().st_size <= enough


def test_a_snapshot_that_cannot_be_read_is_named_and_the_others_are_shown(tmp_path, page):
    run = write_run(tmp_path / "run", {step: convolutional(step) for step in range(3)})
    run.files.path(run.snapshots[1]).write_bytes(b"damaged")
    opened(page, write_report(run, tmp_path / "report.html"))
    assert "could not be read: 1." in page.text_content("#notes")
    assert page.is_visible("#picture")


def opened(page, path: Path) -> None:
    page.goto(path.as_uri())
    page.wait_for_selector("#main:not([hidden])")
    settled(page)


def settled(page) -> None:
    """The picture is unpacked, and everything is drawn."""
    page.evaluate("""async () => {
        const picture = document.querySelector("#picture");
        do for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
        while (picture.ariaBusy === "true");
    }""")


def move_to(page, at: int) -> None:
    page.locator("#slider").fill(str(at))
    settled(page)


def show(page, layer: str, kind: str) -> None:
    page.select_option("#layer", label=layer)
    settled(page)
    page.locator(f"#kinds input[value={kind}]").check(force=True)
    settled(page)


def point_at(page, canvas: str, across: float, down: float) -> str:
    """Hover over a part of a canvas, and read what is said there."""
    place = page.locator(canvas)
    place.evaluate("(one) => { one.scrollIntoView({ block: 'center' }); return new Promise(requestAnimationFrame); }")
    box = place.bounding_box()
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    return page.inner_text("#tip") if page.is_visible("#tip") else ""


# What is said at places all over the picture.
WALK = """() => {
  const canvas = document.querySelector("#picture");
  const box = canvas.getBoundingClientRect();
  const said = new Set();
  for (let x = 1; x < 16; x++) for (let y = 1; y < 16; y++) {
    const place = { clientX: box.left + (x / 16) * box.width, clientY: box.top + (y / 16) * box.height };
    canvas.dispatchEvent(new PointerEvent("pointermove", place));
    said.add(document.querySelector("#tip").textContent);
  }
  return [...said];
}"""


def pixel(page, canvas: str, across: float, down: float) -> tuple[int, ...]:
    script = """([name, x, y]) => { const canvas = document.querySelector(name);
        return [...canvas.getContext("2d").getImageData(x * canvas.width, y * canvas.height, 1, 1).data].slice(0, 3); }"""
    return tuple(page.evaluate(script, [canvas, across, down]))


def numbers_in(text: str) -> list[float]:
    return [float(one.replace("−", "-")) for one in re.findall(r"[−-]?\d+\.?\d*(?:e[−-]?\d+)?", text)]


def color_of(value: float, scale: ColorScale) -> np.ndarray:
    return scale.colors()[int(scale.levels(np.array(value)))].astype(int)


def near(found: tuple[int, ...], wanted: np.ndarray) -> bool:
    """One code of 252 is at most a few colours of 255."""
    return bool(np.abs(np.array(found) - wanted).max() <= 14)


PLACES = [(0.3, 0.3), (0.62, 0.21), (0.5, 0.78), (0.93, 0.9), (0.21, 0.55)]


def test_a_pixel_has_the_value_and_the_color_of_the_stored_tensor(run, report, page):
    """At two steps, on the scale of the run."""
    opened(page, report)
    show(page, "fc", "weight")
    scale = ColorScale(*run.limits("fc", "weight"))
    seen: dict[int, list[tuple[int, ...]]] = {1: [], 4: []}
    for at, colors in seen.items():
        move_to(page, at)
        for across, down in PLACES:
            unit, column, value = numbers_in(point_at(page, "#picture", across, down))
            stored = float(run.tensor("fc", "weight", 10 * at)[int(unit), int(column)])
            assert value == pytest.approx(stored, abs=0.02)
            colors.append(pixel(page, "#picture", across, down))
            assert near(colors[-1], color_of(stored, scale))
    assert all(before != after for before, after in zip(seen[1], seen[4], strict=True))


def test_a_metric_is_a_curve_over_the_slider(tmp_path, page):
    """It follows the slider; several can be chosen; a run without any has no curve."""
    kept = torch.ones(2, 3)
    files = write_run(tmp_path / "run", {0: [(make_entry("fc", "weight", kept, "matrix"), kept)]}).files
    files = FileManager.create(files.folder, {}, resume=True)
    for step in range(1, 9):
        entry = make_entry("fc", "weight", kept, "matrix")
        metrics = {"accuracy": step / 10, "loss": 8.0 / step if step != 5 else math.nan}
        files.write(Snapshot(number=step, step=step, time=0.0, entries=(entry,), metrics=metrics), {entry.key: kept})
    files.close()
    path = write_report(Run(FileManager.open(files.folder)), tmp_path / "report.html")
    assert facts_of(path)["metrics"]["loss"] == [None, 8.0, 4.0, pytest.approx(8 / 3), 2.0, None, *(8 / s for s in (6, 7, 8))]
    opened(page, path)
    assert page.is_visible("#curve")
    assert page.inner_text("#metric-value") == "1"
    move_to(page, 2)
    assert page.inner_text("#metric-value") == "4"
    move_to(page, 5)
    assert page.inner_text("#metric-value") == "–"
    page.select_option("#metric", "accuracy")
    settled(page)
    assert page.inner_text("#metric-value") == "0.5"
    assert "accuracy over time, 0.1 to 0.8" in page.get_attribute("#curve", "aria-label")


def test_every_layer_with_parameters_is_in_the_map(tmp_path, page):
    """Only one is watched; the others lead to a summary, which says that there are no pictures."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Xray(model, torch.ones(2, 4), {"2": ["weight"]}, folder=tmp_path / "run", optimizer=optimizer) as xray:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            xray.take_graphs()
            optimizer.step()
    opened(page, xray.report(tmp_path / "report.html"))
    assert page.locator("#map-labels button").all_inner_texts() == ["0", "2", "3"]
    titles = page.locator("#measures label").all_inner_texts()
    assert {"Gradient norm", "Update ratio", "Dead units", "Weight norm", "Not finite"} <= set(titles)
    assert "1 layer with pictures" in page.inner_text("#about")
    assert "2 others with a summary" in page.inner_text("#about")
    page.click("#map-labels button:last-child")
    settled(page)
    assert page.inner_text("#picture-title") == "3 · summary"
    assert "No pictures of it were kept" in page.inner_text("#instead")
    assert not page.is_visible("#histogram-card")
    said = point_at(page, "#map", 0.99, 0.9).splitlines()
    expected = xray.run.summary("3").grad_norm
    assert float(said[2].partition(": ")[2]) == pytest.approx(expected, rel=0.01)
    assert page.locator("#gallery h3").all_inner_texts() == ["2"]


def test_a_long_run_is_shown_by_two_thousand_snapshots(tmp_path, page, monkeypatch):
    """Evenly, the first and the last among them; the head says how many there are."""
    monkeypatch.setattr("torcheer.xray.report.MOST_SNAPSHOTS", 40)
    kept = torch.ones(2, 3)
    run = write_run(tmp_path / "run", {step: [(make_entry("fc", "weight", kept, "matrix"), kept)] for step in range(100)})
    path = write_report(run, tmp_path / "report.html")
    facts = facts_of(path)
    assert (facts["snapshots"], len(facts["steps"]), facts["steps"][0], facts["steps"][-1]) == (100, 40, 0, 99)
    opened(page, path)
    assert "100 snapshots" in page.inner_text("#about")
    assert "shows 40 of the 100 snapshots" in page.text_content("#notes")


def test_a_report_tells_how_far_it_is(run, tmp_path, monkeypatch):
    """On a terminal, unless that is not wanted."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for wanted in (True, False):
        monkeypatch.setattr(sys, "stderr", Terminal())
        write_report(run, tmp_path / "report.html", progress=wanted)
        said = sys.stderr.getvalue()
        assert ("report.html: numbers [" in said) == ("report.html: pictures [" in said) == wanted
        assert ("6/6 snapshots" in said) == wanted
        assert ("6/6 rounds" in said) == wanted


def test_a_gradient_that_vanishes_is_seen_on_the_scale_of_its_step(run, report, page):
    opened(page, report)
    show(page, "fc", "grad")
    move_to(page, 5)
    assert "Scale of this step" in page.inner_text("#scales label:has(:checked)")  # what gradients have by default
    page.locator("#scales input[value=run]").check(force=True)
    settled(page)
    flat = {pixel(page, "#picture", *place) for place in PLACES}
    assert len(flat) == 1
    page.locator("#scales input[value=frame]").check(force=True)
    settled(page)
    scale = ColorScale(*limits_of(run.entry("fc", "grad", 50)))
    for across, down in PLACES:
        unit, column, value = numbers_in(point_at(page, "#picture", across, down))
        stored = float(run.tensor("fc", "grad", 50)[int(unit), int(column)])
        assert value == pytest.approx(stored, abs=0.02 * scale.high)
        assert near(pixel(page, "#picture", across, down), color_of(stored, scale))
    assert page.inner_text("#bar-high").replace("−", "-") == f"{scale.high:.3g}".replace("e-0", "e-")


def test_feature_maps_carry_the_numbers_of_their_channels(run, report, page):
    opened(page, report)
    show(page, "conv", "activation")
    move_to(page, 3)
    channel, row, column, value = numbers_in(point_at(page, "#picture", 0.1, 0.3))
    assert channel == 2
    kept = run.tensor("conv", "activation", 30)
    assert value == pytest.approx(float(kept[0, int(row), int(column)]), abs=0.05)
    assert "4 of 16 channels" in page.inner_text("#picture-about")
    told = {numbers_in(point_at(page, "#picture", across, down))[0] for across in (0.1, 0.9) for down in (0.3, 0.8)}
    assert told <= {2, 3, 5, 11}
    assert len(told) > 1


def test_filters_of_three_channels_are_in_color(run, report, page):
    opened(page, report)
    show(page, "conv", "weight")
    move_to(page, 2)
    text = point_at(page, "#picture", 0.2, 0.4)
    number, row, column, *rgb = numbers_in(text)
    kept = run.tensor("conv", "weight", 20)[int(number), :, int(row), int(column)]
    assert rgb == pytest.approx(kept.tolist(), abs=0.03)
    wanted = np.rint(ColorScale(*run.limits("conv", "weight")).shares(kept) * 255)
    assert near(pixel(page, "#picture", 0.2, 0.4), wanted)


def test_what_is_not_finite_has_a_strong_color_and_is_told(tmp_path, page):
    kept = torch.ones(4, 4)
    kept[0, 0], kept[0, 3], kept[3, 0] = float("nan"), float("inf"), float("-inf")
    nothing = torch.full((4, 4), float("nan"))
    steps = {
        step: [(make_entry("fc", "grad", one, "matrix"), one)] for step, one in ((0, torch.ones(4, 4)), (1, kept), (2, nothing))
    }
    opened(page, write_report(write_run(tmp_path / "run", steps), tmp_path / "report.html"))
    move_to(page, 1)
    corners = {
        place: point_at(page, "#picture", *place).splitlines()[-1]
        for place in ((0.35, 0.2), (0.95, 0.2), (0.35, 0.95), (0.95, 0.95))
    }
    assert list(corners.values()) == ["NaN", "+∞", "−∞", "1"]
    colors = [pixel(page, "#picture", *place) for place in corners]
    assert colors[:3] == [NONFINITE] * 3
    assert colors[3] != NONFINITE
    assert "Values are not finite from step 1 on" in page.inner_text("#findings")
    assert pixel(page, "#map", 0.5, 0.2) == pixel(page, "#map", 0.97, 0.2) == NONFINITE
    assert pixel(page, "#map", 0.1, 0.2) != NONFINITE
    assert "3 not finite" in point_at(page, "#map", 0.5, 0.5)
    move_to(page, 2)
    assert "no value is finite" in page.inner_text("#histogram-about")
    assert page.inner_text("#numbers").split()[:2] == ["mean", "none"]
    page.locator("#findings button").click()
    settled(page)
    assert page.inner_text("#step b") == "Step 1"
    move_to(page, 0)
    assert page.inner_text("#findings").strip() == "Nothing stands out at step 0"
    assert page.locator("#over-time .now").count() == 0
    page.click("#over-time summary")
    assert page.inner_text("#over-time summary") == "1 finding over the run"
    page.locator("#over-time button").click()
    settled(page)
    assert page.inner_text("#step b") == "Step 1"
    assert page.locator("#over-time .now").count() == 1


def test_a_click_on_the_map_shows_that_layer_at_that_step(run, report, page):
    """The map of gradients has two rows, the second is of the layer that has one."""
    opened(page, report)
    page.locator("#measures input[value=grad]").check(force=True)
    settled(page)
    assert run.layers == ["conv", "fc"]
    text = point_at(page, "#map", 2.5 / 6, 0.75)
    assert text.splitlines()[:2] == ["fc", "step 20"]
    norm = run.entry("fc", "grad", 20).statistics.norm
    assert numbers_in(text.splitlines()[-1])[0] == pytest.approx(norm, rel=0.01)
    box = page.locator("#map").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 2.5 / 6, box["y"] + box["height"] * 0.75)
    settled(page)
    assert page.inner_text("#picture-title") == "fc · gradient of the weight"
    assert page.inner_text("#step b") == "Step 20"
    assert page.locator("#map-labels [aria-current=true]").inner_text() == "fc"


def test_what_a_layer_lacks_is_blank_on_the_map_and_told(report, page):
    opened(page, report)
    page.locator("#measures input[value=grad]").check(force=True)
    assert "not recorded" in point_at(page, "#map", 0.5, 0.25)
    assert page.inner_text("#map-legend").count("not recorded") == 1


def test_every_measure_that_has_values_has_a_map(report, page):
    opened(page, report)
    measures = page.locator("#measures input").evaluate_all("(all) => all.map((one) => one.value)")
    assert {
        "grad",
        "update",
        "dead",
        "nonfinite",
        "zeros",
        "weight-norm",
        "weight-std",
        "activation-norm",
        "activation-std",
    } <= set(measures)
    assert "layer_grad" not in measures
    legends = {}
    for measure in measures:
        page.locator(f"#measures input[value={measure}]").check(force=True)
        settled(page)
        legends[measure] = page.inner_text("#map-legend")
    assert "healthy 1e−3" in legends["update"]
    assert "100 %" in legends["dead"]
    page.locator("#measures input[value=update]").check(force=True)
    assert "update ratio: 0.001" in point_at(page, "#map", 0.05, 0.25)


def test_the_map_is_walked_with_the_keyboard(report, page):
    opened(page, report)
    page.focus("#map")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    settled(page)
    assert page.inner_text("#picture-title") == "fc · gradient of the weight"
    assert page.inner_text("#step b") == "Step 40"
    assert "fc at step 40" in page.get_attribute("#map", "aria-label")


def test_the_keyboard_moves_over_steps_kinds_and_values(run, report, page):
    opened(page, report)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("1")
    settled(page)
    assert page.inner_text("#step b") == "Step 10"
    assert page.inner_text("#picture-title") == "conv · weight"
    page.keyboard.press("2")
    settled(page)
    assert page.inner_text("#picture-title") == "conv · activation"
    page.keyboard.press("s")
    settled(page)
    assert page.is_checked("#scales input[value=frame]")
    page.focus("#picture")
    page.keyboard.press("ArrowRight")
    settled(page)
    channel, row, column, value = numbers_in(page.inner_text("#tip"))
    assert (channel, row, column) == (2, 0, 1)
    assert value == pytest.approx(float(run.tensor("conv", "activation", 10)[0, 0, 1]), abs=0.05)
    assert page.inner_text("#step b") == "Step 10"


def test_play_goes_to_the_end_and_stops(report, page):
    opened(page, report)
    page.keyboard.press("Home")
    page.click("#play")
    assert page.get_attribute("#play", "aria-label") == "Pause"
    until(page, "document.querySelector('#step b').textContent === 'Step 20'")
    until(page, "document.querySelector('#play').ariaLabel === 'Play'")
    settled(page)
    assert page.inner_text("#step b") == "Step 50"
    page.click("#play")
    page.click("#play")
    assert page.get_attribute("#play", "aria-label") == "Play"
    assert page.inner_text("#step b") != "Step 50"


def test_charts_follow_the_step_and_lead_to_it(run, report, page):
    opened(page, report)
    show(page, "conv", "activation")
    for chart in ("histogram", "lines"):
        move_to(page, 0)
        page.locator(f"#{chart}").scroll_into_view_if_needed()
        box = page.locator(f"#{chart}").bounding_box()
        page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 100)
        settled(page)
        assert page.inner_text("#step b") in ("Step 20", "Step 30")
    move_to(page, 2)
    known = run.entry("conv", "activation", 20).statistics
    assert numbers_in(page.inner_text("#lines-about"))[1:] == pytest.approx([known.mean, known.std], rel=0.01)
    assert "step" in point_at(page, "#lines", 0.5, 0.4)
    assert "nearer to 0" in page.inner_text("#histogram-about")
    assert numbers_in(page.inner_text("#histogram-about"))[1] / 100 == pytest.approx(known.zero_fraction, rel=0.1)
    for chart in ("range", "norm", "zeros", "dead"):
        page.locator(f"#charts input[value={chart}]").check(force=True)
        settled(page)
    assert numbers_in(page.inner_text("#lines-about"))[1] == pytest.approx(100 * 2 / 16, abs=1)
    assert page.locator("#charts input[value=update]").count() == 0


def test_the_gallery_shows_every_layer_and_kind_and_enlarges_one(report, page):
    opened(page, report)
    page.locator("#gallery").scroll_into_view_if_needed()
    until(page, "[...document.querySelectorAll('#gallery canvas')].every((one) => one.width > 20)")
    assert page.locator("#gallery button").count() == 4
    page.click("#gallery button[aria-label='fc, weight']")
    settled(page)
    assert page.inner_text("#picture-title") == "fc · weight"
    assert page.locator("#picture").bounding_box()["y"] >= 0


BLANK = """() => [...document.querySelectorAll("#gallery canvas")].filter((canvas) => {
    if (canvas.width < 2) return true;
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return !data.some((value, i) => i % 4 === 3 && value > 0);
}).length"""


def test_a_picture_of_the_whole_page_has_no_blank_tiles(report, page):
    """Also of what is below the window, without scrolling there; at another step too, and in print."""
    page.set_viewport_size({"width": 1000, "height": 300})
    opened(page, report)
    until(page, f"({BLANK})() === 0")
    move_to(page, 2)
    until(page, f"({BLANK})() === 0")
    page.emulate_media(media="print")
    assert page.evaluate(BLANK) == 0
    assert page.pdf()[:4] == b"%PDF"


@pytest.mark.parametrize("width", [1440, 390])
def test_no_card_is_large_and_empty_with_few_layers(tmp_path, page, width):
    """One layer: what is in a card reaches to its end."""
    found: Found = []
    with_entry(found, "fc", "weight", torch.randn(1, 8), "matrix")
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, write_report(write_run(tmp_path / "run", {0: found, 1: found}), tmp_path / "report.html"))
    for card in page.locator(".card:visible").all():
        inside = [one.bounding_box() for one in card.locator("> *:visible").all()]
        box = card.bounding_box()
        assert box["y"] + box["height"] - max(one["y"] + one["height"] for one in inside) < 30


def test_metrics_are_curves_over_the_slider(tmp_path, page):
    """The chosen one, with the others behind it."""
    metrics = [{"loss": 3.0 - step, "accuracy": step / 3} for step in range(3)]
    run = write_run(tmp_path / "run", {step: convolutional(step) for step in range(3)}, metrics=metrics)
    opened(page, write_report(run, tmp_path / "report.html"))
    curve, slider = page.locator("#curve").bounding_box(), page.locator("#slider").bounding_box()
    assert curve["y"] + curve["height"] <= slider["y"] + 1
    assert page.locator("#metric").input_value() == "loss"
    assert page.inner_text("#metric-value") == "1"
    colors = """() => {
        const canvas = document.querySelector("#curve");
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Set();
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) seen.add(data.slice(i, i + 3).join());
        return seen.size;
    }"""
    assert page.evaluate(colors) >= 2
    page.select_option("#metric", "accuracy")
    settled(page)
    assert page.inner_text("#metric-value") == "0.667"


def test_colors_follow_the_system_and_the_button(report, page):
    page.emulate_media(color_scheme="dark")
    opened(page, report)
    background = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    before = pixel(page, "#picture", 0.3, 0.3)
    page.click("#theme")
    settled(page)
    light = page.evaluate(background)
    assert sum(map(int, re.findall(r"\d+", dark))) < 150 < 600 < sum(map(int, re.findall(r"\d+", light)))
    assert pixel(page, "#picture", 0.3, 0.3) == before
    page.reload()
    page.wait_for_selector("#main:not([hidden])")
    assert page.evaluate(background) == light


def test_hostile_names_are_text(tmp_path, page):
    found: Found = []
    for name in HOSTILE:
        with_entry(found, name, "weight", torch.randn(4, 5), "matrix", source=name, note=name[:200])
    run = write_run(tmp_path / "run", {0: found, 1: found}, notes=(HOSTILE[0],))
    path = write_report(run, tmp_path / "report.html", title=HOSTILE[0] + "\ud800")
    opened(page, path)
    for layer, name in enumerate(HOSTILE):
        page.select_option("#layer", str(layer))
        settled(page)
        assert page.locator("#picture-title").inner_text().startswith(name[:5])
        assert len(page.locator("#picture-title").inner_text()) < 70
        assert page.get_attribute("#picture-title", "title") == name.replace("\u202e", "\ufffd")
        assert point_at(page, "#map", 0.5, (layer + 0.5) / 3).startswith(name[:5])
    page.locator("#gallery").scroll_into_view_if_needed()
    assert page.locator("img, b:not(#step b), iframe, script:not([type])").count() == 1  # the script of the page
    assert page.title().startswith("</script><img")
    assert page.text_content("#notes li") == f"2 snapshots, steps 0 – 1: {HOSTILE[0]}"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_layer_that_some_snapshots_lack_is_shown_where_it_is(tmp_path, page):
    """It is there at steps 10 and 30, with a tensor of another shape."""
    steps = {step: convolutional(step) for step in (0, 10, 20, 30)}
    for step, side in ((10, 4), (30, 6)):
        with_entry(steps[step], "seldom", "layer", torch.rand(3, side, side), "maps")
    opened(page, write_report(write_run(tmp_path / "run", steps), tmp_path / "report.html"))
    page.select_option("#layer", label="seldom")
    for at, side in ((0, 0), (1, 4), (2, 0), (3, 6)):
        move_to(page, at)
        assert page.is_visible("#picture") == bool(side)
        assert page.is_visible("#instead") == (not side)
        if side:
            assert f"1 × 3 × {side} × {side}" in page.inner_text("#picture-about")
            assert re.match(r"channel \d\nrow \d, column \d: 0\.\d+", point_at(page, "#picture", 0.05, 0.6))
        else:
            assert "was not recorded at step" in page.inner_text("#instead")
            assert "not recorded" in page.inner_text("#lines-about")


def test_one_snapshot_is_enough(tmp_path, page):
    opened(page, write_report(write_run(tmp_path / "run", {7: convolutional(7)}), tmp_path / "report.html", title="One"))
    assert page.inner_text("h1") == "One"
    assert page.inner_text("#step b") == "Step 7"
    assert "1 snapshot · step 7 · 2 layers" in re.sub(r"\s+", " ", page.inner_text("#about"))
    assert page.is_disabled("#slider")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("p")
    settled(page)
    assert page.inner_text("#step b") == "Step 7"


def test_shapes_of_every_sort_are_drawn(tmp_path, page):
    """One-dimensional convolutions, 1×1 filters, one row, many maps, a large matrix, an empty tensor."""
    shapes = {
        "line": ((12, 1, 64), "maps"),
        "band": ((12, 4, 1, 3), "filters"),
        "point": ((6, 8, 1, 1), "filters"),
        "row": ((1, 900), "matrix"),
        "many": ((200, 3, 3), "maps"),
        "large": ((256, 256), "matrix"),
        "grid": ((32, 16, 3, 3), "filters"),
        "none": ((0, 5), "matrix"),
    }
    found: Found = []
    for name, (shape, layout) in shapes.items():
        with_entry(found, name, "grad", torch.randn(shape), layout)
    opened(page, write_report(write_run(tmp_path / "run", {0: found}), tmp_path / "report.html"))
    for name in shapes:
        page.select_option("#layer", label=name)
        settled(page)
        if name == "none":
            assert "the tensor is empty" in page.inner_text("#instead")
            continue
        box, room = page.locator("#picture").bounding_box(), page.locator(".stage").bounding_box()
        assert 20 < box["width"] <= room["width"] + 1
        assert 8 <= box["height"] < 700
        assert len(page.evaluate(WALK)) > 10, name


def test_a_narrow_screen_has_everything_without_scrolling_sideways(report, page):
    opened(page, report)
    for width in (900, 420, 320):
        page.set_viewport_size({"width": width, "height": 800})
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        for part in ("#map", "#picture", "#histogram", "#lines", "#gallery", "#slider"):
            box = page.locator(part).bounding_box()
            assert box["width"] > 60
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width


def test_everything_that_can_be_used_has_a_name(report, page):
    opened(page, report)
    page.locator("#gallery").scroll_into_view_if_needed()
    settled(page)
    nameless = """() => [...document.querySelectorAll("button, select, input, canvas[tabindex], canvas[role]")].filter((one) =>
        !(one.ariaLabel || one.textContent.trim() || one.closest("label")?.textContent.trim())).map((one) => one.outerHTML)"""
    assert page.evaluate(nameless) == []
    page.keyboard.press("ArrowLeft")
    until(page, "document.querySelector('#said').textContent.includes('step 40')")


def test_forty_layers_and_a_hundred_snapshots_open_and_move(tmp_path, page):
    kept = torch.randn(2, 3, 3)
    entry = make_entry("", "layer", kept, "maps")
    entries = [(replace(entry, layer=f"block{number}"), kept) for number in range(40)]
    run = write_run(tmp_path / "run", dict.fromkeys(range(0, 1000, 10), entries))
    opened(page, write_report(run, tmp_path / "report.html"))
    assert page.locator("#map-labels button").count() == 40
    move_to(page, 50)
    assert page.inner_text("#step b") == "Step 500"
    page.click("#map-labels button:last-child")
    settled(page)
    assert page.inner_text("#picture-title") == "block39 · output"
    assert point_at(page, "#map", 0.999, 0.5).splitlines()[:2] == ["block20", "step 990"]
    until(page, f"({BLANK})() === 0")  # those that are not on the screen when there is time


def test_values_near_the_end_of_float32_have_codes_of_their_own():
    values = torch.tensor([[3e38, -3e38, 1.5e38], [0.0, 3.4e38, -3.4e38]])
    frame = quantise(values.numpy(), make_entry("fc", "weight", values, "matrix"))
    shown = frame.low + frame.codes.astype(float) / LEVELS * (frame.high - frame.low)
    assert shown == pytest.approx(values.numpy().astype(float), abs=2 * 3.4e38 / LEVELS)
