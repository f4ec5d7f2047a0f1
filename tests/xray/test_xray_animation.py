"""Animations and strips: every pixel has the colour of its value, in every frame the same."""

from __future__ import annotations

import io
import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from torcheer import InvalidArgument, SnapshotLost
from torcheer.errors import SnapshotNotFound
from torcheer.xray import animation
from torcheer.xray.animation import Letters, write_gif, write_strip
from torcheer.xray.colors import NONFINITE, ColorScale
from torcheer.xray.tiles import make_mosaic
from xray_runs import make_entry, write_run

Image = pytest.importorskip("PIL.Image")

MARGIN, TOP = 12, 66  # where the picture of a frame begins


def frames_of(path: Path) -> list[np.ndarray]:
    """Every frame of an animation, as its pixels."""
    with Image.open(path) as image:
        found = []
        for at in range(getattr(image, "n_frames", 1)):
            image.seek(at)
            found.append(np.asarray(image.convert("RGB")))
        return found


def seen(frame: np.ndarray, mosaic, zoom: int, top: int = TOP, left: int = MARGIN) -> np.ndarray:
    """One pixel for each of a mosaic; all others of its block must be the same."""
    part = frame[top : top + mosaic.height * zoom, left : left + mosaic.width * zoom]
    small = part[::zoom, ::zoom]
    assert (small.repeat(zoom, 0).repeat(zoom, 1) == part).all()
    return small


def drifting(count: int, *shape: int) -> list[torch.Tensor]:
    """Tensors that change a little from one to the next."""
    generator = torch.Generator().manual_seed(3)
    start, way = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    return [start + way * at / count for at in range(count)]


def run_of(folder: Path, tensors: list[torch.Tensor], kind: str = "layer", layout: str = "maps", **facts):
    """A run with a snapshot every tenth step."""
    found = [(make_entry("conv1", kind, one, layout, **facts), one) for one in tensors]
    return write_run(folder, {10 * at: [one] for at, one in enumerate(found)})


@pytest.mark.parametrize(("ending", "colors"), [("gif", 235), ("webp", 255)])
@pytest.mark.parametrize("kind", ["layer", "activation"])
def test_every_pixel_has_the_color_of_its_value(tmp_path, ending, colors, kind):
    """In every frame, with both scales, as exactly as the palette has colours."""
    tensors = [one.relu() if kind == "activation" else one for one in drifting(6, 9, 14, 14)]
    run = run_of(tmp_path / "run", tensors, kind)
    frames = frames_of(write_gif(run, "conv1", kind, tmp_path / f"a.{ending}", tile=42))
    assert len(frames) == 6
    low, high = run.limits("conv1", kind)
    palette = ColorScale(low, high).colors(colors)
    for frame, kept in zip(frames, tensors, strict=True):
        mosaic = make_mosaic(kept.numpy(), run.entry("conv1", kind))
        pixels = seen(frame, mosaic, 3)
        for number, tile in enumerate(mosaic.tiles):
            share = np.clip((kept[number].numpy().astype(float) - low) / (high - low), 0, 1)
            shown = pixels[tile.top : tile.top + tile.height, tile.left : tile.left + tile.width]
            assert (shown == palette[np.rint(share * (colors - 1)).astype(int)]).all()
        assert (pixels[mosaic.gaps] == 255).all()


def steady_and_growing() -> list[torch.Tensor]:
    """A channel that stays as it is, beside one that grows."""
    steady = torch.linspace(-1, 1, 196).reshape(14, 14)
    return [torch.stack([steady, steady.flip(0) * growth]) for growth in (1.0, 2.0, 4.0)]


@pytest.mark.parametrize("ending", ["gif", "webp"])
@pytest.mark.parametrize(("scale", "is_same"), [("run", True), ("frame", False)])
def test_a_value_has_the_same_color_in_the_first_and_in_the_last_frame(tmp_path, ending, scale, is_same):
    """On the scale of the run, though its neighbours grow; on a scale of each step it has not."""
    tensors = steady_and_growing()
    run = run_of(tmp_path / "run", tensors)
    frames = frames_of(write_gif(run, "conv1", "layer", tmp_path / f"a.{ending}", tile=28, scale=scale))
    mosaic = make_mosaic(tensors[0].numpy(), run.entry("conv1", "layer"))
    first, last = (seen(frames[at], mosaic, 2)[:14, :14] for at in (0, 2))
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 30
    assert (first == last).all() == is_same


@pytest.mark.parametrize(("kind", "lowest"), [("layer", (0xE4, 0xE6, 0xE7)), ("activation", (0x19, 0x0D, 0x32))])
def test_a_scale_of_each_step_does_not_change_its_colors(tmp_path, kind, lowest):
    """Zero is grey in all frames of what has both signs somewhere in the run, and dark in all of what has not."""
    positive = torch.linspace(0, 1, 196).reshape(1, 14, 14)
    run = run_of(tmp_path / "run", [positive, positive - 0.5 if kind == "layer" else positive * 7], kind)
    frame = frames_of(write_gif(run, "conv1", kind, tmp_path / "a.gif", scale="frame"))[0]
    assert tuple(frame[TOP + 5, MARGIN + 5]) == lowest


def test_a_gif_has_one_palette_of_at_most_256_colors(tmp_path):
    """No frame brings its own, and nothing is dithered: a constant is one colour."""
    run = run_of(tmp_path / "run", [torch.full((4, 20, 20), value) for value in (0.1, 0.37, 0.9)])
    path = write_gif(run, "conv1", "layer", tmp_path / "a.gif")
    data = path.read_bytes()
    assert data[10] & 0x80  # a palette for all frames
    blocks = data.split(b"\x00\x2c")[1:]
    assert all(not block[8] & 0x80 for block in blocks if len(block) > 9 and block[:4] == b"\x00\x00\x00\x00")
    for frame in frames_of(path):
        assert len(np.unique(frame[TOP : TOP + 60, MARGIN : MARGIN + 60].reshape(-1, 3), axis=0)) == 1


@pytest.mark.parametrize("ending", ["gif", "webp"])
def test_filters_in_color_keep_their_colors(tmp_path, ending):
    """Exactly in WebP; in a GIF as near as 235 colours come, and equal values are equal in all frames."""
    tensors = drifting(5, 8, 3, 5, 5)
    tensors = [torch.cat([tensors[0][:4], one[4:]]) for one in tensors]
    run = run_of(tmp_path / "run", tensors, "weight", "filters")
    frames = frames_of(write_gif(run, "conv1", "weight", tmp_path / f"a.{ending}", tile=30))
    reach = run.limits("conv1", "weight")[1]
    away = []
    for frame, kept in zip(frames, tensors, strict=True):
        mosaic = make_mosaic(kept.numpy(), run.entry("conv1", "weight"))
        pixels = seen(frame, mosaic, 2)
        assert (pixels[mosaic.gaps] == 255).all()
        for number, tile in enumerate(mosaic.tiles):
            expected = np.rint(255 * np.clip(0.5 + kept[number].numpy().transpose(1, 2, 0).astype(float) / (2 * reach), 0, 1))
            shown = pixels[tile.top : tile.top + tile.height : 3, tile.left : tile.left + tile.width : 3]
            away.append(np.abs(shown.astype(int) - expected))
            if number < 4:
                assert (shown == seen(frames[0], mosaic, 2)[tile.top :: 3, tile.left :: 3][:5, :5]).all()
    assert np.max(away) <= (0 if ending == "webp" else 40)
    assert np.mean(away) <= (0 if ending == "webp" else 12)


@pytest.mark.parametrize("kind", ["layer", "weight"])
def test_what_is_not_finite_has_its_color_in_every_frame(tmp_path, kind):
    """And its number beside the step."""
    good = drifting(1, 4, 3, 14, 14)[0] if kind == "weight" else drifting(1, 4, 14, 14)[0]
    bad = good.clone()
    bad.view(-1)[[3, 5]] = torch.tensor([float("nan"), float("inf")])
    run = run_of(tmp_path / "run", [good, bad, good], kind, "filters" if kind == "weight" else "maps")
    frames = frames_of(write_gif(run, "conv1", kind, tmp_path / "a.gif", tile=28))
    pixels = seen(frames[1], make_mosaic(bad.numpy(), run.entry("conv1", kind, 10)), 2)
    assert np.argwhere((pixels == NONFINITE).all(axis=2)).tolist() == [[0, 3], [0, 5]]
    for frame in (frames[0], frames[2]):
        assert not (frame == NONFINITE).all(axis=2).any()
    assert reads(frames[1], "step 10 · 2 not finite")
    assert reads(frames[2], "step 20")


def reads(frame: np.ndarray, text: str) -> bool:
    """Whether a frame has exactly this text above its picture."""
    line = Letters().line(text, 19)
    there = frame[MARGIN + 20 : MARGIN + 20 + line.shape[0], MARGIN:, 0]
    expected = np.full(there.shape, 255)
    expected[:, : line.shape[1]] = np.linspace(22, 255, 16).round()[np.rint(line / 17).astype(int)]
    return bool((there == expected).all())


def test_every_frame_has_its_step(tmp_path):
    """All snapshots that have the layer, and no others."""
    tensors = drifting(4, 4, 8, 8)
    found = {10 * at: [(make_entry("conv1", "layer", one, "maps"), one)] for at, one in enumerate(tensors)}
    other = torch.randn(3, 3)
    found[15] = [(make_entry("fc", "weight", other, "matrix"), other)]
    frames = frames_of(write_gif(write_run(tmp_path / "run", found), "conv1", "layer", tmp_path / "a.gif"))
    assert len(frames) == 4
    for at, frame in enumerate(frames):
        assert reads(frame, f"step {10 * at}")
        assert not reads(frame, "step 15")


def test_the_key_of_a_frame_has_its_values_below_the_ends_of_the_colors(tmp_path):
    """The lowest value begins where the bar begins, the highest ends where it ends."""
    tensor = torch.linspace(-2, 2, 256).reshape(4, 8, 8)
    run = run_of(tmp_path / "run", [tensor])
    frame = frames_of(write_gif(run, "conv1", "layer", tmp_path / "a.gif"))[0]
    low, high = run.limits("conv1", "layer")
    is_bar = (np.ptp(frame.astype(int), axis=2) > 60).mean(axis=1) > 0.1  # rows of colours
    bar = frame[np.flatnonzero(is_bar)[-1]]
    first, last = np.flatnonzero((bar != 255).any(axis=1))[[0, -1]]
    below = frame[np.flatnonzero(is_bar)[-1] + 1 : -8, : last + 1]
    inked = np.flatnonzero((below.min(axis=2) < 200).any(axis=0))
    assert inked[0] - first <= 3
    assert last - inked[-1] <= 3
    gaps = np.diff(inked)
    assert gaps.max() > 20, (low, high)  # two numbers, apart


@pytest.mark.parametrize("ending", ["gif", "webp"])
def test_an_animation_runs_for_ever_at_the_pace_that_was_asked_for(tmp_path, ending):
    """Of the form that the path says."""
    path = write_gif(run_of(tmp_path / "run", drifting(3, 4, 8, 8)), "conv1", "layer", tmp_path / f"a.{ending}", fps=2)
    with Image.open(path) as image:
        image.load()
        assert (image.format.lower(), image.n_frames, image.info["loop"], image.info["duration"]) == (ending, 3, 0, 500)


@pytest.mark.parametrize(
    ("kind", "layout", "shape"),
    [
        ("weight", "filters", (8, 3, 5, 5)),
        ("weight", "filters", (16, 16, 3, 3)),
        ("layer", "maps", (64, 32, 32)),
        ("layer", "maps", (16, 56, 56)),
        ("layer", "maps", (8, 1, 1)),
        ("layer", "matrix", (8, 256)),
        ("weight", "matrix", (256, 200)),
    ],
)
def test_a_frame_is_of_a_size_to_look_at(tmp_path, kind, layout, shape):
    """Small tensors are enlarged, wide ones are not lines."""
    path = write_gif(run_of(tmp_path / "run", drifting(2, *shape), kind, layout), "conv1", kind, tmp_path / "a.gif")
    with Image.open(path) as image:
        assert 360 <= image.width <= 820
        assert 220 <= image.height <= 820


def test_one_value_is_not_enlarged_beyond_reason(tmp_path):
    """A frame is as wide as its words need."""
    path = write_gif(run_of(tmp_path / "run", drifting(2, 1, 1), "weight", "matrix"), "conv1", "weight", tmp_path / "a.gif")
    with Image.open(path) as image:
        assert image.size[0] < 400
        assert image.size[1] < 250


def test_frames_of_different_shapes_share_a_canvas(tmp_path):
    """A layer that was given larger inputs later on."""
    small, large = drifting(1, 4, 14, 14)[0], drifting(1, 4, 28, 28)[0]
    frames = frames_of(write_gif(run_of(tmp_path / "run", [small, large]), "conv1", "layer", tmp_path / "a.gif", tile=56))
    assert frames[0].shape == frames[1].shape
    assert (frames[0][TOP : TOP + 114, MARGIN + 58 : MARGIN + 114] == 255).all()
    assert (frames[0][TOP : TOP + 58, MARGIN : MARGIN + 56] != 255).any(axis=2).mean() > 0.9


def test_long_names_stay_inside_the_frame(tmp_path):
    """Cut at their beginning, since the end tells more."""
    kept = drifting(1, 1, 8, 8)[0]
    name = "encoder." * 30 + "dénse"
    run = write_run(tmp_path / "run", {1: [(make_entry(name, "layer", kept, "maps"), kept)]})
    frame = frames_of(write_gif(run, name, "layer", tmp_path / "a.gif"))[0]
    assert (frame[: TOP - 30, -MARGIN + 2 :] == 255).all()


def test_a_strip_has_frames_evenly_over_the_run(tmp_path, monkeypatch):
    """The first and the last among them, each with its step."""
    written = []
    line = Letters.line
    monkeypatch.setattr(Letters, "line", lambda self, text, size: written.append(text) or line(self, text, size))
    run = run_of(tmp_path / "run", drifting(21, 4, 8, 8))
    write_strip(run, "conv1", "layer", tmp_path / "strip.png", frames=5)
    assert [text for text in dict.fromkeys(written) if text.startswith("step")] == [
        f"step {step}" for step in (0, 50, 100, 150, 200)
    ]


def test_a_strip_shows_the_values_side_by_side(tmp_path):
    """On one scale, in the colours of the figures."""
    tensors = drifting(3, 4, 14, 14)
    run = run_of(tmp_path / "run", tensors)
    strip = frames_of(write_strip(run, "conv1", "layer", tmp_path / "strip.png", tile=42))[0]
    low, high = run.limits("conv1", "layer")
    palette = ColorScale(low, high).colors()
    side = 29 * 3
    for at, kept in enumerate(tensors):
        mosaic = make_mosaic(kept.numpy(), run.entry("conv1", "layer"))
        share = np.clip((mosaic.values - low) / (high - low), 0, 1)
        pixels = seen(strip, mosaic, 3, 64, MARGIN + at * (side + 28))
        assert (pixels[~mosaic.gaps] == palette[np.rint(share[~mosaic.gaps] * 254).astype(int)]).all()


def test_a_strip_of_wide_pictures_has_several_rows(tmp_path):
    """Eight matrices of 8×256 do not stand in one row."""
    run = run_of(tmp_path / "run", drifting(8, 8, 256), "layer", "matrix")
    with Image.open(write_strip(run, "conv1", "layer", tmp_path / "strip.png")) as image:
        assert image.width < 1500
        assert image.height > 200


def test_a_strip_of_few_snapshots_has_as_many_frames(tmp_path):
    """One snapshot is one frame."""
    run = run_of(tmp_path / "run", drifting(1, 4, 8, 8))
    assert write_strip(run, "conv1", "layer", tmp_path / "strip.png", scale="frame").exists()


@pytest.mark.parametrize("write", [write_gif, write_strip])
def test_a_path_that_cannot_be_written_to_is_refused(tmp_path, write):
    """A wrong ending, a folder, a folder that is not there; nothing is left behind."""
    run = run_of(tmp_path / "run", drifting(2, 4, 8, 8))
    ending = "gif" if write is write_gif else "png"
    (tmp_path / f"folder.{ending}").mkdir()
    with pytest.raises(InvalidArgument, match=rf"must end with .*{ending}.*a\.jpg"):
        write(run, "conv1", "layer", tmp_path / "a.jpg")
    with pytest.raises(InvalidArgument, match="is a folder"):
        write(run, "conv1", "layer", tmp_path / f"folder.{ending}")
    with pytest.raises(InvalidArgument, match=r"no folder .*missing"):
        write(run, "conv1", "layer", tmp_path / "missing" / f"a.{ending}")
    assert sorted(os.listdir(tmp_path)) == [f"folder.{ending}", "run"]


@pytest.mark.parametrize(("write", "name"), [(write_gif, "a.gif"), (write_gif, "a.webp"), (write_strip, "a.png")])
def test_a_file_is_written_whole_or_not_at_all(tmp_path, write, name, monkeypatch):
    """When the disk refuses, the old file is still there and no other."""
    run = run_of(tmp_path / "run", drifting(2, 4, 8, 8))
    target = tmp_path / name
    target.write_text("old")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(InvalidArgument, match=r"cannot be written to .*: Permission denied"):
        write(run, "conv1", "layer", target)
    assert target.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == [target.name, "run"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fps": 0}, "fps must be a number from 0.0167 to 50; got 0"),
        ({"fps": float("nan")}, "got nan"),
        ({"fps": "fast"}, "got 'fast'"),
        ({"fps": 1000}, "got 1000"),
        ({"frames": 0}, "frames must be a whole number from 1 on; got 0"),
        ({"every": 1.5}, "every must be a whole number from 1 on; got 1.5"),
        ({"tile": 0}, "tile must be a whole number from 1 on; got 0"),
        ({"tile": 2.5}, "got 2.5"),
        ({"scale": "log"}, "'run'"),
    ],
)
def test_arguments_that_make_no_animation_are_refused(tmp_path, arguments, message):
    """The message has what came."""
    run = run_of(tmp_path / "run", drifting(2, 4, 8, 8))
    with pytest.raises(InvalidArgument, match=message):
        write_gif(run, "conv1", "layer", tmp_path / "a.gif", **arguments)
    assert os.listdir(tmp_path) == ["run"]


def test_a_layer_that_was_not_kept_is_told(tmp_path):
    """With what there is."""
    run = run_of(tmp_path / "run", drifting(2, 4, 8, 8))
    with pytest.raises(SnapshotNotFound, match="'layer' of it was"):
        write_gif(run, "conv1", "weight", tmp_path / "a.gif")
    with pytest.raises(InvalidArgument, match="frames must be a whole number from 1 on"):
        write_strip(run, "conv1", "layer", tmp_path / "a.png", frames=0)


@pytest.mark.parametrize("write", [write_gif, write_strip])
def test_without_pillow_the_error_says_what_to_install(tmp_path, write, monkeypatch):
    """As for every optional package."""
    run = run_of(tmp_path / "run", drifting(2, 4, 8, 8))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        write(run, "conv1", "layer", tmp_path / "a.gif")


class Terminal(io.StringIO):
    """A terminal, as far as writing to it goes."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_a_bar(tmp_path, monkeypatch):
    """One line that ends full; none where it is not wanted."""
    run = run_of(tmp_path / "run", drifting(4, 4, 8, 8))
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    write_gif(run, "conv1", "layer", tmp_path / "a.gif", progress=False)
    assert terminal.getvalue() == ""
    write_gif(run, "conv1", "layer", tmp_path / "a.gif")
    steps = terminal.getvalue().split("\r")[1:]
    assert [step.split()[-2] for step in steps] == ["1/4", "2/4", "3/4", "4/4"]
    assert steps[-1] == f"a.gif [{'#' * 30}] 4/4 frames\n"


def test_what_is_no_terminal_sees_nothing(tmp_path, capsys):
    """A log file stays clean."""
    write_gif(run_of(tmp_path / "run", drifting(4, 4, 8, 8)), "conv1", "layer", tmp_path / "a.gif")
    assert capsys.readouterr() == ("", "")


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("long") / "run", [torch.ones(1, 2, 2)] * 300)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, 120),
        ({"frames": 7}, 7),
        ({"every": 50}, 6),
        ({"every": 2}, 150),
        ({"every": 2, "frames": 3}, 3),
        ({"frames": 1}, 1),
        ({"frames": 1000}, 300),
    ],
)
def test_frames_are_chosen_evenly(tmp_path, long_run, options, steps, monkeypatch):
    """At most 120 by default, the first and the last among them; every so many-th if that is asked for."""
    shown: list[int] = []
    monkeypatch.setattr(animation, "as_gif", lambda frames, *_: b"".join(bytes(frame[:0]) for frame in frames))
    plain = animation._Reel.shot
    monkeypatch.setattr(animation._Reel, "shot", lambda reel, at: (shown.append(reel.snapshots[at].step), plain(reel, at))[1])
    write_gif(long_run, "conv1", "layer", tmp_path / "a.gif", **options)
    assert len(shown) == steps
    assert shown == sorted(set(shown))
    assert shown[0] == long_run.steps()[0]
    if "every" not in options and steps > 1:
        assert shown[-1] == long_run.steps()[-1]


@pytest.mark.parametrize("ending", ["gif", "webp"])
def test_frames_are_not_held_all_at_once(tmp_path, ending):
    """A hundred frames need little more memory than ten."""

    def most(frames):
        tracemalloc.start()
        write_gif(run, "conv1", "layer", tmp_path / f"a.{ending}", frames=frames)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    run = run_of(tmp_path / "run", drifting(60, 4, 16, 16))
    write_gif(run, "conv1", "layer", tmp_path / f"a.{ending}", frames=2)  # what is imported, and made once
    frame = 600 * 700
    assert most(60) - most(6) < 30 * frame


@pytest.mark.parametrize(("count", "milliseconds"), [(3, 250), (96, 120), (120, 100)])
def test_an_animation_lasts_some_twelve_seconds(tmp_path, count, milliseconds):
    run = run_of(tmp_path / "run", [torch.full((1, 2, 2), float(at)) for at in range(count)])
    path = write_gif(run, "conv1", "layer", tmp_path / "a.gif", tile=2)
    with Image.open(path) as image:
        assert image.n_frames == count
        assert image.info["duration"] == pytest.approx(milliseconds, abs=10)
        assert image.info["loop"] == 0


@pytest.mark.parametrize("damaged", [1, 4])
def test_a_snapshot_that_cannot_be_read_is_left_out(tmp_path, damaged):
    """With a warning that names it; the others are shown, also where it is the last."""
    run = run_of(tmp_path / "run", drifting(5, 4, 8, 8))
    step = run.steps()[damaged]
    path = run.files.path(run.snapshots[damaged])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(SnapshotLost, match=rf"skipped: snapshot {damaged} \(step {step}\)"):
        write_gif(run, "conv1", "layer", tmp_path / "a.gif")
    write_strip(run, "conv1", "layer", tmp_path / "a.png")  # told once is enough
    assert len(frames_of(tmp_path / "a.gif")) == 4


def test_a_run_of_which_nothing_can_be_read_is_told(tmp_path):
    run = run_of(tmp_path / "run", drifting(2, 4, 8, 8))
    for snapshot in run.snapshots:
        run.files.path(snapshot).write_bytes(b"")
    with pytest.warns(SnapshotLost), pytest.raises(SnapshotNotFound, match="no snapshot with 'layer' of 'conv1' can be read"):
        write_gif(run, "conv1", "layer", tmp_path / "a.gif")
    assert not (tmp_path / "a.gif").exists()


def test_gradients_that_shrink_are_seen_in_every_frame(tmp_path):
    """Each frame has a scale of its own, and says so."""
    kept = torch.linspace(-1, 1, 64).reshape(8, 8)
    run = run_of(tmp_path / "run", [kept * size for size in (1.0, 1e-3, 1e-6)], "grad", "matrix")
    frames = frames_of(write_gif(run, "conv1", "grad", tmp_path / "a.gif"))
    colors = [len(np.unique(frame[TOP : TOP + 300, MARGIN : MARGIN + 300].reshape(-1, 3), axis=0)) for frame in frames]
    assert min(colors) > 10
