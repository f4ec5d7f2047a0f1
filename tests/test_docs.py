"""What the documentation says is true: its code runs, the examples in docstrings give what they show."""

from __future__ import annotations

import doctest
import importlib
import inspect
import itertools
import pkgutil
import re
from pathlib import Path

import pytest

import torch_vis
import torcheer
from torcheer.pictures import FORMATS
from torcheer.reducers import KINDS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), names)
    if page.name == "README.md":
        printed = capsys.readouterr().out
        shown = "".join(blocks(page, "text"))
        for line in shown.splitlines():
            if not re.search(r"tensor\(|\.\.\.|…|Time elapsed|Source", line):
                assert line in printed, line


@pytest.mark.parametrize(
    ("name", "turns"), [("README.md", (1, 2)), ("docs/extraction.md", (1, 1)), ("docs/similarity.md", (1, 1))]
)
def test_a_page_runs_again_where_it_ran_before(name, turns, tmp_path, monkeypatch):
    """From top to bottom again; of the README, also each block twice in a row."""
    monkeypatch.chdir(tmp_path)
    for times in turns:
        names: dict[str, object] = {}
        for code in blocks(ROOT / name, "python"):
            for _ in range(times):
                exec(compile(code, name, "exec"), names)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", *ROOT.glob("src/**/README.md")], ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


MODULES = [m.name for m in pkgutil.walk_packages(torcheer.__path__, "torcheer.") if not m.name.endswith("__main__")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_give_what_they_show(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_why_it_exists(name):
    assert importlib.import_module(name).__doc__


def test_the_readme_starts_with_the_two_commands():
    top = (ROOT / "README.md").read_text(encoding="utf-8")[:600]
    assert "make demo" in top
    assert "make test" in top


def listed_folders() -> dict[Path, str]:
    """The folders in the list of docs/architecture.md, each with what is said on its line and those of its files."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    found: dict[Path, str] = {}
    around: list[tuple[int, Path]] = []  # the folders that a line is inside of, with their indentation
    for line in text[text.index("    src/torcheer/") : text.index("Imports point one way")].splitlines():
        depth, words = len(line) - len(line.lstrip()), line.split()
        around = [(indent, folder) for indent, folder in around if indent < depth]
        outer = around[-1][1] if around else Path()
        folders = [outer / word for word in itertools.takewhile(lambda word: word.endswith("/"), words)]
        found.update(dict.fromkeys(folders, line))
        if folders:
            around.append((depth, folders[0]))
        elif words:
            found[outer] += line
    return found


def test_the_architecture_names_every_folder_of_code():
    there = {path.parent.relative_to(ROOT) for path in (*ROOT.glob("src/**/*.py"), *ROOT.glob("web/*/*.ts"))}
    assert there <= listed_folders().keys() | {Path("web/shared/generated")}


def test_the_folders_and_files_that_the_architecture_names_are_there():
    for folder, said in listed_folders().items():
        assert (ROOT / folder).is_dir()
        for name in re.findall(r"(?<![\w/])\w+\.py\b", said):
            assert (ROOT / folder / name).is_file(), f"{folder}/{name}"


@pytest.mark.parametrize("package", [torcheer, torch_vis], ids=["torcheer", "torch_vis"])
def test_every_public_name_is_in_a_page(package):
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    public = [
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "PackageNotFoundError"
    ]
    assert [name for name in public if not re.search(rf"`{name}\b|\b{name}\(", text)] == []


def test_the_page_of_names_has_every_error_with_what_it_says_of_itself():
    page = (ROOT / "docs" / "names.md").read_text(encoding="utf-8")
    found = [one for one in vars(torcheer.errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    for one in found:
        assert f"| `{one.__name__}` | {(one.__doc__ or '').splitlines()[0]} |" in page


def test_the_page_of_pictures_names_every_format():
    page = (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")
    sentence = re.search(r"^Every history can be drawn as (.*?)\.", page, re.MULTILINE)
    assert sentence is not None
    assert [name.lower() for name in re.findall(r"\b[A-Z]{2,}\b", sentence[1])] == list(FORMATS)


def test_the_page_of_names_has_every_reducer():
    page = (ROOT / "docs" / "names.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| `reducers`"))
    assert re.findall(r"`([A-Z]\w+)`", row) == list(KINDS)
