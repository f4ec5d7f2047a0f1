"""A browser for the tests of pages that are opened from a file: headless, offline, and strict about errors and requests."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
IS_READY = "Boolean(window.__torcheer) && !__torcheer.isBusy()"
PATIENCE = 300  # seconds: a busy machine is slow
_LOCAL = ("file:", "data:", "blob:", "about:")


def browser_path() -> str | None:
    """A Chromium or Chrome that is installed, if any."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


@contextmanager
def running_browser(environment: dict[str, str] | None = None) -> Iterator[Browser]:
    """A running browser, also with other variables in its environment.

    Without one the tests that need it are skipped by name; with CI=true they fail.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _go_without("Playwright is not installed: pip install playwright")
    path = browser_path()
    if path is None:
        _go_without(f"there is no browser: install one of {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        variables: dict[str, str | float | bool] = {**os.environ, **(environment or {})}
        # A frame without an origin runs in the process of its page: Playwright may miss one that has a process of its own.
        arguments = ["--no-sandbox", "--disable-features=IsolateSandboxedIframes"]
        running = playwright.chromium.launch(executable_path=path, args=arguments, env=variables, timeout=1000 * PATIENCE)
        yield running
        running.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A running browser for all tests of a file."""
    with running_browser() as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An offline page. The test fails on any error in the page, and on any request that leaves file:, data: and blob:."""
    context = browser.new_context(offline=True, viewport={"width": 1400, "height": 900})
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(f"error in the page: {error}"))
    page.on("console", lambda said: trouble.append(f"console: {said.text}") if said.type == "error" else None)
    page.on("request", lambda asked: None if asked.url.startswith(_LOCAL) else trouble.append(f"request: {asked.url:.200}"))
    yield page
    page.wait_for_timeout(20)  # what is under way may still fail
    context.close()
    assert not trouble, "\n".join(trouble)


def until(page: Page, condition: str = IS_READY) -> None:
    """Wait for something; the policy of our pages does not let Playwright do it."""
    end = time.monotonic() + PATIENCE
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"never came true: {condition}"
        page.wait_for_timeout(20)


def _go_without(reason: str) -> NoReturn:
    """Skip, or fail where every test has to run."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"with CI=true the browser tests have to run, but {reason}.")
    pytest.skip(f"browser tests: {reason}.")
