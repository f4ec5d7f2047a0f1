"""The browser programs are built when they are missing or older than their sources, and only then."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
hatch_build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hatch_build)


@pytest.fixture
def tree(tmp_path) -> Path:
    """A source tree whose browser programs are built."""
    for name, time in (
        ("web/package.json", 100),
        ("web/graph/main.ts", 100),
        ("web/shared/format.ts", 100),
        ("web/graph/deep/inside.ts", 100),
        ("web/node_modules/thing/index.js", 900),
        ("web/test/some.test.ts", 900),
        *((f"src/torcheer/page/static/{name}", 200) for name in hatch_build.BUILT),
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
        os.utime(file, (time, time))
    return tmp_path


def test_what_is_newer_than_its_sources_is_fresh(tree):
    """Or as old: archives give all files one time."""
    assert hatch_build.is_fresh(tree)
    os.utime(tree / "web" / "graph" / "main.ts", (200, 200))
    assert hatch_build.is_fresh(tree)


@pytest.mark.parametrize("name", ["package.json", "graph/main.ts", "shared/format.ts", "graph/deep/inside.ts"])
def test_a_newer_source_makes_it_stale(tree, name):
    os.utime(tree / "web" / name, (300, 300))
    assert not hatch_build.is_fresh(tree)


@pytest.mark.parametrize("name", hatch_build.BUILT)
def test_without_a_part_it_is_stale(tree, name):
    (tree / hatch_build.STATIC / name).unlink()
    assert not hatch_build.is_fresh(tree)


def hook(root: Path, said: list[str]):
    """The hook in this tree, whether hatchling is installed or not."""
    surroundings = {"root": str(root), "app": SimpleNamespace(display_warning=said.append)}
    cls = type("Hook", (hatch_build.CustomBuildHook,), surroundings)
    return cls.__new__(cls)


def test_fresh_programs_are_not_built_and_need_nothing(tree, monkeypatch):
    """So an editable install is quick, with or without Node.js."""
    monkeypatch.setattr(hatch_build, "build", lambda root: pytest.fail("built"))
    monkeypatch.setattr(hatch_build, "npm_command", lambda: None)
    made = hook(tree, [])
    assert made.dependencies() == []
    made.initialize("editable", {})
    made.initialize("standard", {})


def test_a_wheel_is_not_made_without_the_programs_but_an_editable_install_is(tree, monkeypatch):
    """Which says so."""
    (tree / hatch_build.STATIC / "graph.js").unlink()
    monkeypatch.setattr(hatch_build, "npm_command", lambda: None)
    said: list[str] = []
    made = hook(tree, said)
    assert made.dependencies() == [hatch_build.CARRIER]
    with pytest.raises(hatch_build.NotBuilt, match="not there"):
        made.initialize("standard", {})
    made.initialize("editable", {})
    assert len(said) == 1
    assert "make web" in said[0]


def test_npm_installs_what_is_locked_and_builds(tree, monkeypatch):
    """And what it built is newer than its sources, even where it is the same as before."""
    commands: list[list[str]] = []

    def run(command, **options):
        commands.append(command[1:])
        assert options["cwd"] == tree / "web"
        return subprocess.CompletedProcess(command, 0)

    os.utime(tree / "web" / "graph" / "main.ts", (300, 300))
    monkeypatch.setattr(hatch_build, "npm_command", lambda: ["npm"])
    monkeypatch.setattr(hatch_build.subprocess, "run", run)
    hatch_build.build(tree)
    assert [command[0] for command in commands] == ["ci", "run"]
    assert hatch_build.is_fresh(tree)


def test_what_the_programs_are_built_with_is_locked_by_hash_and_names_no_host():
    """So the same sources make the same wheel, wherever the packages come from."""
    package = json.loads((ROOT / "web" / "package.json").read_text(encoding="utf-8"))
    versions = {**package.get("dependencies", {}), **package.get("devDependencies", {})}
    assert versions
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions.values())
    text = (ROOT / "web" / "package-lock.json").read_text(encoding="utf-8")
    assert not re.search(r"resolved|https?:|\b[\w-]+\.(org|com|net|io|dev)\b", text)
    locked = {name: one for name, one in json.loads(text)["packages"].items() if name}
    assert all(one["integrity"].startswith("sha512-") for one in locked.values())
    assert {name: locked[f"node_modules/{name}"]["version"] for name in versions} == versions
