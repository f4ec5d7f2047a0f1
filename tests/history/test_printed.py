"""What is printed and told of layers, modules, calls, nodes and refusals: the words and the numbers."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torcheer as tl
from models import made_of, made_with
from torcheer._torch.memory import FREED
from torcheer.history.layer import agreed
from torcheer.log.records import UNSAVED


class Again(nn.Module):
    """One layer five times, inside a block that has two names, and a decision on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.same = self.block

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(5):
            x = self.block(x)
        return x * 2 if x.sum() > 1e9 else x + 1


@pytest.fixture(scope="module")
def again() -> tl.ModelHistory:
    torch.manual_seed(0)
    return tl.log_forward_pass(Again(), torch.rand(2, 4))


def test_a_layer_of_several_passes_is_printed_with_what_they_share(again: tl.ModelHistory) -> None:
    printed = str(again["linear_1_1"])
    seconds = sum(one.func_time_elapsed for one in again["linear_1_1"].passes)
    assert printed.splitlines() == [
        "Layer linear_1_1, 5 passes (linear_1_1:1, linear_1_1:2, linear_1_1:3, linear_1_1:4, linear_1_1:5):",
        "\tOutput tensors: shape=(2, 4), dtype=torch.float32, size=160 B in all",
        "\tParams: Computed from params with shape (4,), (4, 4); 20 params total (80 B)",
        "\tParent Layers: input_1_0, relu_1_2",
        "\tChild Layers: relu_1_2",
        "\tFunction: linear (gradfunc=AddmmBackward0)",
        "\tComputed inside module: block.0",
        f"\tTime elapsed: {seconds: .3E}s in all",
        "\tLookup keys: -6, 1, block.0, linear_1_1",
    ]


def test_a_module_is_printed_with_its_names_its_calls_and_what_is_inside(again: tl.ModelHistory) -> None:
    printed = str(again.modules["block"]).splitlines()
    assert printed[:3] == [
        "Module 'block': Sequential, called 5 times",
        "\tAlso known as: same",
        "\tParams: 20 (80 B); trainable 20, frozen 0, shared 20",
    ]
    assert [line.partition(":")[0] for line in printed[3:7]] == [f"\tCall {n}" for n in (1, 2, 3, 4)]
    assert all(": (2, 4) → (2, 4), 2 operations, " in line for line in printed[3:7])
    assert printed[7:9] == ["\t… 1 call more …", "\tInside:"]
    assert not any("more" in line for line in printed[8:])
    assert [line.split()[0] for line in printed[11:12]] == ["block"]


def test_a_module_says_how_often_it_was_called() -> None:
    model = Again()
    model.unused = nn.Linear(4, 4)
    history = tl.log_forward_pass(model, torch.rand(2, 4))
    heads = {address: str(history.modules[address]).splitlines()[0] for address in ("", "block", "unused")}
    assert heads == {
        "": "Module (the model): Again, called once",
        "block": "Module 'block': Sequential, called 5 times",
        "unused": "Module 'unused': Linear, not called",
    }


def test_a_call_is_printed_with_what_it_got_and_gave(again: tl.ModelHistory) -> None:
    call = again.modules["block.0"].calls[1]
    printed = str(call).splitlines()
    assert printed[0] == "Call block.0:2 of Linear: (2, 4) → (2, 4)"
    assert "\tInputs: relu_1_2:1" in printed
    assert "\tOutputs: linear_1_1:2" in printed
    assert "\tOperations inside: 1 (1 of its own): linear_1_1:2" in printed
    assert "\tMode: training" in printed
    assert "\tInside: block:2" in printed
    assert f"\tTime elapsed: {call.time_elapsed: .3E}s" in printed


def test_tables_of_many_modules_are_cut_and_say_by_how_many() -> None:
    history = tl.log_forward_pass(nn.Sequential(nn.Sequential(*[nn.Identity() for _ in range(1_100)])), torch.ones(2))
    for printed, count in ((str(history.modules), 1_102), (str(history.modules["0"]), 1_101)):
        (said,) = re.findall(r"… (\d+) modules more …", printed)
        assert int(said) == count - 400
        assert printed.count("Identity") + printed.count("Sequential") >= 400


def test_modules_and_calls_are_equal_to_themselves_alone(again: tl.ModelHistory) -> None:
    """Also when they are asked for again, so that they can be kept in sets."""
    one, two = again.modules["block"], again.modules["block.0"]
    assert one == again.modules["block"]
    assert len({one, again.modules["block"], two}) == 2
    assert one.calls[0] == again.modules["block"].calls[0]
    assert len({*one.calls, *again.modules["block"].calls}) == 5
    assert one.calls[0] != one.calls[1]
    assert len({again["linear_1_1:1"], again["linear_1_1:1"], again["linear_1_1:2"]}) == 2


def test_a_module_has_the_operations_and_layers_of_all_its_calls(again: tl.ModelHistory) -> None:
    block = again.modules["block"]
    assert [one.label for one in block.operations] == [
        f"{name}:{n}" for n in range(1, 6) for name in ("linear_1_1", "relu_1_2")
    ]
    assert [one.layer_label for one in block.layers] == ["linear_1_1", "relu_1_2"]
    assert again["relu_1_2:3"].layer.layer_label == "relu_1_2"
    assert {"block", "block.0", "block.1"} <= set(again.modules._ipython_key_completions_())


def test_a_decision_says_where_it_was_made() -> None:
    class Deciding(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.sum() > 0 else x

    history = tl.log_forward_pass(nn.Sequential(Deciding()), torch.ones(2))
    (escape,) = history.python_reads
    assert escape.containing_module == "0"
    assert escape.stack[-1] == escape.source
    assert escape.source.text == "return x + 1 if x.sum() > 0 else x"


def test_many_decisions_are_cut_and_say_by_how_many() -> None:
    lines = "\n".join(f"    if x[{n}] > 0: x = x + 1" for n in range(12))
    space: dict[str, Any] = {}
    exec(compile(f"def program(x):\n{lines}\n    return x", "deciding.py", "exec"), space)
    printed = str(tl.log_forward_pass(space["program"], torch.ones(12)))
    assert "12 truth values left for Python:" in printed
    shown = len(re.findall(r"at deciding\.py", printed))
    assert f"… {12 - shown} lines more …" in printed


def test_a_node_of_the_backward_pass_is_printed_with_its_shapes() -> None:
    history = tl.log_forward_pass(nn.Linear(3, 2), torch.ones(4, 3), save_gradients=True)
    history.log_backward(history.outputs[0].tensor_contents.sum())
    node = next(one for one in history.backward_passes[0].operations if one.name == "AddmmBackward0")
    assert re.fullmatch(r"AddmmBackward0 \(\w+ of linear_1_1\): \(4, 2\) → .*, \d\.\d{3}E-\d\ds", repr(node))
    assert node.is_device_time is False


def test_what_was_not_kept_stays_what_it_is_in_copies() -> None:
    for mark, word in ((UNSAVED, "<not saved>"), (FREED, "<freed>")):
        assert copy.copy(mark) is mark
        assert copy.deepcopy([mark])[0] is mark
        assert repr(mark) == word


def test_a_copy_of_a_history_holds_arguments_that_were_overwritten() -> None:
    """What a replay needs besides the kept activations."""

    def program(x: Tensor) -> Tensor:
        y = x * 2
        view = y[:2]
        y.add_(1)
        return view * 3

    history = tl.log_forward_pass(program, torch.ones(4))
    copied = copy.deepcopy(history)
    assert copied.validate()
    assert copied.outputs[0].tensor_contents.tolist() == [9.0, 9.0]


def test_a_postfunc_that_gives_no_tensor_is_shown_and_read_as_an_array() -> None:
    history = tl.log_forward_pass(torch.sin, torch.zeros(3), activation_postfunc=lambda tensor: [1.0, 2.0])
    assert "[1.0, 2.0]" in str(history["sin_1"])
    assert np.asarray(history["sin_1"]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda x: x.sin() + x.cos(), r"add_1_3 has other parents than before|operation 3 was"),
        (lambda x: (x.sin() + 1).cos().tan(), "has 5 operations instead of 4; tan_1_3"),
        (lambda x: x.sin(), "has 3 operations instead of 4|operation 3 was"),
    ],
)
def test_a_graph_that_changed_is_told_by_the_first_difference(changed: Any, said: str) -> None:
    which = [lambda x: (x.sin() + 1).cos()]
    history = tl.log_forward_pass(lambda x: which[0](x), torch.ones(2))
    which[0] = changed
    with pytest.raises(tl.GraphChanged, match=said):
        history.save_new_activations(lambda x: which[0](x), torch.ones(2))


def test_other_parents_are_told() -> None:
    swapped = [False]

    def program(x: Tensor) -> Tensor:
        a, b = x.sin(), x.cos()
        return b - a if swapped[0] else a - b

    history = tl.log_forward_pass(program, torch.ones(2))
    swapped[0] = True
    with pytest.raises(tl.GraphChanged, match="sub_1_3 has other parents than before"):
        history.save_new_activations(program, torch.ones(2))


def test_what_passes_have_in_common_is_compared_inside_containers() -> None:
    """Also where an `__eq__` of a stranger raises."""

    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ValueError("not comparable")

        __hash__ = None

    def common(*values: Any) -> Any:
        return agreed("it", values, "passes", ["a:1", "a:2"])

    shared = torch.ones(2)
    assert common({"a": [1, shared]}, {"a": [1, shared]}) == {"a": [1, shared]}
    for one, two in (
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 2}),
        ([1, 2], [1]),
        ((1, shared), (1, torch.ones(2))),
        (Odd(), Odd()),
    ):
        with pytest.raises(tl.SeveralPasses, match=r"it differs between the 2 passes: ask one of them \(a:1, a:2\)"):
            common(one, two)


def test_gradients_are_followed_only_when_asked_for() -> None:
    x = torch.ones(2, requires_grad=True)
    for options, count in (({}, 0), ({"save_gradients": True}, 1)):
        with tl.recording(**options) as history:
            loss = (x * 2).sum()
        loss.backward()
        assert len(history.backward_passes) == count


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (made_of(lambda self: torch.ones(1)), torch.ones(1), "It takes no inputs: log_forward_pass(model, ())."),
        (
            made_of(lambda self, *, mask: mask + 1),
            torch.ones(1),
            "Arguments are given by name: log_forward_pass(model, input_kwargs={'mask': …}).",
        ),
        (nn.Linear(2, 2), None, "None"),
        (nn.Linear(2, 2), object(), "Give tensors, or whatever else the model's forward takes: log_forward_pass(model, x)."),
        (torch.sin, None, "Give it an input: log_forward_pass(model, x)."),
    ],
)
def test_inputs_that_a_model_does_not_take_are_refused_with_the_right_call(model: Any, given: Any, said: str) -> None:
    with pytest.raises(tl.InvalidArgument) as caught:
        tl.log_forward_pass(model, given)
    assert said in str(caught.value)


@pytest.mark.parametrize(("count", "said"), [(12, "add_12_12"), (13, "add_12_12, … (1 more)"), (15, "add_12_12, … (3 more)")])
def test_a_dozen_parents_are_named_and_the_others_counted(count: int, said: str) -> None:
    def program(t: Tensor) -> Tensor:
        a, b, c, d, e, f, g = t + 1, t + 2, t + 3, t + 4, t + 5, t + 6, t + 7
        h, i, j, k, m, n, o, p = t + 8, t + 9, t + 10, t + 11, t + 12, t + 13, t + 14, t + 15
        return torch.stack([a, b, c, d, e, f, g, h, i, j, k, m, n, o, p][:count])

    printed = str(tl.log_forward_pass(program, torch.ones(2))["stack_1"]).splitlines()
    (parents,) = (line for line in printed if "Parent Layers" in line)
    assert parents.endswith(", add_11_11, " + said)


def test_a_history_of_200_layers_is_printed_whole_and_of_a_longer_one_the_rest_is_counted() -> None:
    """Also the hierarchy of its modules, from 61 lines on."""

    def printed(blocks: int) -> list[str]:
        model = nn.Sequential(*(nn.Sequential(nn.Linear(1, 1), nn.ReLU()) for _ in range(blocks)))
        return str(tl.log_forward_pass(model, torch.ones(1))).splitlines()

    def flat(layers: int) -> list[str]:
        """Without modules, which would fold."""
        names: dict[str, object] = {}
        source = "def program(x):\n" + "".join(f"    x = x * {number}\n" for number in range(layers)) + "    return x\n"
        exec(source, names)
        return str(tl.log_forward_pass(names["program"], torch.ones(1))).splitlines()

    whole, long = flat(198), flat(200)  # with the input and the output
    assert len([line for line in whole if re.match(r"\t\t\d+: ", line)]) == 200
    assert len([line for line in long if re.match(r"\t\t\d+: ", line)]) == 200
    assert not any("layer" in line and "more" in line for line in whole)
    assert [line for line in long if "layers more" in line] == ["\t\t… 2 layers more …"]
    for blocks, lines in ((30, 0), (31, 2), (45, 30)):  # two lines each
        (hidden,) = [line for line in printed(blocks) if "lines more" in line] or ["… 0 lines"]
        assert hidden.strip().startswith(f"… {lines} lines")


@pytest.mark.parametrize(("count", "more"), [(5, []), (6, ["\t\t… 1 line more …"]), (8, ["\t\t… 3 lines more …"])])
def test_five_lines_that_decided_are_printed_and_the_others_counted(count: int, more: list[str]) -> None:
    def program(t: Tensor) -> Tensor:
        one, two, three, four = (t > 0).all(), (t > 1).all(), (t > 2).all(), (t > 3).all()
        five, six, seven, eight = (t > 4).all(), (t > 5).all(), (t > 6).all(), (t > 7).all()
        found = bool(one)
        found |= bool(two)
        found |= bool(three)
        found |= bool(four)
        found |= bool(five)
        if count > 5:
            found |= bool(six)
        if count > 6:
            found |= bool(seven)
            found |= bool(eight)
        return t + found

    printed = str(tl.log_forward_pass(program, torch.ones(2))).splitlines()
    start = printed.index(f"\tData-dependent control flow: {count} truth values left for Python:")
    said = printed[start + 1 : start + 6]
    assert all(" at " in line for line in said)
    assert said[0].startswith("\t\tall_1_2 (True) at ")
    assert said[1].startswith("\t\tall_2_4 (False) at ")
    assert printed[start + 6 : start + 6 + len(more)] == more
    assert not more or not any(" at " in line for line in printed[start + 7 :])


def test_the_tree_counts_a_parameter_once_and_says_where_it_is_shared() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.c.weight = self.a.weight
            self.c.bias = self.a.bias

        def forward(self, t: Tensor) -> Tensor:
            return self.c(self.b(self.a(t)))

    assert str(tl.log_forward_pass(Tied(), torch.ones(2, 4)).modules).splitlines() == [
        "module   class   calls  in      out         params",
        "───────  ──────  ─────  ──────  ──────  ──────────",
        "(model)  Tied        1  (2, 4)  (2, 4)           –",
        "├─ a     Linear      1  (2, 4)  (2, 4)          20",
        "├─ b     Linear      1  (2, 4)  (2, 4)  4 (shared)",
        "└─ c     Linear      1  (2, 4)  (2, 4)  – (shared)",
        "───────  ──────  ─────  ──────  ──────  ──────────",
        "params: 24 (96 B); trainable 24, frozen 0",
    ]


def test_a_decision_by_a_parameter_or_by_an_operation_that_is_not_shown_is_told_as_such() -> None:
    @made_with(gate=lambda: nn.Parameter(torch.ones(1)))
    def Deciding(self, t: Tensor) -> Tensor:
        if self.gate:
            t = t + 1
        if torch.ones(3).sum():  # connected to no input and no output
            t = t * 2
        return t

    history = tl.log_forward_pass(Deciding(), torch.ones(2))
    (gate, hidden) = [line.strip() for line in str(history).splitlines() if "(True) at " in line]
    assert gate.startswith("a parameter or buffer (True) at ")
    assert hidden.startswith("an operation that is not shown (True) at ")
    said = [repr(read).partition(" left")[0] for read in history.python_reads]
    assert said == ["a parameter or buffer", "an operation that is not shown"]
