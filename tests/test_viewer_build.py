"""The viewer is built when it is missing or older than its sources, and only then."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
hatch_build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hatch_build)


@pytest.fixture
def tree(tmp_path) -> Path:
    """A source tree with a viewer that is built."""
    for name, time in (
        ("viewer/package.json", 100),
        ("viewer/src/main.ts", 100),
        ("viewer/src/deep/inside.ts", 100),
        ("viewer/node_modules/thing/index.js", 900),
        ("viewer/test/some.test.ts", 900),
        ("src/torcheer/viewer/static/viewer.js", 200),
        ("src/torcheer/viewer/static/viewer.css", 200),
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
        os.utime(file, (time, time))
    return tmp_path


def test_what_is_newer_than_its_sources_is_fresh(tree):
    """Or as old: archives give all files one time."""
    assert hatch_build.is_fresh(tree)
    os.utime(tree / "viewer" / "src" / "main.ts", (200, 200))
    assert hatch_build.is_fresh(tree)


@pytest.mark.parametrize("name", ["package.json", "src/main.ts", "src/deep/inside.ts"])
def test_a_newer_source_makes_it_stale(tree, name):
    os.utime(tree / "viewer" / name, (300, 300))
    assert not hatch_build.is_fresh(tree)


@pytest.mark.parametrize("name", ["viewer.js", "viewer.css"])
def test_without_a_part_it_is_stale(tree, name):
    (tree / "src" / "torcheer" / "viewer" / "static" / name).unlink()
    assert not hatch_build.is_fresh(tree)


def hook(root: Path, said: list[str]):
    """The hook in this tree, whether hatchling is installed or not."""
    surroundings = {"root": str(root), "app": SimpleNamespace(display_warning=said.append)}
    cls = type("Hook", (hatch_build.CustomBuildHook,), surroundings)
    return cls.__new__(cls)


def test_a_fresh_viewer_is_not_built_and_needs_nothing(tree, monkeypatch):
    """So an editable install is quick, with or without Node.js."""
    monkeypatch.setattr(hatch_build, "build", lambda root: pytest.fail("built"))
    monkeypatch.setattr(hatch_build, "npm_command", lambda: None)
    made = hook(tree, [])
    assert made.dependencies() == []
    made.initialize("editable", {})
    made.initialize("standard", {})


def test_a_wheel_is_not_made_without_the_viewer_but_an_editable_install_is(tree, monkeypatch):
    """Which says so."""
    (tree / "src" / "torcheer" / "viewer" / "static" / "viewer.js").unlink()
    monkeypatch.setattr(hatch_build, "npm_command", lambda: None)
    said: list[str] = []
    made = hook(tree, said)
    assert made.dependencies() == [hatch_build.CARRIER]
    with pytest.raises(hatch_build.NotBuilt, match="not there"):
        made.initialize("standard", {})
    made.initialize("editable", {})
    assert len(said) == 1
    assert "make viewer" in said[0]


def test_npm_installs_and_builds_and_leaves_no_lock(tree, monkeypatch):
    """And what it built is newer than its sources, even where it is the same as before."""
    commands: list[list[str]] = []

    def run(command, **options):
        commands.append(command[1:])
        assert options["cwd"] == tree / "viewer"
        return subprocess.CompletedProcess(command, 0)

    os.utime(tree / "viewer" / "src" / "main.ts", (300, 300))
    monkeypatch.setattr(hatch_build, "npm_command", lambda: ["npm"])
    monkeypatch.setattr(hatch_build.subprocess, "run", run)
    hatch_build.build(tree)
    assert [command[0] for command in commands] == ["install", "run"]
    assert "--no-package-lock" in commands[0]
    assert hatch_build.is_fresh(tree)


def test_the_versions_of_what_the_viewer_is_built_with_are_exact():
    package = json.loads((ROOT / "viewer" / "package.json").read_text(encoding="utf-8"))
    versions = {**package.get("dependencies", {}), **package.get("devDependencies", {})}
    assert versions
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions.values())
