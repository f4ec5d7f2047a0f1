"""Firefox for tests of pages, driven by Marionette, the remote control every Firefox has: JSON over a socket."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FIREFOXES = ("firefox-esr", "firefox")
_LIMIT = 300  # seconds: a busy machine is slow


def firefox_path() -> str | None:
    """A Firefox that is installed, if any."""
    return next((found for name in FIREFOXES if (found := shutil.which(name))), None)


class Firefox:
    """A headless Firefox with one window."""

    def __init__(self, path: str, profile: Path) -> None:
        port = _free_port()
        (profile / "user.js").write_text(
            f'user_pref("marionette.port", {port});\nuser_pref("ui.prefersReducedMotion", 1);\n', encoding="utf-8"
        )
        arguments = ["--marionette", "--headless", "--no-remote", "--profile", str(profile)]
        self._process = subprocess.Popen([path, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self._socket = self._connected(port)
            self._sent = 0
            self._message()  # who is there
            self.command("WebDriver:NewSession")
        except BaseException:
            self._process.kill()
            raise

    def _connected(self, port: int) -> socket.socket:
        end = time.monotonic() + _LIMIT
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=_LIMIT)
            except OSError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise
                time.sleep(0.2)

    def _message(self) -> Any:
        length = b""
        while not length.endswith(b":"):
            length += self._socket.recv(1)
        rest = b""
        while len(rest) < int(length[:-1]):
            rest += self._socket.recv(int(length[:-1]) - len(rest))
        return json.loads(rest)

    def command(self, name: str, **arguments: Any) -> Any:
        """What Firefox answers to a command; an error of its own is raised."""
        self._sent += 1
        text = json.dumps([0, self._sent, name, arguments]).encode()
        self._socket.sendall(f"{len(text)}:".encode() + text)
        _, _, error, answer = self._message()
        assert error is None, error
        return answer.get("value", answer) if isinstance(answer, dict) else answer

    def open(self, path: Path, size: tuple[int, int]) -> None:
        """A page from a file, in a window of some size."""
        self.command("WebDriver:SetWindowRect", width=size[0], height=size[1])
        self.command("WebDriver:Navigate", url=path.as_uri())

    def ask(self, expression: str) -> Any:
        """The value of an expression, in which `page` is the window."""
        script = f"const page = window.wrappedJSObject ?? window; return JSON.stringify({expression});"
        found = self.command("WebDriver:ExecuteScript", script=script, args=[])
        return json.loads(found) if found is not None else None

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + _LIMIT
        while not self.ask(expression):
            assert time.monotonic() < end, f"never came true: {expression}"
            time.sleep(0.05)

    def click(self, x: float, y: float) -> None:
        """A click with the mouse."""
        moves = [
            {"type": "pointerMove", "x": round(x), "y": round(y)},
            *({"type": f"pointer{way}", "button": 0} for way in ("Down", "Up")),
        ]
        self.command("WebDriver:PerformActions", actions=[{"type": "pointer", "id": "mouse", "actions": moves}])

    def press(self, key: str) -> None:
        """A key, pressed and let go."""
        moves = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.command("WebDriver:PerformActions", actions=[{"type": "key", "id": "keys", "actions": moves}])

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(_LIMIT)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    """A running Firefox. Where there is none, the tests that need it are skipped by name."""
    path = firefox_path()
    if path is None:
        pytest.skip(f"tests in Firefox: there is none: install one of {', '.join(FIREFOXES)}.")
    running = Firefox(path, tmp_path_factory.mktemp("profile"))
    yield running
    running.close()
