"""Folders of features and of Xray runs as strangers may send them: `python tests/hostile_folders.py features 300`.

A folder that torcheer wrote is damaged in one to three places, by a seeded generator. Each is then used in a copy of this
process, with little memory and little time: there is a right answer, or an error of ours.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torcheer as tl
from forked import run_in_a_copy
from torcheer.errors import TorcheerError
from torcheer.reducers import Covariance, Histogram, Mean, TopK

MEMORY = 3 << 29  # bytes that a copy may add to what this process has
SECONDS = 20  # of a copy's own time, which a busy machine does not make longer
LONGEST = 300  # seconds of the clock
ODD = [
    -1,
    0,
    1,
    7,
    2**31,
    2**53,
    2**61,
    2**63,
    2**64,
    10**30,
    1e308,
    -1e308,
    0.5,
    True,
    None,
    "",
    "x",
    "../../etc/passwd",
    "²²²",
]
ODD += [[], {}, [[]], [1, 2], {"a": 1}, "1" * 5000, float("nan"), float("inf"), [[0, 1]] * 3, ["torch.load"]]


class Reads(torch.nn.Module):
    """Two layers, one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def samples() -> list[tuple[torch.Tensor, torch.Tensor, list[str]]]:
    torch.manual_seed(1)
    return [(torch.rand(8, 4), torch.arange(8), [f"s{at}-{one}" for one in range(8)]) for at in range(12)]


def call(model: torch.nn.Module, batch: Any) -> Any:
    return model(batch[0])


def extract(folder: Path) -> tl.Features:
    keep = {"second": [Mean(), TopK(3), Histogram(), Covariance(), "activations"]}
    return tl.extract(
        Reads().eval(), samples(), ["first", "second"], folder, keep=keep, ids=2, call=call, block=24, progress=False
    )


def train(folder: Path, steps: int = 4, **options: Any) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(108, 5))
    with tl.Xray(model, torch.rand(2, 1, 8, 8), ["0", "3"], folder=folder, **options) as xray:
        for step in range(steps):
            model(torch.rand(2, 1, 8, 8)).square().mean().backward()
            xray.take_graphs(step, metrics={"loss": float(step)})


def use_features(folder: Path) -> None:
    """Everything that a reader does."""
    attempts: list[Callable[[], Any]] = []
    features = tl.open_features(folder)
    attempts += [lambda: repr(features), lambda: features.samples, lambda: features.ids, lambda: features.labels]
    attempts += [lambda: features.missing, lambda: features.is_complete, lambda: features.size_on_disk, features.refresh]
    attempts += [lambda: features.tokens, features.version]
    for name in list(features)[:5]:
        layer = features[name]
        attempts += [lambda layer=layer: repr(layer), lambda layer=layer: layer[:], lambda layer=layer: layer[[0, -1, 3]]]
        attempts += [lambda layer=layer: layer[5], lambda layer=layer: torch.as_tensor(layer.pad())]
    for name in list(features.plan.layers)[:5]:
        for kind in ("mean", "covariance", "histogram"):
            attempts.append(lambda kind=kind, name=name: getattr(features, kind)(name))
        attempts.append(lambda name=name: features.top(name, unit=0))
    answers(attempts)


def resume_features(folder: Path) -> None:
    extract(folder)


def use_run(folder: Path) -> None:
    xray = tl.Xray.open(folder)
    run = xray.run
    attempts = [lambda: str(xray.saved()), lambda: repr(xray), lambda: list(run.snapshots), lambda: run.layers]
    attempts += [
        lambda: [
            list(run.pictures(layer, kind, run.having(layer, kind))) for layer in run.layers[:3] for kind in run.kinds(layer)
        ]
    ]
    attempts += [lambda: xray.gif(run.layers[0], "weight", io_path("a.gif")), lambda: xray.report(io_path("a.html"))]
    attempts += [lambda: xray.strip(run.layers[0], "weight", io_path("a.png")), lambda: xray.show("0", "weight")]
    answers(attempts)


def resume_run(folder: Path) -> None:
    train(folder, 1, resume=True)


def io_path(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"torcheer-{os.getpid()}-{name}"


def answers(attempts: list[Callable[[], Any]]) -> None:
    """Each gives something or raises an error of ours."""
    for attempt in attempts:
        with contextlib.suppress(TorcheerError, IndexError):
            attempt()


USES = {"features": (extract, [use_features, resume_features]), "xray": (train, [use_run, resume_run])}


def odd_json(value: Any, draw: random.Random) -> Any:
    """A value of JSON, changed in one place."""
    if isinstance(value, (dict, list)) and value and draw.random() < 0.9:
        key = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
        kind = draw.choice(["deeper"] * 8 + ["gone", "twice", "deep"])
        value = value.copy()
        if kind == "gone":
            del value[key]
        elif kind == "twice":
            value = {**value, f"{key} ": value[key]} if isinstance(value, dict) else value + value
        elif kind == "deep":
            for _ in range(draw.choice([5, 500])):
                value[key] = [value[key]]
        else:
            value[key] = odd_json(value[key], draw)
        return value
    if type(value) is int and draw.random() < 0.4:
        return value + draw.choice([-1, 1, 1000, -value - 1, 2**40])
    return draw.choice(ODD)


def change_json(path: Path, draw: random.Random) -> None:
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    at = draw.randrange(len(lines))
    lines[at] = json.dumps(odd_json(json.loads(lines[at]), draw))
    path.write_text("\n".join(lines) + "\n" * (path.suffix == ".jsonl"))


def change_header(path: Path, draw: random.Random) -> None:
    """Another header of a file of tensors, its data unchanged."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    if draw.random() < 0.5 and "snapshot" in header.get("__metadata__", {}):
        header["__metadata__"]["snapshot"] = json.dumps(odd_json(json.loads(header["__metadata__"]["snapshot"]), draw))
    elif draw.random() < 0.3:
        names = [name for name in header if name != "__metadata__"]
        one = draw.choice(names)
        header[draw.choice([f"{one}0", "²²²", "layers/first#²", "layers/first#9", "0.0.x", one.upper()])] = header.pop(one)
    else:
        names = [name for name in header if name != "__metadata__" or draw.random() < 0.2] or list(header)
        one = draw.choice(names)
        kind = draw.choice(["any", "shape", "dtype", "empty"])
        if one == "__metadata__" or kind == "any":
            header = odd_json(header, draw)
        elif kind == "shape":
            count = 1
            for size in header[one]["shape"]:
                count *= size
            header[one]["shape"] = draw.choice(
                [[count], [1] * 30 + [count], [count, 1], [1, count], [0, 2**40], [count, 2**39, 0]]
            )
        elif kind == "dtype":
            header[one]["dtype"] = draw.choice(["F32", "I32", "U32", "F16", "BF16", "I64", "BOOL", "C64", "F8_E4M3"])
        else:
            begin = header[one]["data_offsets"][0]
            header[one].update(
                shape=draw.choice([[0], [0, 2**40], [2**40, 0], [2**40] * 20 + [0]]), data_offsets=[begin, begin]
            )
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def change_bytes(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 6)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    path.write_bytes(data)


def cut(path: Path, draw: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(len(data))])


def put_in_its_place(path: Path, draw: random.Random) -> None:
    """Something that is no ordinary file, or no file that fits into memory."""
    kind = draw.choice(
        ["pipe", "socket", "folder", "loop", "zero", "null", "nowhere", "terminal", "sparse", "header", "gone", "itself"]
    )
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
        os.chdir(here)
    elif kind == "folder":
        path.mkdir()
        (path / "x").write_text("x")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "itself":
        path.symlink_to(path.parent)
    elif kind in ("sparse", "header"):
        with path.open("wb") as file:
            file.write((2**40 if kind == "header" else 90_000_000).to_bytes(8, "little"))
            file.truncate(1 << 38)
    elif kind != "gone":
        path.symlink_to({"zero": "/dev/zero", "null": "/dev/null", "terminal": "/dev/tty", "nowhere": "/nowhere/x"}[kind])


NAMES = [
    *("²²².safetensors", "٣٣٣٣٣٣٣٣.safetensors", "99999999999999999999.safetensors", "0000000000000001.safetensors"),
    *("block-²²²²²²²²-000000000000-000000024.safetensors", "block-999999999999-000000000000-000000024.safetensors"),
    *("block-00000000-999999999999999-999999999999.safetensors", "block-٠٠٠٠٠٠٠٠-000000000000-000000024.safetensors"),
    *("reduced-40-99999999.safetensors", "reduced-40-999999999999.safetensors", "reduced-00-00000000.safetensors"),
    *("reduced-٤٠-٩٩٩٩٩٩٩٩.safetensors", "00000003.safetensors", "000000000000007.safetensors", "999999999999999.safetensors"),
    *("index.jsonl", "end.json", "\udcff", "x" * 200),
]


def rename(path: Path, draw: random.Random) -> None:
    name = draw.choice(NAMES)
    target = path.parent / name
    if draw.random() < 0.5 and not target.is_dir():
        shutil.copyfile(path, target)
    elif not target.exists():
        path.rename(target)


def repeat_lines(path: Path, draw: random.Random) -> None:
    if path.suffix == ".jsonl":
        path.write_text(path.read_text() * draw.choice([2, 1000]))
    else:
        path.write_bytes(path.read_bytes() + b"\0" * draw.choice([1, 1 << 20]))


def claim(path: Path, draw: random.Random) -> None:
    """A small file that says much."""
    text = draw.choice(
        [
            *('{"blocks": 2305843009213693952, "samples": 2305843009213693952}', '{"blocks": 3, "samples": 1}', "[" * 200_000),
            *('{"a":' * 100_000, '"' + "x" * 1_000_000, "9" * 1_000_000, "[" + "1," * 2_000_000 + "1]", "\n" * 3_000_000),
        ]
    )
    path.write_text(text)


def replace_a_folder(folder: Path, draw: random.Random) -> str:
    """Something else than a folder, or the lock of a run, which are beside the files that say what is there."""
    name = draw.choice(["snapshots", "figures", "writer.lock"])
    path = folder / name
    if path.is_dir():
        shutil.rmtree(path)
    path.touch()
    put_in_its_place(path, draw)
    return f"replace {name}"


def damage(folder: Path, draw: random.Random) -> str:
    """Damage a folder. Returns in words what was done."""
    said = []
    if (folder / "run.json").exists() and draw.random() < 0.15:
        said.append(replace_a_folder(folder, draw))
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size)
        files = [path for path in files if path.suffix in (".json", ".jsonl", ".safetensors") and path.stat().st_size < 1 << 24]
        if not files:
            break
        path = draw.choice(files)
        fitting = change_header if path.suffix == ".safetensors" else change_json
        how = draw.choice(
            [fitting] * 5 + [change_bytes, cut, put_in_its_place, put_in_its_place, put_in_its_place, rename, rename]
        )
        how = draw.choice([how] * 8 + [repeat_lines, claim])
        with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):  # it is damaged already
            how(path, draw)
        said.append(f"{how.__name__} {path.relative_to(folder)}")
    return ", ".join(said)


def limited(use: Callable[[Path], None], folder: Path) -> None:
    """Use a folder with little memory and time. What is raised and is no error of ours is printed by `run_in_a_copy`."""
    here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (here + MEMORY, here + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    faulthandler.enable()
    signal.signal(signal.SIGXCPU, _too_long)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LONGEST)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            use(folder)
    except TorcheerError as error:
        print(f"refused: {type(error).__name__}: {error}")
    else:
        print("answered")
    finally:
        for left in Path(tempfile.gettempdir()).glob(f"torcheer-{os.getpid()}-*"):
            left.unlink()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 700 << 10, f"{grown >> 10} MiB more memory"


def _too_long(*_: object) -> None:
    traceback.print_stack()
    raise SystemExit("it took too long")


def check(kind: str, numbers: range) -> tuple[Counter[str], list[str]]:
    """Damage and use folders. Returns how often each outcome was, and what went wrong."""
    make, uses = USES[kind]
    outcomes: Counter[str] = Counter()
    wrong = []
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        good = Path(place) / "good"
        make(good)
        for number in numbers:
            for use in uses:
                folder = Path(place) / "damaged"
                shutil.copytree(good, folder)
                said = damage(folder, random.Random(f"{kind} {number}"))
                started = time.perf_counter()
                code, printed = run_in_a_copy(lambda use=use, folder=folder: limited(use, folder))
                outcomes["wrong" if code else printed.split(":")[0].strip()] += 1
                if code:
                    took = time.perf_counter() - started
                    wrong.append(
                        f"{kind} {number}, {use.__name__}, {said}: exit code {code} after {took:.1f} s\n{printed[-3000:]}"
                    )
                shutil.rmtree(folder)
    return outcomes, wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    first, last = (int(one) for one in (sys.argv[2].split("-") if "-" in sys.argv[2] else ("0", sys.argv[2])))
    found, failures = check(sys.argv[1], range(first, last))
    print("\n\n".join(failures))
    print(f"{last - first} folders of {sys.argv[1]}: {dict(found)}")
    sys.exit(bool(failures))
