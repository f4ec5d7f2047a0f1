"""Files of a run: written whole or not at all, read by anybody, thinned evenly."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from forked import start_a_copy
from torcheer import InvalidArgument, NotWritten, SnapshotLost, TorcheerError, Xray
from torcheer._files.files import WholeFile
from torcheer._torch.measure import statistics_of
from torcheer.errors import RunExists, RunInUse, RunNotFound, SnapshotNotFound
from torcheer.xray import Entry, FileManager, Run, Saved, Snapshot
from torcheer.xray.figures import figure_of, figure_of_snapshot, write_figure


def add(files: FileManager, step: int, values: torch.Tensor | None = None, layer: str = "conv1") -> Snapshot:
    """Write a snapshot with one entry."""
    values = torch.full((4, 3, 5, 5), float(step)) if values is None else values
    entry = Entry(
        layer=layer,
        kind="weight",
        source=f"{layer}.weight",
        shape=tuple(values.shape),
        dtype="float32",
        layout="filters",
        rows=tuple(range(len(values))),
        columns=(0, 1, 2),
        low=-1.0,
        high=1.0,
        statistics=statistics_of(values),
    )
    return files.write(
        Snapshot(number=files.next_number, step=step, time=1.5, entries=(entry,), notes=("a note",)), {entry.key: values}
    )


@pytest.fixture
def files(tmp_path):
    made = FileManager.create(tmp_path / "run", {"title": "Net"})
    yield made
    made.close()


def test_what_was_written_is_read_again(files):
    """Another reader finds equal records and equal tensors."""
    written = [add(files, step) for step in (0, 10, 20)]
    read = FileManager.open(files.folder)
    assert read.snapshots == written
    assert torch.equal(read.tensor(read.snapshots[1], "conv1", "weight"), torch.full((4, 3, 5, 5), 10.0))
    assert read.about["title"] == "Net"
    others = ("run.json", "writer.lock")
    assert read.bytes == sum(path.stat().st_size for path in files.folder.rglob("*.*") if path.name not in others)


def test_a_reader_sees_what_is_added_later(files):
    """A run that is still being written can be followed."""
    read = FileManager.open(files.folder)
    assert read.snapshots == []
    add(files, 0)
    assert [one.step for one in read.refresh()] == [0]
    add(files, 1)
    assert [one.step for one in read.refresh()] == [0, 1]


@pytest.mark.parametrize("has_index", [True, False])
def test_a_run_of_a_version_with_an_index_is_read_and_goes_on(tmp_path, has_index):
    """The index repeats what the files say. It is left as it is."""
    shutil.copytree(Path(__file__).parent.parent / "data" / "xray_run_v1", tmp_path / "run")
    index = tmp_path / "run" / "index.jsonl"
    if has_index:
        text = index.read_bytes()
    else:
        index.unlink()
    run = Run(FileManager.open(tmp_path / "run"))
    assert (run.steps(), run.layers, run.kinds("0")) == ([0, 1, 2], ["0"], ["weight", "layer", "activation", "grad"])
    assert (run.metrics, run.summarised, run.notes) == (["loss"], ["0", "2"], [])
    assert run.entry("0", "weight", 1).statistics.norm == pytest.approx(float(np.linalg.norm(run.tensor("0", "weight", 1))))
    files = FileManager.create(tmp_path / "run", {}, resume=True)
    add(files, 3)
    files.close()
    assert FileManager.open(tmp_path / "run").snapshots.steps == [0, 1, 2, 3]
    assert not has_index or index.read_bytes() == text


def test_a_reader_sees_that_a_file_is_another_than_before(files, tmp_path):
    """The folder was removed, and a run begun in its place."""
    add(files, 0)
    add(files, 1)
    read = FileManager.open(files.folder)
    assert read.snapshots[0].step == 0
    files.close()
    shutil.rmtree(files.folder)
    again = FileManager.create(files.folder, {"title": "Net"})
    written = add(again, 7)
    assert read.refresh() == [written]
    again.close()


def test_a_snapshot_that_was_deleted_by_hand_is_not_offered(files):
    add(files, 0)
    gone = add(files, 1)
    files.path(gone).unlink()
    assert [one.step for one in FileManager.open(files.folder).snapshots] == [0]


def test_a_damaged_snapshot_is_told_by_name(files):
    """Reading a file that was overwritten raises an error of ours with its path."""
    snapshot = add(files, 0)
    files.path(snapshot).write_bytes(b"nonsense")
    with pytest.raises(SnapshotNotFound, match=r"snapshot 0 \(step 0\).*00000000.safetensors"):
        files.tensor(snapshot, "conv1", "weight")


def test_two_writers_in_one_folder_are_refused(files):
    """The second is told what to do, and reading is still possible."""
    with pytest.raises(RunInUse, match="another Xray is writing"):
        FileManager.create(files.folder, {})
    FileManager.open(files.folder)
    files.close()
    FileManager.create(files.folder, {}, resume=True).close()


def test_a_writer_in_another_process_is_refused_too(files):
    """The lock is between processes."""
    program = f"from torcheer.xray import FileManager; FileManager.create({str(files.folder)!r}, {{}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900)
    assert done.returncode == 1
    assert "RunInUse" in done.stderr


def test_a_reader_cannot_write(files):
    """What was opened to read says so."""
    add(files, 0)
    with pytest.raises(RunInUse, match="opened to read"):
        add(FileManager.open(files.folder), 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no run.json"),
        ("{", "cannot be read"),
        ('{"format": "x"}', "not of an Xray"),
        ('{"format": "torcheer-xray", "version": 99}', "version 99"),
    ],
)
def test_a_folder_without_a_readable_run_is_told(tmp_path, text, said):
    """What is wrong with it, in words."""
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunNotFound, match=said):
        FileManager.open(tmp_path)


def test_a_budget_of_bytes_thins_evenly(tmp_path):
    """Whole snapshots go, first and last stay, and what is left is spread over the run."""
    with_budget = FileManager.create(tmp_path, {"title": "Net"}, max_bytes=60_000)
    for step in range(100):
        add(with_budget, step)
        assert with_budget.bytes <= 60_000
    steps = [one.step for one in with_budget.snapshots]
    assert steps[0] == 0
    assert steps[-1] == 99
    gaps = [b - a for a, b in pairwise(steps)]
    assert len(steps) > 5
    assert max(gaps) <= 3 * 100 / len(steps)
    assert len(list((tmp_path / "snapshots").iterdir())) == len(steps)
    with_budget.close()
    assert [one.step for one in FileManager.open(tmp_path).snapshots] == steps


def test_a_full_disk_leaves_nothing_half_written(files, monkeypatch):
    """The error reaches the caller, no part of the snapshot stays, and the next one works."""
    add(files, 0)

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("torcheer._files.files.os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            add(files, 1)
    assert [path.name for path in (files.folder / "snapshots").iterdir()] == ["00000000.safetensors"]
    add(files, 2)
    assert [one.step for one in FileManager.open(files.folder).snapshots] == [0, 2]


def write_for_ever(folder):
    files = FileManager.create(folder, {"title": "Net"})
    print("ready")
    while True:
        step = files.next_number
        add(files, step, torch.full((16, 3, 64, 64), float(step)))


@pytest.mark.parametrize("after", [0.05, 0.21, 0.4])
def test_a_process_that_is_killed_loses_at_most_the_snapshot_it_was_writing(tmp_path, after):
    """kill -9 while writing: all that is listed can be read, numbers have no gap, and another process goes on."""
    writer, said = start_a_copy(lambda: write_for_ever(tmp_path))
    with said:
        assert said.readline() == "ready\n"
        time.sleep(after)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    read = FileManager.open(tmp_path)
    assert [one.number for one in read.snapshots] == list(range(len(read.snapshots)))
    for snapshot in read.snapshots:
        assert torch.equal(read.tensor(snapshot, "conv1", "weight"), torch.full((16, 3, 64, 64), float(snapshot.step)))
    files = FileManager.create(tmp_path, {}, resume=True)
    add(files, 10_000)
    files.close()
    assert len(FileManager.open(tmp_path).snapshots) == len(read.snapshots) + 1
    assert not list((tmp_path / "snapshots").glob("*.part"))


def test_a_run_answers_what_is_there(files):
    """Layers, kinds, steps, entries, tensors; the last by default."""
    add(files, 0)
    add(files, 10)
    add(files, 20, layer="conv2")
    run = Run(files)
    assert (run.title, run.layers, run.kinds("conv1")) == ("Net", ["conv1", "conv2"], ["weight"])
    assert (run.steps(), run.steps("conv1"), run.steps("conv2", "weight")) == ([0, 10, 20], [0, 10], [20])
    assert run.tensor("conv1", "weight")[0, 0, 0, 0] == 10.0
    assert run.tensor("conv1", "weight", 0)[0, 0, 0, 0] == 0.0
    assert run.limits("conv1", "weight") == (-1.0, 1.0)
    assert run.snapshot(10).step == 10


def test_what_is_not_there_is_told_with_what_is(files):
    """Near steps, near names, the kinds there are."""
    run = Run(files)
    with pytest.raises(SnapshotNotFound, match="no snapshot yet"):
        run.entry("conv1", "weight")
    add(files, 10)
    with pytest.raises(SnapshotNotFound, match="'conv1'"):
        run.entry("conv", "weight")
    with pytest.raises(SnapshotNotFound, match="nearest steps that have it are 10"):
        run.entry("conv1", "weight", 11)
    with pytest.raises(SnapshotNotFound, match="'weight' of it was"):
        run.entry("conv1", "grad")
    with pytest.raises(InvalidArgument, match="a kind is one of"):
        run.entry("conv1", "wait")
    with pytest.raises(TorcheerError, match="nearest steps are 10"):
        run.snapshot(3)


def test_a_snapshot_whose_header_is_damaged_costs_that_snapshot_only(files):
    """The others are there, and a note names it and says why."""
    written = [add(files, step) for step in range(3)]
    files.path(written[1]).write_bytes(b"damaged")
    for read in (FileManager.open(files.folder), files):
        assert [one.step for one in read.refresh()] == [0, 2]
        said = "snapshots/00000001.safetensors is damaged and was skipped: it does not begin as a file of tensors does."
        assert read.notes == [said]
        assert said in str(Saved(Run(read)))


@pytest.mark.parametrize("left", [-1, -1000])
def test_what_a_file_says_of_its_snapshot_is_read_where_its_tensors_were_cut(files, left):
    """A note says so, and the size is that on disk."""
    written = [add(files, step) for step in range(3)]
    path = files.path(written[1])
    path.write_bytes(path.read_bytes()[:left])
    for read in (FileManager.open(files.folder), files):
        found = read.refresh()
        assert [replace(one, bytes=0) for one in found] == [replace(one, bytes=0) for one in written]
        assert found[1].bytes == path.stat().st_size == written[1].bytes + left
        assert read.bytes == sum(one.bytes for one in found)
        assert len(read.notes) == 1
        assert "00000001.safetensors (step 1) is damaged: " in read.notes[0]
        with pytest.raises(SnapshotNotFound, match="step 1"):
            read.tensors(found[1])


def half_written(path):
    """What is left of a file whose writer was killed, where the system has no files without a name."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("torcheer._files.files._ANONYMOUS", 0)
        WholeFile(path).__enter__().write(b"half")
    (left,) = path.parent.glob(f".{path.name}.*")
    return left


def test_what_a_killed_writer_left_half_written_is_cleared(files):
    """Temporary files of snapshots, of the index of older versions, of what is said of the run, of figures."""
    add(files, 0)
    files.close()
    (files.folder / "figures").mkdir()
    whole = files.folder / "figures" / "step_00000000.png"
    for name in ("snapshots/00000001.safetensors", "index.jsonl", "run.json", "figures/step_00000000.png"):
        assert half_written(files.folder / name).is_file()
    whole.write_bytes(b"whole")
    FileManager.create(files.folder, {}, resume=True).close()
    there = sorted(str(path.relative_to(files.folder)) for path in files.folder.rglob("*") if path.is_file())
    assert there == ["figures/step_00000000.png", "run.json", "snapshots/00000000.safetensors", "writer.lock"]


OF_OTHERS = [
    *(".bashrc", ".gitignore", ".DS_Store", ".nfs0001", "notes.part", "00000001.part", ".tmpAb3d", "a.safetensors.tmp"),
    *(
        ".index.jsonl.part",
        ".index.jsonl.swp",
        ".run.json.swp",
        ".run.json.original",
        ".run.json.202611181530",
        ".run.json.backup_1",
    ),
    *(".00000001.safetensors.metadata", ".step_00000000.png.template", ".other.json.torcheer-0123456789ab"),
    *(".run.json.torcheer-1", ".report.html.torcheer-0123456789ab", ".0.safetensors.torcheer-0123456789ab"),
]


def fill(folder):
    """Files of others, folders of others, and links, also with names that this library gives."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in OF_OTHERS:
        (folder / name).write_text("mine")
    (folder / ".folder").mkdir()
    for name in ("index.jsonl", "run.json", "00000001.safetensors", "step_00000001.png"):
        (folder / f".{name}.torcheer-00000000000a").mkdir()
        (folder / f".{name}.torcheer-00000000000b").symlink_to(".bashrc")


def everything_in(folder):
    return sorted((str(path.relative_to(folder)), path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*"))


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_deletes_nothing_that_it_did_not_make(tmp_path, resume):
    """Hidden files, folders, links, copies that people and programs make: whatever lies in the folders of a run stays."""
    folders = [tmp_path / "run", tmp_path / "run" / "snapshots", tmp_path / "run" / "figures"]
    if resume:
        FileManager.create(tmp_path / "run", {"title": "Net"}).close()
    for folder in folders:
        fill(folder)
    before = {(str(folder), *one) for folder in folders for one in everything_in(folder)}
    files = FileManager.create(tmp_path / "run", {"title": "Net"}, max_bytes=1, resume=resume)
    for step in range(8):
        add(files, step)
    assert len(files.rows) == 2
    files.close()
    FileManager.create(tmp_path / "run", {}, resume=True).close()
    after = {(str(folder), *one) for folder in folders for one in everything_in(folder)}
    assert {(where, name) for where, name, text in before - after} <= {(str(tmp_path / "run"), "run.json")}


@pytest.mark.parametrize("linked", ["snapshots", "figures"])
def test_nothing_is_deleted_behind_a_link(tmp_path, linked):
    """Neither what looks half written nor snapshots for which there is no room: another run may lie there."""
    (tmp_path / "run").mkdir()
    fill(tmp_path / "home")
    for name in ("00000009.safetensors", "step_00000009.png"):
        half_written(tmp_path / "home" / name)
    (tmp_path / "run" / linked).symlink_to(tmp_path / "home")
    before = everything_in(tmp_path / "home")
    with pytest.warns(SnapshotLost, match="nothing is deleted") if linked == "snapshots" else contextlib.nullcontext():
        files = FileManager.create(tmp_path / "run", {"title": "Net"}, max_bytes=1)
    for step in range(4):
        add(files, step)
    files.close()
    FileManager.create(tmp_path / "run", {}, resume=True).close()
    assert set(before) <= set(everything_in(tmp_path / "home"))
    assert len(FileManager.open(tmp_path / "run").snapshots) == (4 if linked == "snapshots" else 2)


@pytest.mark.parametrize("text", ['{"name": "mine"}', "[]", "not JSON", ""])
def test_a_run_json_of_others_is_not_replaced(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    for resume in (False, True):
        with pytest.raises(TorcheerError, match=r"run\.json"):
            FileManager.create(tmp_path, {"title": "Net"}, resume=resume)
    assert (tmp_path / "run.json").read_text() == text
    assert os.listdir(tmp_path) == ["run.json"]  # a run that is refused leaves nothing


def test_no_figure_behind_a_link_is_replaced(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "run" / "figures").symlink_to(tmp_path / "home")
    mine, new = tmp_path / "home" / "step_00000000.png", tmp_path / "run" / "figures" / "step_00000001.png"
    mine.write_text("mine")
    with pytest.raises(NotWritten, match="is a link, behind which nothing is replaced"):
        write_figure(tmp_path / "run" / "figures" / mine.name, b"drawn")
    write_figure(new, b"drawn")
    assert (mine.read_text(), new.read_bytes()) == ("mine", b"drawn")


def test_what_is_left_of_a_damaged_snapshot_is_not_written_over(files):
    """It may be of another program, or be mended."""
    add(files, 0)
    files.close()
    (files.folder / "snapshots" / "00000001.safetensors").write_bytes(b"mine")
    resumed = FileManager.create(files.folder, {}, resume=True)
    assert resumed.path(add(resumed, 1)).name == "00000002.safetensors"
    resumed.close()
    assert (files.folder / "snapshots" / "00000001.safetensors").read_bytes() == b"mine"


def test_a_new_run_does_not_replace_the_run_json_that_a_link_leads_to(tmp_path):
    other = FileManager.create(tmp_path / "other", {"title": "Other"})
    other.close()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").symlink_to(tmp_path / "other" / "run.json")
    with pytest.raises(RunExists, match=r"is a link"):
        FileManager.create(tmp_path / "run", {"title": "Net"})
    assert FileManager.open(tmp_path / "other").about["title"] == "Other"


def test_every_reader_skips_a_truncated_snapshot(files):
    """The last one is cut: the one before is shown, with a warning; asked for by name it is an error of ours."""
    for step in range(3):
        last = add(files, step)
    path = files.path(last)
    path.write_bytes(path.read_bytes()[:-50])
    run = Run(FileManager.open(files.folder))
    with pytest.warns(SnapshotLost, match=r"snapshot 2 \(step 2\)"):
        figure = figure_of_snapshot(run)
    assert any("step 1" in text.get_text() for text in figure.texts)
    assert any("step 1" in text.get_text() for text in figure_of(run, "conv1", "weight").texts)
    with pytest.raises(SnapshotNotFound, match="step 2"):
        figure_of(run, "conv1", "weight", 2)
    assert run.entry("conv1", "weight").statistics.mean == 2.0  # its header is whole
    assert len(Saved(run).rows) == 1


def test_a_long_run_keeps_a_few_bytes_of_each_snapshot_in_memory(tmp_path):
    """A snapshot is some kilobytes as a record; what stays of it is a row."""
    files = FileManager.create(tmp_path, {"title": "Net"})
    tracemalloc.start()
    for step in range(50):
        add(files, step)
    before = tracemalloc.get_traced_memory()[0]
    for step in range(50, 250):
        add(files, step)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    files.close()
    assert grown / 200 < 500


def test_room_is_made_one_snapshot_at_a_time(tmp_path):
    """No write takes away more than a few, the bytes are those on disk, readers and writers agree all the time."""
    files = FileManager.create(tmp_path, {"title": "Net"}, max_bytes=60_000)
    reader = FileManager.open(tmp_path)
    gone = []
    for step in range(150):
        before = len(files.snapshots)
        add(files, step)
        gone.append(before + 1 - len(files.snapshots))
        on_disk = sum(path.stat().st_size for path in (tmp_path / "snapshots").iterdir())
        assert files.bytes == on_disk <= 60_000
        assert reader.refresh() == files.snapshots
        assert files.snapshots[-1].step == step
        assert files.snapshots[0].step == 0
    assert max(gone) <= 3
    files.close()


def test_a_training_that_goes_back_many_times_is_in_order(files):
    """Rows are sorted by step, and of a step the later snapshot counts."""
    for step in [5, 3, 9, 3, 0, 9, 7, 5]:
        add(files, step)
    assert [one.step for one in files.snapshots] == [0, 3, 3, 5, 5, 7, 9, 9]
    assert [one.number for one in files.snapshots] == [4, 1, 3, 0, 7, 6, 2, 5]
    run = Run(files)
    assert [one.number for one in run.snapshots] == [4, 3, 7, 6, 5]
    assert run.latest[0].number == 7
    assert FileManager.open(files.folder).snapshots == files.snapshots


def make_model():
    return nn.Sequential(nn.Conv2d(1, 40, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40 * 36, 2))


def train(folder):
    """Until it is killed."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    xray = Xray(model, (2, 1, 8, 8), ["0", "3"], folder=folder, optimizer=optimizer)
    print(xray._next)
    for step in range(10_000):
        optimizer.zero_grad()
        model(torch.randn(4, 1, 8, 8)).square().mean().backward()
        optimizer.step()
        xray.take_graphs()
        if step == 3:
            print("running")


@pytest.mark.parametrize("after", [0.0, 0.15, 0.3])
def test_a_training_that_is_killed_loses_at_most_the_snapshot_being_written(tmp_path, after):
    """kill -9 in the middle of a loop that takes a snapshot at every step; then another process goes on."""
    training, said = start_a_copy(lambda: train(tmp_path))
    with said:
        assert said.readline() == "0\n"
        assert said.readline() == "running\n"
        time.sleep(after)
        os.kill(training, signal.SIGKILL)
        os.waitpid(training, 0)
    run = Xray.open(tmp_path).run
    steps = run.steps()
    assert steps == list(range(len(steps)))  # no step is missing
    assert len(steps) >= 3  # of four that were taken, the last may not have been written
    rows = {run.entry("0", "weight", step).rows for step in steps}
    for step in steps:
        assert run.tensor("0", "weight", step).shape == (32, 1, 3, 3)
        assert run.entry("3", "grad", step).statistics.count == 2 * 40 * 36
    with Xray(make_model(), torch.ones(2, 1, 8, 8), ["0", "3"], folder=tmp_path, resume=True) as xray:
        xray.take_graphs()
    assert xray.run.steps() == [*steps, len(steps)]
    assert {xray.run.entry("0", "weight").rows} == rows
