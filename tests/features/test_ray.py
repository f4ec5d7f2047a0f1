"""`Extractor` in actors of a real Ray on this machine. Ray is optional: `make test-ray` installs it and runs these tests."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import torch
from torch import nn

from torcheer import Extractor

ray = pytest.importorskip("ray", reason="tests in Ray: it is not installed: make test-ray")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.skipif(os.environ.get("TEST_RAY") != "1", reason="tests in Ray: they are started by make test-ray"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """A Ray of its own, whose workers find what this process finds."""
    pytest.importorskip("pyarrow", reason="tests in Ray: pyarrow is not installed")
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    os.environ["PYTHONPATH"] = before
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    yield
    ray.shutdown()


def actors(count):
    return ray.data.ActorPoolStrategy(size=count)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4 * 16, 5)).eval()


def rows(count=50):
    pictures = np.random.default_rng(0).standard_normal((count, 3, 6, 6)).astype(np.float32)
    return [{"picture": picture, "number": number, "file": f"{number}.png"} for number, picture in enumerate(pictures)]


def expected(row, threads=1):
    """What plain hooks see, for a batch of one sample."""
    model, found = make_model(), {}
    model[0].register_forward_hook(lambda module, args, output: found.update(conv=output.clone()))
    model[3].register_forward_hook(lambda module, args, output: found.update(head=output.clone()))
    with torch.no_grad():
        model(torch.from_numpy(row["picture"])[None])
    return {name: value[0].numpy() for name, value in found.items()}


def check(found, given):
    found = {row["number"]: row for row in found}
    assert sorted(found) == list(range(len(given)))
    for row in given:
        other = found[row["number"]]
        assert set(other) == {*row, "conv", "head"}
        assert np.array_equal(other["picture"], row["picture"])
        assert other["file"] == row["file"]
        for name, value in expected(row).items():
            assert other[name].dtype == np.float32
            assert np.allclose(other[name], value, atol=1e-5), (row["number"], name)


@pytest.mark.parametrize("how", ["function", "model"])
def test_actors_add_a_column_for_each_layer(how):
    """Two actors; each sample comes back with its own values, what it had before is as it was, and batches are of any size."""
    given = rows()
    dataset = ray.data.from_items(given, override_num_blocks=4).map_batches(
        Extractor,
        fn_constructor_kwargs={
            "model": make_model if how == "function" else make_model(),
            "layers": {"conv": "0", "head": "3"},
            "inputs": "picture",
        },
        batch_size=8,
        compute=actors(2),
    )
    check(dataset.take_all(), given)


def test_values_are_those_of_the_same_batch_bit_for_bit():
    """Whole blocks as batches, so that the batches are known."""
    torch.set_num_threads(1)
    pictures = np.stack([row["picture"] for row in rows(24)])
    dataset = ray.data.from_numpy([pictures[:8], pictures[8:16], pictures[16:]]).map_batches(
        Extractor, fn_constructor_kwargs={"model": make_model, "layers": ["0", "3"]}, batch_size=None, compute=actors(2)
    )
    found = dataset.take_all()
    here = Extractor(make_model, ["0", "3"])
    plain = {row["data"].tobytes(): row for row in found}
    for first in range(0, 24, 8):
        batch = here({"data": pictures[first : first + 8]})
        for number in range(8):
            row = plain[batch["data"][number].tobytes()]
            assert np.array_equal(row["0"], batch["0"][number])
            assert np.array_equal(row["3"], batch["3"][number])


def test_layers_of_different_lengths_and_smaller_types_go_through_arrow():
    """A layer whose positions differ between batches, in half precision."""

    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embed = nn.Embedding(20, 3)

        def forward(self, tokens):
            return self.embed(tokens)

    blocks = [np.arange(8).reshape(2, 4), np.arange(12).reshape(2, 6)]
    found = []
    for block in blocks:
        dataset = ray.data.from_numpy([block]).map_batches(
            Extractor,
            fn_constructor_kwargs={"model": lambda: Embedded().eval(), "layers": "embed", "dtype": "float16"},
            batch_size=None,
            compute=actors(1),
        )
        found += dataset.take_all()
    model = Embedded()
    for row in found:
        assert row["embed"].dtype == np.float16
        assert np.array_equal(row["embed"], model.embed(torch.from_numpy(row["data"].copy())).detach().half().numpy())


def test_errors_of_ours_reach_the_driver():
    dataset = ray.data.from_items(rows(4)).map_batches(
        Extractor, fn_constructor_kwargs={"model": make_model, "layers": "nowhere", "inputs": "picture"}, compute=actors(1)
    )
    with pytest.raises(Exception, match="nowhere"):
        dataset.take_all()
