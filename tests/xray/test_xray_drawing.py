"""Figures during a training: drawn behind it, counted, not drawn twice; no disk and no drawing ever stops it."""

from __future__ import annotations

import errno
import shutil
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from torcheer import DrawingFailed, InvalidArgument, SnapshotLost, Xray
from torcheer.xray import drawing as drawer
from torcheer.xray.pacing import Pace


@pytest.fixture
def training(tmp_path):
    """A model that is trained, and what watches it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = []

    def begin(**options):
        made.append(Xray(model, torch.ones(2, 4), ["0"], folder=tmp_path / "run", **options))
        return made[-1]

    def train():
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()

    yield begin, train
    for one in made:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one.close()


def pictures(tmp_path):
    return sorted(path.name for path in (tmp_path / "run" / "figures").iterdir())


def test_a_drawing_says_what_it_is_of(tmp_path):
    drawing = drawer.Drawing(None, None, None)
    assert repr(drawing) == "<drawing of the last snapshot>"
    drawing.step = 7
    assert repr(drawing) == "<drawing of step 7>"
    drawing.path = tmp_path / "last.png"
    assert repr(drawing) == f"<drawing of step 7 in {tmp_path / 'last.png'}>"


def test_what_is_drawn_already_is_shown_again_in_another_cell(monkeypatch):
    """And not in the cell that shows it, nor before it is drawn."""
    shown, cells = [], iter([(True, "a"), (True, "b"), (False, "b"), (True, "c")])
    one = drawer.Drawer(Pace())
    monkeypatch.setattr(one, "_displays", SimpleNamespace(place=lambda name: next(cells)))
    monkeypatch.setattr(drawer, "show_png", lambda png, place: shown.append((png, place)))
    first = one.draw(None, 1, None, None, soon=lambda begin: None)
    assert one.draw(None, 1, None, None, soon=None) is first
    assert shown == []
    first.png = b"picture"
    assert one.draw(None, 1, None, None, soon=None) is first
    assert shown == []
    assert one.draw(None, 1, None, None, soon=None) is first
    assert shown == [(b"picture", "c")]


def test_the_training_does_not_draw(training, tmp_path, monkeypatch, capsys):
    """Nothing of Matplotlib runs in the process that trains; the figure is there and its path printed once it is drawn."""
    begin, train = training
    xray = begin()

    def refuse(*_, **__):
        raise AssertionError("drawn by the training")

    monkeypatch.setattr(drawer, "figure_of_snapshot", refuse)
    for step in (0, 1):
        train()
        xray.take_graphs(step)
        drawing = xray.show_last_graphs()
    xray.close()
    assert drawing.wait(0)
    assert pictures(tmp_path) == ["step_00000000.png", "step_00000001.png"]
    assert (tmp_path / "run" / "figures" / "step_00000001.png").read_bytes().startswith(b"\x89PNG")
    assert f"Picture: {drawing.path}" in capsys.readouterr().out


def test_a_drawing_can_be_used_as_the_figure(training):
    """Whoever wants the Matplotlib figure gets it, of the snapshot that was asked for."""
    begin, _train = training
    xray = begin()
    xray.take_graphs(7)
    drawing = xray.show_last_graphs()
    assert any("step 7" in text.get_text() for text in drawing.texts)
    assert drawing.figure.axes == drawing.axes
    assert repr(drawing).startswith("<drawing of step 7")


@pytest.mark.parametrize("name", ["figure", "axes"])
def test_an_attribute_that_matplotlib_lacks_is_named_where_the_figure_is_used(training, monkeypatch, name):
    begin, _train = training
    xray = begin()
    xray.take_graphs(7)
    drawing = xray.show_last_graphs()
    assert drawing.wait(300)

    def broken(*args, **kwargs):
        raise AttributeError("module 'matplotlib' has no attribute 'rcParams'")

    monkeypatch.setattr(drawer, "figure_of_snapshot", broken)
    with pytest.raises(AttributeError, match=r"matplotlib.*rcParams"):
        getattr(drawing, name)


def test_a_run_that_is_only_read_is_shown_at_once(training, tmp_path, capsys):
    """No training waits for it: the file is there and its path printed when `show_last_graphs` returns."""
    begin, _train = training
    with begin() as xray:
        xray.take_graphs(3)
    drawing = Xray.open(tmp_path / "run").show_last_graphs()
    assert drawing.wait(0)
    assert pictures(tmp_path) == ["step_00000003.png"]
    assert f"Picture: {drawing.path}" in capsys.readouterr().out


def test_what_is_shown_already_is_not_drawn_again(training, monkeypatch):
    """Until another snapshot is taken, or something else is asked for."""
    begin, _train = training
    xray = begin()
    asked = []
    monkeypatch.setattr(drawer, "desk", lambda: SimpleNamespace(ask=lambda job: (asked.append(job), job.done.set())))
    xray.take_graphs()
    assert xray.show_last_graphs() is xray.show_last_graphs()
    xray.flush()
    assert len(asked) == 1
    xray.show_last_graphs(scale="frame")
    xray.take_graphs()
    xray.show_last_graphs(scale="frame")
    xray.flush()
    assert [job.request["step"] for job in asked] == [0, 0, 1]


def test_drawing_is_counted_by_the_budget(training):
    """The first figure is drawn; with it, a small budget is spent, so the next is not."""
    begin, _train = training
    xray = begin(budget="0.01%")
    xray.take_graphs()
    assert xray.show_last_graphs().wait(300)
    assert xray.cost["drawing"] > 0
    assert xray.cost["share"] > 0.0001
    assert xray.show_last_graphs(scale="frame") is None


def test_figures_that_wait_are_counted_by_the_budget(training, monkeypatch):
    """Until the first is drawn, nobody knows what one costs, so none is asked for; then each one that waits counts."""
    begin, _train = training
    asked = []
    monkeypatch.setattr(drawer, "desk", lambda: SimpleNamespace(ask=asked.append))
    xray = begin(budget="50%")

    def ask(count):
        before = len(asked)
        for _ in range(count):
            xray._pace.budget = None  # the snapshots themselves are not what is tried here
            xray.take_graphs()
            xray._flush_snapshots()
            xray._pace.budget, xray._pace.spent = 0.5, 0.0
            xray.show_last_graphs()
            xray._flush_snapshots()
        return len(asked) - before

    assert ask(3) == 1
    xray._pace._began -= 1100  # a training of some thousand seconds, whatever the snapshots took
    asked[-1].finish({"seconds": 100.0}, b"")
    assert ask(10) == 4
    for job in asked[1:]:
        job.finish({"left_out": True}, b"")
    assert xray.cost["drawing"] == 100.0
    assert ask(10) == 4
    for job in asked:
        job.done.set()


def test_figures_that_cannot_be_written_are_a_warning_told_once(training, tmp_path):
    """Where the folder of figures should be, there is a file."""
    begin, train = training
    xray = begin()
    (tmp_path / "run" / "figures").write_text("in the way")
    train()
    xray.take_graphs()
    xray.show_last_graphs().wait(300)
    with pytest.warns(SnapshotLost, match="figure of step 0 could not be drawn.*exists"):
        xray.take_graphs()
    xray.show_last_graphs().wait(300)
    xray.flush()  # told once is enough
    assert xray.run.steps() == [0, 1]
    with pytest.warns(SnapshotLost, match="could not be written"):
        assert xray.show("0", "weight").axes


@pytest.mark.parametrize("trouble", ["full", "read-only", "removed"])
def test_no_trouble_of_a_disk_stops_a_training(training, tmp_path, monkeypatch, trouble):
    """Snapshots and figures are lost, which is told once; the weights are those of a training without an Xray."""
    begin, train = training
    xray = begin()
    xray.take_graphs(0)
    xray.flush()
    if trouble == "removed":
        shutil.rmtree(tmp_path / "run")
    else:
        number = errno.ENOSPC if trouble == "full" else errno.EROFS

        def fails(*_, **__):
            raise OSError(number, trouble)

        monkeypatch.setattr("torcheer.xray.store.write_tensors", fails)
        monkeypatch.setattr("torcheer.xray.store.write_whole", fails)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(1, 5):
            train()
            xray.take_graphs(step, scale=2.0)
            xray.show_last_graphs()
            repr(xray)
        xray.close()
    assert all(issubclass(one.category, SnapshotLost) for one in told)
    lost = [str(one.message) for one in told if "snapshot of step" in str(one.message)]
    assert len(lost) == 1
    assert "step 1 was lost" in lost[0]


def test_before_the_first_snapshot_there_is_nothing_to_show(training, monkeypatch):
    """Neither an error nor a figure: the first snapshot may have been lost."""
    begin, _train = training
    xray = begin()
    assert xray.show_last_graphs() is None
    with monkeypatch.context() as patched:
        patched.setattr(
            "torcheer.xray.store.write_tensors", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left"))
        )
        xray.take_graphs()
        with pytest.warns(SnapshotLost, match="No space left"):
            xray.flush()
        drawing = xray.show_last_graphs()
        assert drawing.wait(300)
    with pytest.raises(DrawingFailed, match="no snapshot to draw"):
        drawing.figure.axes


def test_what_makes_no_sense_is_told_at_once(training):
    begin, _train = training
    xray = begin()
    xray.take_graphs()
    with pytest.raises(InvalidArgument, match="scale is"):
        xray.show_last_graphs(scale="log")
    with pytest.raises(InvalidArgument, match="list of names"):
        xray.show_last_graphs(layers="0")


def test_a_process_that_dies_loses_its_figure_only(training, monkeypatch):
    """The next figure starts another one."""
    begin, train = training
    xray = begin()
    xray.take_graphs()
    assert xray.show_last_graphs().wait(300)
    process = drawer.desk()._process
    process.kill()
    process.wait()
    train()
    xray.take_graphs()
    assert xray.show_last_graphs().wait(300)
    xray.close()
    assert (xray.folder / "figures" / "step_00000001.png").exists()


def test_figures_asked_for_faster_than_they_are_drawn_are_left_out(training):
    """The newest are drawn; how many wait is bounded."""
    begin, _train = training
    xray = begin()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(14):
            xray.take_graphs(step)
            xray.show_last_graphs()
        xray.close()
    assert ["faster than they can be drawn" in str(one.message) for one in told] == [True]
    assert (xray.folder / "figures" / "step_00000013.png").exists()
