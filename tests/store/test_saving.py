"""A history is written into one file and read again: names, views, types, functions, arguments, parameters, sources."""

from __future__ import annotations

import copy
import dataclasses
import json
import resource
import sys
from array import array
from collections import OrderedDict, deque

import numpy as np
import pytest
import safetensors
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import torcheer
from forked import in_a_copy_of_the_process
from models import Branching, Convolutional, Mlp, log, made_of
from saved_equality import differences, kept_tensors, same_tensor, sharing, texts_of
from torcheer._text import BytesProgress
from torcheer.errors import ActivationNotSaved, CannotBeSaved, InvalidArgument, ModelMismatch, ParameterNotSaved, ReplayFailed
from torcheer.log import records
from torcheer.log.records import BackwardRecord, NodeRecord


def saved(history: torcheer.ModelHistory, folder, **options) -> torcheer.ModelHistory:
    return torcheer.load(history.save(folder / "run.safetensors", **options))


# The file ----------------------------------------------------------------------------------------------------------------


def test_tensors_are_named_by_label_and_pass_and_hold_logical_values(tmp_path):
    model = Convolutional().eval()
    history = torcheer.log_forward_pass(model, torch.rand(2, 3, 8, 8))
    found = load_file(history.save(tmp_path / "run.safetensors"))
    assert torch.equal(found["conv2d_1_1:1"], history["conv2d_1"].activation)
    with safe_open(tmp_path / "run.safetensors", "pt") as file:
        header = file.metadata()
    assert (header["format"], header["version"], header["title"]) == ("torcheer history", "1", "Convolutional")
    assert (header["torch"], header["devices"]) == (torch.__version__, "cpu")
    assert header["python"]
    views = json.loads(header["layout"])["views"]
    view = views["flatten_1_5:1"]
    assert view == {"of": "maxpool2d_1_4:1", "offset": 0, "shape": [2, 36], "strides": [36, 1]}
    base = found[view["of"]]
    assert torch.equal(base.as_strided(view["shape"], view["strides"], view["offset"]), history["flatten_1"].activation)


def test_memory_that_is_shared_is_written_once(tmp_path):
    history = log(lambda x: [x.t(), x[1:], x.reshape(-1), x.t()[::2], x.expand(3, 40, 50)], torch.rand(40, 50))
    path = history.save(tmp_path / "run.safetensors")
    assert path.stat().st_size < 40 * 50 * 4 * 2 + 20_000
    loaded = torcheer.load(path)
    assert differences(history, loaded) == []
    views = kept_tensors(loaded)
    views["input_1_0:1"].add_(1)
    assert all(bool((tensor >= 1).all()) for name, tensor in views.items() if "output" not in name)


def test_windows_of_memory_that_is_not_kept_share_it_in_the_file(tmp_path):
    def windows(x):
        whole = x * 2
        return whole[:60], whole[40:], whole[10:20].expand(5, 10), whole[::30]

    history = log(windows, torch.rand(100, 10)[:, 0])
    loaded = saved(history, tmp_path, activations=["getitem_*", "expand_*"])
    ours = {name: tensor for name, tensor in kept_tensors(history).items() if name.startswith(("getitem", "expand"))}
    theirs = kept_tensors(loaded)
    assert all(same_tensor(tensor, theirs[name]) for name, tensor in ours.items())
    assert sharing(ours) == sharing(theirs) != []
    assert any(name.startswith("memory/") for name in load_file(tmp_path / "run.safetensors"))


FORMS = {
    "bfloat16": lambda: torch.randn(4, 3).bfloat16(),
    "float16": lambda: torch.randn(4, 3).half().t(),
    "float64": lambda: torch.randn(4, 3, dtype=torch.float64),
    "float8_e4m3fn": lambda: torch.randn(4, 3).to(torch.float8_e4m3fn),
    "float8_e5m2": lambda: torch.randn(4, 3).to(torch.float8_e5m2).t(),
    "float8_e4m3fnuz": lambda: torch.randn(4, 3).to(torch.float8_e4m3fnuz),
    "another float8": lambda: torch.ones(4, 3).to(getattr(torch, "float8_e8m0fnu", torch.float8_e5m2)),
    "complex64": lambda: torch.randn(4, 3, dtype=torch.complex64),
    "complex128": lambda: torch.randn(4, 3, dtype=torch.complex128).t(),
    "chalf": lambda: torch.randn(4, 3).to(torch.complex32),
    "conjugated": lambda: torch.randn(4, 3, dtype=torch.complex64).conj(),
    "negated": lambda: torch.randn(4, 3, dtype=torch.complex64).conj().imag,
    "uint16": lambda: torch.tensor([0, 65535, 7], dtype=torch.uint16),
    "uint64": lambda: torch.tensor([0, 2**64 - 1], dtype=torch.uint64),
    "int8": lambda: torch.arange(7, dtype=torch.int8),
    "bool": lambda: torch.rand(9) > 0.5,
    "nothing": lambda: torch.empty(0, 3),
    "a number": lambda: torch.tensor(3.5),
    "nan and inf": lambda: torch.tensor([float("nan"), float("inf"), -0.0]),
    "channels last": lambda: torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "gaps": lambda: torch.rand(10, 6)[:, ::2],
    "few of many": lambda: torch.rand(1000, 100)[::500, 0],
    "expanded": lambda: torch.rand(1, 5).expand(7, 5),
    "unfolded": lambda: torch.rand(20).unfold(0, 5, 1),
    "one element strides": lambda: torch.rand(3, 1, 4).as_strided((3, 1, 4), (4, 99, 1)),
    "meta": lambda: torch.empty(3, 4, device="meta").t(),
    "quantised": lambda: torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 3, torch.quint8),
    "quantised int32": lambda: torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 0, torch.qint32),
    "quantised by channel": lambda: torch.quantize_per_channel(
        torch.randn(3, 4), torch.rand(3) + 0.1, torch.zeros(3, dtype=torch.int64), 0, torch.qint8
    ),
    "sparse": lambda: torch.rand(5, 5).relu().to_sparse(),
    "sparse uncoalesced": lambda: torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 2]], [1.0, 2.0, 3.0], (3, 3)),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "nested": lambda: torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], layout=torch.jagged),
    "jagged meta": lambda: torch.nested.nested_tensor_from_jagged(
        torch.empty(6, 3, device="meta"), torch.empty(3, dtype=torch.int64, device="meta"), min_seqlen=2, max_seqlen=4
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls complex halves, quantised and sparse tensors experimental
@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("way", ["save", "stream"])
def test_a_tensor_of_any_form_comes_back(kind, way, tmp_path):
    history = torcheer.log_forward_pass(lambda x: x, FORMS[kind]())
    if way == "save":
        loaded = saved(history, tmp_path)
    else:
        given = history["input"].activation
        loaded = torcheer.log_forward_pass(lambda x: x, given, save_to=tmp_path / "run.safetensors")
    ours, theirs = history["input"].activation, loaded["input"].activation
    assert same_tensor(ours, theirs), (ours, theirs)
    if kind == "sparse uncoalesced":
        assert not theirs.is_coalesced()
    if not (theirs.is_complex() and safetensors.__version__ < "0.5"):  # which has no complex numbers
        load_file(tmp_path / "run.safetensors")  # any reader


class Holds(torch.nn.Module):
    def __init__(self, kept):
        super().__init__()
        self.register_buffer("kept", kept)

    def forward(self, x):
        return x + 1, self.kept.clone()


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls complex halves, quantised and sparse tensors experimental
@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("params", [False, True])
def test_a_buffer_of_any_form_comes_back(kind, params, tmp_path):
    model = Holds(FORMS[kind]())
    history = torcheer.log_forward_pass(model, torch.rand(3))
    history.save(tmp_path / "run.safetensors", params=params)
    loaded = torcheer.load(tmp_path / "run.safetensors", model=None if params else model)
    assert str(loaded) == str(history)
    assert same_tensor(history["clone_1"].activation, loaded["clone_1"].activation)
    assert bool(loaded.validate()) == bool(history.validate())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["sparse", "csr", "csc", "bsr", "quantised", "nested", "jagged"])
def test_a_buffer_with_other_values_is_not_the_logged_one(kind, tmp_path):
    model = Holds(FORMS[kind]())
    path = torcheer.log_forward_pass(model, torch.rand(3)).save(tmp_path / "run.safetensors")
    torcheer.load(path, model=model)
    with pytest.raises(ModelMismatch, match=r"'kept' has other values"):
        torcheer.load(path, model=Holds(other_values(model.kept)))


def other_values(tensor):
    if tensor.is_quantized:
        return torch.quantize_per_tensor(tensor.dequantize() + 1, tensor.q_scale(), tensor.q_zero_point(), tensor.dtype)
    return tensor * 2


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls nested tensors a prototype
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_come_back_with_their_sizes(layout, tmp_path):
    def lengths(*many):
        return torch.nested.nested_tensor([torch.rand(one, 3) for one in many], layout=layout)

    history = torcheer.log_forward_pass(lambda one, other: (one * 2, other * 2), (lengths(2, 4), lengths(1, 7)))
    sizes = [operation.tensor_fsize for operation in history.operations]
    assert sizes == [72, 96] * 3
    loaded = saved(history, tmp_path)
    assert [operation.tensor_fsize for operation in loaded.operations] == sizes
    assert str(loaded) == str(history)


class Marked(torch.Tensor):
    """A class of the user's own."""


def test_what_no_file_can_give_back_is_refused_by_name_when_saving(tmp_path):
    path = tmp_path / "run.safetensors"
    history = log(lambda x: x * 2, torch.ones(2).as_subclass(Marked))
    with pytest.raises(CannotBeSaved, match=r"input_1_0:1 is a Marked.*activations="):
        history.save(path)
    with pytest.raises(CannotBeSaved, match=r"Marked.*layers_to_save= of a log with save_to="):
        torcheer.log_forward_pass(lambda x: x * 2, torch.ones(2).as_subclass(Marked), save_to=path)
    marked = nn.Linear(2, 2)
    marked.weight = nn.Parameter(torch.ones(2, 2).as_subclass(Marked))
    with pytest.raises(CannotBeSaved, match=r"'weight' is a Marked.*parameters are written with params=True alone"):
        log(marked, torch.ones(2)).save(path, activations="none", params=True)
    assert list(tmp_path.iterdir()) == []
    history.save(path, activations="none")
    assert len(torcheer.load(path)) == 3
    kept = log(torch.relu, torch.ones(2), activation_postfunc=lambda tensor: {"when": object()})
    with pytest.raises(CannotBeSaved, match=r"relu_1_1.*object.*activation_postfunc"):
        kept.save(path, activations="relu_1_1")


def test_what_a_postfunc_returned_comes_back(tmp_path):
    def several(tensor):
        return {"mean": tensor.mean(), "parts": [tensor[:1], 3, 2.5, None, "text", (True, float("inf"), 1j)]}

    history = log(torch.relu, torch.rand(4), activation_postfunc=several)
    loaded = saved(history, tmp_path)
    ours, theirs = history["relu"].activation, loaded["relu"].activation
    assert torch.equal(ours["mean"], theirs["mean"])
    assert ours["parts"][1:] == theirs["parts"][1:]
    assert torch.equal(ours["parts"][0], theirs["parts"][0])


# What a log holds ----------------------------------------------------------------------------------------------------------


def test_every_part_of_a_log_is_written():
    """Whoever adds a field to a record finds out here that saved histories would lose it."""
    fields = {cls.__name__: {field.name for field in dataclasses.fields(cls)} for cls in RECORDS}
    assert fields == RECORDED


RECORDS = (
    *(records.Log, records.Details, records.Held, records.Composite, records.ModuleCall, records.RegisteredModule),
    *(records.PythonReadRecord, records.Failure, NodeRecord, BackwardRecord),
)
RECORDED = {
    # not written, and why: versions and _lost (what was lost is written as lost), codes (sites are written with their lines),
    # source_tensors (weak references that only a recording needs), comes_again (the next replay finds out)
    "Log": set(
        "title rows values versions details functions sites codes states modules registered python_reads without_memory "
        "collectives notes hollow source_names source_tensors input_paths argument_names leaves failure backward "
        "random_seed random_state "
        "random_states result is_recording is_complete is_cleared holds_tensors seconds first_passes comes_again "
        "_lost".split()
    ),
    "Details": set(
        "call output_path also mutated composite autocast changed held home is_collective is_hooked is_passing "
        "is_transformed is_no_grad is_through_unseen is_foreign".split()
    ),
    "Held": {"value", "version"},
    "Composite": {"name", "number", "outer"},
    "ModuleCall": set(
        "number address class_name call outer site training first args names inputs outputs end exit started elapsed".split()
    ),
    "RegisteredModule": set("address class_name parameters buffers is_root cls other_addresses calls is_made_running".split()),
    "PythonReadRecord": set("function parents value module site before".split()),
    "Failure": set("function parents shapes module site error before".split()),
    # not written: torch's own numbers of passes (task, inner)
    "NodeRecord": set("name role operation started given made _span inner node onward tensors is_device_time _events".split()),
    "BackwardRecord": set("task nodes gradients summed accumulated scale is_complete inner".split()),
}


class Config:
    """An argument that no file can give back."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __repr__(self):
        return "Config(…)"


ARGUMENTS = {
    "slices": lambda x: x[..., None, 1:3, ::2],
    "numbers": lambda x: torch.full((2,), float("-inf")) + torch.full((2,), True) + torch.full((2,), 3.0) + x.sum(),
    "complex": lambda x: torch.full((2,), 1 + 2j) * x.sum(),
    "types": lambda x: x.to(torch.float64, memory_format=torch.channels_last).to("cpu"),
    "layout": lambda x: torch.zeros_like(x, layout=torch.strided, device=torch.device("cpu"), dtype=torch.float16) + x,
    "lists": lambda x: torch.cat([x, x.flip([0, 1]), torch.zeros(torch.Size([1, 4, 4, 4]))]),
    "dictionary": lambda x: torch.einsum("abcd,abcd->a", x, x).to(dtype=torch.bfloat16),
    "array": lambda x: x + torch.tensor(np.arange(4.0, dtype=np.float32)),
    "scalar": lambda x: x + torch.as_tensor(np.float32(2.5)) + torch.tensor(np.int64(3)),
    "generator": lambda x: x + torch.rand(4, generator=torch.Generator().manual_seed(5)),
    "draws": lambda x: F.dropout(x + torch.rand_like(x), 0.5, True),
    "range": lambda x: x + torch.tensor(range(4)),
    "text": lambda x: F.pad(x, (1, 1), mode="constant", value=0.5) + len("<tensor>"),
    "sparse": lambda x: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (4,)).to_dense() + x,
    "property": lambda x: x.mT.contiguous().view(-1).data * 2,
    "power": lambda x: 2**x - x**2 + (x // 2) - (1 / (x + 1)),
    "foreach": lambda x: torch._foreach_add([x, x], 1)[0],
    "operators": lambda x: torch.ops.aten.add.Tensor(x, x, alpha=2) + torch.ops.aten.mul(x, 2),
    "autocast": lambda x: _autocast(x),
    "normal": lambda x: x.flatten(2).unflatten(-1, (4, 4)).norm() + torch.linalg.norm(x) + torch.fft.fft(x).abs().sum(),
}


def _autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return x.flatten(2) @ x.flatten(2).mT


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_arguments_of_every_kind_come_back_and_run_again(kind, tmp_path):
    history = log(ARGUMENTS[kind], torch.rand(2, 4, 4, 4), random_seed=1)
    loaded = saved(history, tmp_path)
    if kind != "generator":  # which prints its address, and is copied each time it is looked at
        assert differences(history, loaded) == []
        for one, other in zip(history.operations, loaded.operations, strict=True):
            assert str(one.creation_args) == str(other.creation_args)
            assert str(one.creation_kwargs) == str(other.creation_kwargs)
    for one, other in zip(history.operations, loaded.operations, strict=True):
        assert one.func_applied == other.func_applied
    assert history.validate()
    assert loaded.validate(), loaded.validate()


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 1, 10**40, -2.5, "text", "<tensor>", "\ud800", b"\0\xff", bytearray(b"ab"), ..., slice(1, None, 2)),
        *([1, [2.0, (3,)]], {"a": 1, 2: [None], (1, 2): {}}, OrderedDict(b=1, a=2), deque([1, 2]), {1, "a"}, frozenset({2})),
        *(1e308, 5e-324, complex("nan+infj"), torch.float8_e5m2, torch.device("cuda:1"), torch.Size([3, 0]), range(9, 0, -2)),
        *(torch.sparse_csr, torch.channels_last_3d, array("d", [1.5]), np.float16(2), np.bool_(True)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_values_come_back_as_they_were(value):
    from torcheer.log.templates import template
    from torcheer.store.values import Reader, Writer

    written = json.loads(json.dumps(Writer(lambda tensor: "").write(template(value, lambda tensor: None))))
    read = Reader(lambda name: torch.zeros(0)).read(written)
    assert repr(read) == repr(template(value, lambda tensor: None))
    assert type(read) is type(template(value, lambda tensor: None))


def test_a_function_that_is_not_torchs_own_is_shown_and_not_run(tmp_path):
    @torch.library.custom_op("saved_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    history = log(lambda x: torch.ops.saved_tests.scaled(x, 2.0) + x, torch.rand(3))
    loaded = saved(history, tmp_path)
    assert differences(history, loaded) == []
    with pytest.raises(ReplayFailed, match=r"saved_tests.*not one of torch's own functions.*functions=\["):
        loaded.replay()
    again = torcheer.load(tmp_path / "run.safetensors", functions=[torch.ops.saved_tests])
    assert torch.equal(again.replay()["output"].activation, history["output"].activation)
    assert again.validate()
    with pytest.raises(InvalidArgument, match="functions= takes"):
        torcheer.load(tmp_path / "run.safetensors", functions=["saved_tests"])


def test_initialisations_are_torchs_own_and_run_again(tmp_path):
    history = log(nn.Sequential(nn.LazyLinear(3), nn.ReLU()), torch.rand(2, 4))
    assert history["kaiminguniform_1"].func_applied is nn.init.kaiming_uniform_
    path = history.save(tmp_path / "lazy.safetensors", params=True)
    assert torcheer.load(path).validate()


def test_objects_among_arguments_are_printed_as_they_were():
    from torcheer._torch.containers import SavedObject
    from torcheer._torch.sentinels import TENSOR
    from torcheer.log.templates import slot_paths, template
    from torcheer.store.values import Reader, Writer

    pair = dataclasses.make_dataclass("Pair", ["left", "right"])
    given = template((pair(torch.ones(1), 2), Config(3)), lambda tensor: None)
    read = Reader(lambda name: torch.zeros(0)).read(Writer(lambda tensor: "").write(given))
    assert [type(one) for one in read] == [SavedObject, SavedObject]
    assert repr(read[1]) == "Config(…)"
    assert slot_paths(read, None) == slot_paths(given, None)
    assert read[0].items == [TENSOR]


# Parameters ----------------------------------------------------------------------------------------------------------------


def test_parameters_are_saved_when_asked_for_or_bound_to_the_model(tmp_path):
    model = Convolutional().train()
    history = torcheer.log_forward_pass(model, torch.rand(2, 3, 8, 8), random_seed=2)
    path = history.save(tmp_path / "without.safetensors")
    assert not any(name.startswith("params/") for name in load_file(path))
    loaded = torcheer.load(path)
    with pytest.raises(InvalidArgument, match=r"'features.0.weight'.*not in the file.*model=.*params=True"):
        loaded.validate()
    with pytest.raises(InvalidArgument, match="not in the file"):
        loaded.replay()
    with pytest.raises(ParameterNotSaved, match=r"features.0.weight"):
        _ = loaded["conv2d_1"].creation_args
    assert torcheer.load(path, model=model).validate()
    assert torcheer.load(path, model=torch.nn.DataParallel(model)).validate()
    whole = history.save(tmp_path / "with.safetensors", params=True)
    assert torch.equal(load_file(whole)["params/head.weight"], model.head.weight)
    alone = torcheer.load(whole)
    assert alone.validate()
    new = torch.rand(2, 3, 8, 8)
    assert torch.equal(alone.replay(new)["output"].activation, history.replay(new)["output"].activation)
    assert alone["conv2d_1"].creation_args[1].requires_grad


def test_another_model_is_refused(tmp_path):
    model = Mlp()
    path = torcheer.log_forward_pass(model, torch.rand(2, 4)).save(tmp_path / "run.safetensors")
    with pytest.raises(ModelMismatch, match=r"'fc1.weight' has other values"):
        torcheer.load(path, model=Mlp())
    with pytest.raises(ModelMismatch, match="no module 'fc1'"):
        torcheer.load(path, model=Branching())
    wider = Mlp()
    wider.fc1 = nn.Linear(4, 9)
    with pytest.raises(ModelMismatch, match=r"'fc1.weight' has the shape \(9, 4\), not \(8, 4\)"):
        torcheer.load(path, model=wider)
    with pytest.raises(InvalidArgument, match=r"an nn.Module"):
        torcheer.load(path, model=3)
    assert torcheer.load(path, model=copy.deepcopy(model)).validate()


def test_parameters_that_changed_since_the_pass_are_not_vouched_for(tmp_path):
    model = Mlp()
    history = torcheer.log_forward_pass(model, torch.rand(2, 4))
    with torch.no_grad():
        model.fc2.weight.add_(1)
    with pytest.raises(CannotBeSaved, match=r"'fc2.weight' was changed after the pass"):
        history.save(tmp_path / "run.safetensors", params=True)
    path = history.save(tmp_path / "run.safetensors")
    with pytest.raises(ModelMismatch, match=r"'fc2.weight' was changed before the history was saved"):
        torcheer.load(path, model=model)
    loaded = torcheer.load(history.save(path))
    assert loaded["linear_1"].activation.shape == (2, 8)


def test_a_bound_model_that_is_trained_afterwards_is_noticed(tmp_path):
    model = Mlp()
    path = torcheer.log_forward_pass(model, torch.rand(2, 4)).save(tmp_path / "run.safetensors")
    loaded = torcheer.load(path, model=model)
    with torch.no_grad():
        model.fc1.weight.add_(1)
    with pytest.raises(InvalidArgument, match="changed since"):
        loaded.validate()


# Options -----------------------------------------------------------------------------------------------------------------


def test_which_activations_are_saved_is_what_layers_to_save_takes(tmp_path):
    history = torcheer.log_forward_pass(Mlp(), torch.rand(2, 4))
    for wanted, labels in (
        ("none", []),
        ("fc1", ["linear_1_1"]),
        (["relu_*", 0], ["input_1_0", "relu_1_2"]),
        (nn.Linear, ["linear_1_1", "linear_2_3"]),
        (F.relu, ["relu_1_2"]),
        (lambda one: one.layer_type == "tanh", ["tanh_1_4"]),
        ("modules", ["linear_1_1", "relu_1_2", "linear_2_3", "tanh_1_4"]),
    ):
        loaded = saved(history, tmp_path, activations=wanted)
        assert [one.layer_label for one in loaded.saved] == labels, wanted
        assert len(loaded) == len(history)
    with pytest.raises(ActivationNotSaved):
        _ = saved(history, tmp_path, activations="fc1")["relu"].activation
    with pytest.raises(InvalidArgument, match="activations must be"):
        history.save(tmp_path / "x.safetensors", activations=3.5)
    with pytest.raises(InvalidArgument, match="params is True or False"):
        history.save(tmp_path / "x.safetensors", params="yes")
    with pytest.raises(InvalidArgument, match="dtype is a floating-point type"):
        history.save(tmp_path / "x.safetensors", dtype=torch.int8)


def test_a_file_for_sending_is_smaller_and_says_so(tmp_path):
    history = torcheer.log_forward_pass(Mlp(), torch.rand(200, 4))
    loaded = saved(history, tmp_path, dtype=torch.float16)
    assert loaded["linear_1"].activation.dtype is torch.float16
    assert loaded["linear_1"].tensor_dtype is torch.float32
    assert torch.equal(loaded["linear_1"].activation, history["linear_1"].activation.half())
    assert "saved as float16" in loaded.notes[-1]
    views = log(lambda x: [x.t(), x.view(torch.int32), (x * 2).t()[1:], (x * 3).to_sparse()], torch.rand(30, 40))
    small = saved(views, tmp_path, dtype=torch.bfloat16)
    assert torch.equal(small["input"].activation, views["input"].activation)  # its memory is also seen as integers
    assert torch.equal(small["getitem"].activation, views["getitem"].activation.bfloat16())
    assert small["getitem"].activation.untyped_storage()._cdata == small["t_2"].activation.untyped_storage()._cdata
    assert torch.equal(small["tosparse"].activation.to_dense(), views["tosparse"].activation.to_dense())
    for use in (loaded.validate, loaded.replay, lambda: torcheer.compare(history, loaded)):
        with pytest.raises(InvalidArgument, match="or saved with dtype="):
            use()


def test_without_sources_neither_lines_nor_folders_are_in_the_file(tmp_path):
    history = torcheer.log_forward_pass(Mlp(), torch.rand(2, 4))
    line = history["tanh"].source
    assert "torch.tanh" in line.text
    with_them, without = tmp_path / "with.safetensors", tmp_path / "without.safetensors"
    assert str(torcheer.load(history.save(with_them))["tanh"].source) == str(line)
    loaded = torcheer.load(history.save(without, sources=False))
    assert loaded["tanh"].source.file == "models.py"
    assert (loaded["tanh"].source.line, loaded["tanh"].source.text) == (line.line, "")
    assert loaded.layer_labels == history.layer_labels
    assert len(loaded["tanh"].stack) == len(history["tanh"].stack)


def test_source_lines_are_those_of_the_machine_that_saved(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text("import torch\n\n\ndef double(x):\n    return x * 2  # as it was\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import program as module

    history = log(module.double, torch.ones(2))
    path = history.save(tmp_path / "run.safetensors")
    program.write_text("nothing\n" * 9)
    import linecache

    linecache.checkcache()
    loaded = torcheer.load(path)
    assert loaded["mul"].source.text == "return x * 2  # as it was"
    assert "as it was" in loaded.to_json()


def test_gradients_are_saved_unless_told_otherwise(tmp_path):
    model = Mlp()
    history = torcheer.log_forward_pass(model, torch.rand(2, 4), save_gradients=True)
    for _ in range(2):
        history.log_backward(history["output"].activation.square().sum(), retain_graph=True)
    loaded = saved(history, tmp_path, params=True)
    assert differences(history, loaded) == []
    assert len(loaded.backward_passes) == 2
    assert torch.equal(loaded["linear_1"].grad, history["linear_1"].grad)
    assert torch.equal(loaded.param_grads["fc1.weight"], history.param_grads["fc1.weight"])
    assert torch.equal(load_file(tmp_path / "run.safetensors")["grad/linear_1_1:1"], history["linear_1"].grads[0])
    assert loaded.draw(tmp_path / "x.svg", color_by="grad")
    without = saved(history, tmp_path, gradients=False)
    assert without["linear_1"].grads == []
    assert len(without.backward_passes) == 2


# What can be done with a loaded history --------------------------------------------------------------------------------------


def test_a_loaded_history_can_do_what_others_can(tmp_path):
    model = Branching()
    history = torcheer.log_forward_pass(model, torch.rand(2, 4))
    loaded = saved(history, tmp_path, params=True)
    again = torcheer.load(loaded.save(tmp_path / "again.safetensors", params=True))
    assert differences(history, again) == []
    assert again._repr_html_() == history._repr_html_()
    twin = copy.deepcopy(loaded)
    assert all(torch.equal(one.activation, history[one.label].activation) for one in twin.saved)
    loaded.save_new_activations(model, torch.ones(2, 4))
    assert torch.equal(loaded["input"].activation, torch.ones(2, 4))
    again.clear_activations()
    assert again.num_tensors_saved == 0
    assert len(torcheer.load(again.save(tmp_path / "cleared.safetensors"))) == len(history)
    assert [one.label for one in twin[nn.Linear]] == [one.label for one in history[nn.Linear]]
    assert [one.label for one in twin.filter(type=nn.Linear)] == [one.label for one in history.filter(type=nn.Linear)]
    changed = twin.replay(changes={"linear_1": lambda tensor: tensor * 0})
    assert torch.equal(
        changed["output_1"].activation, history.replay(changes={"linear_1": torch.zeros(2, 4)})["output_1"].activation
    )
    with pytest.raises(torcheer.LayerNotFound, match="no module is a Conv2d"):
        twin[nn.Conv2d]


def test_the_history_of_a_pass_that_failed_is_saved_too(tmp_path):
    def fails(x):
        return torch.relu(x) @ torch.ones(7, 7)

    with pytest.raises(RuntimeError) as raised:
        log(fails, torch.rand(2, 3))
    history = raised.value.history
    loaded = saved(history, tmp_path)
    assert str(loaded) == str(history)
    assert loaded.failure.error == history.failure.error
    assert not loaded.is_complete
    assert loaded.draw(tmp_path / "x.dot").dot == history.draw(tmp_path / "y.dot").dot


def test_a_recording_is_saved_too(tmp_path):
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torcheer.recording(model) as history:
        loss = model(torch.rand(2, 4)).sum()
        loss.backward()
        optimizer.step()
    assert differences(history, saved(history, tmp_path, params=True)) == []
    assert str(saved(history, tmp_path)) == str(history)


def test_without_parameters_only_their_values_are_missing(tmp_path):
    """On the page, which shows them, and says why not."""
    history = torcheer.log_forward_pass(Mlp(), torch.rand(2, 4))
    ours, theirs = texts_of(history), texts_of(saved(history, tmp_path))
    ours_page, their_page = json.loads(ours.pop("page")), json.loads(theirs.pop("page"))
    assert ours == theirs
    assert their_page["facts"].pop("notes") == ["The values of 4 parameters are not in the file of this history."]
    assert ours_page.pop("weights")
    their_page.pop("weights", None)
    assert ours_page == their_page


def test_activations_that_are_lost_stay_lost(tmp_path):
    history = log(lambda x: torch.relu(x) * 2, torch.rand(3))
    history._log._lost = {1}  # as if a compiled extension had written to it
    history._log.mark_freed(2)
    loaded = saved(history, tmp_path)
    for key, words in (("relu", "overwritten by something"), ("mul", "was freed")):
        with pytest.raises(torcheer.ActivationLost, match=words):
            _ = loaded[key].activation


def test_random_states_come_back(tmp_path):
    np.random.seed(5)
    history = log(lambda x: F.dropout(x, 0.5, True), torch.ones(64))
    loaded = saved(history, tmp_path)
    again = torcheer.log_forward_pass(lambda x: F.dropout(x, 0.5, True), torch.ones(64), random_state=loaded.random_state)
    assert torch.equal(again["output"].activation, history["output"].activation)


def test_one_tensor_is_read_when_it_is_asked_for(tmp_path):
    """Opening a history makes no tensor, and what is read is the file itself."""
    history = log(lambda x: torch.relu(x) + 1, torch.rand(512, 512))
    loaded = saved(history, tmp_path)
    reads = []
    tensors = list.__getitem__(loaded._log.values, 1)._tensors
    read = tensors.read
    tensors.read = lambda name: reads.append(name) or read(name)
    assert str(loaded["relu"].tensor_shape) == "(512, 512)"
    assert reads == []
    first = loaded["relu"].activation
    assert first is loaded["relu"].activation
    first.add_(100)  # a copy on write: neither the file nor another reader sees it
    assert torch.equal(torcheer.load(tmp_path / "run.safetensors")["relu"].activation, history["relu"].activation)


def test_neither_saving_nor_loading_is_seen_by_a_recording_or_by_what_runs_around_them(tmp_path):
    history = log(lambda x: torch.relu(x).t(), torch.rand(3, 4))
    path = tmp_path / "run.safetensors"
    with torcheer.recording() as around, torch.device("meta"), torch.inference_mode():
        history.save(path, params=True)
        loaded = torcheer.load(path)
        activation = loaded["t_1"].activation
    assert [layer.label for layer in around] == []
    assert activation.device.type == "cpu"
    assert not activation.is_inference()
    assert torch.equal(activation, history["t_1"].activation)


# Whole or not at all ---------------------------------------------------------------------------------------------------------


@in_a_copy_of_the_process
def test_a_full_disk_leaves_what_was_there(tmp_path):
    path = log(torch.relu, torch.ones(2)).save(tmp_path / "run.safetensors")
    before = path.read_bytes()
    x = torch.rand(500_000)
    large = log(torch.relu, x)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    for write in (lambda: large.save(path), lambda: torcheer.log_forward_pass(torch.relu, x, save_to=path)):
        with pytest.raises(OSError, match="the history cannot be written"):
            write()
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]
    torcheer.load(path)


def test_what_is_no_path_is_told():
    with pytest.raises(InvalidArgument, match=r"path says which file is opened, such as 'run\.safetensors'; got 5"):
        torcheer.load(5)


def test_a_folder_that_is_not_there_is_told(tmp_path):
    history = log(torch.relu, torch.ones(2))
    for path, message in (
        (tmp_path / "nowhere" / "run.safetensors", "the history cannot be written to .*there is no folder .*Make it first"),
        (tmp_path, r"the history cannot be written to .*it is a folder.*run\.safetensors"),
        (7, r"path says where the history is written, such as 'run\.safetensors'; got 7"),
    ):
        with pytest.raises(torcheer.InvalidArgument, match=message):
            history.save(path)
        with pytest.raises(torcheer.InvalidArgument, match=message):
            torcheer.log_forward_pass(torch.relu, torch.ones(2), save_to=path)
    with pytest.raises(torcheer.HistoryNotFound, match="there is no file"):
        torcheer.load(tmp_path / "nothing.safetensors")


def test_progress_is_told_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(BytesProgress, "after", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with BytesProgress("run.safetensors", 2_000_000_000) as told:
        told.reached(1_000_000_000)
    assert "run.safetensors: 1.00 of 2.00 GB, 50 %" in capsys.readouterr().err


def test_a_file_system_that_takes_no_advice_is_written_to(tmp_path, monkeypatch):
    def refuse(*given):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("os.posix_fadvise", refuse)
    history = torcheer.log_forward_pass(nn.Identity(), torch.rand(1 << 20))
    history.save(tmp_path / "x.torcheer")
    saved = torcheer.load(tmp_path / "x.torcheer")
    assert torch.equal(saved[-1].activation, history[-1].activation)


def test_a_container_that_holds_itself_comes_back(tmp_path):
    def outer(self, t):
        given = {"t": t, "more": [t]}
        given["itself"] = given
        given["more"].append(given)
        return self.inner(given)

    history = torcheer.log_forward_pass(
        made_of(outer, inner=made_of(lambda self, given: given["itself"]["t"] * 2)), torch.rand(3)
    )
    loaded = saved(history, tmp_path)
    for one in (history, loaded):
        assert [operation.label for operation in one.modules["inner"].calls[0].inputs] == ["input_1_0"]
    assert str(loaded.modules["inner"]) == str(history.modules["inner"])


def test_an_orphan_that_no_file_can_give_back_is_left_out(tmp_path):
    def model(t):
        torch.ones(3).as_subclass(Marked) * 3
        return t * 2

    history = torcheer.log_forward_pass(model, torch.rand(3))
    loaded = saved(history, tmp_path)
    assert [operation.label for operation in loaded.operations] == ["input_1_0", "mul_1_1", "output_1_2"]
    assert torch.equal(loaded["mul_1"].activation, history["mul_1"].activation)
