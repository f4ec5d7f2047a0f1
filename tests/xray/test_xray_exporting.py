"""A run sent to TensorBoard and to Weights & Biases: what arrives is what was stored."""

from __future__ import annotations

import io
import itertools
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from torcheer._torch.measure import BIN_EDGES, statistics_of
from torcheer.errors import InvalidArgument, SnapshotLost
from torcheer.xray.exporting import bins_of, to_tensorboard, to_wandb
from torcheer.xray.records import Entry, Snapshot
from torcheer.xray.run import Run
from torcheer.xray.store import FileManager

LIMITS = {"scalars": 0, "histograms": 0, "images": 0}  # keep everything


def entry_of(tensor, layer="conv1", kind="weight", **facts):
    layout = {2: "matrix", 3: "maps", 4: "filters"}[tensor.dim()]
    columns = None if layout == "maps" else tuple(range(tensor.shape[1]))
    finite = tensor[tensor.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (None, None)
    return Entry(
        layer=layer,
        kind=kind,
        source=f"{layer}.{kind}",
        shape=tuple(tensor.shape),
        dtype="float32",
        layout=layout,
        rows=tuple(range(tensor.shape[0])),
        columns=columns,
        is_color=kind == "weight" and tensor.dim() == 4 and tensor.shape[1] == 3,
        low=low,
        high=high,
        statistics=statistics_of(tensor),
        **facts,
    )


def add(files, step, time, *parts):
    """Write a snapshot of tensors and their entries."""
    entries = tuple(entry for entry, _ in parts)
    files.write(
        Snapshot(number=files.next_number, step=step, time=time, entries=entries),
        {entry.key: tensor for entry, tensor in parts},
    )


@pytest.fixture
def files(tmp_path):
    made = FileManager.create(tmp_path / "run", {"title": "CNN"})
    yield made
    made.close()


@pytest.fixture
def run(files):
    """Three snapshots of a convolution's weight and of an activation."""
    for number, step in enumerate((0, 10, 25)):
        weight = torch.randn(8, 3, 5, 5) * (number + 1)
        active = torch.randn(6, 7, 7).relu()
        add(
            files,
            step,
            1000.5 + step,
            (entry_of(weight, update_ratio=0.001 * (number + 1)), weight),
            (entry_of(active, "fc.0", "activation", dead=number, units=6), active),
        )
    return Run(files)


@pytest.fixture
def writer(tmp_path):
    with SummaryWriter(tmp_path / "events") as made:
        yield made


def read(writer):
    """What TensorBoard finds in the files of a writer."""
    writer.flush()
    found = EventAccumulator(str(writer.log_dir), LIMITS)
    found.Reload()
    return found


def test_scalars_of_tensorboard_are_the_stored_statistics(run, writer):
    """Every number is under layer/kind/statistic, at the step and time of its snapshot."""
    to_tensorboard(run, writer)
    events = read(writer)
    for layer, kind in (("conv1", "weight"), ("fc.0", "activation")):
        for name, value_of in {
            "mean": lambda e: e.statistics.mean,
            "std": lambda e: e.statistics.std,
            "norm": lambda e: e.statistics.norm,
            "zero_fraction": lambda e: e.statistics.zeros / e.statistics.count,
            "nonfinite": lambda e: 0,
        }.items():
            got = events.Scalars(f"{layer}/{kind}/{name}")
            assert [event.step for event in got] == [0, 10, 25]
            assert [event.wall_time for event in got] == [1000.5, 1010.5, 1025.5]
            assert [event.value for event in got] == pytest.approx(
                [value_of(run.entry(layer, kind, s)) for s in (0, 10, 25)], rel=1e-6
            )
    assert [e.value for e in events.Scalars("conv1/weight/update_ratio")] == pytest.approx([0.001, 0.002, 0.003])
    assert [e.value for e in events.Scalars("fc.0/activation/dead_fraction")] == pytest.approx([0, 1 / 6, 2 / 6])
    assert "fc.0/activation/update_ratio" not in events.Tags()["scalars"]
    assert "conv1/weight/dead_fraction" not in events.Tags()["scalars"]


def test_histograms_of_tensorboard_are_the_stored_bins(run, writer):
    """Bucket by bucket the counts are those of NumPy over the same edges, and the sums are those of the values."""
    to_tensorboard(run, writer)
    events = read(writer)
    for step, event in zip((0, 10, 25), events.Histograms("conv1/weight"), strict=True):
        values = run.tensor("conv1", "weight", step).astype(np.float64).ravel()
        found = event.histogram_value
        assert (event.step, event.wall_time) == (step, 1000.5 + step)
        assert (found.min, found.max, found.num) == (values.min(), values.max(), values.size)
        assert found.sum == pytest.approx(values.sum())
        assert found.sum_squares == pytest.approx((values**2).sum())
        assert list(found.bucket) == [0, *np.histogram(values, found.bucket_limit)[0]]
        assert set(found.bucket_limit) <= set(BIN_EDGES)
        assert sum(found.bucket) == values.size


def test_pictures_of_tensorboard_show_the_kept_tensors(run, writer):
    """Each snapshot has a picture at its step, and one that changed is another picture."""
    to_tensorboard(run, writer)
    events = read(writer).Images("conv1/weight")
    assert [event.step for event in events] == [0, 10, 25]
    pictures = [np.asarray(Image.open(io.BytesIO(event.encoded_image_string))) for event in events]
    assert pictures[0].shape[2] == 3
    assert max(pictures[0].shape[:2]) > 128  # small ones are enlarged
    assert not np.array_equal(pictures[0], pictures[1])
    first = pictures[2][1, 1].astype(float)  # inside the first tile: the values of the filter are the colours
    low, high = run.limits("conv1", "weight")
    values = run.tensor("conv1", "weight", 25)[0, :, 0, 0]
    assert first == pytest.approx(np.clip((values - low) / (high - low), 0, 1) * 255, abs=0.51)


def test_pictures_can_be_left_out(run, writer):
    """Without pictures the numbers and histograms are still sent."""
    to_tensorboard(run, writer, pictures=False)
    tags = read(writer).Tags()
    assert tags["images"] == []
    assert "conv1/weight" in tags["histograms"]


def test_only_new_snapshots_are_sent_the_second_time(run, files, writer):
    """The number that is returned goes on where the last call ended."""
    last = to_tensorboard(run, writer, pictures=False)
    assert last == 2
    assert to_tensorboard(run, writer, pictures=False, after=last) == 2
    weight = torch.randn(8, 3, 5, 5)
    add(files, 30, 1030.5, (entry_of(weight), weight))
    assert to_tensorboard(run, writer, pictures=False, after=last) == 3
    assert [event.step for event in read(writer).Scalars("conv1/weight/mean")] == [0, 10, 25, 30]


def test_a_run_without_snapshots_sends_nothing(files, writer):
    """Nothing to send is no error, and the number to go on from stays."""
    assert to_tensorboard(Run(files), writer) == -1
    assert read(writer).Tags()["scalars"] == []


def test_what_is_not_finite_is_counted_and_breaks_nothing(files, writer):
    """NaN and infinity are in one number; the others are those of the finite values; a tensor without any has no histogram."""
    mixed = torch.tensor([[1.0, math.nan, -math.inf], [0.0, 3.0, math.inf]])
    lost = torch.full((2, 3), math.nan)
    add(files, 0, 1.0, (entry_of(mixed, "mixed"), mixed), (entry_of(lost, "lost"), lost))
    to_tensorboard(Run(files), writer)
    events = read(writer)
    assert events.Scalars("mixed/weight/nonfinite")[0].value == 3
    assert events.Scalars("mixed/weight/mean")[0].value == pytest.approx(4 / 3)
    assert events.Scalars("lost/weight/nonfinite")[0].value == 6
    assert "lost/weight/mean" not in events.Tags()["scalars"]
    histogram = events.Histograms("mixed/weight")[0].histogram_value
    assert (histogram.num, sum(histogram.bucket), histogram.min, histogram.max) == (3, 3, 0.0, 3.0)
    assert "lost/weight" not in events.Tags()["histograms"]
    assert "lost/weight" in events.Tags()["images"]


def test_an_empty_tensor_has_no_histogram(files, writer):
    """A tensor without values has neither a mean nor a part of zeros."""
    empty = torch.zeros(0, 4)
    add(files, 0, 1.0, (entry_of(empty), empty))
    to_tensorboard(Run(files), writer)
    assert read(writer).Tags()["scalars"] == ["conv1/weight/nonfinite"]


def test_a_tensor_that_is_gone_costs_its_picture_only(run, writer):
    """A file that was thinned out meanwhile is told of, and the numbers are sent."""
    run.files.path(run.snapshots[1]).unlink()
    with pytest.warns(SnapshotLost, match="pictures of step 10 are not sent") as told:
        to_tensorboard(run, writer)
    assert len(told) == 1
    events = read(writer)
    assert [event.step for event in events.Scalars("conv1/weight/mean")] == [0, 10, 25]
    assert [event.step for event in events.Images("conv1/weight")] == [0, 25]


def test_something_else_than_a_writer_is_refused_in_words():
    """The message says what it lacks; nothing was sent before."""
    with pytest.raises(InvalidArgument, match="got SimpleNamespace, which has no add_histogram_raw, add_image"):
        to_tensorboard(None, SimpleNamespace(add_scalar=print))
    with pytest.raises(InvalidArgument, match="got dict, which has no log"):
        to_wandb(None, {})


@pytest.mark.parametrize("values", [[-1e6, 1e6], [-16384.0, 16384.0], [1e-30, -1e-30], [0.0, 0.0], [5.0, 5.0], [-3.0, 70000.0]])
def test_bins_enclose_every_value_with_rising_edges(values):
    """Whatever the values, nothing lies outside the bins and no bin is turned around."""
    edges, counts = bins_of(statistics_of(torch.tensor(values)))
    assert len(edges) == len(counts) + 1
    assert sum(counts) == 2
    assert counts[0] > 0 < counts[-1]
    assert all(a < b for a, b in itertools.pairwise(edges))
    assert edges[0] <= min(values)
    assert max(values) <= edges[-1]


class FakeRun:
    def __init__(self):
        self.logged = []

    def log(self, data, step=None):
        self.logged.append((step, data))


class FakeHistogram:
    """Takes what `wandb.Histogram` takes, and refuses what that refuses."""

    def __init__(self, sequence=None, np_histogram=None):
        assert sequence is None
        self.histogram, self.bins = (list(part) for part in np_histogram)
        assert len(self.histogram) <= 512
        assert len(self.bins) == len(self.histogram) + 1


class FakeImage:
    def __init__(self, data_or_path, mode=None, caption=None):
        self.image, self.caption = Image.fromarray(data_or_path), caption


@pytest.fixture
def wandb(monkeypatch):
    """A package of the shape of wandb."""
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Histogram=FakeHistogram, Image=FakeImage))


@pytest.fixture
def no_wandb(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)


def test_one_log_for_each_snapshot_in_order(run, wandb):
    """Every log has the step, the statistics, the bins and the picture of one snapshot."""
    sent = FakeRun()
    assert to_wandb(run, sent) == 2
    assert [step for step, _ in sent.logged] == [0, 10, 25]
    for step, values in sent.logged:
        entry = run.entry("conv1", "weight", step)
        assert values["conv1/weight/mean"] == entry.statistics.mean
        assert values["conv1/weight/norm"] == entry.statistics.norm
        assert values["conv1/weight/update_ratio"] == entry.update_ratio
        histogram = values["conv1/weight/histogram"]
        assert histogram.histogram == list(np.histogram(run.tensor("conv1", "weight", step), histogram.bins)[0])
        assert sum(histogram.histogram) == 600
        assert values["conv1/weight/picture"].caption == f"conv1 · weight · step {step}"
        assert values["fc.0/activation/picture"].image.mode == "RGB"


def test_without_the_package_plain_dictionaries_are_logged(run, no_wandb):
    """Objects that only look like a run of Weights & Biases get values that anything can hold."""
    sent = FakeRun()
    to_wandb(run, sent)
    values = sent.logged[0][1]
    assert {type(value) for value in values.values()} == {float, dict}
    histogram = values["fc.0/activation/histogram"]
    assert histogram["values"] == list(np.histogram(run.tensor("fc.0", "activation", 0), histogram["bins"])[0])


def test_a_folder_called_wandb_is_not_the_package(run, monkeypatch, tmp_path):
    """Runs leave such a folder behind, and Python imports it as an empty package."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    sent = FakeRun()
    to_wandb(run, sent)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    assert isinstance(sent.logged[0][1]["conv1/weight/histogram"], dict)


def test_only_new_snapshots_are_logged_the_second_time(run, files, wandb):
    """Also when their steps were there before, as after resuming from a checkpoint."""
    sent = FakeRun()
    last = to_wandb(run, sent)
    weight = torch.randn(8, 3, 5, 5)
    add(files, 10, 1040.0, (entry_of(weight), weight))
    to_wandb(run, sent, after=last)
    assert [step for step, _ in sent.logged] == [0, 10, 25, 10]
    assert sent.logged[-1][1]["conv1/weight/mean"] == statistics_of(weight).mean
