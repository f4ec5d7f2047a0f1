"""What other systems lack or forbid is taken away here, as far as Linux can pretend: everything that writes files still works.

Windows has no `pread`, no files without a name and no `/proc`, and neither renames nor deletes a file that is open or mapped.
macOS has no files without a name and no `/proc`. Not tried anywhere yet: the systems themselves.
"""

from __future__ import annotations

import builtins
import errno
import importlib
import importlib.util
import os
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import torcheer as tl
from torcheer._files import files
from torcheer.features import writer


def held_paths() -> set[str]:
    """The files that this process has open or mapped."""
    found = set()
    for number in real_listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    with real_open("/proc/self/maps") as maps:
        found |= {line.split(maxsplit=5)[-1].strip() for line in maps if "/" in line}
    return found


real_open, real_listdir = builtins.open, os.listdir


@pytest.fixture(params=["Windows", "macOS"])
def system(request, monkeypatch):
    """Takes away what the system lacks, for torcheer's code and what it calls."""
    monkeypatch.setattr(files, "_ANONYMOUS", 0)
    platform = types.SimpleNamespace(platform="win32" if request.param == "Windows" else "darwin")
    monkeypatch.setattr(files, "sys", platform)
    monkeypatch.setattr(writer, "sys", platform)

    def no_proc(path, *args, **kwargs):
        if isinstance(path, str) and path.startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", no_proc)
    if request.param == "macOS":
        return request.param
    for name in ("pread", "pwrite", "posix_fadvise", "setpriority", "fork", "mkfifo"):
        monkeypatch.delattr(os, name, raising=False)

    def not_while_open(function):
        def checked(*paths, **kwargs):
            for path in paths:
                if isinstance(path, (str, os.PathLike)) and os.path.realpath(path) in held_paths():
                    raise PermissionError(errno.EACCES, "The process cannot access the file because it is in use", str(path))
            return function(*paths, **kwargs)

        return checked

    for name in ("replace", "rename", "unlink", "remove"):
        monkeypatch.setattr(os, name, not_while_open(getattr(os, name)))
    return request.param


@pytest.fixture
def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))


def test_a_history_is_saved_replaced_and_loaded(system, net, tmp_path):
    x = torch.rand(2, 3, 8, 8)
    history = tl.log_forward_pass(net, x)
    for _ in range(2):
        history.save(tmp_path / "run.safetensors", params=True)
    loaded = tl.load(tmp_path / "run.safetensors")
    assert torch.equal(loaded["relu_1"].activation, history["relu_1"].activation)
    if system == "Windows":
        with pytest.raises(tl.errors.NotWritten, match="in use"):
            history.save(tmp_path / "run.safetensors")  # `loaded` maps it
        assert [one.name for one in tmp_path.iterdir()] == ["run.safetensors"]
    tl.log_forward_pass(net, x, save_to=tmp_path / "streamed.safetensors")
    assert torch.equal(tl.load(tmp_path / "streamed.safetensors")["conv2d_1"].activation, history["conv2d_1"].activation)


def test_pages_pictures_and_tables_are_written(system, net, tmp_path):
    history = tl.log_forward_pass(net, torch.rand(1, 3, 8, 8))
    for _ in range(2):
        written = (
            history.to_html(tmp_path / "net.html"),
            history.to_csv(tmp_path / "net.csv"),
            history.draw(tmp_path / "net.dot"),
        )
    assert all(written)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["net.csv", "net.dot", "net.html"]


def test_features_are_extracted_and_resumed(system, net, tmp_path):
    data = torch.rand(40, 3, 8, 8)
    net.eval()
    features = tl.extract(net, data, ["relu_1"], to=tmp_path / "features", progress=False)
    again = tl.extract(net, data, ["relu_1"], to=tmp_path / "features", progress=False)
    assert torch.equal(torch.as_tensor(features["relu_1"][:]), torch.as_tensor(again["relu_1"][:]))


def test_a_training_is_watched_and_reported(system, net, tmp_path):
    xray = tl.Xray(net, torch.rand(2, 3, 8, 8), ["0"], folder=tmp_path / "run")
    for step in range(3):
        net(torch.rand(2, 3, 8, 8)).sum().backward()
        xray.take_graphs(step)
    xray.report(tmp_path / "report.html")
    xray.close()
    assert tl.Xray.open(tmp_path / "run").saved()
    assert Path(tmp_path / "report.html").stat().st_size > 10_000


def test_the_lock_of_a_run_uses_what_windows_has(monkeypatch, tmp_path):
    held: dict[int, bool] = {}

    def locking(handle, mode, length):
        if mode == "take" and any(held.values()):
            raise OSError(errno.EACCES, "Permission denied")
        held[handle] = mode == "take"

    stand_in = types.ModuleType("msvcrt")
    stand_in.locking, stand_in.LK_NBLCK, stand_in.LK_UNLCK = locking, "take", "release"
    monkeypatch.setitem(sys.modules, "msvcrt", stand_in)
    monkeypatch.setattr(sys, "platform", "win32")
    name = "torcheer.xray.store_on_windows"
    spec = importlib.util.spec_from_file_location(name, importlib.import_module("torcheer.xray.store").__file__)
    other = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, other)
    spec.loader.exec_module(other)
    with open(tmp_path / "lock", "wb") as one, open(tmp_path / "lock", "rb") as two:
        other.take(one)
        with pytest.raises(OSError, match="Permission denied"):
            other.take(two)
        other.release(one)
        other.take(two)


def test_memory_of_the_process_is_unknown_without_proc(system):
    assert tl.device_memory().process is None
