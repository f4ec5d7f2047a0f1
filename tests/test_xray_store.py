"""Files of a run: written whole or not at all, read by anybody, thinned evenly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from itertools import pairwise

import pytest
import torch

from torcheer import InvalidArgument, TorcheerError
from torcheer.errors import RunInUse, RunNotFound, SnapshotNotFound
from torcheer.xray import Entry, FileManager, Run, Snapshot
from torcheer.xray.statistics import statistics_of


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


def test_a_torn_last_line_is_skipped_and_its_snapshot_found_in_its_file(files):
    """The index was cut in the middle of a line: nothing is lost, and writing goes on."""
    add(files, 0)
    add(files, 1)
    files.close()
    index = files.folder / "index.jsonl"
    index.write_bytes(index.read_bytes()[:-30])
    read = FileManager.open(files.folder)
    assert [one.step for one in read.snapshots] == [0, 1]
    again = FileManager.create(files.folder, {}, resume=True)
    add(again, 2)
    again.close()
    assert [json.loads(line)["step"] for line in index.read_text().splitlines()] == [0, 1, 2]


def test_the_index_can_be_made_again_from_the_files(files):
    """Without an index everything is still known, and rebuilding writes it."""
    written = [add(files, step) for step in range(3)]
    (files.folder / "index.jsonl").unlink()
    assert FileManager.open(files.folder).snapshots == written
    files.rebuild_index()
    assert len((files.folder / "index.jsonl").read_text().splitlines()) == 3
    assert FileManager.open(files.folder).snapshots == written


def test_a_line_without_its_file_is_left_out(files):
    """A snapshot that was deleted by hand is not offered."""
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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
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
        patched.setattr("torcheer.xray.store.files.flush", full)
        with pytest.raises(OSError, match="No space left"):
            add(files, 1)
    assert [path.name for path in (files.folder / "snapshots").iterdir()] == ["00000000.safetensors"]
    add(files, 2)
    assert [one.step for one in FileManager.open(files.folder).snapshots] == [0, 2]


KILLED = """
    import sys, torch
    sys.path.insert(0, {tests!r})
    from test_xray_store import add
    from torcheer.xray import FileManager
    files = FileManager.create({folder!r}, {{"title": "Net"}})
    print("ready", flush=True)
    while True:
        step = files.next_number
        add(files, step, torch.full((16, 3, 64, 64), float(step)))
"""


@pytest.mark.parametrize("after", [0.05, 0.21, 0.4])
def test_a_process_that_is_killed_loses_at_most_the_snapshot_it_was_writing(tmp_path, after):
    """kill -9 while writing: all that is listed can be read, numbers have no gap, and another process goes on."""
    program = textwrap.dedent(KILLED.format(tests=os.path.dirname(__file__), folder=str(tmp_path)))
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    time.sleep(after)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
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
