"""Modules and their calls: what came in, what ran inside, what left, and parameters that add up."""

from __future__ import annotations

import collections
import dataclasses
import re

import pytest
import torch
from torch import nn

import torcheer
from models import Convolutional, Mlp, log, made_of, made_with
from torcheer._torch import containers

x = torch.rand(3, 4)


class Twice(nn.Module):
    """Runs one block twice, and has one that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.again = self.block[0]
        self.unused = nn.Linear(4, 2)

    def forward(self, t, scale=1.0, *, shift=None):
        for _ in range(2):
            t = self.block(t) * scale
        return t + 1


def test_a_module_knows_its_place_class_and_calls():
    modules = log(Twice(), x).modules
    block = modules["block"]
    assert (block.class_name, block.num_calls, block.depth, block.name) == ("Sequential", 2, 1, "block")
    assert [call.label for call in block.calls] == ["block:1", "block:2"]
    assert [child.address for child in block.children] == ["block.0", "block.1"]
    assert block.parent == modules[""]
    assert modules["block.0"].other_addresses == ["again"]
    assert modules["again"] == modules["block.0"]
    assert modules["unused"].num_calls == 0
    assert list(modules) == ["", "block", "block.0", "block.1", "unused"]


def test_a_call_knows_what_came_in_what_ran_and_what_left():
    history = log(Twice(), x)
    second = history.modules["block:2"]
    assert [one.label for one in second.inputs] == ["mul_1_3:1"]
    assert [one.label for one in second.outputs] == ["relu_1_2:2"]
    assert [one.label for one in second.operations] == ["linear_1_1:2", "relu_1_2:2"]
    assert second.own_operations == []
    assert [call.label for call in second.inner] == ["block.0:2", "block.1:2"]
    assert second.outer.label == ":1"
    assert second.inner[0].containing_modules == ["block:2"]
    assert second.input_shapes == second.output_shapes == [(3, 4)]
    assert torch.equal(second.args[0], history["mul_1:1"].tensor_contents)
    root = history.modules[":1"]
    assert [one.label for one in root.own_operations] == ["mul_1_3:1", "mul_1_3:2", "add_1_4"]
    assert "self.block(t)" in second.source.text


def test_arguments_are_kept_positional_and_named():
    history = torcheer.log_forward_pass(Twice(), (x, 2.0), {"shift": {"by": x}})
    call = history.modules[":1"]
    assert call.args[1] == 2.0
    assert torch.equal(call.kwargs["shift"]["by"], x)
    none = torcheer.log_forward_pass(Twice(), (x, 2.0), layers_to_save="none")
    with pytest.raises(torcheer.ActivationNotSaved, match="layers_to_save"):
        none.modules[":1"].args


def test_times_are_within_each_other():
    history = log(Twice(), x)
    root, block = history.modules[""], history.modules["block"]
    assert 0 < sum(child.time_elapsed for child in block.children) <= block.time_elapsed <= root.time_elapsed
    assert block.time_elapsed == sum(call.time_elapsed for call in block.calls)


def test_parameters_are_trainable_frozen_and_shared():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    history = log(model.eval(), x)
    first, whole = history.modules["0"], history.modules[""]
    assert (first.num_params, first.num_params_trainable, first.num_params_frozen, first.num_params_shared) == (20, 16, 4, 16)
    assert whole.num_params == sum(p.numel() for p in model.parameters()) == history.num_params_total
    assert [param.name for param in history.modules["2"].buffers] == [
        *("2.running_mean", "2.running_var", "2.num_batches_tracked")
    ]
    assert whole.params_fsize == 4 * whole.num_params


def test_training_flags_are_those_of_each_module():
    model = Convolutional().train()
    model.features[1].eval()
    history = log(model, torch.rand(2, 3, 8, 8))
    flags = {address: history.modules[address].training for address in history.modules}
    assert flags == {name: module.training for name, module in model.named_modules()}


def test_a_bottom_level_module_has_one_operation_inside_whatever_it_holds():
    history = log(nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Tanh()), x)
    bottom = [address for address, module in history.modules.items() if module.is_bottom_level]
    assert bottom == ["0", "0.0", "1"]


def test_a_call_that_makes_several_tensors_is_one_operation_to_its_module():
    history = log(nn.Sequential(nn.MaxPool1d(2, return_indices=True)), x)
    assert history.modules["0"].is_bottom_level
    assert history.modules["0"].num_operations == 2
    assert history["0"].bottom_level_module == "0"


def test_identity_modules_show_their_calls():
    history = log(nn.Sequential(nn.Identity(), nn.Dropout(0.5), nn.ReLU()).eval(), x)
    identity = history.modules["0:1"]
    assert identity.inputs == identity.outputs == history.inputs
    assert identity.operations == []
    assert not identity.is_bottom_level


def test_a_module_answers_what_its_calls_share():
    history = log(Twice(), x)
    assert history.modules["block"].input_shapes == [(3, 4)]
    with pytest.raises(torcheer.SeveralPasses, match="block:1, block:2"):
        history.modules["block"].outputs
    with pytest.raises(AttributeError, match="not called"):
        history.modules["unused"].outputs
    with pytest.raises(AttributeError, match="no attribute"):
        history.modules["block"].nothing


@pytest.mark.parametrize("key", ["blokc", "block:3", 5, "block.0.weight"])
def test_a_module_that_is_not_there_is_an_error_with_near_matches(key):
    with pytest.raises(torcheer.LayerNotFound, match=r"nearest|called 2 times|no module"):
        log(Twice(), x).modules[key]


TABLE = """\
module     class                     calls  in      out     params
─────────  ───────────────────  ──────────  ──────  ──────  ──────
(model)    Twice                         1  (3, 4)  (3, 4)       –
├─ block   Sequential                    2  (3, 4)  (3, 4)       –
│  ├─ 0    Linear                        2  (3, 4)  (3, 4)      20
│  └─ 1    ReLU                          2  (3, 4)  (3, 4)       –
├─ unused  Linear               not called                      10
└─ again   the same as block.0
─────────  ───────────────────  ──────────  ──────  ──────  ──────
params: 30 (120 B); trainable 30, frozen 0"""


def test_modules_print_as_a_tree():
    assert str(log(Twice(), x).modules) == TABLE


def test_the_column_of_parameters_adds_up():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].weight = model[0].weight
    text = str(log(model.eval(), x).modules)
    rows = re.findall(r"(?:├─|└─).*?([\d,]+|–)(?: \(shared\))?$", text, re.M)
    assert sum(int(n.replace(",", "")) for n in rows if n != "–") == sum(p.numel() for p in model.parameters())


def test_modules_and_calls_print_their_facts():
    history = log(Twice(), x)
    text = str(history.modules["block"])
    assert "called 2 times" in text
    assert "Call 2: (3, 4) → (3, 4), 2 operations" in text
    text = str(history.modules["block:2"])
    assert "Operations inside: 2 (0 of its own): linear_1_1:2, relu_1_2:2" in text
    assert "Mode: training" in text


def test_several_models_in_one_recording_are_several_roots():
    one, two = Mlp(), nn.Linear(3, 2)
    with torcheer.recording(one, two) as history:
        two(one(x))
    assert [root.address for root in history.modules.roots] == ["Mlp", "Linear"]
    assert history.modules["Mlp.fc1"].depth == 1
    assert "Linear" in str(history.modules)


def test_what_crosses_a_module_is_what_crossed_it_even_if_written_through_a_view():
    def writes(self, t):
        y = t.clone()
        view = y[0]
        view.add_(1)
        return y

    def forward(self, t):
        y = self.inner(t)
        view = y[1]
        view.mul_(-1)
        return self.act(y)

    seen = {}
    model = made_of(forward, inner=made_of(writes), act=nn.ReLU())
    model.inner.register_forward_hook(lambda m, i, o: seen.update(inner=o.clone()))
    model.act.register_forward_pre_hook(lambda m, i: seen.update(act=i[0].clone()))
    history = log(model, x)
    assert torch.equal(history["inner"].tensor_contents, seen["inner"])
    assert torch.equal(history.modules["act:1"].args[0], seen["act"])


class Shares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = self.b = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, t):
        return self.b(self.a(t))


def test_a_shared_module_is_known_by_all_its_names():
    history = log(Shares(), x)
    assert history["b:2"] == history["a:2"]
    assert history["b"] == history["a"]
    assert history.modules["b.0"] == history.modules["a.0"]
    assert history.modules["a"].num_params_shared == 20
    assert re.search(r"└─ b +the same as a", str(history.modules))


def test_totals_count_a_parameter_once_across_models_and_also_one_in_no_module():
    one, two, stranger = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.rand(3, 4))
    two.weight = one.weight
    with torcheer.recording(one, two) as history:
        kept = two(one(x)) * stranger
    assert kept.shape == (3, 4)
    assert history.num_params_total == 16 + 4 + 4 + 12
    text = str(history.modules)
    assert text.splitlines()[-1].startswith("params: 36 ")
    assert re.search(r"\(in no module\) +1 parameter +12$", text, re.M)


def test_tensors_inside_a_dataclass_enter_a_module():
    @dataclasses.dataclass
    class Batch:
        x: torch.Tensor
        scale: float

    history = log(nn.Sequential(made_of(lambda self, batch: batch.x * batch.scale)), Batch(x, 2.0))
    assert history.modules["0:1"].inputs == history.inputs


class First(nn.Module):
    """Takes a container of tensors and returns them, in another container of the same class."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, given):
        return self.make([t + 1 for t in given])


@pytest.mark.parametrize(
    "make",
    [collections.deque, set, frozenset, list, tuple, collections.UserList, lambda items: dict(enumerate(items)).values()],
)
def test_tensors_in_any_container_enter_and_leave_a_module(make):
    """Each is an input of the modules that got it and an output of those that gave it, and the validator sees so by itself."""

    @made_with(one=lambda: First(make), two=lambda: First(make))
    def Model(self, a, b):
        return sum(self.two(self.one(make([a * 2, b * 3]))))

    a, b = torch.rand(2), torch.rand(2)
    history = log(Model(), a, b)
    for address in ("one", "two"):
        assert len(history.modules[f"{address}:1"].inputs) == 2
        assert len(history.modules[f"{address}:1"].outputs) == 2
    assert {layer.layer_type for layer in history.modules["one:1"].inputs} == {"mul"}
    assert torcheer.validate_forward_pass(Model(), (a, b))


def test_the_validator_notices_tensors_that_capture_overlooks(monkeypatch):
    """Where capture does not look into deques, its log of a module that gets one is not valid."""
    monkeypatch.delitem(containers.OWN, collections.deque)
    monkeypatch.setattr(containers, "_LEAF_CLASSES", containers._LEAF_CLASSES | {collections.deque})

    report = torcheer.validate_forward_pass(
        made_of(lambda self, a: self.one(collections.deque([a * 2, a * 3])), one=First(sum)), torch.rand(2)
    )
    assert not report
    assert "0 inputs were logged, plain hooks saw 2" in str(report)


@pytest.mark.parametrize(
    ("key", "message"), [("quiet", "is in what it returned"), ("unused", "was not called"), ("unused:1", "was not")]
)
def test_the_address_of_a_module_that_gave_nothing_is_an_error(key, message):
    def forward(self, t):
        self.quiet(t)
        return self.unused_too(t)

    with pytest.raises(torcheer.LayerNotFound, match=message):
        log(made_of(forward, quiet=made_of(lambda self, t: None), unused=nn.ReLU(), unused_too=nn.ReLU()), x)[key]


def test_arguments_of_a_call_are_there_also_when_their_class_was_met_before():
    class Setting:
        pass

    first, second = (
        log(
            made_of(
                lambda self, t: self.scale(self.scale(t, Setting(), by=2.0, also=Setting()), Setting(), by=3.0),
                scale=made_of(lambda self, t, setting, *, by, also=None: t * by),
            ),
            x,
        )
        .modules["scale"]
        .calls
    )
    for call, by, given in ((first, 2.0, x), (second, 3.0, x * 2)):
        assert torch.equal(call.args[0], given)
        assert repr(call.args[1]) == repr(first.args[1])
        assert "Setting" in repr(call.args[1])
        assert len(call.args) == 2
        assert call.kwargs["by"] == by
    assert sorted(first.kwargs) == ["also", "by"]
    assert list(second.kwargs) == ["by"]


def test_lists_of_things_read_as_lists():
    history = log(Twice(), x)
    assert repr(history.modules["block:2"].outputs) == "[<Operation relu_1_2:2: float32 (3, 4)>]"
    assert repr(history.layers[1]) == "<Layer linear_1_1: 2 passes>"
    assert repr(history.modules["block"].calls) == "[<Call block:1 of Sequential>, <Call block:2 of Sequential>]"
    assert repr(history.modules["unused"]) == "<Module 'unused': Linear, 0 calls>"
