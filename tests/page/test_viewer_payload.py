"""A payload says what its history says, in plain values that a browser can read."""

from __future__ import annotations

import json
import math
import random
from importlib.metadata import version

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torcheer
from models import Branching, Convolutional, Mlp, Stateful, log, made_of
from torcheer._torch.measure import Statistics, statistics_of
from torcheer.demo import AlexNet, Gpt2, SimpleRecurrent
from torcheer.graph import Arguments, Node, fold_repeats
from torcheer.graph.blocks import Block, runs_of
from torcheer.page import payload_of, to_json
from torcheer.page.contents import words_of
from torcheer.page.payload import packed_size
from torcheer.page.schema import whole


def parsed(text: str) -> dict[str, object]:
    """JSON as a browser reads it: no NaN, no Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


class Decides(nn.Module):
    """A value leaves for Python, a source turns up, a buffer is read, a call returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(4))
        self.own = nn.Linear(4, 4, bias=False)
        self.own.weight.requires_grad_(False)

    def forward(self, x: Tensor, extra: dict[str, Tensor]) -> Tensor:
        if bool(x.sum() > -100):
            x = x * self.scale
        values, _ = torch.max(self.own(x) + extra["mask"], -1)
        return values.add_(CONSTANT)


CONSTANT = torch.tensor(2.0)


def failed() -> torcheer.ModelHistory:
    with pytest.raises(RuntimeError) as caught:
        log(lambda x: x.relu() @ torch.ones(7, 7), torch.ones(2, 3))
    return caught.value.history


def followed() -> torcheer.ModelHistory:
    history = torcheer.log_forward_pass(Mlp(), torch.randn(3, 4), save_gradients=True)
    history.log_backward(history.outputs[0].tensor_contents.square().sum())
    return history


HISTORIES = {
    "mlp": lambda: log(Mlp(), torch.randn(3, 4)),
    "convolutional": lambda: log(Convolutional(), torch.rand(2, 3, 8, 8)),
    "branching": lambda: log(Branching(), torch.randn(2, 4)),
    "stateful": lambda: log(Stateful(), torch.randn(2, 3)),
    "recurrent": lambda: log(SimpleRecurrent(), torch.rand(1, 5)),
    "decides": lambda: log(Decides(), torch.randn(2, 4), {"mask": torch.zeros(4)}),
    "decoder": lambda: log(Gpt2(50, 12, 16, 2, 3), torch.randint(50, (2, 7))),
    "failed": failed,
    "followed": followed,
    "nothing kept": lambda: log(Mlp(), torch.randn(3, 4), layers_to_save="none"),
    "only torch's modules": lambda: log(nn.Sequential(nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 4)), torch.randn(2, 4)),
    "attention": lambda: log(nn.MultiheadAttention(8, 2), *[torch.randn(4, 1, 8)] * 3),
}


@pytest.fixture(params=HISTORIES)
def history(request):
    return HISTORIES[request.param]()


def filled(history: torcheer.ModelHistory) -> dict[str, list[dict[str, object]]]:
    """The payload after a trip through JSON, with every key that was left out."""
    payload = whole("payload", parsed(to_json(history)))
    for part, name in (("node", "nodes"), ("module", "modules"), ("edge", "edges"), ("run", "runs")):
        payload[name] = [whole(part, one) for one in payload[name]]
    return payload


def test_nodes_are_the_operations_of_the_history(history):
    """In order, with their facts."""
    nodes = filled(history)["nodes"]
    operations = history.operations
    assert [node["key"] for node in nodes if node["kind"] != "failed"] == [one.layer_label_w_pass for one in operations]
    modules = [""] + [call.label for call in history.modules.calls if call.address]
    for node, one in zip(nodes, operations, strict=False):
        assert (node["label"], node["pass"], node["num_passes"]) == (one.layer_label, one.pass_num, one.num_passes)
        assert (node["function"], node["type"], node["kind"]) == (one.func_applied_name, one.layer_type, one.origin)
        assert (tuple(node["shape"]), node["bytes"]) == (one.tensor_shape, one.tensor_fsize)
        assert (f"torch.{node['dtype']}", node["device"]) == (str(one.tensor_dtype), str(one.tensor_device))
        assert modules[node["module"] + 1] == (one.containing_modules or [""])[-1]
        assert [modules[exit_ + 1] for exit_ in node["exits"]] == one.modules_exited
        assert (node["inplace"], node["role"], node["gradfunc"]) == (one.is_inplace, one.io_role, one.gradfunc)
        assert [param["name"] for param in node["params"]] == [param.name for param in one.parent_params]
        assert node["buffers"] == [param.name for param in one.parent_buffers]
        assert node["composite"] == one.composite
        assert node["saved"] == one.has_saved_activations


def test_edges_are_those_of_the_graph(history):
    """Forward along the order of nodes, by number; gradients the other way."""
    payload = filled(history)
    keys = [node["key"] for node in payload["nodes"]]
    data = [edge for edge in payload["edges"] if not edge["gradient"]]
    found = [(keys[edge["from"]], keys[edge["to"]], tuple(edge["positions"]), edge["memory"]) for edge in data]
    assert found == [(edge.source, edge.target, edge.positions, edge.is_memory) for edge in history.graph.edges]
    assert all(edge["from"] < edge["to"] for edge in data)
    back = {(edge["to"], edge["from"]) for edge in payload["edges"] if edge["gradient"]}
    assert back <= {(edge["from"], edge["to"]) for edge in data}
    assert bool(back) == bool(history.backward_passes)


def test_modules_are_the_calls_of_the_history(history):
    """Each with what ran inside it, its parameters and its place."""
    payload = filled(history)
    calls = [call for call in history.modules.calls if call.address]
    labels = [node["key"] for node in payload["nodes"]]
    assert [module["key"] for module in payload["modules"]] == [call.label for call in calls]
    for number, (module, call) in enumerate(zip(payload["modules"], calls, strict=True)):
        inside = [one.layer_label_w_pass for one in call.operations]
        assert labels[module["first"] : module["end"]] == inside or (not inside and module["first"] == module["end"] == -1)
        assert (module["class"], module["call"], module["num_calls"]) == (call.class_name, call.call_num, call.module.num_calls)
        assert module["num_params"] == call.module.num_params
        assert module["training"] == call.training
        assert [tuple(shape) for shape in module["output_shapes"]] == call.output_shapes
        around = call.containing_modules
        assert module["depth"] == len(around) + 1
        assert (payload["modules"][module["parent"]]["key"] if module["parent"] >= 0 else None) == (
            around[-1] if around else None
        )
        assert module["parent"] < number
        assert module["flops"] == sum(history.cost.operation(one).flops for one in call.operations)


def test_costs_add_up(history):
    """What nodes cost is what the pass cost."""
    payload = filled(history)
    cost = history.cost
    assert sum(node["flops"] or 0 for node in payload["nodes"]) == cost.flops - cost.hidden.flops
    assert sum(node["macs"] or 0 for node in payload["nodes"]) == cost.macs - cost.hidden.macs
    assert sum(node["seconds"] for node in payload["nodes"]) == pytest.approx(cost.seconds - cost.hidden.seconds, rel=1e-2)
    assert payload["facts"]["flops"] == cost.flops
    assert payload["facts"].get("unknown_flops", 0) == cost.total.unknown


def test_stacks_name_files_and_lines_of_code(history):
    """As the operations themselves do."""
    payload = filled(history)
    files = payload["files"]
    for node, one in zip(payload["nodes"], history.operations, strict=False):
        stack = [(files[file]["path"], line, function) for file, line, function in node["stack"]]
        assert stack == [(place.file, place.line, place.function) for place in one.stack]
        if one.source is None:
            assert node["source"] == -1
        else:
            file, line, _ = node["stack"][node["source"]]
            assert (files[file]["path"], line) == (one.source.file, one.source.line)
            assert files[file]["lines"][str(line)].strip() == one.source.text
    for module, call in zip(payload["modules"], [c for c in history.modules.calls if c.address], strict=True):
        place = call.source
        assert (module["source"] is None) == (place is None)
        if place is not None:
            assert (files[module["source"][0]]["path"], module["source"][1]) == (place.file, place.line)


def test_statistics_are_of_the_kept_tensors(history):
    """Wherever a tensor was kept."""
    for node, one in zip(filled(history)["nodes"], history.operations, strict=False):
        assert (node["stats"] is None) == (not one.has_saved_activations)
        if node["stats"] is not None:
            values = one.tensor_contents.double()
            assert node["stats"]["count"] == values.numel()
            values = values[values.isfinite()]
            assert node["stats"].get("mean") == pytest.approx(values.mean().item(), rel=1e-4, abs=1e-6)


def test_the_facts_are_those_of_the_history(history):
    facts = whole("facts", payload_of(history)["facts"])
    assert (facts["operations"], facts["layers"], facts["modules"]) == (
        history.num_operations,
        len(history),
        history.num_modules,
    )
    assert (facts["parameters"], facts["bytes"]) == (history.num_params_total, history.tensor_fsize_total)
    assert facts["is_recurrent"] == history.is_recurrent
    assert facts["notes"] == history.notes
    assert facts["failure"] == (history.failure.error if history.failure else None)
    assert facts["left_out"] == ""


def test_making_a_payload_changes_nothing_and_twice_gives_the_same(history):
    """Neither random state nor kept tensors."""
    before = [(one.label, one.tensor_contents.clone()) for one in history.saved]
    state = torch.get_rng_state()
    assert to_json(history) == to_json(history)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(history[label].tensor_contents, value) or value.isnan().any() for label, value in before)


def test_a_failed_pass_ends_in_what_failed():
    payload = filled(failed())
    last = payload["nodes"][-1]
    assert (last["kind"], last["shape"]) == ("failed", None)
    assert "mat1 and mat2" in last["error"]
    assert last["error"] == payload["facts"]["failure"]
    assert payload["edges"][-1]["to"] == len(payload["nodes"]) - 1


def test_gradients_have_statistics_and_times():
    """The statistics are of the last backward pass, the times of all."""
    history = followed()
    nodes = filled(history)["nodes"]
    reached = [(node, one) for node, one in zip(nodes, history.operations, strict=True) if one.grad_contents is not None]
    assert len(reached) >= 4
    for node, one in reached:
        gradient = one.grad_contents
        assert tuple(node["grad"]["shape"]) == tuple(gradient.shape)
        assert node["grad"]["stats"]["norm"] == pytest.approx(gradient.norm().item(), rel=1e-4)
    timed = [node["backward_seconds"] for node in nodes if node["backward_seconds"] is not None]
    assert len(timed) >= 4
    assert sum(timed) == pytest.approx(history.cost.backward_seconds - history.cost.hidden.backward_seconds, rel=1e-2)


def test_values_that_left_and_arguments_are_told():
    nodes = {node["label"]: node for node in filled(HISTORIES["decides"]())["nodes"]}
    left = [node["python_reads"] for node in nodes.values() if node["python_reads"]]
    assert left == [["__bool__ → True"]]
    assert any(node["arguments"] == "·, dim=-1" for node in nodes.values())
    assert [node["role"] for node in nodes.values() if node["kind"] == "source"]
    frozen = next(node for node in nodes.values() if node["type"] == "linear")
    assert frozen["params"] == [{"name": "own.weight", "shape": [4, 4], "dtype": "float32", "numel": 16, "trainable": False}]


def test_previews_can_be_left_out():
    history = HISTORIES["convolutional"]()
    assert any("preview" in node for node in payload_of(history)["nodes"])
    assert not any("preview" in node for node in payload_of(history, previews=False)["nodes"])


def test_what_a_postfunc_kept_need_not_be_a_tensor():
    """Then there is nothing to count."""
    history = log(Mlp(), torch.randn(3, 4), activation_postfunc=lambda t: t.mean().item())
    nodes = filled(history)["nodes"]
    assert all(node["saved"] and node["stats"] is None for node in nodes)


def test_looking_while_a_recording_runs_is_not_recorded():
    """Statistics are torch calls too."""
    with torcheer.recording() as history:
        made = torch.ones(3).sin()
        before = len(history.operations), len(history.python_reads)
        payload = payload_of(history)
        assert (len(history.operations), len(history.python_reads)) == before
        made.cos()
    assert payload["nodes"][-1]["type"] == "sin"


def test_a_tensor_that_cannot_be_read_is_noted(monkeypatch):
    """And does not keep the others from being shown."""

    def reads(tensor: Tensor, *bins: str) -> Statistics | None:
        if tensor.dtype == torch.int64:
            raise NotImplementedError("not here")
        return statistics_of(tensor, *bins)

    monkeypatch.setattr("torcheer.page.values.statistics_of", reads)
    payload = payload_of(log(lambda x: x.argmax(-1), torch.rand(3, 4)))
    assert payload["facts"]["notes"] == [
        "The values of 2 tensors could not be read; the first: argmax_1_1:1, NotImplementedError: not here"
    ]
    assert "stats" in payload["nodes"][0]
    assert "stats" not in payload["nodes"][1]


class Loud:
    """Cannot be printed."""

    def __repr__(self) -> str:
        raise ValueError("quiet!")


def test_very_long_arguments_are_cut_and_those_that_cannot_be_printed_told():
    history = log(lambda x: x[[0] * 1000], torch.ones(3))
    assert len(filled(history)["nodes"][1]["arguments"]) == 400
    assert words_of(Node(key="a", label="a", arguments=Arguments((Loud(),)))) == "(cannot be shown: ValueError)"


class Mixed(nn.Module):
    """Blocks that are equal, that share weights, and that differ in a constant, a shape or a wire."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.ModuleList(Step() for _ in range(3))
        self.constant = Step(slope=0.2)
        self.wired = Step(swap=True)
        self.shared = Step()
        self.shared.b = self.shared.a

    def forward(self, x: Tensor) -> Tensor:
        for step in self.same:
            x = step(x)
        x = self.wired(self.constant(x))
        x = self.shared(self.shared(x))
        return self.same[0](torch.cat([x, x]))


class Step(nn.Module):
    def __init__(self, slope: float = 0.1, swap: bool = False) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.slope, self.swap = slope, swap

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.a(x), self.b(x)
        left = F.leaky_relu(left, self.slope)
        return right - left if self.swap else left - right


def runs(history: torcheer.ModelHistory) -> list[tuple[str, list[str]]]:
    """The runs of a payload: the module around them, and the key of the node each block begins with."""
    payload = filled(history)
    around = ["", *(module["key"] for module in payload["modules"])]
    keys = [node["key"] for node in payload["nodes"]]
    return [(around[run["module"] + 1], [keys[start] for start in run["starts"]]) for run in payload["runs"]]


def test_runs_are_the_blocks_that_pictures_fold():
    """Not those that differ in a constant, a wire, a shape or in what they share; but two calls of one module."""
    history = log(Mixed(), torch.randn(2, 4))
    found = runs(history)
    assert [len(starts) for _, starts in found] == [3, 2]
    folded = {box.key: box.repeats for box in fold_repeats(history.graph).all_boxes if box.repeats > 1 and box.depth == 1}
    assert folded == {"same.0:1": 3, "shared:1": 2}  # and the two linear layers in each, which are too little for a run
    assert {history.graph.node(starts[0]).modules[0] for _, starts in found} == set(folded)


def test_runs_inside_blocks_are_told_of_every_block():
    model = nn.Sequential(*(nn.Sequential(Step(), Step(), nn.Linear(4, 4)) for _ in range(3)), nn.ReLU())
    found = runs(log(model, torch.randn(2, 4)))
    assert [(module, len(starts)) for module, starts in found] == [("", 3), ("0:1", 2), ("1:1", 2), ("2:1", 2)]


@pytest.mark.parametrize(("times", "expected"), [(12, [12]), (5, [])])
def test_operations_without_a_module_around_them_are_a_run_where_they_are_many(times, expected):
    model = nn.Sequential(*(part for _ in range(times) for part in (nn.Linear(3, 3), nn.Tanh())))
    assert [len(starts) for _, starts in runs(log(model, torch.rand(1, 3)))] == expected


def test_steps_that_read_from_elsewhere_are_not_in_a_run():
    def program(x: Tensor) -> Tensor:
        start = x
        for step in range(40):
            x = torch.sin(start if step == 20 else x) + (x if step == 20 else 1.0)
        return x

    found = [len(starts) for _, starts in runs(log(program, torch.rand(3)))]
    assert found == [20, 19]


def test_many_operations_that_are_wired_at_random_take_no_long_search():
    """Looking for runs does not read every block of every length at every place."""
    generator = random.Random(0)

    def program(x: Tensor) -> Tensor:
        made = [x, x + 1]
        for _ in range(3_000):
            made.append(generator.choice(made) + generator.choice(made))
        return sum(made)

    graph = log(program, torch.rand(2), layers_to_save="none").graph
    with counting(Block, "_node_form") as forms:
        list(runs_of(graph, 8))
    assert forms.count < len(graph.all_nodes)


class counting:
    """Counts the calls of a method."""

    def __init__(self, owner: type, name: str) -> None:
        self.owner, self.name, self.count = owner, name, 0

    def __enter__(self) -> counting:
        plain = self.plain = getattr(self.owner, self.name)

        def counted(*args):
            self.count += 1
            return plain(*args)

        setattr(self.owner, self.name, counted)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self.owner, self.name, self.plain)


def test_equal_inputs_and_outputs_are_the_ports_of_the_page():
    history = torcheer.log_forward_pass(
        lambda x, cache: {"y": x, "cache": [(x + one, x * one) for one in cache]},
        (torch.ones(2), [torch.rand(2) for _ in range(4)]),
    )
    payload = filled(history)
    ports = [
        (port["name"], {payload["nodes"][number]["kind"] for number in port["nodes"]}, len(port["nodes"]))
        for port in payload["ports"]
    ]
    assert ports == [("args[1]", {"input"}, 4), ("cache", {"output"}, 8)]


def test_modules_with_the_same_parameters_say_so():
    """Two calls of one module, and two modules with tied weights; not two that look alike."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU())
    model[1].weight, model[1].bias = model[0].weight, model[0].bias
    modules = {one["address"]: one for one in filled(log(model, torch.ones(1, 3)))["modules"]}
    assert modules["0"]["params_id"] == modules["1"]["params_id"] != modules["2"]["params_id"]
    assert modules["3"]["params_id"] == ""
    assert modules["1"]["num_params"] == 12
    again = filled(log(SimpleRecurrent(), torch.rand(1, 5)))["modules"]
    assert len(again) == 4
    assert len({one["params_id"] for one in again}) == 1


def test_a_size_limit_is_kept_and_what_it_cost_is_said():
    """Previews go first, then more and more."""
    history = log(AlexNet(10), torch.rand(2, 3, 224, 224))
    full = packed_size(payload_of(history))
    bare = packed_size(payload_of(history, previews=False))
    previews = []
    for limit in (int(full * 1.1), (full + bare) // 2, bare + 3_000):
        payload = payload_of(history, max_bytes=limit)
        assert packed_size(payload) <= limit
        previews.append(sum("preview" in node for node in payload["nodes"]))
        assert ("left_out" in payload["facts"]) == (previews[-1] < 24)
        assert ("previews of" in payload["facts"].get("left_out", "")) == (previews[-1] < 24)
    assert previews[0] == 24 > previews[1] > previews[2]
    assert "preview" in payload_of(history, max_bytes=(full + bare) // 2)["nodes"][0]  # the input is worth most


@pytest.mark.parametrize(
    ("part", "words", "is_left"),
    [
        (0.95, "histograms", lambda node: "stats" in node and "histogram" not in node["stats"]),
        (0.6, "statistics", lambda node: "stats" not in node and "stack" in node),
        (0.3, "call stacks", lambda node: "stack" not in node and node["key"]),
    ],
)
def test_without_room_for_previews_other_things_go(part, words, is_left):
    """Histograms, statistics, lines of code, call stacks, in that order."""
    history = log(Gpt2(50, 12, 16, 2, 3), torch.randint(50, (2, 7)))
    limit = int(packed_size(payload_of(history, previews=False)) * part)
    payload = payload_of(history, max_bytes=limit)
    assert words in payload["facts"]["left_out"]
    assert is_left(payload["nodes"][30])
    assert packed_size(payload) <= limit + 1_500 or "all the same" in payload["facts"]["left_out"]


@pytest.mark.parametrize("limit", [0, -5, 1.5, "12 MB", True, None])
def test_a_limit_that_is_no_size_is_refused(limit):
    with pytest.raises(torcheer.InvalidArgument, match="max_bytes"):
        payload_of(log(Mlp(), torch.randn(1, 4)), max_bytes=limit)


def test_thousands_of_operations_take_a_modest_page():
    """Without previews, in nested modules."""

    model = nn.Sequential(
        *(
            nn.Sequential(
                *(made_of(lambda self, x: torch.tanh(self.linear(x)) * 0.5 + x, linear=nn.Linear(4, 4)) for _ in range(10))
            )
            for _ in range(100)
        )
    )
    with torch.no_grad():
        history = log(model, torch.rand(3, 4))
    assert history.num_operations > 4_000
    payload = payload_of(history, previews=False)
    assert packed_size(payload) < 1_200_000
    assert "left_out" not in payload["facts"]
    assert len(payload["runs"]) == 101


def test_numbers_that_json_cannot_hold_are_left_out():
    history = log(lambda x: x / 0, torch.tensor([1.0, -1.0, 0.0]))
    stats = filled(history)["nodes"][1]["stats"]
    assert stats == {"count": 3, "nan": 1, "inf": 2}
    assert not any(isinstance(value, float) and not math.isfinite(value) for value in stats.values())


def test_a_page_says_which_torcheer_made_it():
    assert payload_of(log(torch.relu, torch.ones(2)))["made_by"] == f"torcheer {version('torcheer')}"


@pytest.mark.parametrize("call", [lambda one: one.to_html("never.html", preview=False), lambda one: one.show(bundle=None)])
def test_an_option_that_a_page_does_not_have_is_refused(call):
    with pytest.raises(torcheer.InvalidArgument, match=r"a page has no option .* compare, title, previews, max_bytes, metrics"):
        call(log(Mlp(), torch.randn(3, 4)))
