"""A key means the same operations in every place that takes one."""

from __future__ import annotations

import functools
import operator
import sys
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torcheer
from models import log, made_of, made_with
from torcheer import AmbiguousKey, InvalidArgument, LayerNotFound, Operation, Xray
from torcheer.cli import main
from torcheer.graph import ancestors, build_graph, collapse
from torcheer.log.keys import glob_pattern, is_torch_function, parse_key, readings
from torcheer.pictures import PictureOptions
from torcheer.pictures.views import views


@made_with(mlp=lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), norm=lambda: nn.LayerNorm(4))
def Block(self, x):
    return self.norm(x + self.mlp(x))


class Net(nn.Module):
    """Blocks, a module called in a loop, one with three outputs, one that is shared, functions beside modules."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.cell = nn.Linear(4, 4)
        self.same = self.blocks[0].norm
        self.drop = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        y, (h, c) = self.lstm(x[:, None])
        x = y[:, 0] + h[0] + c[0]
        for _ in range(3):
            x = torch.tanh(self.cell(x))
        x = self.same(self.drop(x))
        return F.softmax(x, -1) + torch.softmax(-x, -1) + x.relu()


x = torch.rand(2, 4)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def history(model):
    return log(model, x)


# The oracle: from what the history says of each operation, by itself.


def returned(history, address, place=0, call=None):
    calls = [one for one in history.modules[address].calls if call in (None, one.call_num)]
    return {one._record.outputs[place] for one in calls if len(one._record.outputs) > place}


def of_type(history, *kinds):
    return {one._number for one in history.operations if one.layer_type in kinds}


def of_class(history, cls):
    return {
        number
        for address, module in history.modules.items()
        if issubclass(history._log.registered[address].cls, cls) and module.num_calls
        for number in returned(history, address)
    }


def layers(history, *positions):
    return {one._number for position in positions for one in history.layers[position].passes}


def passes(history, label):
    return {one._number for one in history.operations if one.layer_label == label or one.layer_label_short == label}


def cases():
    def large(one):
        return one.layer_type == "linear" and one.containing_module is not None

    def has_two_children(one):
        return len(one.child_layers) == 2

    return {
        "a short label": ("tanh_1", lambda h: passes(h, "tanh_1")),
        "a pass of a label": ("tanh_1:2", lambda h: {h["tanh_1"].passes[1]._number}),
        "an address": ("blocks.1", lambda h: returned(h, "blocks.1")),
        "an address of several calls": ("cell", lambda h: returned(h, "cell")),
        "one call": ("cell:2", lambda h: returned(h, "cell", call=2)),
        "a module with three outputs": ("lstm", lambda h: returned(h, "lstm")),
        "another output": ("lstm[2]", lambda h: returned(h, "lstm", 2)),
        "every output": ("lstm[*]", lambda h: {n for place in range(3) for n in returned(h, "lstm", place)}),
        "an output of a call": ("lstm[1]:1", lambda h: returned(h, "lstm", 1)),
        "the other way round": ("lstm:1[1]", lambda h: returned(h, "lstm", 1)),
        "what a module was given": ("input:cell", lambda h: {c._record.inputs[0] for c in h.modules["cell"].calls}),
        "what one call was given": ("input:cell:3", lambda h: {h.modules["cell"].calls[2]._record.inputs[0]}),
        "an address of a shared module": ("same", lambda h: returned(h, "blocks.0.norm")),
        "the model": ("", lambda h: {h.outputs[0]._record.parents[0]}),
        "an input": ("input", lambda h: {h.inputs[0]._number}),
        "an output": ("output_1", lambda h: {h.outputs[0]._number}),
        "a position": (3, lambda h: layers(h, 3)),
        "a position from the end": (-2, lambda h: layers(h, -2)),
        "a number of NumPy": (np.int64(3), lambda h: layers(h, 3)),
        "a slice": (slice(2, 9, 3), lambda h: layers(h, 2, 5, 8)),
        "a class": (nn.LayerNorm, lambda h: of_class(h, nn.LayerNorm)),
        "a class of subclasses": (nn.Linear, lambda h: of_class(h, nn.Linear)),
        "a class of one's own": (Block, lambda h: {n for i in range(3) for n in returned(h, f"blocks.{i}")}),
        "a union of classes": (nn.ReLU | nn.LSTM, lambda h: of_class(h, nn.ReLU) | of_class(h, nn.LSTM)),
        "a function": (F.softmax, lambda h: of_type(h, "softmax")),
        "the same function": (torch.softmax, lambda h: of_type(h, "softmax")),
        "a method": (torch.Tensor.relu, lambda h: of_type(h, "relu")),
        "an operator": (operator.add, lambda h: of_type(h, "add")),
        "a glob": ("blocks.*.mlp", lambda h: {n for i in range(3) for n in returned(h, f"blocks.{i}.mlp")}),
        "a glob across dots": ("**.norm", lambda h: {n for i in range(3) for n in returned(h, f"blocks.{i}.norm")}),
        "a glob of inputs": (
            "input:blocks.*.norm",
            lambda h: {c._record.inputs[0] for i in range(3) for c in h.modules[f"blocks.{i}.norm"].calls},
        ),
        "a glob of labels": ("tanh_*", lambda h: of_type(h, "tanh")),
        "a function of an operation": (large, lambda h: {o._number for o in h.operations if large(o)}),
        "a function of children": (has_two_children, lambda h: {o._number for o in h.operations if has_two_children(o)}),
        "a list": (
            ["cell:1", nn.ReLU, 0, F.softmax, "blocks.*", slice(-3, None)],
            lambda h: (
                returned(h, "cell", call=1)
                | of_class(h, nn.ReLU)
                | layers(h, 0, -1, -2, -3)
                | of_type(h, "softmax")
                | {n for i in range(3) for n in returned(h, f"blocks.{i}")}
            ),
        ),
    }


CASES = cases()


def numbers(found):
    items = found if isinstance(found, list) else [found]
    return {n for one in items for n in ([one._number] if isinstance(one, Operation) else one._entry.passes)}


@pytest.fixture(params=list(CASES))
def case(request, history):
    return meant_by(history, request.param)


def meant_by(history, name):
    key, expected = CASES[name]
    meant = expected(history)
    assert meant
    return key, meant


def test_lookup_means_it(history, case):
    key, meant = case
    assert numbers(history[[key]]) == meant
    try:
        assert numbers(history[key]) == meant
    except AmbiguousKey:
        assert isinstance(key, str)
        assert len({history._index.layer(number) for number in meant}) > 1
    assert [one._number for one in history.filter(key)] == sorted(meant)


def test_layers_to_save_means_it(model, history, case):
    key, meant = case
    for wanted in (key, [key]):
        some = log(model, x, layers_to_save=wanted)
        assert {one._number for one in some.saved} == meant
        for one in some.saved:
            assert torch.equal(one.tensor_contents, history[one.layer_label_w_pass].tensor_contents)


def test_save_gradients_means_it(model, case):
    key, meant = case
    some = torcheer.log_forward_pass(model, x, save_gradients=[key])
    some.outputs[0].tensor_contents.sum().backward()
    everything = torcheer.log_forward_pass(model, x, save_gradients=True)
    everything.outputs[0].tensor_contents.sum().backward()
    reached = {one._number for one in everything.operations if one.grads}
    assert {one._number for one in some.operations if one.grads} & meant == reached & meant
    outputs = {one._number: one._record.parents[0] for one in some.outputs}
    same = {number for number, made in outputs.items() if made in meant} | {outputs[n] for n in meant if n in outputs}
    assert {one._number for one in some.operations if one.grads} <= meant | same


UNHASHABLE = {"a slice", "a list"}  # no keys of a dictionary


@pytest.mark.parametrize("name", [name for name in CASES if name not in UNHASHABLE])
def test_changes_mean_it(history, name):
    key, meant = meant_by(history, name)
    times = []
    changed = history.replay(changes={key: lambda tensor: times.append(1) or tensor * 0 + 0.5})
    assert len(times) == len(meant)
    assert all(bool((changed._log.values[number] == 0.5).all()) for number in meant)


def test_changes_take_a_tuple_of_keys(history):
    changed = history.replay(changes={("cell:1", F.softmax): lambda tensor: tensor * 0})
    meant = returned(history, "cell", call=1) | of_type(history, "softmax")
    assert all(not changed._log.values[number].any() for number in meant)


def test_the_graph_means_it(history, case):
    key, meant = case
    graph = history.graph
    assert {number for node in graph.find(key) for number in node.operations} == meant
    leading = {number for node in ancestors(graph, key).nodes for number in node.operations}
    assert leading == upstream(history, meant)


def upstream(history, meant):
    found, waiting = set(meant), list(meant)
    while waiting:
        for parent in history._index.parents(waiting.pop()):
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


def test_an_xray_watches_it(model, case, tmp_path):
    key, meant = case
    with Xray(model, x, [key], folder=tmp_path / "run") as xray:
        names = [watch.name for watch in xray.layers]
    assert len(names) == len(set(names)) == len(meant)
    looked = xray._probe.run("none")
    assert {number for name in names for number in numbers(looked[[name]])} == meant


TYPED = {
    "a position": "3",
    "a position from the end": "-2",
    "a slice": "2:9:3",
    "a class": "nn.LayerNorm",
    "a class of subclasses": "torch.nn.Linear",
    "a class of one's own": f"{__name__}:Block",
    "a function": "F.softmax",
    "the same function": "torch.softmax",
    "a method": "torch.Tensor.relu",
    "an operator": "operator.add",
} | {name: key for name, (key, _) in CASES.items() if isinstance(key, str)}


@pytest.mark.parametrize("name", TYPED)
def test_the_command_line_means_it(model, history, name, monkeypatch, capsys):
    _, meant = meant_by(history, name)
    monkeypatch.setattr(sys.modules[__name__], "shell_model", model, raising=False)
    assert main(["find", f"{__name__}:shell_model", "--input", "2,4", "--", TYPED[name]]) == 0
    printed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert printed == [history._index.label(number) for number in sorted(meant)]


def test_the_command_line_says_what_a_key_that_fits_nothing_is_like(monkeypatch, refused, model):
    monkeypatch.setattr(sys.modules[__name__], "shell_model", model, raising=False)
    assert "'blocks.1'" in refused(["find", f"{__name__}:shell_model", "--input", "2,4", "bloks.1"])


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("blocks.1", ["@blocks.1:1"]),
        ("blocks.*", ["@blocks.0:1", "@blocks.1:1", "@blocks.2:1"]),
        ("**.mlp", ["@blocks.0.mlp:1", "@blocks.1.mlp:1", "@blocks.2.mlp:1"]),
        (nn.Sequential, ["@blocks.0.mlp:1", "@blocks.1.mlp:1", "@blocks.2.mlp:1"]),
        ("cell:2", ["@cell:2"]),
        (["cell", Block], ["@blocks.0:1", "@blocks.1:1", "@blocks.2:1", "@cell:1", "@cell:2", "@cell:3"]),
        ("same:1", ["@blocks.0.norm:1"]),
    ],
)
def test_modules_are_collapsed_by_the_same_keys(history, key, expected):
    assert [node.key for node in collapse(history.graph, address=key).nodes if node.kind == "module"] == expected
    first = next(views(history.graph, PictureOptions(collapse=key, fold_repeats=False, rolled=False)))
    assert [node.key for node in first.graph.nodes if node.kind == "module"] == expected


def test_a_key_that_names_no_module_cannot_be_collapsed(history):
    for key in ("tanh_1", "lstm[1]", "input:cell"):
        with pytest.raises((InvalidArgument, LayerNotFound)):
            collapse(history.graph, address=key)
    with pytest.raises(LayerNotFound, match=r"blocks\.1"):
        collapse(history.graph, address="bloks.1")
    with pytest.raises(LayerNotFound, match="no module is a Conv2d"):
        collapse(history.graph, address=nn.Conv2d)


def test_a_graph_finds_the_node_that_stands_for_what_a_key_means(history):
    graph = collapse(history.graph, address=Block)
    assert [node.key for node in graph.find("blocks.1.mlp.0")] == ["@blocks.1:1"]


def test_a_graph_answers_keys_without_its_history():
    graph = build_graph(log(Net(), x))
    assert [node.type for node in graph.find("blocks.*.mlp")] == ["relu"] * 3
    with pytest.raises(InvalidArgument, match="the history"):
        graph.find(lambda one: True)


class Named(nn.Module):
    """Modules with any names, run in order."""

    def __init__(self, **named):
        super().__init__()
        for name, module in named.items():
            self.add_module(name, module)

    def forward(self, x):
        x = torch.relu(x)
        for module in self.children():
            x = module(x)
        return x


ODD = [
    "a:2",
    "b[1]",
    "*",
    "**",
    "a b",
    "input",
    "output",
    "input:0",
    "7",
    "relu",
    "tanh[*]",
    "input_2",
    "x.y".replace(".", "·"),
    "all",
]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("more", ["", ":1", "[0]", "[*]:1"])
def test_a_module_is_found_under_any_name_it_has(name, more):
    model = Named(**{"first": nn.Sigmoid(), name: nn.Tanh(), "last": nn.Sigmoid()})
    history = log(model, x)
    assert numbers(history[[name + more]]) == returned(history, name)
    assert {one._number for one in log(model, x, layers_to_save=[name + more]).saved} == returned(history, name)
    assert [node.type for node in history.graph.find(name + more)] == ["tanh"]
    assert torch.equal(
        history.replay(changes={name + more: lambda t: t * 0})["sigmoid_2"].tensor_contents, torch.full((2, 4), 0.5)
    )


def test_what_a_module_with_an_odd_name_was_given():
    history = log(Named(**{"first": nn.Sigmoid(), "0": nn.Tanh()}), x)
    assert history["input:0"].layer_type == "sigmoid"
    assert history["input:1"].layer_type == "input"  # no module is called 1
    assert history["input:"].layer_type == "input"  # what the model was given
    assert history[""].layer_type == "tanh"
    assert history[":1"].layer_type == "tanh"


def test_a_module_named_like_a_short_label_is_meant_before_the_label():
    model = Named(relu_1=nn.ReLU())
    history = log(model, x)
    assert returned(history, "relu_1") == passes(history, "relu_2")
    with pytest.raises(AmbiguousKey, match=r"'relu_1_1' is the layer, 'relu_1\[0\]' what the module returned"):
        history["relu_1"]
    assert history["relu_1[0]"].label == "relu_2_2"
    for key in ("relu_1", "relu_1:1"):
        assert [one.label for one in log(model, x, layers_to_save=[key]).saved] == ["relu_2_2"]
        assert [node.label for node in history.graph.find(key)] == ["relu_2_2"]


def test_a_full_label_is_meant_before_a_module_of_that_name():
    model = Named(relu_1_1=nn.ReLU())
    history = log(model, x)
    assert history["relu_1_1"].label == "relu_1_1"
    assert history["relu_1_1[0]"].label == "relu_2_2"
    assert [one.label for one in log(model, x, layers_to_save=["relu_1_1"]).saved] == ["relu_1_1"]
    for layer in history:
        for key in layer.lookup_keys:
            assert history[key] == layer


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_names_of_wrapped_models_are_looked_through(wrap):
    model = Net()
    wrapped = wrap(model)
    history = log(wrapped, x)
    for (plain, _), (name, _) in zip(list(model.named_modules())[1:], list(wrapped.named_modules())[2:], strict=True):
        if plain not in ("blocks", "drop.parametrizations", "drop.parametrizations.weight"):
            assert numbers(history[[name]]) == returned(history, plain), name
    prefix = name.partition(".")[0]
    assert numbers(history[f"{prefix}.blocks.*.mlp"]) == numbers(history["blocks.*.mlp"])
    assert len(log(wrapped, x, layers_to_save=[f"{prefix}.cell", f"{prefix}.blocks.*"]).saved) == 6


def test_a_module_that_the_forward_pass_makes_can_be_named():
    def model(x):
        return nn.Sequential(nn.Tanh(), nn.Sigmoid())(x) + nn.Softplus()(x)

    for key, kinds in [
        ("Sequential.0", ["tanh"]),
        (nn.Sigmoid, ["sigmoid"]),
        ("Seq*", ["sigmoid"]),
        ("Softplus", ["softplus"]),
    ]:
        history = log(model, x, layers_to_save=[key])
        assert [one.layer_type for one in history.saved] == kinds


def test_a_class_is_never_called():
    class Fussy(nn.ReLU):
        def __init__(self, *args):
            super().__init__()
            assert not args, "a class was called as a predicate"

    model = nn.Sequential(Fussy(), nn.Tanh())
    assert [one.layer_type for one in log(model, x, layers_to_save=Fussy).saved] == ["relu"]
    assert [layer.label for layer in log(model, x)[Fussy]] == ["relu_1_1"]


@pytest.mark.parametrize("key", [1.5, True, object(), b"fc", torch.ones(2), {"fc1": [1.5]}.get("fc1"), nn.ReLU()])
def test_other_things_are_refused_before_the_model_runs(key):
    ran = []
    with pytest.raises(InvalidArgument, match=r"key|named by"):
        log(lambda t: ran.append(1) or t, x, layers_to_save=key)
    assert not ran
    with pytest.raises(LayerNotFound):
        log(nn.ReLU(), x)[key]
    with pytest.raises(InvalidArgument):
        log(nn.ReLU(), x).replay(changes={key: torch.zeros(2, 4)} if not isinstance(key, list) else {(1.5,): torch.zeros(2, 4)})


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("bloks.1", "'blocks.1'"),
        ("linear_99", "'linear_1_"),
        ("blocks.1:2", "called 1 times"),
        ("tanh_1:9", "3 passes"),
        ("lstm[3]", r"tensors \[0\] to \[2\]"),
        ("bloks.*", "'blocks.1'|blocks"),
        ("quite another", "for example"),
        (nn.Conv2d, "LayerNorm"),
        (torch.nn.functional.conv2d, "no layer fits 'conv2d'"),
        (99, "0 to "),
    ],
)
def test_a_key_that_fits_nothing_says_what_there_is_everywhere(model, history, key, said, tmp_path):
    with pytest.raises(LayerNotFound, match=said):
        history[key]
    with pytest.raises(LayerNotFound, match=said) as caught:
        log(model, x, layers_to_save=[key])
    assert len(caught.value.history) == len(history)
    with pytest.raises(LayerNotFound, match=said):
        history.replay(changes={key: torch.zeros(1)})
    with pytest.raises(LayerNotFound, match=said):
        history.graph.find(key)
    with pytest.raises(LayerNotFound, match=said):
        Xray(model, x, [key], folder=tmp_path / "run")


def test_parts_of_names_are_a_convenience_of_lookup_alone(model, history):
    assert history["eg_1"].label == "neg_1_29"
    with pytest.raises(LayerNotFound):
        log(model, x, layers_to_save=["eg_1"])
    with pytest.raises(LayerNotFound):
        history.graph.find("eg_1")
    with pytest.raises(LayerNotFound):
        history.replay(changes={"eg_1": torch.zeros(1)})


def test_a_text_that_fits_several_is_ambiguous_only_in_lookup():
    @made_with(either=lambda: made_of(lambda self, t, rectify: t.relu() if rectify else t.tanh()))
    def Both(self, t):
        return self.either(self.either(t, True), False)

    history = log(Both(), x)
    with pytest.raises(AmbiguousKey, match=r"called 2 times: say which, by either:1 \(relu_1_1\), either:2 \(tanh_1_2\)"):
        history["either"]
    assert [layer.label for layer in history[["either"]]] == ["relu_1_1", "tanh_1_2"]
    assert len(log(Both(), x, layers_to_save="either").saved) == 2


def test_a_function_of_final_facts_is_asked_once_and_lets_the_rest_go(model):
    asked, alive = [], []

    def forward(t):
        for _ in range(4):
            t = t * 2
            alive.append(weakref.ref(t))
        assert [one() is not None for one in alive] == [False, False, False, True]
        return t.relu()

    def is_relu(one):
        asked.append(one._number)
        return one.layer_type == "relu" and one.tensor_shape == (2, 4) and not one.parent_params

    history = log(forward, x, layers_to_save=is_relu)
    assert [one.label for one in history.saved] == ["relu_1_2"]
    assert asked == sorted(set(asked))


@pytest.mark.parametrize(
    "choose",
    [
        lambda one: one.child_layers == ["softmax_1_3"],
        lambda one: one.min_distance_from_output == 2,
        lambda one: one.label == "linear_1_1",
        lambda one: one.child_layers[0].startswith("softmax"),
        lambda one: one.modules_exited == ["0:1", ":1"] or (one.layer_type == "linear" and one.modules_exited != []),
    ],
)
def test_a_function_of_what_comes_later_is_asked_again_at_the_end(choose):
    model = nn.Sequential(nn.Linear(4, 4))

    def forward(t):
        return torch.softmax(model(t) + 1, -1)

    everything = log(forward, x)

    def safe(one):
        try:
            return choose(one)
        except IndexError:
            return False

    expected = [one.label for one in everything.operations if safe(one)]
    assert expected
    assert [one.label for one in log(forward, x, layers_to_save=safe).saved] == expected


@pytest.mark.parametrize("key", ["model.0", nn.Linear, "input:model.1", torch.tanh, "model.*", "tanh_1"])
def test_what_is_not_meant_is_let_go_as_the_model_runs(key):
    alive = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(t):
        t = model(t)
        for _ in range(4):
            t = t * 2
            alive.append(weakref.ref(t))
        assert [one() is not None for one in alive] == [False, False, False, True]
        return t

    assert log(forward, x, layers_to_save=[key]).num_tensors_saved in (1, 2)


def test_what_a_module_is_given_is_kept_as_it_was():
    """By position, by name, also when the module overwrites it."""

    def forward(self, t):
        t = self.relu(t - 0.5)
        return self.scale(t, by=t.sum())

    model = made_of(forward, relu=nn.ReLU(inplace=True), scale=made_of(lambda self, t, *, by: t * by))
    history = log(model, x, layers_to_save=["input:relu", "input:scale[1]"])
    assert [one.layer_type for one in history.saved] == ["sub", "sum"]
    assert torch.equal(history["input:relu"].activation, x - 0.5)
    assert torch.equal(history["input:scale[1]"].activation, (x - 0.5).relu().sum())
    assert len(log(model, x, layers_to_save="input:scale[*]").saved) == 2


def test_keys_are_understood_while_a_recording_grows():
    model = Named(first=nn.Sigmoid(), second=nn.Tanh())
    with torcheer.recording(model, layers_to_save=["second", nn.Sigmoid]) as history:
        for turn in range(1, 4):
            model(x)
            assert history[f"second:{turn}"].layer_type == "tanh"
            assert len(history.filter("second")) == turn
            assert len(history.filter(nn.Sigmoid)) == turn
    assert [one.layer_type for one in history.saved] == ["sigmoid", "tanh"] * 3


def test_an_xray_takes_kinds_by_any_key(tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3))
    with Xray(model, (1, 1, 8, 8), {nn.Conv2d: ["weight"], "*": ["layer"]}, folder=tmp_path / "run") as xray:
        xray.take_graphs()
    assert {name: xray.run.kinds(name) for name in xray.run.layers} == {
        "0": ["weight", "layer"],
        "2": ["weight", "layer"],
        "1": ["layer"],
    }


def test_an_xray_refuses_too_many_calls_of_one_key(tmp_path):
    cell = nn.Linear(4, 4)

    @made_with(cell=lambda: cell)
    def Loop(self, t):
        for _ in range(300):
            t = self.cell(t)
        return t

    with pytest.raises(InvalidArgument, match=r"'cell' means 300 tensors.*at most 256.*'cell:1' and 'cell:300'"):
        Xray(Loop(), x, ["cell"], folder=tmp_path / "run")
    with Xray(Loop(), x, ["cell:1", "cell:300"], folder=tmp_path / "run") as xray:
        xray.take_graphs()
    assert xray.run.layers == ["cell:1", "cell:300"]


@pytest.mark.parametrize(
    ("glob", "fits", "not_"),
    [
        ("a.*", ["a.b", "a.0"], ["a", "a.b.c", "ab"]),
        ("a.**", ["a.b", "a.b.c"], ["a", "b.a.c"]),
        ("**", ["a", "a.b.c"], []),
        ("*", ["a", "abc"], ["a.b"]),
        ("**.c", ["c", "a.c", "a.b.c"], ["xc", "c.d"]),
        ("a.**.c", ["a.c", "a.b.c", "a.b.d.c"], ["ac", "c"]),
        ("a[01]*", ["a[01]x"], ["a0", "a1"]),
        ("a?*", ["a?b"], ["ab"]),
        ("l*.0", ["layer1.0"], ["layer1.1.0"]),
    ],
)
def test_globs(glob, fits, not_):
    pattern = glob_pattern(glob)
    assert [one for one in [*fits, *not_] if pattern.fullmatch(one)] == fits


def test_readings_go_from_the_most_literal_to_the_barest():
    found = [(one.name, one.part, one.turn, one.is_input) for one in readings("input:a[1]:2")]
    assert found == [
        ("input:a[1]:2", None, None, False),
        ("input:a[1]", None, 2, False),
        ("input:a", 1, 2, False),
        ("a[1]:2", None, None, True),
        ("a[1]", None, 2, True),
        ("a", 1, 2, True),
    ]


def test_layers_operations_and_modules_are_keys(history):
    for one in (history["tanh_1"], history["tanh_1:2"], history.modules["cell"], history.modules["cell:2"]):
        key = parse_key(one)
        assert key.meaning(history._run.lookup.names).numbers
    assert numbers(history[[history["tanh_1:2"]]]) == {history["tanh_1:2"]._number}
    assert [one._number for one in history.filter(history.modules["cell"])] == sorted(returned(history, "cell"))


def test_a_layer_type_alone_says_how_all_its_layers_are_named(model):
    with pytest.raises(LayerNotFound, match=r"'tanh' is a type of layers: 'tanh_\*' means all of them"):
        log(model, x, layers_to_save="tanh")


def test_torch_functions_are_told_from_functions_of_an_operation():
    ours = [
        torch.relu,
        F.relu,
        F.gelu,
        torch.Tensor.relu_,
        torch.Tensor.T.__get__,
        torch.ops.aten.relu,
        torch.fft.fft,
        operator.add,
    ]
    assert all(map(is_torch_function, ours))
    assert not any(map(is_torch_function, [len, lambda one: True, np.sin, nn.ReLU().forward, functools.partial(F.relu)]))
    assert [one.layer_type for one in log(lambda t: t.T + 1, x).filter(torch.Tensor.T.__get__)] == ["t"]
