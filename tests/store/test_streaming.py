"""`save_to` writes what is kept as it is made: memory stays bounded, and a pass that is interrupted leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import torcheer
from forked import start_a_copy
from models import Branching, Convolutional, Mlp, Stateful
from saved_equality import tensor_differences
from torcheer._files.files import WholeFile
from torcheer._files.tensor_files import PinnedCopies, TensorFile, TensorWriter
from torcheer.errors import InvalidArgument


@pytest.mark.parametrize(
    ("model", "shape"), [(Mlp, (2, 4)), (Convolutional, (2, 3, 8, 8)), (Branching, (2, 4)), (Stateful, (2, 3))]
)
@pytest.mark.parametrize("mode", ["plain", "no_grad", "inference"])
def test_what_is_streamed_is_what_is_kept(model, shape, mode, tmp_path):
    made, x = model(), torch.rand(shape)
    path = tmp_path / "run.safetensors"
    with {"plain": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}[mode]():
        kept = torcheer.log_forward_pass(made, x, random_seed=1)
        streamed = torcheer.log_forward_pass(made, x, random_seed=1, save_to=path)
    assert streamed.layer_labels == kept.layer_labels
    assert tensor_differences(kept, streamed) == []
    assert os.listdir(tmp_path) == [path.name]
    assert streamed.validate()
    labels = {one.layer_label_w_pass for one in kept.operations}
    assert {name for name in load_file(path) if "/" not in name} <= labels


@pytest.mark.parametrize("wanted", ["none", "modules", "fc1", ["tanh_1", -1], [nn.ReLU], lambda one: one.layer_type == "relu"])
def test_what_is_not_wanted_is_not_in_the_file(wanted, tmp_path):
    model, x = Mlp(), torch.rand(2, 4)
    kept = torcheer.log_forward_pass(model, x, layers_to_save=wanted)
    streamed = torcheer.log_forward_pass(model, x, layers_to_save=wanted, save_to=tmp_path / "run.safetensors")
    assert [one.label for one in streamed.saved] == [one.label for one in kept.saved]
    for ours, theirs in zip(kept.saved, streamed.saved, strict=True):
        assert torch.equal(ours.activation, theirs.activation)
        assert str(ours.creation_args) == str(theirs.creation_args)
    labels = {one.layer_label_w_pass for one in kept.saved}
    stored = {name for name in load_file(tmp_path / "run.safetensors") if "/" not in name}
    assert stored <= labels


def test_memory_that_is_written_to_again_is_written_to_the_file_again(tmp_path):
    """Also by writes that torch does not count, and through other views."""

    def writes(x):
        y = x * 2
        first = y[:1]
        y.data.add_(1)
        second = y[:1]
        second[0, 0] = 7
        return first, second, y.t(), y

    kept = torcheer.log_forward_pass(writes, torch.rand(3, 4))
    streamed = torcheer.log_forward_pass(writes, kept["input"].activation, save_to=tmp_path / "run.safetensors")
    for ours, theirs in zip(kept.operations, streamed.operations, strict=True):
        assert torch.equal(ours.activation, theirs.activation), ours.label


def test_what_runs_inside_a_transform_is_streamed_too(tmp_path):
    def transformed(x):
        slope = torch.func.grad(lambda row: (torch.sin(row).t() @ row).sum())
        return torch.func.vmap(slope)(x) + torch.func.vmap(lambda row: row[::2].t().sum())(x)[:, None, None]

    x = torch.rand(3, 4, 4)
    kept = torcheer.log_forward_pass(transformed, x)
    streamed = torcheer.log_forward_pass(transformed, x, save_to=tmp_path / "run.safetensors")
    for ours, theirs in zip(kept.operations, streamed.operations, strict=True):
        assert torch.equal(ours.activation, theirs.activation), ours.label
    assert tensor_differences(kept, torcheer.load(kept.save(tmp_path / "kept.safetensors"))) == []


def test_views_of_what_is_in_the_file_take_no_room(tmp_path):
    def views(x):
        y = x * 2
        return y.t(), y[5:], y.reshape(-1), y.expand(10, 100, 100), y.unsqueeze(0)

    torcheer.log_forward_pass(views, torch.rand(100, 100), save_to=tmp_path / "run.safetensors")
    assert (tmp_path / "run.safetensors").stat().st_size < 2 * 40_000 + 300_000
    with safe_open(tmp_path / "run.safetensors", "pt") as file:
        views = json.loads(file.metadata()["layout"])["views"]
    assert views["t_1_2:1"] == {"of": "mul_1_1:1", "offset": 0, "shape": [100, 100], "strides": [1, 100]}


def test_options_that_do_not_go_together_are_told(tmp_path):
    with pytest.raises(InvalidArgument, match="gradients come later"):
        torcheer.log_forward_pass(Mlp(), torch.rand(2, 4), save_to=tmp_path / "x.safetensors", save_gradients=True)
    assert os.listdir(tmp_path) == []
    history = torcheer.log_forward_pass(
        Mlp(), torch.rand(2, 4), save_to=tmp_path / "x.safetensors", activation_postfunc=lambda tensor: tensor.mean()
    )
    assert history["fc1"].activation.shape == ()


class Boom(Exception):
    """Raised by a model."""


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
def test_a_pass_that_is_interrupted_leaves_what_was_there(error, tmp_path):
    def fails(x):
        y = torch.relu(x)
        raise error(str(y.shape))

    path = tmp_path / "run.safetensors"
    path.write_bytes(b"what was there")
    with pytest.raises(error) as raised:
        torcheer.log_forward_pass(fails, torch.rand(100, 100), save_to=path)
    assert path.read_bytes() == b"what was there"
    assert os.listdir(tmp_path) == [path.name]
    partial = raised.value.history
    assert partial.layer_labels == ["input_1_0", "relu_1_1"]
    with pytest.raises(torcheer.ActivationNotSaved):
        _ = partial["relu"].activation


def test_a_process_that_is_killed_leaves_nothing(tmp_path):
    def waits(x):
        y = torch.relu(x)
        print("running")
        time.sleep(60)
        return y

    x = torch.rand(1000, 1000)
    running, said = start_a_copy(lambda: torcheer.log_forward_pass(waits, x, save_to=tmp_path / "run.safetensors"))
    with said:
        assert said.readline() == "running\n"
        os.kill(running, signal.SIGKILL)
        os.waitpid(running, 0)
    assert os.listdir(tmp_path) == []


# The file itself -------------------------------------------------------------------------------------------------------------


def written(path, tensors, room, names=None):
    with WholeFile(path) as file, torch.no_grad():
        writer = TensorWriter(file, room)
        places = [writer.add(tensor) for tensor in tensors]
        named = {f"tensor {number}": places[number] for number in names or range(len(tensors))}
        writer.finish(named, {"about": "x" * 3000})
    return named


@pytest.mark.parametrize("room", [0, 64, 1000, 4000, 100_000])
@pytest.mark.parametrize("size", [0, 1, 7, 1000, 3_000_000])
def test_a_header_that_needs_more_room_gets_it(room, size, tmp_path):
    tensors = [torch.rand(size), torch.arange(5), torch.rand(3, size + 1), torch.rand(17) > 0.5, torch.rand(40)]
    written(tmp_path / "x.safetensors", tensors, room)
    ours = TensorFile(tmp_path / "x.safetensors")
    theirs = load_file(tmp_path / "x.safetensors")
    for number, tensor in enumerate(tensors):
        assert torch.equal(ours.tensor(f"tensor {number}"), tensor)
        assert torch.equal(theirs[f"tensor {number}"], tensor)


@pytest.mark.parametrize("names", [[0], [4], [1, 3], [0, 2, 4], [2]])
@pytest.mark.parametrize("room", [0, 10_000])
def test_what_has_no_name_is_cut_out(names, room, tmp_path):
    tensors = [torch.rand(300), torch.arange(5), torch.rand(9000, 100), torch.rand(17) > 0.5, torch.rand(40)]
    written(tmp_path / "x.safetensors", tensors, room, names)
    theirs = load_file(tmp_path / "x.safetensors")
    assert sorted(theirs) == [f"tensor {number}" for number in names]
    assert all(torch.equal(theirs[f"tensor {number}"], tensors[number]) for number in names)
    kept = sum(tensors[number].nbytes for number in names)
    assert (tmp_path / "x.safetensors").stat().st_size < kept + 20_000


@pytest.mark.parametrize("system", ["as it is", "no files without a name", "no names for them"])
def test_a_file_is_whole_on_any_system(system, tmp_path, monkeypatch):
    path = tmp_path / "x.bin"
    path.write_bytes(b"before")

    def fails(*_, **__):
        raise OSError(18, "Invalid cross-device link")

    if system == "no files without a name":
        monkeypatch.setattr("torcheer._files.files._ANONYMOUS", 0)
    elif system == "no names for them":
        monkeypatch.setattr("torcheer._files.files.os.link", fails)
    with WholeFile(path) as file:
        file.write(b"after")
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    with pytest.raises(ZeroDivisionError), WholeFile(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"after"
    assert os.listdir(tmp_path) == ["x.bin"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_pinned_buffers_are_written_in_order(tmp_path):
    """What a GPU's tensors go through; here with tensors in main memory."""
    tensors = [torch.rand(7, 3), torch.arange(100), torch.rand(50) > 0.5] * 5
    with WholeFile(tmp_path / "x") as file:
        pinned = PinnedCopies(file, 1000)
        place = 0
        for tensor in tensors:
            pinned.write(tensor, place)
            place += tensor.nbytes
        pinned.close()
    expected = b"".join(tensor.numpy().tobytes() for tensor in tensors)
    assert (tmp_path / "x").read_bytes() == expected


def test_what_goes_wrong_behind_the_pass_is_raised(tmp_path):
    with pytest.raises(OSError, match="the history cannot be written"), WholeFile(tmp_path / "x", "history") as file:
        os.close(file._handle)
        pinned = PinnedCopies(file, 1000)
        try:
            pinned.write(torch.rand(3), 0)
            pinned.close()
        finally:
            file._handle = os.open(tmp_path, os.O_RDONLY)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("waits_in", ["write", "close"])
def test_a_disk_that_does_not_answer_is_given_up(tmp_path, monkeypatch, waits_in):
    """The error says so; what is written when the disk answers again goes nowhere, whatever file has the number then."""
    monkeypatch.setattr("torcheer._files.tensor_files._LIMIT", 0.1)
    answers, write_at = threading.Event(), WholeFile.write_at

    def waits(self, *args):
        assert answers.wait(300)
        write_at(self, *args)

    monkeypatch.setattr(WholeFile, "write_at", waits)
    with pytest.raises(OSError, match=r"accepted no data for 0\.1 s"), WholeFile(tmp_path / "x") as file:
        pinned = PinnedCopies(file, 1000)
        for _ in range(3 if waits_in == "write" else 1):
            pinned.write(torch.ones(8, dtype=torch.uint8), 0)
        pinned.close()
    with open(tmp_path / "other", "wb+"):  # has the number of the handle
        answers.set()
        with contextlib.suppress(OSError):
            pinned.close()
        pinned._thread.join(300)
    assert not pinned._thread.is_alive()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("other", b"")]


def test_a_new_file_gets_its_name_at_once_so_that_a_kill_leaves_no_other(tmp_path, monkeypatch):
    """Only a file that is there already is replaced by way of another name."""
    names = []
    link = os.link
    monkeypatch.setattr(
        "torcheer._files.files.os.link",
        lambda source, name, **options: (names.append(os.path.basename(name)), link(source, name, **options)),
    )
    for content in (b"first", b"second"):
        with WholeFile(tmp_path / "x") as file:
            file.write(content)
        assert (tmp_path / "x").read_bytes() == content
        assert [path.name for path in tmp_path.iterdir()] == ["x"]
    if names:  # the file system makes files without a name
        assert names[:2] == ["x", "x"]
        assert names[2].startswith(".x.")


class Marked(torch.Tensor):
    """A class of the user's own, which no file can give back."""


def test_what_cannot_be_streamed_is_named_also_inside_an_operator(tmp_path):
    with pytest.raises(torcheer.CannotBeSaved, match="Marked"):
        torcheer.log_forward_pass(
            lambda t: (t + 1).as_subclass(Marked) * 2, torch.rand(3), save_to=tmp_path / "run.safetensors"
        )
    assert list(tmp_path.iterdir()) == []


def test_an_uninitialised_model_is_not_the_one_a_history_is_of(tmp_path):
    model, given = nn.Sequential(nn.LazyLinear(5)), torch.rand(3, 4)
    history = torcheer.log_forward_pass(model, given)
    with pytest.raises(torcheer.ModelMismatch, match=r"'0\.weight' is uninitialised"):
        torcheer.load(history.save(tmp_path / "run.safetensors"), model=model)
