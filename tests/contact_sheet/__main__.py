"""Makes the contact sheet, `build/contact_sheet/index.html`.

PYTHONPATH=tests python -m contact_sheet [--part pages] [--only gpt]

A part is a module of this package with a function `add_to(sheet, only)`; a new one is added to PARTS.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from playwright.sync_api import sync_playwright

import torchvision_operators
from browser import browser_path

from .sheet import Sheet

PARTS = ("pages", "views", "reports")
FOLDER = Path("build/contact_sheet")


def main() -> None:
    """Make the parts that were asked for, or all."""
    parser = argparse.ArgumentParser(prog="contact_sheet", description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be given several times")
    parser.add_argument("--only", default="", help="only models and pictures with this in their names")
    chosen = parser.parse_args()
    torchvision_operators.declare()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        sheet = Sheet(FOLDER.resolve(), browser)
        for part in chosen.part or PARTS:
            importlib.import_module(f".{part}", __package__).add_to(sheet, chosen.only.lower())
        browser.close()
    print(f"{len(sheet.pictures)} pictures: {sheet.write()}")


if __name__ == "__main__":
    main()
