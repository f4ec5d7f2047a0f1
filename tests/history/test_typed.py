"""A user's program is type-checked, and an editor completes what it is about to say."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import jedi
import pytest

from torcheer.pictures import DrawOptions, PictureOptions

SOURCES = Path(__file__).parents[2] / "src"
WORDS = ["shape", "dtype", "device", "activation", "grad", "parents", "children", "module", "inputs", "params", "flops", "name"]

PROGRAM = """
import torch
import torcheer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torcheer import reducers

history = torcheer.log_forward_pass(nn.Linear(2, 3), torch.ones(1, 2))
layer = history["linear_1"]
shape: tuple[int, ...] = layer.shape
flops: int | None = layer.flops
names: list[str] = [one.name for one in history.filter(type="linear")]
address: str | None = layer.module.address if layer.module is not None else None
several = history[nn.Linear]
first: torcheer.Layer | torcheer.Operation = several[0]
changed: dict[str, torch.Tensor] = {"linear_1": torch.zeros(1, 3)}
again = history.replay(torch.ones(1, 2), changed)
fitting = history.filter(nn.Linear | nn.ReLU, type=[torch.relu, "linear"], where=lambda one: one.flops)
found = history[["linear_1", 2]], history[layer], history[lambda one: one.has_saved_activations]
values = torcheer.tap(nn.Linear(2, 3), [nn.Linear, ""])
edits = torcheer.intervene(nn.ReLU(), {"": torcheer.changes.zero(at=(0, ...))})
count: int = history.modules["fc"].num_params
call: torcheer.Call = history.modules["fc"][1]
picture: torcheer.Picture = history.draw("x.svg", direction="right", nesting_depth="all", color_by=lambda one: one.flops)
net, data = nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.rand(6, 2)
features = torcheer.extract(net, data, ["0", nn.ReLU], "to", transform={"0": "mean"}, keep=[reducers.Mean(), "activations"])
features = torcheer.extract(net, DataLoader(TensorDataset(data)), {"mine": "0"}, "to", transform=torch.relu, ids=["a", "b"])
features = torcheer.extract(net, [data, data], "0", "to", keep={"0": reducers.TopK(3)}, ids=lambda batch: batch["id"])
"""


def test_a_program_of_a_user_is_type_checked(tmp_path):
    """With the cache that `make types` leaves."""
    assert (SOURCES / "torcheer" / "py.typed").is_file()
    wrong = (
        "layer.shpae\nhistory.modules['x'].adress\nhistory[2.5]\nhistory.draw(direction='east')\nhistory.draw(nesting_dept=2)\n"
        "torcheer.extract(net, 3, '0', 'to')\ntorcheer.extract(net, data, '0', 'to', keep='mean')\n"
    )
    (tmp_path / "right.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(PROGRAM + wrong)
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "right.py"), str(tmp_path / "wrong.py")]
    environment = {**os.environ, "MYPYPATH": str(SOURCES)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=SOURCES.parent, env=environment, check=False)
    assert done.returncode == 1, done.stderr
    assert "right.py" not in done.stdout, done.stdout
    assert '"shpae"' in done.stdout
    assert all(f"wrong.py:{PROGRAM.count(chr(10)) + number}: error" in done.stdout for number in range(1, 8)), done.stdout


def test_the_options_of_draw_are_those_of_a_picture():
    assert set(DrawOptions.__annotations__) == {field.name for field in fields(PictureOptions)} | {"options", "vis_opt"}


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ('history["linear_1"]', [*WORDS, "tensor_contents", "creation_args", "source"]),
        ("history[nn.Linear][0]", WORDS),
        ('history.filter(type="linear")[0]', WORDS),
        ("history.operations[0]", WORDS),
        ("history.layers[0].passes[0]", WORDS),
        ('history["linear_1"].parents[0]', WORDS),
        ('history.modules["0"]', ["address", "calls", "params", "children"]),
        ("history", ["layers", "operations", "filter", "flops", "to_csv", "draw", "summary", "random_state"]),
        ('history.params["weight"]', ["name", "shape", "dtype", "is_trainable"]),
    ],
)
def test_an_editor_completes(expression, words):
    """jedi is what IPython and many editors ask; it reads the source and runs nothing."""
    program = PROGRAM + expression + "."
    lines = program.splitlines()
    found = {one.name for one in jedi.Script(program).complete(len(lines), len(lines[-1]))}
    assert set(words) <= found, sorted(set(words) - found)
