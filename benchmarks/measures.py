"""Counts what docs/measures.md shows, for this checkout or others: `make measures`, `python -m benchmarks.measures FOLDER …`.

Each column is a checkout. The figures come from the source text, except the files of a lookup: a process with that checkout's
`src` on its path counts the files of torcheer whose functions run in `history["conv2d_3"].activation`.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

LOOKUP = """
import os, sys, torch, torcheer
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
history = torcheer.log_forward_pass(model, torch.rand(1, 3, 12, 12), layers_to_save="all")
history["conv2d_2"].activation
files = set()
sys.setprofile(lambda frame, event, value: files.add(frame.f_code.co_filename) if event == "call" else None)
history["conv2d_3"].activation
sys.setprofile(None)
print(sum(os.sep + "torcheer" + os.sep in file for file in files))
print(sum(not name.startswith("_") for name in dir(torcheer)))
"""


def measures(root: Path) -> dict[str, object]:
    """All figures of one checkout."""
    files = {path: path.read_text(encoding="utf-8") for path in sorted((root / "src").rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in files.items()}
    lines = {path: text.count("\n") for path, text in files.items()}
    env = {**os.environ, "PYTHONPATH": str(root / "src")}
    said = subprocess.run([sys.executable, "-c", LOOKUP], capture_output=True, text=True, env=env, cwd=root / "src", check=True)
    looked_through, public = said.stdout.split()
    contract = (root / "pyproject.toml").read_text(encoding="utf-8").split("layers = [")[1].split("]")[0]
    importers = _importers(trees, root / "src")
    return {
        "lines of Python under src": sum(lines.values()),
        "files": len(files),
        "files under 40 lines": sum(count < 40 for count in lines.values()),
        "files with a single importer": sum(len(found) == 1 for found in importers.values()),
        "lines before each file's first statement": sum(_first_statement(tree) - 1 for tree in trees.values()),
        "layers in the import contract": contract.count('",'),
        "imports from other folders into the inside of capture": _into_capture(trees, root / "src"),
        "reaches into `_run`, `_log` and `_index` from other folders": _reaches(trees, root / "src"),
        "files that a lookup runs through": int(looked_through),
        "public names of torcheer": int(public),
        "lines of tests": sum(path.read_text(encoding="utf-8").count("\n") for path in (root / "tests").rglob("*.py")),
    }


def _first_statement(tree: ast.Module) -> int:
    """The line of the first statement that is no docstring and no import."""
    for node in tree.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        checks_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not (is_text or checks_types or isinstance(node, (ast.Import, ast.ImportFrom))):
            return node.lineno
    return 1


def _imported(tree: ast.Module, path: Path, src: Path) -> list[str]:
    """Dotted names that a file imports from the packages of `src`, with the names taken from them."""
    package = path.relative_to(src).parent.parts
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            parts = [*above, *(node.module.split(".") if node.module else ())]
            found += [".".join([*parts, name.name]) for name in node.names]
    return found


def _importers(trees: dict[Path, ast.Module], src: Path) -> dict[Path, set[Path]]:
    """For each file that is no `__init__`, the files that import it or a name from it."""
    by_name = {".".join(path.relative_to(src).with_suffix("").parts): path for path in trees if path.stem != "__init__"}
    found: dict[Path, set[Path]] = defaultdict(set)
    for path, tree in trees.items():
        for name in _imported(tree, path, src):
            target = by_name.get(name) or by_name.get(name.rpartition(".")[0])
            if target is not None and target != path:
                found[target].add(path)
    return found


def _into_capture(trees: dict[Path, ast.Module], src: Path) -> int:
    """Imports of files outside capture from a file inside it, instead of from `torcheer.capture`."""
    inside = src / "torcheer" / "capture"
    folders = [path for path in trees if inside in path.parents]
    modules = {".".join(path.relative_to(src).with_suffix("").parts) for path in folders}
    return sum(
        name.rpartition(".")[0] in modules or name in modules
        for path, tree in trees.items()
        if path not in folders
        for name in _imported(tree, path, src)
    )


def _reaches(trees: dict[Path, ast.Module], src: Path) -> int:
    """Reads of `._log` and `._index` of another object, and of `._run` of a history, outside history/ and log/."""
    inside = (src / "torcheer" / "history", src / "torcheer" / "log")
    found = 0
    for path, tree in trees.items():
        if any(folder in path.parents for folder in inside) or path.name == "model_history.py":
            continue
        for node in ast.walk(tree):
            owner = ast.unparse(node.value) if isinstance(node, ast.Attribute) else "self"
            found += owner != "self" and (node.attr in ("_log", "_index") or (node.attr == "_run" and "history" in owner))
    return found


def main(folders: list[str]) -> None:
    """Print one column for each checkout."""
    columns = [measures(Path(folder).resolve()) for folder in folders or ["."]]
    print("| figure |" + "".join(f" {Path(folder).name or 'here'} |" for folder in folders or ["."]))
    print("| --- |" + " --- |" * len(columns))
    for name in columns[0]:
        print(f"| {name} |" + "".join(f" {column[name]:,} |" for column in columns))


if __name__ == "__main__":
    main(sys.argv[1:])
