"""Makes one measurement in a fresh process: `python -m benchmarks.worker speed alexnet torcheer`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from .models import ROOT

_MARK = "measured: "


class MeasurementFailed(Exception):
    """The process ended without a result; the message is the end of what it printed."""


def measure(name: str, *arguments: str | int) -> dict[str, Any]:
    """The result of one measurement, made in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.worker", name, *map(str, arguments)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    last = (done.stderr or done.stdout).strip().splitlines()[-1:]
    raise MeasurementFailed(f"{' '.join(command[2:])}: exit {done.returncode}: {''.join(last)}")


def main() -> None:
    import torch

    from .measurements import MEASUREMENTS

    name, *arguments = sys.argv[1:]
    with torch.no_grad():
        result = MEASUREMENTS[name](*(int(a) if a.isdigit() else a for a in arguments))
    print(_MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
