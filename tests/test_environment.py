"""The environment that `make setup` leaves is one to try things in: everything in it can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STAMP = Path(sys.prefix) / ".setup"  # written by `make setup`
made_here = pytest.mark.skipif(not STAMP.exists(), reason=f"{sys.prefix} is not an environment that this Makefile set up")

IMPORT_ALL = """
import importlib
import warnings
from importlib.metadata import distributions

warnings.simplefilter("ignore")


def modules(distribution):
    for path in distribution.files or ():
        name = path.parts[0]
        if (len(path.parts) == 2 and path.name == "__init__.py") or (len(path.parts) == 1 and name.endswith(".py")):
            yield name.removesuffix(".py")


# what people use beside torcheer
from lightning import LightningModule, Trainer
from transformers import AutoImageProcessor, AutoModel, CLIPModel, GPT2Model, Trainer, ViTModel, Wav2Vec2Model
import torcheer, torch_vis

tried, broken = 0, []
for distribution in distributions():
    for name in sorted({name for name in modules(distribution) if name.isidentifier() and not name.startswith("_")}):
        tried += 1
        try:
            importlib.import_module(name)
        except BaseException as error:
            broken.append(f"{distribution.name}: import {name} raised {type(error).__name__}: {error}")
print(tried, *broken, sep="\\n")
"""


@made_here
def test_what_people_use_beside_torcheer_works_and_every_distribution_can_be_imported():
    """In a process without anything the tests put on their path."""
    done = subprocess.run([sys.executable, "-I", "-c", IMPORT_ALL], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    tried, *broken = done.stdout.splitlines()
    assert int(tried) > 40
    assert broken == [], "\n".join(broken)
