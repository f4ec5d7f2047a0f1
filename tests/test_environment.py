"""The environment that `make setup` leaves is one to try things in: everything in it can be imported."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

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
    done = subprocess.run([sys.executable, "-I", "-c", IMPORT_ALL], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    tried, *broken = done.stdout.splitlines()
    assert int(tried) > 40
    assert broken == [], "\n".join(broken)


PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def pinned(python: str) -> dict[str, str]:
    """The version that constraints.txt asks for, by package, on a version of Python."""
    lines = (Path(__file__).parents[1] / "constraints.txt").read_text().splitlines()
    asked = [Requirement(line) for line in lines if not line.startswith("#")]
    here = [one for one in asked if one.marker is None or one.marker.evaluate({"python_version": python})]
    found = {one.name: str(one.specifier).removeprefix("==") for one in here}
    assert len(found) == len(here), f"two versions of one package on Python {python}"
    return found


def test_every_package_has_one_version_for_each_python():
    names = {python: sorted(pinned(python)) for python in PYTHONS}
    assert all(found == names["3.10"] for found in names.values())


@pytest.mark.parametrize("python", PYTHONS)
def test_what_is_installed_here_runs_on_each_python_that_gets_the_same_version(python):
    """`make setup` works on Python 3.10 and later: a package that has left one of them has a line of its own for it."""
    left = []
    for name, version in pinned(python).items():
        try:
            installed = metadata(name)
        except PackageNotFoundError:  # a library of the zoo or of the benchmarks
            continue
        supported = SpecifierSet(installed.get("Requires-Python") or "")
        if installed["Version"] == version and not supported.contains(f"{python}.99"):
            left.append(f"{name} {version} needs Python {supported}")
    assert left == []
