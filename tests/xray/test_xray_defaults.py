"""What is watched when nothing is said: never nothing; attention by its pattern; a summary of every layer with parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torcheer import Xray
from torcheer._torch.measure import statistics_of


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM, with_head=True) -> None:
        super().__init__()
        self.rnn = kind(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 2) if with_head else nn.Identity()

    def forward(self, x):
        return self.fc(self.rnn(x)[0][:, -1])


class Scaled(nn.Module):
    """A model with a parameter, and no module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.scale


class Plain(nn.Module):
    def forward(self, x):
        return x.exp()


def take(model, given, tmp_path, layers=None, count=1, **options):
    with Xray(model, given, layers, folder=tmp_path / "run", **options) as xray:
        for _ in range(count):
            xray.take_graphs()
    return xray


@pytest.mark.parametrize(
    ("make", "given", "expected"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 1)), (2, 4), {"0": ["layer"]}),
        (lambda: nn.Linear(4, 1), (2, 4), {"linear_1_1": ["layer"]}),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)), (2, 4), {"0": ["activation"], "2": ["layer"]}),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()), (1, 1, 5, 5), {"0": ["layer", "activation"]}),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3)), (1, 1, 5, 5), {"0": ["layer"]}),
        (Recurrent, (2, 3, 4), {"rnn": ["layer"], "fc": ["layer"]}),
        (lambda: Recurrent(nn.GRU, with_head=False), (2, 3, 4), {"rnn": ["layer"]}),
        (lambda: Recurrent(nn.RNN), (2, 3, 4), {"rnn": ["layer"], "fc": ["layer"]}),
        (lambda: nn.Sequential(nn.LayerNorm(4)), (2, 4), {"0": ["layer"]}),
        (lambda: nn.Sequential(nn.Embedding(9, 4)), torch.tensor([[1, 2]]), {"0": ["layer"]}),
        (Scaled, (2, 4), {"mul_1_1": ["layer"]}),
        (Plain, (2, 4), {"exp_1_1": ["layer"]}),
    ],
)
def test_the_default_choice_is_never_empty(tmp_path, make, given, expected):
    """A layer without an activation function behind it is watched by its output."""
    run = take(make(), given, tmp_path).run
    assert {layer: run.kinds(layer) for layer in run.layers} == expected
    assert run.snapshot().notes == ()


class Unrolled(nn.Module):
    """A cell that a loop runs over time."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        state = x.new_zeros(len(x), 5)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.out(state)


@pytest.mark.parametrize(("length", "passes"), [(2, [1, 2]), (4, [1, 2, 3, 4]), (10, [1, 4, 7, 10])])
def test_a_layer_that_runs_several_times_is_watched_from_its_first_to_its_last_pass(tmp_path, length, passes):
    """At most four of them, evenly, the first and the last among them."""
    torch.manual_seed(0)
    model, x = Unrolled(), torch.randn(3, length, 4)
    run = take(model, x, tmp_path, dtype=torch.float32).run
    assert run.layers == [*(f"cell:{number}" for number in passes), "out"]
    state = torch.zeros(3, 5)
    for number, step in enumerate(x.unbind(1), 1):
        state = model.cell(step, state)
        if number in passes:
            np.testing.assert_allclose(run.tensor(f"cell:{number}", "layer"), state.detach(), atol=1e-6)


class Attention(nn.Module):
    """Attention of a transformer, written out or fused."""

    def __init__(self, is_fused, **options) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.is_fused, self.options = is_fused, options

    def forward(self, x):
        batch, time, _ = x.shape
        q, k, v = (one.view(batch, time, 4, 4).transpose(1, 2) for one in self.qkv(x).split(16, dim=2))
        if self.is_fused:
            out = F.scaled_dot_product_attention(q, k, v, **self.options)
        else:
            scores = q @ k.transpose(-2, -1) / 2
            scores = scores.masked_fill(torch.ones(time, time).tril() == 0, -math.inf)
            out = F.dropout(F.softmax(scores, dim=-1), 0.1, self.training) @ v
        return self.proj(out.transpose(1, 2).reshape(batch, time, 16))


def expected_pattern(model, x, mask=None, scale=0.5):
    """By hand: queries times keys, masked, through softmax."""
    with torch.no_grad():
        qkv = x[0] @ model.qkv.weight.T + model.qkv.bias
    q, k = (qkv[:, at : at + 16].reshape(len(x[0]), 4, 4).permute(1, 0, 2).double() for at in (0, 16))
    scores = torch.einsum("hqd,hkd->hqk", q, k) * scale
    if mask is not None:
        scores = scores + mask
    exponents = scores.exp()
    return (exponents / exponents.sum(-1, keepdim=True)).numpy()


CAUSAL = torch.zeros(6, 6).masked_fill(torch.ones(6, 6).tril() == 0, -math.inf)
BIAS = torch.linspace(-1, 1, 36).reshape(6, 6)


@pytest.mark.parametrize(
    ("is_fused", "options", "mask", "scale"),
    [
        (False, {}, CAUSAL, 0.5),
        (True, {"is_causal": True}, CAUSAL, 0.5),
        (True, {}, None, 0.5),
        (True, {"attn_mask": CAUSAL == 0}, CAUSAL, 0.5),
        (True, {"attn_mask": BIAS}, BIAS, 0.5),
        (True, {"attn_mask": BIAS.expand(3, 4, 6, 6)}, BIAS, 0.5),
        (True, {"scale": 0.1}, None, 0.1),
    ],
)
def test_attention_records_its_pattern_also_where_it_is_fused(tmp_path, is_fused, options, mask, scale):
    """It is what queries, keys and mask make by hand, for each head of the first sample."""
    torch.manual_seed(0)
    model, x = Attention(is_fused, **options), torch.randn(3, 6, 16)
    run = take(nn.Sequential(model), x, tmp_path, dtype=torch.float32).run
    assert run.kinds("0") == ["attention"]
    np.testing.assert_allclose(run.tensor("0", "attention"), expected_pattern(model, x, mask, scale), atol=1e-6)
    entry = run.entry("0", "attention")
    assert (entry.layout, entry.rows, entry.axes, entry.totals) == ("maps", (0, 1, 2, 3), ("head", ""), (4, 1))
    assert "the first of 3 samples" in entry.note
    assert {"0.qkv", "0.proj"} < set(run.layers)


def test_keys_that_several_heads_share_are_known(tmp_path):
    """Grouped queries: eight heads, two of keys."""

    class Grouped(nn.Module):
        def forward(self, q, k):
            return F.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    torch.manual_seed(0)
    q, k = torch.randn(2, 8, 5, 4), torch.randn(2, 2, 7, 4)
    run = take(Grouped(), (q, k), tmp_path, dtype=torch.float32).run
    layer = run.layers[0]
    wide = k[0].repeat_interleave(4, dim=0)
    expected = torch.stack([(q[0, h] @ wide[h].T / 2).softmax(-1) for h in range(8)])
    np.testing.assert_allclose(run.tensor(layer, "attention"), expected, atol=1e-6)


@pytest.mark.parametrize("make", [lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), lambda: Heads()])
def test_attention_of_torch_is_known(tmp_path, make):
    """That of a layer of a transformer, fused, and of nn.MultiheadAttention, which also returns its weights."""
    torch.manual_seed(0)
    model, x = make(), torch.randn(2, 6, 16)
    run = take(model, x, tmp_path, dtype=torch.float32).run
    pattern = run.tensor("self_attn", "attention")
    attention = model.eval().self_attn
    expected = attention(x, x, x, average_attn_weights=False)[1][0].detach()
    np.testing.assert_allclose(pattern, expected, atol=1e-5)
    assert "the first of 2 samples" in run.entry("self_attn", "attention").note


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.self_attn(x, x, x)[0]


@pytest.mark.parametrize("layers", [None, ["0"], {"0": ["attention"]}, {"0": ["weight", "attention"]}, "0"])
def test_both_attentions_of_a_decoder_have_a_pattern(tmp_path, layers):
    """Of positions among themselves, and of positions to what was encoded."""
    torch.manual_seed(0)
    decoder = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)

    class Wrapped(nn.Sequential):
        def forward(self, x, memory):
            return self[0](x, memory)

    model, x, memory = Wrapped(decoder), torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    run = take(model, (x, memory), tmp_path, layers, dtype=torch.float32).run
    assert "attention" not in run.kinds("0")
    decoder.eval()
    kept = run.tensor("0.self_attn", "attention")
    np.testing.assert_allclose(kept, decoder.self_attn(x, x, x, average_attn_weights=False)[1][0].detach(), atol=1e-5)
    mixed = decoder.norm1(x + decoder.self_attn(x, x, x)[0])
    expected = decoder.multihead_attn(mixed, memory, memory, average_attn_weights=False)[1][0].detach()
    np.testing.assert_allclose(run.tensor("0.multihead_attn", "attention"), expected, atol=1e-5)
    if layers is None:
        assert {layer: run.kinds(layer) for layer in run.layers} == {
            "0.self_attn": ["layer", "attention"],
            "0.multihead_attn": ["layer", "attention"],
            "0.linear1": ["activation"],
            "0.linear2": ["layer"],
        }


def test_a_softmax_that_is_no_attention_has_no_pattern(tmp_path):
    """A classifier's last softmax; asked for by name, it is noted."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    run = take(model, (2, 4), tmp_path, {"0": ["weight", "attention"]}).run
    assert run.kinds("0") == ["weight"]
    assert run.snapshot().notes == ("0: makes no attention pattern",)


class Tiny(nn.Module):
    """A little of everything that has parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(1, 1, 8))
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.inner = nn.utils.parametrizations.weight_norm(nn.Linear(8, 6))
        self.rnn = nn.GRU(6, 5, batch_first=True)
        self.head = nn.Linear(5, 11, bias=False)

    def forward(self, tokens):
        x = self.norm(self.embed(tokens) + self.start)
        return self.head(self.rnn(self.inner(x).relu())[0])


def test_every_layer_with_parameters_has_a_summary_whatever_is_watched(tmp_path):
    """Norms, gradients and updates are those of plain torch; saved() lists them."""
    torch.manual_seed(0)
    model, tokens = Tiny(), torch.randint(11, (3, 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    layers = ["start", "embed", "norm", "inner", "rnn", "head"]
    ratios: dict[str, float] = {}
    with Xray(model, tokens, {"head": ["weight"]}, folder=tmp_path / "run", optimizer=optimizer) as xray:
        for step in range(3):
            optimizer.zero_grad()
            model(tokens).square().mean().backward()
            norms = {layer: norm_of(model, layer) for layer in layers}
            grads = {layer: norm_of(model, layer, lambda one: one.grad) for layer in layers}
            xray.take_graphs(step)
            summaries = {one.layer: one for one in xray.run.snapshot().summaries}
            assert sorted(summaries) == sorted(layers)
            for layer in layers:
                assert summaries[layer].norm == pytest.approx(norms[layer], rel=1e-5)
                assert summaries[layer].grad_norm == pytest.approx(grads[layer], rel=1e-5)
                assert summaries[layer].parameters == sum(one.numel() for one in parameters_of(model, layer).values())
                if step:
                    assert summaries[layer].update_ratio == pytest.approx(ratios[layer], rel=1e-4)
            before = {name: one.detach().clone() for name, one in model.named_parameters()}
            optimizer.step()
            ratios = {layer: moved(model, layer, before) for layer in layers}
    text = str(xray.saved())
    assert all(any(line.startswith(f"{layer} ") for line in text.splitlines()) for layer in layers)
    assert xray.run.summarised == [one.layer for one in xray.saved().summaries]
    assert xray.run.layers == ["head"]


def parameters_of(model, layer):
    return {name: one for name, one in model.named_parameters() if name == layer or name.startswith(f"{layer}.")}


def norm_of(model, layer, read=lambda one: one):
    return math.sqrt(sum(float(read(one).detach().double().square().sum()) for one in parameters_of(model, layer).values()))


def moved(model, layer, before):
    found = parameters_of(model, layer)
    far = sum(float((one.detach() - before[name]).double().square().sum()) for name, one in found.items())
    return math.sqrt(far / sum(float(before[name].double().square().sum()) for name in found))


def test_without_an_optimizer_updates_are_a_mean_since_the_last_snapshot(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3, bias=False))
    with Xray(model, (2, 4), folder=tmp_path / "run") as xray:
        xray.take_graphs(0)
        before = model[0].weight.detach().clone()
        with torch.no_grad():
            model[0].weight += 1.0
        xray.take_graphs(10)
    expected = float((model[0].weight.detach() - before).norm() / before.norm()) / 10
    assert xray.run.summary("0").update_ratio == pytest.approx(expected, rel=1e-5)


def test_a_sample_of_a_large_parameter_tells_how_far_it_moved(tmp_path):
    """A million values: the estimate is within two parts in a hundred."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024))
    with Xray(model, (2, 1024), {"0": ["layer"]}, folder=tmp_path / "run") as xray:
        xray.take_graphs(0)
        before = [one.detach().clone() for one in model.parameters()]
        with torch.no_grad():
            for one in model.parameters():
                one += 1e-3 * torch.randn_like(one)
        xray.take_graphs(1)
    far = sum(float((one.detach() - old).square().sum()) for one, old in zip(model.parameters(), before, strict=True))
    expected = math.sqrt(far / sum(float(old.square().sum()) for old in before))
    assert xray.run.summary("0").update_ratio == pytest.approx(expected, rel=0.05)


def test_the_norm_of_a_large_parameter_is_exact(tmp_path):
    """torch's own norm of eight million float32 values, all of one sign, is wrong in the fourth digit on the CPU."""
    model = nn.Sequential(nn.Linear(2048, 4096, bias=False))
    with torch.no_grad():
        model[0].weight.uniform_(0, 1, generator=torch.Generator().manual_seed(0))
    run = take(model, (2, 2048), tmp_path, {"0": ["layer"]}).run
    assert run.summary("0").norm == pytest.approx(norm_of(model, "0"), rel=1e-5)


def test_what_another_optimizer_moves_is_measured_between_snapshots(tmp_path):
    """As in a GAN: the steps of the one that was given do not move it, which is not the same as standing still."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    mine, other = (torch.optim.SGD(model[at].parameters(), lr=0.1) for at in (0, 2))
    with Xray(model, (2, 4), {"0": ["weight"], "2": ["weight"]}, folder=tmp_path / "run", optimizer=mine) as xray:
        for step in range(3):
            model(torch.ones(2, 4)).square().sum().backward()
            before = torch.cat([one.detach().flatten() for one in model[2].parameters()])
            weight = model[2].weight.detach().clone()
            xray.take_graphs(step)
            mine.step()
            other.step()
            after = torch.cat([one.detach().flatten() for one in model[2].parameters()])
            moved = float((after - before).norm() / before.norm())
        xray.take_graphs(3)
    assert xray.run.summary("2").update_ratio == pytest.approx(moved, rel=1e-3)
    expected = float((model[2].weight.detach() - weight).norm() / weight.norm())
    assert xray.run.entry("2", "weight").update_ratio == pytest.approx(expected, rel=1e-3)
    assert xray.run.summary("0").update_ratio > 0


@pytest.mark.parametrize(
    ("model", "given", "name"), [(nn.Linear(4, 3), (2, 4), "Linear"), (nn.LSTM(4, 3), (5, 2, 4), "LSTM")], ids=["fc", "rnn"]
)
def test_a_model_that_is_one_layer_has_one_summary_of_its_name(tmp_path, model, given, name):
    run = take(model, given, tmp_path).run
    assert run.summarised == [name]
    expected = math.sqrt(sum(float(one.detach().double().square().sum()) for one in model.parameters()))
    assert run.summary(name).norm == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_layer_without_a_finite_value_has_no_norm(tmp_path, value):
    """Zero would look like a layer that was switched off."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    model(torch.ones(1, 4)).sum().backward()
    with torch.no_grad():
        model[0].weight.fill_(value)
        model[0].weight.grad.fill_(value)
    xray = take(model, (2, 4), tmp_path)
    found = xray.run.summary("0")
    assert (found.norm, found.nonfinite, found.grad_norm, found.grad_nonfinite) == (None, 12, None, 12)
    line = next(line for line in str(xray.saved()).splitlines() if line.startswith("0 ") and "15" in line)
    assert line.split()[2:4] == ["NaN", "NaN"]
    assert xray.run.summary("2").norm > 0


def test_values_that_are_not_finite_are_counted_and_left_out_of_norms(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    model(torch.ones(1, 4)).sum().backward()
    with torch.no_grad():
        model[0].weight[0, 0], model[0].bias[1] = math.nan, math.inf
        model[0].weight.grad[2, 3] = -math.inf
    run = take(model, (2, 4), tmp_path).run
    found = run.summary("0")
    assert (found.nonfinite, found.grad_nonfinite) == (2, 1)
    assert math.isfinite(found.norm)
    assert math.isfinite(found.grad_norm)


def test_dead_units_are_known_of_layers_that_are_not_watched(tmp_path):
    """A unit that is not a number is not dead."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.copy_(torch.tensor([1.0, -1.0, -1.0, math.nan, 0.5]))
    xray = take(model, (2, 4), tmp_path, {"2": ["layer"], "0": ["activation"]}, count=3)
    assert [xray.run.summary("0", step).dead for step in range(3)] == [None, None, 2]
    assert xray.run.summary("0").units == 5
    assert xray.run.entry("0", "activation").dead == 2
    assert xray.run.summary("2").dead is None


@pytest.mark.parametrize(("function", "dead"), [(nn.ReLU, 5), (nn.GELU, 5), (nn.Tanh, None), (nn.Sigmoid, None)])
def test_only_functions_that_are_silent_below_zero_have_dead_units(tmp_path, function, dead):
    """The output of a tanh may well be negative all the time."""
    model = nn.Sequential(nn.Linear(4, 5), function())
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(-1.0)
    run = take(model, (2, 4), tmp_path, ["0"], count=3).run
    assert run.summary("0").dead == dead
    assert run.entry("0", "activation").dead == dead


def test_gradients_of_the_probe_stand_in_for_missing_ones(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3))
    run = take(model, torch.ones(2, 4), tmp_path, {"0": ["grad"]}, loss_fn=lambda out: out.sum()).run
    assert run.summary("0").grad_norm == pytest.approx(math.sqrt(2.0**2 * 15))


def test_half_precision_and_sparse_gradients_are_read(tmp_path):
    """Norms that half precision cannot hold, and gradients with few rows."""
    model = nn.Sequential(nn.Embedding(100, 8, sparse=True), nn.Linear(8, 8))
    model(torch.tensor([[1, 1, 5]])).sum().backward()
    dense = model[0].weight.grad.to_dense()
    model[1].to(torch.bfloat16).to(torch.float32)
    model[1].weight.data.fill_(60000.0)
    run = take(model, torch.tensor([[1]]), tmp_path).run
    assert run.summary("0").grad_norm == pytest.approx(float(statistics_of(dense).norm), rel=1e-5)
    half = take(nn.Sequential(nn.Linear(64, 64)).half(), torch.ones(1, 64).half(), tmp_path / "half").run
    assert math.isfinite(half.summary("0").norm)


def test_queries_of_three_dimensions_are_samples_of_one_head_where_nothing_says_how_many_there_are(tmp_path):
    class OneHead(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x)

    x = torch.randn(3, 5, 4)
    with Xray(
        OneHead(), (x,), {"scaleddotproductattention_1": ["attention"]}, folder=tmp_path / "run", dtype=torch.float32
    ) as xray:
        xray.take_graphs()
        pattern = xray.run.tensor("scaleddotproductattention_1", "attention")
    np.testing.assert_allclose(pattern, ((x @ x.mT) / 2).softmax(-1)[:1], atol=1e-5)
