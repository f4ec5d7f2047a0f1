"""What tests of the commands share: a module in the folder that a command runs in, and a command that is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from torcheer.cli import main


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """Writes a module, of a name and a source, into an empty working folder, which it returns."""
    written = []

    def write(name: str, source: str) -> Path:
        written.append(name)
        (tmp_path / f"{name}.py").write_text(source)
        return tmp_path

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[[Sequence[str]], str]:
    """Runs a command that has to exit with 2, and returns what it wrote to stderr."""

    def run(arguments: Sequence[str]) -> str:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        return capsys.readouterr().err

    return run
