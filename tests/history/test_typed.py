"""A user's program is type-checked, and an editor completes what it is about to say."""

from __future__ import annotations

import subprocess
import sys

import jedi
import pytest

WORDS = ["shape", "dtype", "device", "activation", "grad", "parents", "children", "module", "inputs", "params", "flops", "name"]

PROGRAM = """
import torch
import torcheer
from torch import nn

history = torcheer.log_forward_pass(nn.Linear(2, 3), torch.ones(1, 2))
layer = history["linear_1"]
shape: tuple[int, ...] = layer.shape
flops: int | None = layer.flops
names: list[str] = [one.name for one in history.filter(type="linear")]
address: str | None = layer.module.address if layer.module is not None else None
several = history[nn.Linear]
first: torcheer.Layer | torcheer.Operation = several[0]
"""


def test_a_program_of_a_user_is_type_checked(tmp_path):
    for name, more, is_right in (("right", "", True), ("wrong", "layer.shpae\nhistory.modules['x'].adress\n", False)):
        program = tmp_path / f"{name}.py"
        program.write_text(PROGRAM + more)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "mypy",
                "--strict",
                "--follow-imports=silent",
                "--cache-dir",
                str(tmp_path / "cache"),
                str(program),
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert (done.returncode == 0) is is_right, done.stdout
    assert '"shpae"' in done.stdout


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
