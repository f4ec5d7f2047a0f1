"""Rough runs: files that are cut, garbled or removed, warnings that are errors. Whatever happens, a training goes on."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import shutil
import warnings

import pytest
import torch
from torch import nn

from forked import run_in_a_copy
from torcheer import InvalidArgument, RunNotFound, SnapshotLost, SnapshotNotFound, Xray
from torcheer._torch.thread_state import autocast_as
from torcheer.xray import store
from torcheer.xray.figures import figure_of_snapshot
from xray_runs import change_snapshot


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))


@pytest.fixture
def folder(tmp_path):
    """A finished run of four snapshots."""
    model = network()
    with Xray(model, torch.ones(2, 4), ["0"], folder=tmp_path / "run") as xray:
        for step in range(4):
            model(torch.ones(2, 4)).sum().backward()
            xray.take_graphs(step)
    return tmp_path / "run"


def cut(folder, number):
    path = folder / "snapshots" / f"{number:08d}.safetensors"
    path.write_bytes(path.read_bytes()[:-20])


def test_the_last_snapshot_that_can_be_read_is_shown_under_its_own_name(folder, capsys):
    """A figure, its file and its title are of the step before the one that is cut; a warning says so."""
    cut(folder, 3)
    xray = Xray.open(folder)
    with pytest.warns(SnapshotLost, match=r"(?s)\AXray: (?!Xray).*step 3"):
        drawing = xray.show_last_graphs()
    assert any("step 2" in text.get_text() for text in drawing.figure.texts)
    assert drawing.step == 2
    assert drawing.path == folder / "figures" / "step_00000002.png"
    assert [path.name for path in (folder / "figures").iterdir()] == ["step_00000002.png"]
    assert f"Picture: {drawing.path}" in capsys.readouterr().out


def test_one_layer_of_a_run_whose_last_snapshot_is_cut_is_named_after_the_step_it_shows(folder):
    cut(folder, 3)
    with pytest.warns(SnapshotLost, match="step 3"):
        Xray.open(folder).show("0", "weight")
    assert [path.name for path in (folder / "figures").iterdir()] == ["0_weight_00000002.png"]


def test_a_training_goes_on_showing_where_its_last_snapshot_was_cut(tmp_path):
    """The process that writes knows what it wrote, not what became of it."""
    with Xray(network(), torch.ones(2, 4), ["0"], folder=tmp_path / "run") as xray:
        for step in range(2):
            xray.take_graphs(step)
        xray.flush()
        cut(tmp_path / "run", 1)
        drawing = xray.show_last_graphs()
        assert drawing.wait(300)
        assert any("step 0" in text.get_text() for text in drawing.figure.texts)
        with pytest.warns(SnapshotLost, match="step 1"):
            xray.flush()
        assert (drawing.step, drawing.path.name) == (0, "step_00000000.png")


def test_saved_notes_the_snapshots_whose_pictures_are_lost(folder):
    """Their statistics are whole, so their steps are still there."""
    cut(folder, 1)
    saved = Xray.open(folder).saved()
    assert saved.steps == [0, 1, 2, 3]
    assert len(saved.notes) == 1
    assert "snapshots/00000001.safetensors (step 1) is damaged" in str(saved)


def test_a_report_warns_of_snapshots_that_are_cut(folder, tmp_path):
    cut(folder, 1)
    with pytest.warns(SnapshotLost, match="step 1"):
        path = Xray.open(folder).report(tmp_path / "report.html")
    assert "00000001.safetensors (step 1) is damaged" in path.read_text()


@pytest.mark.parametrize(
    "change_to",
    [
        ("step", -5),
        ("step", "1"),
        ("step", 1.5),
        ("step", True),
        ("step", 10**30),
        ("number", -1),
        ("number", None),
        ("time", "noon"),
        ("time", float("inf")),
        ("time", 10**400),
        ("metrics", {"loss": 10**400}),
        ("bytes", "many"),
        ("entries", 7),
        ("entries", {"a": 1}),
        ("entries", [7]),
        ("entries", 0, "layer", 3),
        ("entries", 0, "kind", "colour"),
        ("entries", 0, "layout", "spiral"),
        ("entries", 0, "shape", ["3", 4]),
        ("entries", 0, "shape", 12),
        ("entries", 0, "rows", [0, 99]),
        ("entries", 0, "rows", [-1]),
        ("entries", 0, "rows", "all"),
        ("entries", 0, "rows", 10**12),
        ("entries", 0, "columns", [0.5]),
        ("entries", 0, "totals", [1, 2, 3]),
        ("entries", 0, "low", "small"),
        ("entries", 0, "statistics", []),
        ("entries", 0, "statistics", "mean", "high"),
        ("entries", 0, "statistics", "histogram", [1, "2"]),
        ("summaries", {"a": 1}),
        ("summaries", 0, "parameters", "few"),
        ("summaries", 0, "norm", [1]),
        ("metrics", [1]),
        ("metrics", {"loss": "low"}),
        ("metrics", {"loss": None}),
        ("notes", [3]),
    ],
    ids=str,
)
def test_a_file_that_describes_no_snapshot_is_noted_and_skipped(folder, tmp_path, change_to):
    """Every reader works."""
    change_snapshot(folder / "snapshots" / "00000001.safetensors", change_to)
    xray = Xray.open(folder)
    assert "snapshots/00000001.safetensors is damaged and was skipped" in str(xray.saved())
    assert xray.run.steps() == [0, 2, 3]
    xray.report(tmp_path / "report.html")


@pytest.mark.parametrize("place", [("entries", 0, "layer", "other"), ("entries", 0, "kind", "layer_grad")], ids=str)
def test_a_file_that_names_what_it_does_not_have_is_told(folder, tmp_path, place):
    """Types are right, so it is read; what it names is missing, so it is skipped or an error of ours."""
    change_snapshot(folder / "snapshots" / "00000001.safetensors", place)
    xray = Xray.open(folder)
    layer, kind = xray.run.snapshot(1).entries[0].layer, xray.run.snapshot(1).entries[0].kind
    with pytest.warns(SnapshotLost, match="step 1"):
        xray.report(tmp_path / "report.html")
    with pytest.raises(SnapshotNotFound, match="step 1"):
        xray.run.tensor(layer, kind, 1)
    with pytest.raises(SnapshotNotFound, match="step 1"):
        figure_of_snapshot(xray.run, 1)


def test_numbers_that_are_not_finite_cost_no_snapshot(folder, tmp_path):
    """JSON has no word for them; where they are there all the same, they are unknown."""
    unknown = ("entries", 0, "statistics", "std", math.inf), ("entries", 0, "high", math.nan)
    change_snapshot(folder / "snapshots" / "00000001.safetensors", *unknown)
    xray = Xray.open(folder)
    assert xray.saved().notes == []
    entry = xray.run.entry("0", "weight", 1)
    assert (entry.statistics.std, entry.high) == (None, None)
    xray.show("0", "weight", 1)
    xray.report(tmp_path / "report.html")


@pytest.mark.parametrize(
    "change_to",
    [
        ("title", 3),
        ("layers", ["0"]),
        ("layers", {"0": 3}),
        ("layers", {"0": [7]}),
        ("architecture", []),
        ("architecture", "parameters", ["0.weight"]),
        ("architecture", "parameters", {"0.weight": "3x4"}),
        ("architecture", "modules", 5),
        ("architecture", "settings", [1]),
        ("architecture", "settings", {"0": 1}),
        ("choices", [1]),
        ("choices", {"0/3": "all"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("opened", [Xray.open, lambda folder: Xray(network(), (2, 4), folder=folder, resume=True)])
def test_a_run_whose_description_is_nonsense_is_an_error_of_ours(folder, change_to, opened):
    """It names the file and what is wrong with it."""
    about = json.loads((folder / "run.json").read_text())
    *way, last, value = change_to
    inner = about
    for name in way:
        inner = inner[name]
    inner[last] = value
    (folder / "run.json").write_text(json.dumps(about))
    with pytest.raises(RunNotFound, match=rf"run\.json.*{change_to[0]}"):
        opened(folder)


def test_a_full_disk_does_not_stop_a_training_where_warnings_are_errors(tmp_path):
    """What would be a warning is said on stderr, once."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    def train():
        warnings.simplefilter("error", UserWarning)
        xray = Xray(nn.Linear(4, 2), (2, 4), folder=tmp_path / "run")
        xray.take_graphs(0)
        xray.flush()
        store.write_tensors = store.write_whole = full
        for step in range(1, 4):
            xray.take_graphs(step)
            xray.show_last_graphs()
        xray.close()
        print("trained")

    code, said = run_in_a_copy(train)
    assert code == 0, said
    assert "trained" in said.splitlines()
    assert said.count("the snapshot of step 1 was lost: OSError") == 1


def _remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@pytest.mark.parametrize("removed", [".", "snapshots", "run.json", "figures", "writer.lock", "snapshots/*"])
def test_a_training_goes_on_when_its_folder_is_removed(tmp_path, removed):
    """Also when it is removed in part; what is lost is told, what is left can be read."""
    model = network()
    xray = Xray(model, torch.ones(2, 4), ["0"], folder=tmp_path / "run", max_bytes=30_000)
    for step in range(8):
        xray.take_graphs(step)
    xray.show_last_graphs()
    xray.flush()
    for path in [tmp_path / "run"] if removed == "." else (tmp_path / "run").glob(removed):
        _remove(path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(8, 24):
            xray.take_graphs(step, show=step % 8 == 0)
        repr(xray), xray.saved(), xray.run.steps(), str(xray.saved())
        xray.flush()
        xray.close()
    assert all(one.category is SnapshotLost for one in told), [str(one.message) for one in told]
    if removed in (".", "snapshots"):
        assert told
    else:
        assert 23 in Xray.open(tmp_path / "run").run.steps()


def test_files_can_be_read_by_whom_the_umask_lets(tmp_path):
    before = os.umask(0o022)
    try:
        with Xray(network(), (2, 4), ["0"], folder=tmp_path / "run") as xray:
            xray.take_graphs()
            xray.report()
            xray.show_last_graphs()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert len(modes) == 5
    assert set(modes.values()) == {0o644}, modes


def test_a_report_without_a_path_lies_in_the_folder_of_the_run(folder):
    assert Xray.open(folder).report() == folder / "report.html"
    assert (folder / "report.html").is_file()


@pytest.mark.parametrize("path", [3, b"x.gif", ["x.gif"]])
def test_a_path_that_is_none_is_told(folder, path):
    xray = Xray.open(folder)
    for write in (xray.report, lambda path: xray.gif("0", "weight", path), lambda path: xray.strip("0", "weight", path)):
        with pytest.raises(InvalidArgument, match="path says where"):
            write(path)


def test_layers_that_are_not_in_the_run_are_told_before_anything_is_drawn(folder):
    xray = Xray.open(folder)
    with pytest.raises(InvalidArgument, match=r"'nope'.*'0'"):
        xray.show_last_graphs(layers=["nope"])
    assert not (folder / "figures").exists()


class _Log:
    """Takes what TensorBoard's writer takes."""

    def __init__(self) -> None:
        self.steps = set()

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.steps.add(kwargs.get("global_step", args[2] if len(args) > 2 else None))


def test_what_reads_whole_runs_skips_snapshots_that_are_cut(folder, tmp_path):
    """Tensors, animations, strips and exports; each warns."""
    cut(folder, 3)
    whole = Xray.open(folder).run.tensor("0", "weight", 2)
    readers = [
        lambda xray: (xray.run.tensor("0", "weight") == whole).all(),
        lambda xray: xray.gif("0", "weight", tmp_path / "a.gif"),
        lambda xray: xray.gif("0", "weight", tmp_path / "a.webp"),
        lambda xray: xray.strip("0", "weight", tmp_path / "a.png"),
        lambda xray: xray.to_tensorboard(_Log()) == 3,
    ]
    for read in readers:
        with pytest.warns(SnapshotLost, match="step 3"):
            assert read(Xray.open(folder))


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """An exception that takes no attributes."""

    code: int


class Fails(nn.Module):
    """Raises where it is told to."""

    def __init__(self):
        super().__init__()
        self.fc, self.fails = nn.Linear(2, 2), False

    def forward(self, t):
        t = self.fc(t)
        if self.fails:
            raise Frozen(7)
        return t


def test_an_exception_that_takes_no_attributes_leaves_a_step_and_a_probe_as_it_is(tmp_path):
    model = Fails().train()
    with Xray(model, (1, 2), folder=tmp_path / "run") as xray:
        xray.take_graphs()
        model.fails = True
        with pytest.raises(Frozen) as caught, xray.step():
            model(torch.ones(1, 2))
        assert caught.value.code == 7
        with pytest.raises(Frozen):
            xray.take_graphs()
        assert model.training
        model.fails = False
        with xray.step():
            model(torch.ones(1, 2))
    assert xray.saved().steps == [0, 3]


def test_an_exception_that_takes_no_attributes_leaves_autocast_as_it_is():
    def inside():
        with autocast_as((("cpu", torch.bfloat16),)):
            assert torch.is_autocast_enabled("cpu")
            raise Frozen(7)

    with pytest.raises(Frozen):
        inside()
    assert not torch.is_autocast_enabled("cpu")
