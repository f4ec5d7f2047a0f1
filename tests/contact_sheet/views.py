"""The page in use: details, left to right, shapes on edges, figures of one's own, two models, the width of a notebook, dark."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import torcheer
from torcheer.demo import AlexNet

from .sheet import Sheet

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

GROUP = "The page in use"
LAPTOP = (1440, 900)


def pressed(*keys: str) -> Callable[[Page], None]:
    """Presses keys, one after the other."""

    def act(page: Page) -> None:
        for key in keys:
            page.keyboard.press(key)
            page.wait_for_timeout(300)

    return act


def values_of_a_parameter(page: Page) -> None:
    page.locator(".params summary").first.click()
    page.locator(".params").scroll_into_view_if_needed()


def shapes_on_edges(page: Page) -> None:
    page.keyboard.press("o")
    page.get_by_label("What is written on the boxes").click()
    page.get_by_label("Shapes on edges").check()
    page.keyboard.press("Escape")
    page.get_by_label("Colour by").select_option(label="my norm")
    page.mouse.click(640, 500)


def parameters_that_differ(page: Page) -> None:
    page.get_by_role("button", name="Show: Parameters").click()


def add_to(sheet: Sheet, only: str = "") -> None:
    """Take the pictures."""
    torch.manual_seed(0)
    model, x = AlexNet(num_classes=10).eval(), torch.rand(1, 3, 64, 64)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.features[3].weight.mul_(1.1)
    history = torcheer.log_forward_pass(model, x)
    with tempfile.TemporaryDirectory() as folder:
        page = history.to_html(Path(folder) / "page.html", metrics={"my norm": lambda tensor: tensor.norm()})
        both = history.to_html(Path(folder) / "both.html", compare=torcheer.log_forward_pass(other, x))
        shots: list[tuple[str, Path, str, tuple[int, int], Callable[[Page], None] | None]] = [
            ("One level more", page, "", LAPTOP, pressed("o")),
            ("Left to right", page, "", LAPTOP, pressed("h")),
            ("Values of a parameter", page, "#node=conv2d_2_4:1", LAPTOP, values_of_a_parameter),
            ("Shapes on edges, a figure of one's own", page, "", LAPTOP, shapes_on_edges),
            ("Two models", both, "", LAPTOP, parameters_that_differ),
            ("At the width of a notebook", page, "", (900, 640), None),
            ("Dark", page, "", LAPTOP, pressed("g", "o")),
            ("Table", page, "", LAPTOP, pressed("t")),
            ("Help", page, "", LAPTOP, pressed("?")),
        ]
        for title, file, place, size, act in shots:
            if only in title.lower():
                sheet.shoot(file, GROUP, title, size, act, place=place)
