"""A file from anybody is opened or refused with an error of ours, in bounded time and memory, and nothing in it runs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch
from torch import nn

import torcheer
from models import Mlp
from torcheer.errors import FunctionNotFound, HistoryNotFound, ReplayFailed, UnreadableFile
from torcheer.store.values import Reader

DOCUMENT = "history/document"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path):
    return torcheer.log_forward_pass(Mlp(), torch.rand(2, 4)).save(tmp_path / "run.safetensors", params=True)


def rewrite(path, change=lambda document: None, header=lambda entries: None):
    """Change the document and the header of a file, whose offsets then still fit."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    entries, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    begin, end = entries[DOCUMENT]["data_offsets"]
    document = json.loads(zlib.decompress(body[begin:end]))
    packed = zlib.compress(json.dumps(change(document) or document).encode())
    grown = len(packed) - (end - begin)
    body = body[:begin] + packed + body[end:]
    for name, entry in entries.items():
        if name != "__metadata__":
            entry["data_offsets"] = [one + grown * (one >= end) for one in entry["data_offsets"]]
    entries[DOCUMENT]["shape"] = [len(packed)]
    header(entries)
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def test_broken_files_by_the_dozen():
    """A program of its own, since it watches all that the interpreter does; `make fuzz` opens ten thousand."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))}
    told = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "store" / "fuzz_files.py"), "300"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-3000:]
    assert told.stdout.startswith("300 files: ")


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 100, b"not a file of tensors at all", b"\x02\0\0\0\0\0\0\0{}"])
def test_what_is_no_history_is_told(content, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=r"x\.safetensors' cannot be read as a saved history"):
        torcheer.load(path)


def test_another_file_of_tensors_a_folder_and_a_later_version_are_told(tmp_path, path):
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(UnreadableFile, match=r"history\.save did not write it"):
        torcheer.load(tmp_path / "weights.safetensors")
    with pytest.raises(HistoryNotFound, match="cannot be read"):
        torcheer.load(tmp_path)
    rewrite(path, header=lambda entries: entries["__metadata__"].update(version="2"))
    with pytest.raises(UnreadableFile, match="version '2' of the format, and this torcheer reads version 1"):
        torcheer.load(path)


def test_a_file_that_was_cut_is_told_wherever_it_was_cut(path):
    data = path.read_bytes()
    for length in range(0, len(data), 997):
        path.write_bytes(data[:length])
        with pytest.raises(UnreadableFile):
            torcheer.load(path)


def entry(**changes):
    return lambda entries: entries["linear_1_1:1"].update(changes)


@pytest.mark.parametrize(
    "header",
    [
        entry(data_offsets=[0, 10**12]),
        entry(data_offsets=[-64, 0]),
        entry(data_offsets=[0, 1]),
        entry(data_offsets="all"),
        entry(shape=[10**9, 10**9, 10**9]),
        entry(shape=[-2, -8]),
        entry(shape=[1] * 10_000),
        entry(dtype="F128"),
        lambda entries: entries.update(x=3),
        lambda entries: entries.pop("linear_1_1:1"),
        lambda entries: entries["__metadata__"].update(layout="[" * 100_000),
        lambda entries: entries["__metadata__"].update(layout="{}x"),
        lambda entries: entries["__metadata__"].update(format=["torcheer history"]),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(path, header):
    with pytest.raises(UnreadableFile):
        torcheer.load(rewrite(path, header=header))


@pytest.mark.parametrize(
    "view",
    [
        {"of": "linear_1_1:1", "offset": 10**15, "shape": [2, 3], "strides": [3, 1]},
        {"of": "linear_1_1:1", "offset": 0, "shape": [10**9, 10**9], "strides": [1, 1]},
        {"of": "linear_1_1:1", "offset": 0, "shape": [2, 3], "strides": [-3, 1]},
        {"of": "linear_1_1:1", "offset": 0, "shape": [2, 3], "strides": [3]},
        {"of": "linear_1_1:1", "offset": 0, "shape": [2, 3], "strides": [3, 1], "dtype": "load"},
        {"of": "output_1_5:1"},
        {"of": "tanh_1_4:1"},
        {"of": "nothing"},
        {"of": "../../../etc/passwd", "offset": 0, "shape": [], "strides": []},
    ],
)
def test_a_view_that_leads_nowhere_is_refused_when_it_is_read(path, view):
    """Also one that leads round in a circle."""
    views = {"output_1_5:1": {"of": "tanh_1_4:1"}, "relu_1_2:1": view}

    def header(entries):
        entries["__metadata__"]["layout"] = json.dumps({"views": {**views, "tanh_1_4:1": {"of": "output_1_5:1"}}})

    history = torcheer.load(rewrite(path, header=header))
    with pytest.raises(UnreadableFile, match="damaged at"):
        _ = history["relu" if view["of"] != "tanh_1_4:1" else "tanh"].activation


def test_a_document_that_unpacks_to_much_more_is_refused(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    packed = zlib.compress(b"0," * 200_000_000, 9)
    assert len(packed) < 1_000_000
    entries = {"__metadata__": metadata, DOCUMENT: {"dtype": "U8", "shape": [len(packed)], "data_offsets": [0, len(packed)]}}
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + packed)
    with pytest.raises(UnreadableFile, match="longer than it may be"):
        torcheer.load(path)


def set_in(*steps):
    *path, value = steps

    def change(document):
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return change


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "change",
    [
        set_in("rows", "parents", 3, 10**6),
        set_in("rows", "parents", 0, 4),
        set_in("rows", "function", [0] * 10**6),
        set_in("rows", "started", 0, -1),
        set_in("rows", "elapsed", 0, 2**64),
        set_in("rows", "counts", 0, 10**18),
        set_in("modules", "outer", 0, 0),
        set_in("modules", "outer", 1, 3),
        set_in("modules", "address", 0, 99),
        set_in("first_passes", 1, 3),
        set_in("first_passes", 0, 99),
        set_in("templates", 0, nested(130)),
        set_in("templates", 0, nested(900)),
        set_in("title", {"a": 1}),
        set_in("sites", "frames", 0, -1),
        set_in("facts", 0, [[-5], "float32", "cpu"]),
        set_in("facts", 0, [[5], "load", "cpu"]),
        set_in("facts", 0, [[5], "float32", "os.system"]),
        set_in("random", "states", 0, "torch", "AAAA"),
        set_in("options", "layer_label_format", "{type.__class__}"),
        set_in("options", "keep_orphans", "yes"),
        set_in("states", "registered", 0, 2, False),
        set_in("notes", [[]]),
        set_in("composites", [["a", 0, 0]]),
        set_in("details", [[0, {"held": [[0, 3]]}]]),
        set_in("details", [[0, {"home": 0}]]),
    ],
)
def test_a_document_that_makes_no_sense_is_refused(path, change):
    with pytest.raises(UnreadableFile, match="cannot be read as a saved history"):
        torcheer.load(rewrite(path, change))


@pytest.mark.parametrize("change", [set_in("functions", 1, 0, "kind", 99), set_in("functions", 1, 0, "origin", "nowhere")])
def test_a_function_of_an_unknown_kind_is_told(path, change):
    with pytest.raises(UnreadableFile, match="a function is of an unknown kind"):
        torcheer.load(rewrite(path, change))


class Varied(nn.Module):
    """Calls functions with one tensor, two tensors, a number, a whole number as index."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 4)
        self.register_buffer("places", torch.tensor([0, 1]))

    def forward(self, t):
        t = t.t() @ t + self.table(self.places).sum()
        return t.mul_(2)[0], torch.topk(t, 2), nn.functional.pad(t, (1, 1)).index_select(0, self.places)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "other",
    [
        "torch.embedding_bag", "torch.nn.functional.scaled_dot_product_attention", "torch.Tensor.__getitem__", "torch.sum",
        "torch.Tensor.view", "torch.softmax", "torch.bmm", "torch.nn.functional.layer_norm", "torch.conv2d", "torch.cat",
        "torch.Tensor.expand", "torch.trace",
    ],
)  # fmt: skip
def test_functions_that_do_not_fit_their_arguments_are_told_by_every_call(other, tmp_path):
    """A file may say that any operation was a call of any function."""
    model, t = Varied(), torch.rand(2, 4)
    history = torcheer.log_forward_pass(model, t)
    path = history.save(tmp_path / "run.safetensors", params=True)
    name = other.rpartition(".")[2]
    whole = path.read_bytes()

    def functions(document):
        return [one for one in document["functions"][1] if "found" in one]

    def use(found):
        calls = [
            lambda: str(found.summary()),
            lambda: found.memory,
            found.validate,
            lambda: found.to_html(tmp_path / "page.html"),
            lambda: [operation.heads for operation in found.operations],
            lambda: torcheer.compare(history, found).headline,
            lambda: torcheer.compare(found, history).headline,
        ]
        for call in calls:
            with contextlib.suppress(torcheer.TorcheerError):
                call()

    counts = []
    rewrite(path, lambda document: counts.append(len(functions(document))))
    assert counts[0] > 6
    for at in range(counts[0]):
        path.write_bytes(whole)
        rewrite(path, lambda document, at=at: functions(document)[at].update(name=name, found=other, plain=name.strip("_")))
        with contextlib.suppress(torcheer.TorcheerError):
            use(torcheer.load(path))


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"bytes": "AA==!"}, None),  # Python's own words
        ({"float": "1.5"}, "neither finite, infinite nor no number"),
        ({"slice": [1, 2]}, "no three bounds"),
        ({"dict": [[{"list": []}, 1]]}, "cannot be one"),
        ({"scalar": ["O", "AA=="]}, "no number"),
        ({"lambda": 1}, "unknown kind, 'lambda'"),
        ({}, "says nothing"),
    ],
    ids=str,
)
def test_a_written_value_that_makes_no_sense_is_refused(written, words):
    def tensor_of(name):
        raise AssertionError(name)

    with pytest.raises((ValueError, UnreadableFile), match=words):
        Reader(tensor_of).read(written)


@pytest.mark.parametrize(
    "name",
    (
        "torch.load os.system torch.hub.load torch.ops.load_library torch.from_file torch.ops.aten.from_file torch.Tensor "
        "torch.nn.functional.importlib torch.Tensor.__reduce_ex__ builtins.eval torch.serialization.load "
        # raw memory
        "torch._C._VariableFunctions._from_blob torch._from_blob torch._nested_view_from_buffer torch.from_dlpack "
        "torch.fbgemm_linear_int8_weight torch.Tensor.__new__ torch.Tensor._view_func_unsafe "
        "torch.ops.aten.fbgemm_linear_int8_weight torch.ops.aten._nested_view_from_buffer.default "
        # files, processes, and settings of the process
        "torch.import_ir_module torch.import_ir_module_from_buffer torch.ops.aten.save torch.ops.aten.save.default "
        "torch.fork torch.set_num_threads torch.set_flush_denormal torch.autocast_increment_nesting torch.ops.aten.warn "
        "torch.nn.functional._add_docstr torch.ops.aten.manual_seed torch.ops.aten._print"
    ).split(),
)
def test_a_function_that_is_not_an_operation_is_never_found(path, name, tmp_path):
    """It has a name, and calling it says so: nothing is imported and nothing is called."""

    def change(document):
        functions = document["functions"][1]
        linear = next(one for one in functions if one["name"] == "linear")
        linear.update(found=name, name=name.rpartition(".")[2])

    modules = set(sys.modules)
    history = torcheer.load(rewrite(path, change))
    assert set(sys.modules) == modules
    with pytest.raises(FunctionNotFound, match="not one of torch's own functions"):
        history["fc1"].func_applied("x")
    with pytest.raises(ReplayFailed, match="FunctionNotFound"):
        history.replay()


# What is recorded and what is there --------------------------------------------------------------------------------------


def reshaped(name, shape):
    """Another shape of a tensor of as many bytes."""
    return lambda entries: entries[name].update(shape=shape)


@pytest.mark.parametrize("shape", [[8, 2], [16], [1, 2, 8]])
def test_a_value_has_the_shape_that_is_recorded_or_is_refused(path, shape):
    with pytest.raises(UnreadableFile, match=r"linear_1_1:1': its shape is .* and \(2, 8\) is recorded of the operation"):
        torcheer.load(rewrite(path, header=reshaped("linear_1_1:1", shape)))["linear_1"].activation


def test_a_parameter_and_a_gradient_have_the_shapes_that_are_recorded_or_are_refused(tmp_path, path):
    with pytest.raises(UnreadableFile, match="is recorded"):
        torcheer.load(rewrite(path, header=reshaped("params/fc1.weight", [4, 8])))
    history = torcheer.log_forward_pass(Mlp(), torch.rand(2, 4), save_gradients=True)
    history.log_backward(history.outputs[0].activation.sum())
    path = history.save(tmp_path / "backward.safetensors")
    with pytest.raises(UnreadableFile, match="is recorded"):
        torcheer.load(rewrite(path, header=reshaped("grad/linear_1_1:1", [8, 2])))["linear_1"].grad
