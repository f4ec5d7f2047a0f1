"""A module without parameters is treated as a function called where the module was called."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_recurrence import layers
from torch import Tensor, nn

import torcheer
from catalogue.layers import linear
from models import Buffer, log, made_of
from torcheer.graph import build_graph, collapse, expand_identities, roll

x = torch.rand(2, 4)


def squash(t: Tensor) -> Tensor:
    t = t - t.mean()
    return F.relu(t) / (t.abs().sum() + 1)


def twice(t: Tensor) -> Tensor:
    t = F.relu(t)
    t = F.relu(t)
    return t


class Squash(nn.Module):
    def forward(self, t: Tensor) -> Tensor:
        t = t - t.mean()
        return F.relu(t) / (t.abs().sum() + 1)


def scale_forward(self, t: Tensor) -> Tensor:
    """Has a buffer, but no parameter."""
    return torch.tanh(t) * 0.5


def scale(t: Tensor) -> Tensor:
    return torch.tanh(t) * 0.5


class Branches(nn.Module):
    """Parameterless modules inside a parameterless module."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, t: Tensor) -> Tensor:
        return self.one(t) + self.other(self.one(t))


def branches(t: Tensor) -> Tensor:
    return F.relu(t) + squash(F.relu(t))


ACT = nn.ReLU()
MODULES = {
    "relu": ACT,
    "squash": Squash(),
    "scale": made_of(scale_forward, factor=Buffer(torch.tensor(0.5))),
    "twice": nn.Sequential(ACT, ACT),
    "branches": Branches(ACT, Squash()),
}
FUNCTIONS = {"relu": F.relu, "squash": squash, "scale": scale, "twice": twice, "branches": branches}


def lines() -> st.SearchStrategy[list[str]]:
    """The lines of a forward over `t` and `u`; `$name(` is a step in either spelling."""
    target, source = st.sampled_from("tu"), st.sampled_from("tu")
    act = st.sampled_from(sorted(FUNCTIONS))
    simple = st.one_of(
        st.builds(lambda a, b, f: [f"{a} = ${f}({b})"], target, source, act),
        st.builds(lambda a, b, f, n: [f"{a} = ${f}(self.fc{n}({b}))"], target, source, act, st.integers(1, 2)),
        st.builds(lambda a, b: [f"{a} = {a} + {b}"], target, source),
        st.builds(lambda a, b: [f"{a} = self.block({b})"], target, source),
    )
    body = st.lists(simple, min_size=1, max_size=3).map(lambda some: [line for lines in some for line in lines])

    def loop(head: str, inside: list[str], last: list[str]) -> list[str]:
        return [head, *(f"    {line}" for line in (*inside, *last))]

    counted = st.builds(lambda n, inside: loop(f"for _ in range({n}):", inside, []), st.integers(1, 3), body)
    blocks = st.builds(lambda a, b, inside: loop("for fc in self.fcs:", inside, [f"{a} = fc({b})"]), target, source, body)
    return st.lists(st.one_of(simple, counted, blocks), min_size=1, max_size=6).map(lambda some: [x for y in some for x in y])


def compiled(body: list[str], spelling: str):
    """The forward of these lines, with `self.name(…)` or `name(…)` for each step."""
    text = "\n".join(f"    {line}" for line in body).replace("$", "self." if spelling == "modules" else "")
    names = {"torch": torch, **FUNCTIONS}
    exec(f"def forward(self, t):\n    u = t\n{text}\n    return t, u\n", names)
    return names["forward"]


def in_spelling(body: list[str], inner: list[str], spelling: str) -> nn.Module:
    torch.manual_seed(0)
    own = MODULES if spelling == "modules" else {}
    parts = {"fc1": linear(), "fc2": linear()}
    block = made_of(
        compiled([line for line in inner if "self.block" not in line and "self.fcs" not in line], spelling), **parts, **own
    )
    wrapped = made_of(lambda self, t: self.inner(t)[0], inner=block)
    more = {"fc1": linear(), "fc2": linear(), "fcs": nn.ModuleList([linear(), linear(), linear()])}
    return made_of(compiled(body, spelling), block=wrapped, **more, **own)


simple_inner = st.lists(
    st.sampled_from(["t = $relu(self.fc1(t))", "t = $squash(t)", "t = $twice(t)", "u = $relu(t)", "t = t + u"]),
    min_size=1,
    max_size=3,
)
common = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def drawn(history: torcheer.ModelHistory) -> list[object]:
    """What a rolled picture shows of nodes and edges."""
    graph = roll(build_graph(history))
    nodes = [(node.key, node.num_passes, node.shape) for node in graph.nodes]
    return [nodes, sorted((e.source, e.target, e.is_feedback, e.pass_note) for e in graph.edges)]


@common
@given(lines(), simple_inner)
def test_a_function_in_place_of_a_module_changes_nothing(body, inner):
    one, other = (log(in_spelling(body, inner, spelling), x) for spelling in ("modules", "functions"))
    assert one.layer_labels == other.layer_labels
    assert [op.label for op in one.operations] == [op.label for op in other.operations]
    assert one.is_recurrent == other.is_recurrent
    assert drawn(one) == drawn(other)


@common
@given(lines(), simple_inner, st.data())
def test_what_is_kept_as_the_model_runs_is_what_the_labels_mean_afterwards(body, inner, data):
    net = in_spelling(body, inner, "modules")
    whole = log(net, x)
    picked = data.draw(st.lists(st.sampled_from(whole.layer_labels), min_size=1, max_size=3))
    some = log(net, x, layers_to_save=picked)
    expected = {one.label for label in picked for one in whole[label].passes}
    assert {one.label for one in some.saved} == expected
    assert some.layer_labels == whole.layer_labels
    chosen = log(net, x, layers_to_save=lambda one: one.layer_type == "relu")
    assert {one.label for one in chosen.saved} == {one.label for one in whole.operations if one.layer_type == "relu"}


def pooled(self, t):
    t = self.pool(self.fc1(t))
    t = self.pool(self.fc2(t))
    return self.pool(t)


def test_calls_of_a_shared_module_stay_addressable():
    history = log(made_of(pooled, fc1=linear(), fc2=linear(), pool=nn.AvgPool1d(3, 1, 1)), x)
    assert [history[f"pool:{n}"].layer_label_short for n in (1, 2, 3)] == ["avgpool1d_1", "avgpool1d_2", "avgpool1d_3"]
    assert history.modules["pool"].num_calls == 3
    with pytest.raises(torcheer.AmbiguousKey, match=r"called 3 times: say which, by pool:1 \(avgpool1d_1_2"):
        history["pool"]
    kept = log(made_of(pooled, fc1=linear(), fc2=linear(), pool=nn.AvgPool1d(3, 1, 1)), x, layers_to_save=["pool:2"])
    assert [one.layer_label_short for one in kept.saved] == ["avgpool1d_2"]


def test_a_module_made_as_the_model_runs_is_a_function_too():
    def forward(self, t):
        for _ in range(3):
            t = nn.ReLU()(self.fc(t))
        return nn.Sequential(nn.Tanh(), nn.Tanh())(t)

    assert layers(log(made_of(forward, fc=linear()), x)) == ["linear_1×3", "relu_1×3", "tanh_1", "tanh_2"]


def test_modules_made_in_a_loop_without_parameters():
    def forward(t):
        for _ in range(3):
            t = nn.ReLU()(t)
        return t

    assert layers(log(forward, x)) == ["relu_1×3"]


def test_a_shared_module_that_a_function_closes_over():
    fc1, fc2, act = linear(), linear(), nn.ReLU()

    def forward(t):
        t = act(fc1(t))
        return act(fc2(t))

    assert layers(log(forward, x)) == ["linear_1", "relu_1", "linear_2", "relu_2"]


def test_a_shared_block_without_parameters_is_a_layer_per_place_for_each_of_its_operations():
    def forward(self, t):
        return self.up(self.fc2(self.up(self.fc1(t))))

    history = log(made_of(forward, fc1=linear(), fc2=linear(), up=Squash()), x)
    assert not history.is_recurrent
    assert [name for name in layers(history) if "relu" in name] == ["relu_1", "relu_2"]


def test_a_sequence_that_loops_over_itself_keeps_its_positions():
    class Loop(nn.Sequential):
        def forward(self, t: Tensor) -> Tensor:
            for _ in range(3):
                t = super().forward(t)
            return t

    act = nn.ReLU()
    assert layers(log(Loop(linear(), act, act), x)) == ["linear_1×3", "relu_1×3", "relu_2×3"]


def test_a_norm_before_two_different_blocks_is_two_layers():
    def forward(self, t):
        for block in self.blocks:
            t = t + block(self.norm(t))
        return t

    norm = nn.LayerNorm(4, elementwise_affine=False)
    history = log(made_of(forward, blocks=nn.ModuleList([linear(), linear()]), norm=norm), x)
    assert layers(history) == ["layernorm_1", "linear_1", "add_1", "layernorm_2", "linear_2", "add_2"]


def test_a_condition_that_is_asked_twice_around_one_round_is_one_layer():
    def forward(self, t):
        while t.sum() < 0:
            t = self.fc(t).abs()
        return t

    history = log(made_of(forward, fc=linear()), -x)
    assert layers(history) == ["sum_1×2", "lt_1×2", "linear_1", "abs_1"]


def test_a_module_with_parameters_that_does_not_use_them_is_no_reason_to_join():
    def forward(self, t):
        return self.gate(self.fc2(self.gate(self.fc1(t))))

    net = made_of(
        forward,
        fc1=linear(),
        fc2=linear(),
        gate=made_of(lambda self, t: t * self.weight if self.training else t * 0.5, weight=nn.Parameter(torch.rand(4))),
    )
    assert layers(log(net.eval(), x)) == ["linear_1", "mul_1", "linear_2", "mul_2"]
    assert layers(log(net.train(), x)) == ["linear_1", "mul_1×2", "linear_2"]


@pytest.mark.parametrize("own_first", [False, True])
def test_steps_with_computed_parameters_are_passes_of_the_same_layer(own_first):
    net = nn.Sequential(linear(), nn.ReLU(), linear())

    def adapt(t):
        weights = {name: w if own_first else w * 1 for name, w in net.named_parameters()}
        for _ in range(3):
            loss = torch.func.functional_call(net, weights, (t,)).square().mean()
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), grads, strict=True)}
        return loss, net(t)

    history = log(adapt, x)
    assert [history[f"linear_{n}"].num_passes for n in (1, 2)] == [4, 4]


@pytest.mark.parametrize("repeats", [False, True])
def test_a_parameter_used_before_and_after_it_is_overwritten_is_one_layer(repeats):
    def forward(self, t):
        t = F.linear(t, self.w)
        with torch.no_grad():
            self.w.mul_(0.5)
        t = F.linear(t, self.w)
        for _ in range(2 if repeats else 1):
            t = t.sin()
        return t

    found = layers(log(made_of(forward, w=nn.Parameter(torch.rand(4, 4))), x))
    assert found == ["linear_1×2", "mul_1", "sin_1×2" if repeats else "sin_1"]


class Unet(nn.Module):
    """Two levels down and up, with one pool, one activation, one upsampling and one dropout for all."""

    def __init__(self, in_a_loop: bool) -> None:
        super().__init__()
        self.in_a_loop = in_a_loop
        self.down = nn.ModuleList([nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)])
        self.up = nn.ModuleList([nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)])
        self.head = nn.Conv2d(4, 2, 1)
        self.pool, self.act, self.wide, self.drop = nn.MaxPool2d(2), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Dropout(0.5)

    def forward(self, t: Tensor) -> Tensor:
        if self.in_a_loop:
            skips = []
            for conv in self.down[:-1]:
                t = self.drop(self.act(conv(t)))
                skips.append(t)
                t = self.pool(t)
            t = self.act(self.down[-1](t))
            for conv in self.up:
                t = self.act(conv(torch.cat([skips.pop(), self.wide(t)], 1)))
            return self.head(t)
        one = self.drop(self.act(self.down[0](t)))
        two = self.drop(self.act(self.down[1](self.pool(one))))
        t = self.act(self.down[2](self.pool(two)))
        t = self.act(self.up[0](torch.cat([two, self.wide(t)], 1)))
        t = self.act(self.up[1](torch.cat([one, self.wide(t)], 1)))
        return self.head(t)


@pytest.mark.parametrize("in_a_loop", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_unet_keeps_its_shape(in_a_loop, training):
    history = log(Unet(in_a_loop).train(training), torch.rand(1, 3, 8, 8))
    assert "purely feedforward" in str(history)
    assert [name for name in layers(history) if "maxpool" in name] == ["maxpool2d_1", "maxpool2d_2"]
    assert [name for name in layers(history) if "interpolate" in name] == ["interpolate_1", "interpolate_2"]
    graph = roll(history.graph)
    assert len(graph.nodes) == history.num_operations
    assert not any(edge.is_feedback for edge in graph.edges)


def test_a_shared_block_is_a_box_per_place_in_a_rolled_picture():
    def forward(self, t):
        t = self.up(self.fc1(t))
        for _ in range(2):
            t = self.up(self.fc2(t))
        return t

    history = log(made_of(forward, fc1=linear(), fc2=linear(), up=Squash()), x)
    graph = roll(build_graph(history))
    assert [box for box in graph.modules if box.startswith("up")] == ["up:1", "up:2"]
    assert graph.modules["up:2"].calls == (2, 3)
    assert [(edge.source, edge.target) for edge in graph.edges if edge.is_feedback] == [("div_2_16", "linear_2_9")]


@pytest.mark.parametrize(
    ("shared", "view", "keys"),
    [
        (Squash, lambda graph: collapse(graph, address="shared"), ["@shared:1", "@shared:2"]),
        (nn.Identity, expand_identities, ["identity shared:1", "identity shared:2"]),
    ],
)
def test_a_shared_block_that_is_one_node_is_a_node_per_place_in_a_rolled_picture(shared, view, keys):
    def forward(self, t):
        return self.shared(self.fc2(self.shared(self.fc1(t))))

    history = log(made_of(forward, fc1=linear(), fc2=linear(), shared=shared()), x)
    graph = roll(view(build_graph(history)))
    assert [node.key for node in graph.nodes if node.kind in ("module", "identity")] == keys
    assert not any(edge.is_feedback for edge in graph.edges)
