"""The examples run as they are, and leave what they say."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image

from forked import run_in_a_copy
from torcheer import Xray

EXAMPLES = Path(__file__).parent.parent / "examples"


def printed_by(name, *options, cwd):
    """What an example prints. It runs in a copy of this process."""

    def work():
        os.chdir(cwd)
        warnings.simplefilter("default")  # as in a process of its own
        sys.argv = [name, *options]
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    code, printed = run_in_a_copy(work)
    assert code == 0, printed
    return printed


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What the training example printed, and its folder, in which another run was before."""
    folder = tmp_path_factory.mktemp("example")
    with Xray(torch.nn.Linear(2, 2), (1, 2), ["linear_1"], folder=folder / "out" / "run") as earlier:
        earlier.take_graphs(99)
    command = [sys.executable, str(EXAMPLES / "train_xray.py"), "--steps", "12", "--folder", "out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    return done, folder / "out"


def test_the_training_example_prints_where_its_files_are(trained):
    """Each file it names is there, and nothing was complained about."""
    done, folder = trained
    found = dict(re.findall(r"^(\w+): (.+)$", done.stdout, flags=re.MULTILINE))
    assert found.keys() == {"Report", "Animation", "Picture"}
    assert all((folder.parent / path).is_file() for path in found.values())
    assert re.search(r"12 steps, \d+% of 512 new pictures", done.stdout)
    assert "12 snapshots, steps 0 to 11" in done.stdout
    assert not re.search(r"Warning|Error|SnapshotLost", done.stderr), done.stderr


def test_the_training_example_leaves_a_run_with_every_kind(trained):
    """A snapshot for each step, with weights, outputs, activations and gradients, and nothing of the earlier run."""
    run = Xray.open(trained[1] / "run").run
    assert run.layers == ["conv1", "conv2", "head.1"]
    assert run.steps() == list(range(12))
    for layer in run.layers:
        assert run.kinds(layer) == ["weight", "layer", "activation", "grad", "layer_grad"]
    assert run.entry("conv1", "activation").source.startswith("relu_1")
    assert run.entry("head.1", "weight").update_ratio > 0


def test_the_training_example_leaves_a_report_an_animation_and_a_figure(trained):
    """The report is one page for itself, the animation has a frame for each snapshot."""
    folder = trained[1]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "head.1" in page
    with Image.open(folder / "conv1_weight.gif") as animation:
        assert animation.n_frames == 12
    with Image.open(folder / "run" / "figures" / "step_00000011.png") as figure:
        assert min(figure.size) > 500


def test_the_ablation_example_finds_the_heads_that_recall(tmp_path):
    """The trained model recalls; without the heads of either layer it guesses, and the figure is drawn."""
    printed = printed_by("ablate_heads.py", "--steps", "250", "--figure", "ablation.png", cwd=tmp_path)
    found = {name.strip(): float(value) for name, value in re.findall(r"^(.+?) +(\d\.\d+)$", printed, flags=re.MULTILINE)}
    assert found["nothing"] > 0.95
    assert found["layer 0, head 0 and 1"] < 0.3
    assert found["layer 1, head 0 and 1"] < 0.3
    with Image.open(tmp_path / "ablation.png") as figure:
        assert min(figure.size) > 200


def test_the_steering_example_flips_the_class(tmp_path):
    """The difference of the means flips nearly all points, a random vector of its length nearly none."""
    printed = printed_by("steer.py", "--figure", "steering.png", cwd=tmp_path)
    rows = re.findall(r"strength +([\d.]+): ([\d.]+) called class 1, random vector ([\d.]+)", printed)
    flipped = {float(strength): (float(one), float(other)) for strength, one, other in rows}
    assert flipped[0.0] == (0.0, 0.0)
    assert flipped[1.5][0] > 0.95
    assert flipped[1.5][1] < 0.1
    with Image.open(tmp_path / "steering.png") as figure:
        assert min(figure.size) > 200


def test_the_example_of_features_finds_that_two_networks_are_alike(tmp_path):
    """Layers of the same depth are more similar than others; pictures and a heat map are drawn."""
    printed = printed_by("extract_features.py", "--steps", "120", "--figures", "figures", cwd=tmp_path)
    same, others = map(float, re.search(r"layers of the same depth ([\d.]+), others ([\d.]+)", printed).groups())
    assert same > others + 0.1
    assert re.search(r"unit 0 of body\.5 likes samples (\d+, ){9}\d+ best", printed)
    for name in ("similarity.png", "units.png"):
        with Image.open(tmp_path / "figures" / name) as figure:
            assert min(figure.size) > 400
