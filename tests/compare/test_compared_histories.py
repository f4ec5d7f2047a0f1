"""What a comparison says, how it is made from saved histories, and what it refuses."""

from __future__ import annotations

import copy
import itertools
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compare.porting_models import Decoder
from torch import nn

import torcheer as tl
from models import autograd_function, made_of
from torcheer.cli import main
from torcheer.compare.alignment import align
from torcheer.compare.measures import difference
from torcheer.compare.steps import Side
from torcheer.graph import matching


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


@pytest.fixture
def x():
    return torch.linspace(-1, 1, 8).view(2, 4)


def with_eps(model, eps=1e-2):
    other = copy.deepcopy(model)
    other[1].eps = eps
    return other


# What it says ---------------------------------------------------------------------------------------------------------


def test_the_verdict_comes_first_and_names_lines_arguments_and_the_effect(model, x):
    comparison = tl.compare_models(model, with_eps(model), x)
    first, *facts = str(comparison).split("\n")
    assert first == "different: layernorm_1_2 in '1' differs: eps is 1e-05 in a and 0.01 in b"
    assert any(line.startswith("\tIn a: layernorm_1_2 (") for line in facts)
    assert any(line.startswith("\tIn b: layernorm_1_2 (") for line in facts)
    assert any(line.startswith("\tOutput: differs by") for line in facts)
    assert not comparison


def test_own_and_inherited_error_are_told_apart(model, x):
    comparison = tl.compare_models(model, with_eps(model), x)
    rows = {row.a.layer_type: row for row in comparison.rows}
    assert rows["layernorm"].own_error.relative > 1e-3
    assert rows["layernorm"].inherited_error.is_none
    assert rows["gelu"].own_error.is_none
    assert rows["gelu"].inherited_error.relative > 1e-4
    with torch.no_grad():
        hidden = model[1](model[0](x)), with_eps(model)[1](model[0](x))
    expected = float((hidden[0] - hidden[1]).abs().max() / hidden[0].abs().max())
    assert rows["layernorm"].own_error.relative == pytest.approx(expected, rel=1e-4)


def test_the_table_has_both_names_and_becomes_a_frame(model, x):
    comparison = tl.compare_models(model, with_eps(model), x)
    frame = comparison.to_pandas()
    assert list(frame["name_a"]) == [layer.label for layer in comparison.a]
    assert {"own_error", "inherited_error", "cosine", "ulps", "label", "name_b"} <= set(frame.columns)
    assert "own error" in str(comparison.table)
    assert len(comparison.table) == len(frame)


def test_a_notebook_shows_a_card(model, x):
    card = tl.compare_models(model, with_eps(model), x)._repr_html_()
    assert "eps is 1e-05" in card
    assert "<table>" in card


def test_the_tolerance_can_be_given(model, x):
    assert tl.compare_models(model, with_eps(model), x, tolerance=0.5).verdict == "equal within tolerance"
    with pytest.raises(tl.InvalidArgument, match="tolerance is a number"):
        tl.compare_models(model, model, x, tolerance="small")


def test_both_graphs_are_drawn_and_shown_with_errors_as_color(model, x, tmp_path):
    comparison = tl.compare_models(model, with_eps(model), x)
    for side in ("a", "b"):
        assert "own error" in comparison.draw(tmp_path / f"{side}.svg", side=side).svg
    assert comparison.to_html(tmp_path / "both.html").stat().st_size > 1000
    with pytest.raises(tl.InvalidArgument, match="side is"):
        comparison.draw(tmp_path / "c.svg", side="c")


def test_outputs_of_another_shape_are_told(x):
    comparison = tl.compare_models(nn.Linear(4, 3), nn.Linear(4, 5), x)
    assert comparison.verdict == "different"
    assert "(2, 3)" in comparison.headline
    assert "(2, 5)" in comparison.headline


def test_a_mask_of_large_numbers_does_not_hide_an_error():
    def attention(scale, lowest):
        def run(q):
            scores = q @ q.T * scale
            return scores.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), lowest).softmax(-1)

        return run

    q = torch.rand(6, 5)
    same = tl.compare_models(attention(0.5, -math.inf), attention(0.5, torch.finfo(torch.float32).min), q)
    assert same.culprit is None
    wrong = tl.compare_models(attention(0.5, torch.finfo(torch.float32).min), attention(0.7, torch.finfo(torch.float32).min), q)
    assert wrong.culprit.a.layer_type == "mul"


def test_nan_in_one_model_only_is_a_difference(x):
    culprit = tl.compare_models(lambda t: t.abs().sqrt().exp(), lambda t: t.sqrt().exp(), x).culprit
    assert culprit.label.startswith("abs")


def test_operations_in_place_and_views_are_compared_as_they_were():
    def one(t):
        y = t * 2
        y[0] += 1
        y.view(-1)[2:4].mul_(3)
        return y.relu_() + 1

    def other(t):
        y = t * 2
        y[0] += 1
        y.view(-1)[2:4].mul_(3.5)
        return y.relu_() + 1

    x = torch.rand(3, 4)
    assert tl.compare_models(one, one, x).verdict == "equal"
    culprit = tl.compare_models(one, other, x).culprit
    assert culprit.a.layer_type == "mul"
    assert "view(-1)" in culprit.a.source.text


def test_work_in_another_order_is_matched_by_what_it_is_computed_from():
    def one(t):
        a, b = t.sin(), t.cos()
        return a * 2 + b

    def other(t):
        b = t.cos()
        a = t.sin()
        return a * 2 + b

    comparison = tl.compare_models(one, other, torch.rand(5))
    assert comparison.verdict == "equal"
    assert not len(comparison.unmatched)


def test_a_cast_back_from_a_shorter_dtype_is_no_error():
    """In float32 `h.to(torch.float32)` is h itself, so the second one is given the first one's result."""

    def forward(self, ids):
        h = self.emb(ids).to(self.emb.weight.dtype)
        return h.to(torch.float32).pow(2) + h.to(torch.float32)

    torch.manual_seed(0)
    model = made_of(forward, emb=nn.Embedding(9, 8))
    assert tl.compare_models(model, copy.deepcopy(model).bfloat16(), torch.arange(5)).culprit is None


def test_values_too_small_for_the_dtype_are_told():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e-3)
        for layer in model:
            layer.bias.zero_()
    comparison = tl.compare_models(model, copy.deepcopy(model).half(), torch.rand(2, 8))
    assert comparison.verdict == "different"
    assert "is the first to lose its value" in comparison.headline
    assert not comparison


def test_arguments_that_make_no_difference_are_noted(x):
    comparison = tl.compare_models(nn.GELU(), nn.GELU(approximate="tanh"), x * 0)
    assert comparison.verdict == "equal"
    said = "arguments differ, but no operation that can be measured gives other values: gelu_1_1: approximate is 'none' in a"
    assert said in str(comparison)


# Gradients ------------------------------------------------------------------------------------------------------------


class Halves(nn.Module):
    """A model with something between its halves."""

    def __init__(self, net, between):
        super().__init__()
        self.net, self.between = net, between

    def forward(self, x):
        return self.net[3](self.net[2](self.between(self.net[1](self.net[0](x)))))


def scaled_forward(ctx, x, factor):
    ctx.factor = factor
    return x.clone()


# The identity, with a gradient of its own.
Scaled = autograd_function("Scaled", scaled_forward, lambda ctx, gradient: (gradient * ctx.factor, None))


def test_gradients_are_compared_backwards(model, x):
    a, b = (Halves(copy.deepcopy(model), lambda h, factor=factor: Scaled.apply(h, factor)) for factor in (1.0, 3.0))
    assert tl.compare_models(a, b, x).culprit is None
    comparison = tl.compare_models(a, b, x, loss=lambda out: out.square().sum())
    assert comparison.verdict == "different"
    assert comparison.gradient_culprit.b.label == "clone_1_3"
    assert comparison.headline.startswith(
        "different: the backward of clone_1_3 (ScaledBackward in b) gives layernorm_1_2 another"
    )
    assert all(p.grad is None for p in (*a.parameters(), *b.parameters()))


def test_a_gradient_that_is_cut_off_is_named(model, x):
    a, b = (Halves(copy.deepcopy(model), between) for between in (lambda h: h * 1, lambda h: h.detach() * 1))
    assert tl.compare_models(a, b, x).culprit is None
    comparison = tl.compare_models(a, b, x, loss=lambda out: out.square().sum())
    assert comparison.headline == "different: detach_1_3 in b gives layernorm_1_2 no gradient in b, which has one in a"


def test_equal_models_have_equal_gradients(model, x):
    comparison = tl.compare_models(model, copy.deepcopy(model), x, loss=lambda out: out.square().sum())
    assert comparison.verdict == "equal"
    assert any(row.gradient_error is not None for row in comparison.rows)


def test_a_loss_that_is_no_number_is_refused(model, x):
    with pytest.raises(tl.InvalidArgument, match="one number"):
        tl.compare_models(model, model, x, loss=lambda out: out)


def test_only_operations_that_were_kept_are_said_to_be_equal(model, x):
    kept, last = (tl.log_forward_pass(model, x, layers_to_save=kept) for kept in ("all", ["output"]))
    assert tl.compare(kept, kept).headline == "equal: 6 operations give the same bits"
    rest = "5 more were not kept, or cannot be compared"
    assert tl.compare(kept, last).headline == f"equal: 1 operation gives the same bits; {rest}"


@pytest.mark.parametrize(
    "kept", [["blocks.*", "output"], ["output"], [nn.Linear, "output"]], ids=["blocks", "output", "linear"]
)
@pytest.mark.parametrize("kind", ["logged", "loaded"])
@pytest.mark.parametrize("fault", ["argument", "parameter", "block"])
def test_what_was_not_kept_is_named_where_it_is_the_cause(kept, kind, fault, tmp_path):
    """Between activations that were kept: another argument, a parameter that differs, a block that is missing."""

    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.blocks, self.head = (
                nn.ModuleList(
                    made_of(
                        lambda self, x: x + self.down(F.gelu(self.up(x), approximate=self.approximate)),
                        up=nn.Linear(4, 8),
                        down=nn.Linear(8, 4),
                        approximate="none",
                    )
                    for _ in range(4)
                ),
                nn.Linear(4, 2),
            )

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    a, b = Blocks(), Blocks()
    if fault == "argument":
        b.blocks[2].approximate = "tanh"
    elif fault == "parameter":
        b.blocks[2].down.weight.data *= 2
    else:
        del b.blocks[2]
    x = torch.linspace(-1, 1, 12).view(3, 4)
    logs = [tl.log_forward_pass(one, x, layers_to_save=kept) for one in (a, b)]
    if kind == "loaded":
        logs = [tl.load(one.save(tmp_path / f"{name}.safetensors")) for name, one in zip("ab", logs, strict=True)]
    culprit = tl.compare(*logs).culprit
    expected = {"argument": "gelu_3_10 in 'blocks.2'", "parameter": "linear_6_11 in 'blocks.2.down'", "block": "'blocks.2'"}[
        fault
    ]
    assert culprit.name == expected
    assert culprit.reason.startswith(
        {"argument": "approximate is", "parameter": "its parameters differ", "block": "runs in a and not in b (4"}[fault]
    )


# Saved histories and the command line -----------------------------------------------------------------------------------


@pytest.fixture
def saved(model, x, tmp_path):
    def save(name, module, **options):
        return tl.log_forward_pass(module, x).save(tmp_path / f"{name}.safetensors", **options)

    return save


def test_of_loaded_histories_without_parameters_own_errors_are_unknown(model, saved):
    a, b = (tl.load(saved(name, one)) for name, one in (("a", model), ("b", with_eps(model))))
    comparison = tl.compare(a, b)
    assert comparison.culprit.module == "1"
    assert comparison.culprit.own_error is None
    assert comparison.culprit.arguments == (("eps", 1e-5, 1e-2),)
    assert "unknown" in str(comparison)
    assert not comparison


class Chained(nn.Module):
    """Linears, whose parameters are not in a file, around functions that can be run again."""

    def __init__(self, first=torch.relu, second=torch.tanh):
        super().__init__()
        torch.manual_seed(0)
        self.linears = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.first, self.second = first, second

    def forward(self, x):
        return self.linears[2](self.second(self.linears[1](self.first(self.linears[0](x)))))


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (Chained(F.gelu), Chained(partial(F.gelu, approximate="tanh")), "gelu_1_2 differs: approximate is"),
        (
            Chained(partial(F.softmax, dim=1)),
            Chained(partial(F.softmax, dim=0)),
            "softmax_1_2 differs: dim is 1 in a and 0 in b",
        ),
        (Chained(second=F.gelu), Chained(second=partial(F.gelu, approximate="tanh")), "gelu_1_4 differs: approximate is"),
        (Chained(), Chained(first=lambda x: x), "relu_1_2 runs in a and not in b"),
        (Chained(first=lambda x: x), Chained(), "relu_1_2 runs in b and not in a"),
        (Chained(), Chained(torch.sin), "relu_1_2 in a, sin_1_2 in b, differs: a runs relu where b runs sin"),
        (Chained(F.gelu, F.gelu), Chained(torch.sin, torch.sin), "gelu_1_2 in a, sin_1_2 in b, differs"),
    ],
)
def test_without_parameters_what_is_before_an_operation_that_cannot_be_run_is_named(a, b, said, tmp_path):
    """Its logged values tell that the difference before it mattered."""
    x = torch.linspace(-1, 1, 12).view(3, 4)
    logs = [tl.log_forward_pass(one, x).save(tmp_path / f"{name}.safetensors") for name, one in (("a", a), ("b", b))]
    comparison = tl.compare(*map(tl.load, logs))
    assert said in comparison.headline
    assert comparison.culprit.label == tl.compare_models(a, b, x).culprit.label
    assert "unknown" in str(comparison)


def test_without_parameters_what_is_written_in_place_is_not_written_to_the_histories(tmp_path):
    """A value that stands for an operation that cannot be run again is a copy."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 4)).eval()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[3].weight += 1
    x = torch.linspace(-1, 1, 12).view(3, 4)
    logs = [tl.log_forward_pass(one, x).save(tmp_path / f"{name}.safetensors") for name, one in (("a", model), ("b", other))]
    a, b = map(tl.load, logs)
    assert tl.compare(a, b).culprit.module == "3"
    for compared, path in ((a, logs[0]), (b, logs[1])):
        for one, before in zip(compared.operations, tl.load(path).operations, strict=True):
            assert torch.equal(one.activation, before.activation)


def test_without_parameters_what_is_the_same_in_other_words_is_not_named(tmp_path):
    """Functions that are written otherwise, or compute something else on the way, before a parameter that differs."""
    a, b = Chained(torch.relu), Chained(lambda x: (2 * x).clamp(min=0) / 2)
    with torch.no_grad():
        b.linears[1].weight += 1
    x = torch.linspace(-1, 1, 12).view(3, 4)
    logs = [tl.log_forward_pass(one, x).save(tmp_path / f"{name}.safetensors") for name, one in (("a", a), ("b", b))]
    assert tl.compare(*map(tl.load, logs)).culprit.module == "linears.1"


def test_of_loaded_histories_with_parameters_own_errors_are_known(model, saved):
    a, b = (tl.load(saved(name, one, params=True)) for name, one in (("a", model), ("b", with_eps(model))))
    culprit = tl.compare(a, b).culprit
    assert culprit.module == "1"
    assert culprit.arguments == (("eps", 1e-5, 1e-2),)
    assert culprit.own_error.relative > 1e-3


def test_the_command_exits_with_zero_or_one(model, saved, capsys, tmp_path):
    right, same, wrong = (str(saved(*pair)) for pair in (("a", model), ("b", copy.deepcopy(model)), ("c", with_eps(model))))
    assert main(["compare", right, same]) == 0
    assert capsys.readouterr().out.startswith("equal")
    assert main(["compare", right, wrong, "-o", str(tmp_path / "page.html")]) == 1
    assert capsys.readouterr().out.startswith("different: layernorm_1_2 in '1'")
    assert (tmp_path / "page.html").is_file()
    with pytest.raises(SystemExit) as exit_:
        main(["compare", right, str(tmp_path / "nowhere.safetensors")])
    assert exit_.value.code == 2


def test_assert_close_raises_with_the_verdict(model, x):
    a, b, c = (tl.log_forward_pass(one, x) for one in (model, copy.deepcopy(model), with_eps(model)))
    assert tl.assert_close(a, b).verdict == "equal"
    with pytest.raises(AssertionError, match="layernorm_1_2 in '1' differs: eps is"):
        tl.assert_close(a, c)


# Structure ------------------------------------------------------------------------------------------------------------


def test_the_fingerprint_is_of_functions_shapes_and_wiring_only(model, x):
    print_ = tl.log_forward_pass(model, x).fingerprint()
    torch.manual_seed(9)
    renamed = nn.Sequential()
    for place, layer in enumerate((nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))):
        renamed.add_module(f"layer{place}", layer)
    assert tl.log_forward_pass(renamed, x).fingerprint() == print_
    assert tl.log_forward_pass(model, x, layers_to_save="none").fingerprint() == print_
    assert tl.log_forward_pass(model, x.repeat(2, 1)).fingerprint() != print_
    assert tl.log_forward_pass(nn.Sequential(*model[:2], nn.ReLU(), model[3]), x).fingerprint() != print_
    assert tl.log_forward_pass(lambda t: t.sin() + t.cos(), x).fingerprint() != (
        tl.log_forward_pass(lambda t: t.sin() + t.cos().neg(), x).fingerprint()
    )


def test_the_fingerprint_tells_other_wiring_apart(x):
    def one(t):
        a, b = t.sin(), t.cos()
        return a - b

    def other(t):
        a, b = t.sin(), t.cos()
        return b - a

    assert tl.log_forward_pass(one, x).fingerprint() != tl.log_forward_pass(other, x).fingerprint()


def test_a_saved_history_has_the_same_fingerprint(model, x, saved):
    assert tl.load(saved("a", model)).fingerprint() == tl.log_forward_pass(model, x).fingerprint()


def test_assert_unchanged_says_what_changed(model, x, saved):
    history = tl.log_forward_pass(model, x)
    path = saved("a", model)
    for expected in (history.fingerprint(), history, path, str(path)):
        assert tl.assert_unchanged(model, x, expected) == history.fingerprint()
    wider = nn.Sequential(nn.Linear(4, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 3))
    with pytest.raises(AssertionError, match=r"linear_1_1 in '0' .* has shape \(2, 9\), expected was \(2, 8\)"):
        tl.assert_unchanged(wider, x, path)
    longer = nn.Sequential(*model, nn.Tanh())
    with pytest.raises(AssertionError, match=r"tanh_1_5 in '4' .* is new"):
        tl.assert_unchanged(longer, x, history)
    with pytest.raises(AssertionError, match="7 operations instead of 6"):
        tl.assert_unchanged(longer, x, history.fingerprint())
    with pytest.raises(tl.InvalidArgument, match="expected is a fingerprint"):
        tl.assert_unchanged(model, x)


def test_a_fingerprint_tells_which_part_of_the_structure_changed(model, x):
    expected = tl.log_forward_pass(model, x).fingerprint()
    same = "It still runs 6 operations."
    with pytest.raises(AssertionError) as wider:
        tl.assert_unchanged(nn.Sequential(nn.Linear(4, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 3)), x, expected)
    assert same in str(wider.value)
    assert "Changed: the shapes. The same: the functions it runs, what each operation is computed from." in str(wider.value)
    with pytest.raises(AssertionError) as relu:
        tl.assert_unchanged(nn.Sequential(*model[:2], nn.ReLU(), model[3]), x, expected)
    assert "Changed: the functions it runs. The same: the shapes" in str(relu.value)
    assert "linear × 2, layernorm × 1, relu × 1" in str(relu.value)
    assert "save('expected.safetensors')" in str(relu.value)
    with pytest.raises(AssertionError, match="Changed: what each operation is computed from"):
        swapped = tl.log_forward_pass(lambda t: t.sin() - t.cos(), x).fingerprint()
        tl.assert_unchanged(lambda t: (lambda a, b: b - a)(t.sin(), t.cos()), x, swapped)


def test_fingerprints_without_parts_stay_valid(model, x):
    short = "-".join(tl.log_forward_pass(model, x).fingerprint().split("-")[:2])
    assert tl.assert_unchanged(model, x, short).startswith(short)
    with pytest.raises(AssertionError, match="7 operations instead of 6"):
        tl.assert_unchanged(nn.Sequential(*model, nn.Tanh()), x, short)


# What is refused, and what is left as it was ------------------------------------------------------------------------------


def test_histories_of_other_inputs_are_refused(model, x):
    a, b = tl.log_forward_pass(model, x), tl.log_forward_pass(model, x + 1)
    with pytest.raises(tl.InvalidArgument, match="different inputs"):
        tl.compare(a, b)
    with pytest.raises(tl.InvalidArgument, match="different inputs"):
        tl.compare(a, tl.log_forward_pass(model, x[:1]))


def test_what_is_no_history_is_refused(model, x):
    with pytest.raises(tl.InvalidArgument, match="compare_models"):
        tl.compare(model, model)
    with pytest.raises(tl.InvalidArgument, match=r"got the path 'a\.safetensors'\. For a saved history: torcheer\.load"):
        tl.compare("a.safetensors", "b.safetensors")  # type: ignore[arg-type]
    nothing = tl.log_forward_pass(model, x, layers_to_save="none")
    with pytest.raises(tl.ActivationNotSaved, match="layers_to_save='all'"):
        tl.compare(nothing, nothing)
    figures = tl.log_forward_pass(model, x, activation_postfunc=lambda t: t.mean())
    with pytest.raises(tl.InvalidArgument, match="activation_postfunc"):
        tl.compare(figures, figures)


def test_names_that_no_module_has_are_refused(model, x):
    with pytest.raises(tl.InvalidArgument, match="no module of a has"):
        tl.compare_models(model, model, x, names={"h": "0"})


def test_a_history_whose_parameters_changed_is_refused(model, x):
    history = tl.log_forward_pass(model, x)
    with torch.no_grad():
        model[0].weight.add_(1)
    with pytest.raises(tl.InvalidArgument, match="changed since"):
        tl.compare(history, tl.log_forward_pass(model, x))


def test_models_histories_and_random_states_are_left_as_they_were(model, x):
    other = with_eps(model)
    states = [*model.state_dict().values(), *other.state_dict().values()]
    before = [tensor.clone() for tensor in states]
    random = torch.get_rng_state()
    a, b = tl.log_forward_pass(model, x), tl.log_forward_pass(other, x)
    values = [one.activation.clone() for history in (a, b) for one in history.operations]
    tl.compare(a, b)
    assert torch.equal(random, torch.get_rng_state())
    assert all(map(torch.equal, before, states))
    now = [one.activation for history in (a, b) for one in history.operations]
    assert all(torch.equal(one, other) for one, other in zip(values, now, strict=True))


def test_parameters_viewed_by_the_model_are_not_written_to(x):
    weight = nn.Parameter(torch.rand(4, 4))
    other = nn.Parameter(weight.detach() + 0.5)
    before = other.detach().clone()
    comparison = tl.compare_models(lambda t: t @ weight.t().contiguous(), lambda t: t @ other.t().contiguous(), x)
    assert comparison.verdict == "different"
    assert torch.equal(other, before)


# Measures and the alignment -----------------------------------------------------------------------------------------------


def test_differences_are_measured_as_torch_measures_them():
    a, b = torch.rand(50), torch.rand(50)
    found = difference(a, b)
    assert found.largest == float((a - b).abs().max())
    assert found.relative == pytest.approx(found.largest / float(a.abs().max()))
    assert found.cosine == pytest.approx(float(F.cosine_similarity(a, b, 0)), abs=1e-6)
    one = torch.tensor([1.0])
    assert difference(one, torch.nextafter(one, one + 1)).ulps == 1
    tiny = torch.tensor([0.0])
    assert difference(torch.nextafter(tiny, tiny + 1), torch.nextafter(tiny, tiny - 1)).ulps == 2
    nan = torch.tensor([math.nan, 1.0])
    assert difference(nan, nan.clone()).is_none
    assert difference(nan, torch.tensor([0.0, 1.0])).relative == math.inf
    assert difference(torch.tensor([True]), torch.tensor([False])).largest == 1


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(1, 5)), max_size=9))
@settings(deadline=None, max_examples=60)
def test_the_heaviest_increasing_pairs_are_found(pairs):
    unique = list({pair[:2]: pair for pair in pairs}.values())
    best = 0.0
    for chosen in range(1 << len(unique)):
        some = sorted(pair for place, pair in enumerate(unique) if chosen >> place & 1)
        if all(one[0] < other[0] and one[1] < other[1] for one, other in itertools.pairwise(some)):
            best = max(best, sum(pair[2] for pair in some))
    weights = {pair[:2]: pair[2] for pair in unique}
    found = matching.heaviest_increasing([(a, b, float(weight)) for a, b, weight in unique])
    assert all(one[0] < other[0] and one[1] < other[1] for one, other in itertools.pairwise(found))
    assert sum(weights[pair] for pair in found) == best


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
@settings(deadline=None, max_examples=200)
def test_the_longest_common_sequence_is_found(one, other):
    found = matching._in_common(*([SimpleNamespace(token=token) for token in side] for side in (one, other)))
    assert all(one[a] == other[b] for a, b, _ in found)
    assert all(pair[0] < after[0] and pair[1] < after[1] for pair, after in itertools.pairwise(sorted(found)))
    lengths = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for a, b in itertools.product(range(len(one)), range(len(other))):
        longest = max(lengths[a][b + 1], lengths[a + 1][b])
        lengths[a + 1][b + 1] = lengths[a][b] + 1 if one[a] == other[b] else longest
    assert len(found) == lengths[-1][-1]


@pytest.fixture
def likened(monkeypatch):
    """The pairs of operations whose likeness is measured: the work of an alignment that grows with the square of a log."""
    pairs = []
    measured = matching._likeness
    monkeypatch.setattr(matching, "_likeness", lambda found, a, b: pairs.append((a, b)) or measured(found, a, b))
    return pairs


def test_of_long_logs_few_pairs_are_likened(likened):
    def chain(extra):
        def run(t):
            for step in range(3300):
                t = (t * 1.0001 + 0.5).sin()
                if step == 1500 and extra:
                    t = t.cos()
            return t

        return run

    a, b = (tl.log_forward_pass(chain(extra), torch.rand(2)) for extra in (False, True))
    found = align(Side(a), Side(b))
    assert len(likened) <= len(found.of_b)
    assert [b._index.label(number) for number in found.only_in(found.b)] == ["cos_1_4503"] or len(found.of_b) > 9000


def test_of_two_equal_decoders_no_pairs_are_likened(likened):
    decoder, ids = Decoder().eval(), torch.randint(50, (1, 6))
    a, b = (tl.log_forward_pass(one, ids) for one in (decoder, copy.deepcopy(decoder)))
    assert len(align(Side(a), Side(b)).of_b) == len(b.operations)
    assert not likened


# Other kinds of differences -------------------------------------------------------------------------------------------


class Network(nn.Module):
    """A small convolutional network with options for what may differ."""

    def __init__(self, *, act=None, dim=1, has_residual=True, is_pooled_first=False):
        super().__init__()
        torch.manual_seed(1)
        self.conv1, self.bn, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)
        self.act, self.pool, self.fc = act or nn.ReLU(), nn.MaxPool2d(2), nn.Linear(8 * 16, 10)
        self.dim, self.has_residual, self.is_pooled_first = dim, has_residual, is_pooled_first
        self.eval().requires_grad_(False)

    def forward(self, x):
        h = self.act(self.bn(self.conv1(x)))
        h = h + self.conv2(h) if self.has_residual else self.conv2(h)
        h = self.act(self.pool(h)) if self.is_pooled_first else self.pool(self.act(h))
        return self.fc(h.flatten(1)).softmax(self.dim)


@pytest.fixture
def picture():
    return torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("options", "types"),
    [
        ({"dim": 0}, ("softmax", "softmax")),
        ({"has_residual": False}, ("add", None)),
        ({"act": nn.GELU()}, ("relu", "gelu")),
    ],
)
def test_differences_of_a_network_are_named(picture, options, types):
    culprit = tl.compare_models(Network(), Network(**options), picture).culprit
    assert tuple(one.layer_type if one is not None else None for one in (culprit.a, culprit.b)) == types


def test_batch_statistics_that_were_left_on_are_named(picture):
    culprit = tl.compare_models(Network(), Network().train(), picture).culprit
    assert culprit.module == "bn"
    assert ("training", False, True) in culprit.arguments


def test_a_bias_that_is_not_there_is_named(picture):
    other = Network()
    other.fc.bias = None
    assert "bias is a tensor in a and None in b" in tl.compare_models(Network(), other, picture).headline


def test_a_buffer_that_differs_is_named(picture):
    other = Network()
    other.bn.running_mean += 1
    comparison = tl.compare_models(Network(), other, picture)
    assert comparison.culprit.module == "bn"
    assert [one.name for one in comparison.parameters] == ["bn.running_mean"]


def test_operations_that_commute_are_no_difference(picture):
    assert tl.compare_models(Network(), Network(is_pooled_first=True), picture).culprit is None


def test_autocast_is_a_difference_of_rounding_only(picture):
    model = Network()

    def rounded(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    assert tl.compare_models(model, rounded, picture).culprit is None


def test_one_round_of_a_loop_too_many_is_named():
    fc = nn.Linear(4, 4)

    def loop(rounds):
        def run(x):
            for _ in range(rounds):
                x = fc(x).tanh()
            return x

        return run

    x = torch.rand(2, 4)
    culprit = tl.compare_models(loop(4), loop(5), x).culprit
    assert culprit.a is None
    assert (culprit.b.layer_type, culprit.b.pass_num) == ("linear", 5)
    assert tl.compare_models(loop(5), loop(4), x).culprit.a.pass_num == 5


def test_arguments_that_are_swapped_are_named():
    x = (torch.rand(3), torch.rand(3))
    headline = tl.compare_models(lambda a, b: a - b, lambda a, b: b - a, x).headline
    assert headline == "different: sub_1_2 differs: it is given input_1_0 in a and input_2_1 in b"


def test_other_functions_at_the_end_are_named():
    culprit = tl.compare_models(lambda t: t.argmax(-1), lambda t: t.argmin(-1), torch.rand(3, 4)).culprit
    assert (culprit.a.layer_type, culprit.b.layer_type) == ("argmax", "argmin")


def test_arguments_are_compared_where_values_cannot_be():
    culprit = tl.compare_models(
        lambda t: (t.to_sparse() * 2).to_dense(), lambda t: (t.to_sparse() * 3).to_dense(), torch.rand(3, 4)
    ).culprit
    assert culprit.a.layer_type == "mul"
    assert [values[1:] for values in culprit.arguments] == [(2, 3)]


def test_histories_that_kept_little_are_compared_by_it(model, x):
    a, b = (tl.log_forward_pass(one, x, layers_to_save=["input", "output"]) for one in (model, with_eps(model)))
    assert tl.compare(a, b).culprit.module == "1"
    a, b = (tl.log_forward_pass(one, x, layers_to_save=["gelu_1"]) for one in (model, with_eps(model)))
    comparison = tl.compare(a, b)
    assert comparison.verdict == "different"
    assert comparison.culprit.own_error is None


def test_rounds_of_a_loop_of_one_module_that_are_too_many_are_the_last_ones():
    class Recurrent(nn.Module):
        def __init__(self, rounds):
            super().__init__()
            torch.manual_seed(0)
            self.cell, self.rounds = nn.RNNCell(4, 4), rounds

        def forward(self, x):
            h = torch.zeros_like(x)
            for _ in range(self.rounds):
                h = self.cell(x, h)
            return h

    assert tl.compare_models(Recurrent(4), Recurrent(6), torch.rand(3, 4)).culprit.modules == ("cell:5", "cell:6")
    assert tl.compare_models(Recurrent(6), Recurrent(4), torch.rand(3, 4)).culprit.modules == ("cell:5", "cell:6")


def test_outputs_correspond_by_name_before_order(x):
    one = tl.compare_models(lambda t: {"a": t.sin(), "b": t.cos()}, lambda t: {"b": t.cos(), "a": t.sin()}, x)
    assert one.verdict == "equal"
    assert tl.compare_models(lambda t: {"a": t.sin(), "b": t.cos()}, lambda t: (t.sin(), t.cos()), x).verdict == "equal"
    swapped = tl.compare_models(lambda t: {"a": t.sin(), "b": t.cos()}, lambda t: {"a": t.cos(), "b": t.sin()}, x)
    assert swapped.headline == "different: output_1_3 differs: it is given sin_1_1 in a and cos_1_1 in b"


class Tied(nn.Module):
    def __init__(self, is_tied, shift=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.head.weight.data = self.tokens.weight.data + shift
        if is_tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        return self.head(self.tokens(ids))


def test_tied_weights_are_compared_at_each_use():
    ids = torch.arange(5)
    same = tl.compare_models(Tied(True), Tied(False), ids)
    assert same.verdict == "equal"
    assert not same.parameters
    other = tl.compare_models(Tied(True), Tied(False, 1.0), ids)
    assert other.culprit.module == "head"
    assert [one.name for one in other.parameters] == ["tokens.weight / head.weight"]
    assert "1 parameter differs, nothing else does" in other.headline


def test_tensors_without_values_are_refused(model, x):
    with pytest.raises(tl.ActivationNotSaved, match="meta"):
        tl.compare_models(model.to("meta"), copy.deepcopy(model).to("meta"), x)


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        (lambda t: (t - 5).sqrt().sum(1), lambda t: (t - 5).sqrt().sum(1), None),
        (lambda t: (t - 0.5).sqrt() * 2, lambda t: (t - 0.5).sqrt() * 3, "mul_1_3"),
        (lambda t: t / 0, lambda t: -t / 0, "neg_1_1"),
        (lambda t: torch.fft.fft(t).abs(), lambda t: torch.fft.fft(t, norm="ortho").abs(), "fftfft_1_1"),
        (lambda t: torch.fft.fft(t) * 1j, lambda t: torch.fft.fft(t) * -1j, "mul_1_2"),
        (lambda t: (t * 2).argmax(1), lambda t: (t * 3).argmax(1), None),
        (lambda t: t.argmax(1), lambda t: t.flip(1).argmax(1), "flip_1_1"),
        (lambda t: F.dropout(t, 0.5), lambda t: F.dropout(t, 0.5), None),
        (lambda t: F.dropout(t, 0.5), lambda t: (torch.rand(1), F.dropout(t, 0.5))[1], "dropout_1_1"),
        (lambda t: t, lambda t: t, None),
        (lambda t: t, lambda t: t * 2, "mul_1_1"),
    ],
)
def test_values_of_every_kind_are_compared(one, other, named):
    culprit = tl.compare_models(one, other, torch.rand(3, 4)).culprit
    assert (culprit.label if culprit is not None else None) == named


def test_a_model_is_found_in_one_that_holds_it(model, x):
    assert tl.compare_models(nn.Sequential(model), model, x).verdict == "equal"
    culprit = tl.compare_models(model, nn.Sequential(model, nn.Tanh()), x).culprit
    assert (culprit.a, culprit.b.layer_type, culprit.module) == (None, "tanh", "1")


def test_in_place_and_out_of_place_versions_agree():
    def in_place(t):
        y = t * 2
        y.add_(1)
        y.relu_()
        y[0] = 0
        return y.sum(1)

    def out_of_place(t):
        y = (t * 2 + 1).relu()
        return torch.cat([torch.zeros(1, 4), y[1:]]).sum(1)

    for pair in ((in_place, out_of_place), (out_of_place, in_place)):
        assert tl.compare_models(*pair, torch.rand(3, 4)).verdict == "equal"


def test_a_parameter_that_the_model_writes_to_is_left_as_it_was():
    class Writing(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.weight, self.factor = nn.Parameter(torch.ones(4, 4)), factor

        def forward(self, x):
            with torch.no_grad():
                self.weight.mul_(self.factor)
            return x @ self.weight

    a, b = Writing(2.0), Writing(3.0)
    assert tl.compare_models(a, b, torch.rand(2, 4)).culprit.a.layer_type == "mul"
    assert torch.equal(a.weight, torch.ones(4, 4))
    assert torch.equal(b.weight, torch.ones(4, 4))
