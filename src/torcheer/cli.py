"""The `torcheer` command."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import torch

from . import __version__
from .api import log_forward_pass
from .demo import AlexNet
from .history import History


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="torcheer", description="See everything a PyTorch model does.")
    parser.add_argument("--version", action="version", version=f"torcheer {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="log AlexNet, print its history and one layer, and write both to files")
    demo.add_argument("--folder", type=Path, default=Path("torcheer_demo"), help="where to write (default: %(default)s)")
    options = parser.parse_args(argv)
    try:
        return run_demo(options.folder)
    except OSError as error:
        parser.exit(2, f"torcheer: cannot write to {options.folder}: {error.strerror or error}\n")


def run_demo(folder: Path) -> int:
    """Log AlexNet and show what there is to see."""
    folder.mkdir(parents=True, exist_ok=True)
    history = log_forward_pass(AlexNet(), torch.rand(1, 3, 224, 224), random_seed=0)
    layer = history["conv2d_3_7"]
    print(history)
    print()
    print(layer)
    text, table = folder / "alexnet.txt", folder / "alexnet.csv"
    text.write_text(f"{history}\n\n{layer}\n", encoding="utf-8")
    write_table(history, table)
    print(f"\nWritten: {text} (what is printed above)\n         {table} (one row per operation)")
    return 0


def write_table(history: History, path: Path) -> None:
    """One row per operation, as comma-separated values."""
    rows = history.to_rows()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    raise SystemExit(main())
