"""The outputs decide whether two models are equal; the operations say why they are not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torcheer as tl
from torcheer.cli import main

x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Cancelling(nn.Module):
    """A norm of small differences of large numbers: what rounding leaves of them is mostly noise."""

    def __init__(self, shift=20.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last, self.shift = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), shift

    def forward(self, x):
        return self.last(self.norm(self.first(x) + self.shift))


def largest_error(one, other):
    one, other = one.detach().double(), other.detach().double()
    return float((one - other).abs().max() / one.abs().max())


@pytest.fixture
def pair():
    model = Cancelling().eval()
    return model, copy.deepcopy(model).bfloat16()


@pytest.mark.parametrize("tolerance", [0.0, 1e-3, 0.01, 0.05, 0.5])
def test_an_output_beyond_the_tolerance_is_different(pair, tolerance):
    comparison = tl.compare_models(*pair, x, tolerance=tolerance)
    error = largest_error(pair[0](x), pair[1](x.bfloat16()))
    assert comparison.output_error == pytest.approx(error, rel=1e-3)
    assert bool(comparison) == (error <= tolerance)
    assert comparison.verdict == ("equal within tolerance" if error <= tolerance else "different")


def test_rounding_that_grows_is_named_with_the_operation_where_it_does(pair):
    comparison = tl.compare_models(*pair, x, tolerance=0.01)
    assert comparison.culprit is None
    jump = comparison.largest_jump
    assert jump.a.layer_type == "layernorm"
    before = next(row for row in comparison.rows if row.a.layer_type == "add")
    assert jump.amplification == pytest.approx(jump.error.relative / before.error.relative, rel=0.5)
    assert jump.amplification > 5
    said = f"no operation is wrong by itself; rounding grows {jump.amplification:.0f}× at {jump.label}"
    assert said in comparison.headline
    assert comparison.headline.startswith("different: the output differs by ")
    assert "above the tolerance of 1.0e-02" in comparison.headline
    assert said in comparison.parts.operations
    frame = comparison.to_pandas().set_index("label")
    assert frame.loc[jump.label, "amplification"] == jump.amplification
    assert "amplification" in str(comparison.table)


def test_without_a_tolerance_the_dtype_bounds_the_output(pair):
    comparison = tl.compare_models(*pair, x)
    assert comparison.tolerance == 4 * torch.finfo(torch.bfloat16).eps
    assert bool(comparison) == (comparison.output_error <= comparison.tolerance)
    assert tl.compare_models(Cancelling(0.0), Cancelling(0.0).bfloat16(), x).verdict == "equal within tolerance"


def test_the_command_assert_close_the_card_and_the_page_say_the_same(pair, tmp_path, capsys):
    histories = [tl.log_forward_pass(pair[0], x), tl.log_forward_pass(pair[1], x.bfloat16())]
    paths = [str(one.save(tmp_path / f"{name}.safetensors", params=True)) for name, one in zip("ab", histories, strict=True)]
    with pytest.raises(AssertionError, match="rounding grows"):
        tl.assert_close(*histories, tolerance=0.01)
    assert main(["compare", *paths, "--tolerance", "0.01", "-o", str(tmp_path / "page.html")]) == 1
    headline = tl.compare(*histories, tolerance=0.01).headline
    assert capsys.readouterr().out.startswith(headline)
    assert "rounding grows" in tl.compare(*histories, tolerance=0.01)._repr_html_()
    assert (tmp_path / "page.html").exists()
    assert main(["compare", *paths, "--tolerance", "0.9"]) == 0


def test_an_operation_that_is_wrong_by_itself_does_not_make_equal_outputs_different():
    class Diluted(nn.Module):
        def __init__(self, eps):
            super().__init__()
            torch.manual_seed(0)
            self.norm, self.linear = nn.LayerNorm(8, eps=eps), nn.Linear(8, 8)

        def forward(self, x):
            return x * 1000 + self.linear(self.norm(x))

    comparison = tl.compare_models(Diluted(1e-5), Diluted(1e-3), x)
    assert comparison.verdict == "equal within tolerance"
    assert comparison.culprit.arguments == (("eps", 1e-5, 1e-3),)
    assert "though layernorm_1_2 in 'norm' differs: eps is" in comparison.headline
    assert "layernorm_1_2" in comparison.parts.operations
    assert not tl.compare_models(Diluted(1e-5), Diluted(1e-3), x, tolerance=0)


def test_outputs_structure_and_operations_are_said_apart():
    comparison = tl.compare_models(lambda t: t.sin(), lambda t: t.sin() * 1, x)
    assert comparison.verdict == "equal"
    assert comparison.parts.outputs == "the same bits"
    assert comparison.parts.structure == "3 operations in both, 0 only in a, 1 only in b"
    assert comparison.parts.operations == "3 operations give the same bits"
    lines = str(comparison).split("\n")[1:]
    assert [line.strip().partition(":")[0] for line in lines] == ["Output", "Structure", "Operations"]


# What is not finite -----------------------------------------------------------------------------------------------------


class Overflowing(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x) * 300
        z = y * y
        return z - z.mean()


def test_the_operation_whose_values_overflow_is_the_culprit():
    comparison = tl.compare_models(Overflowing(), Overflowing().half(), x)
    assert comparison.verdict == "different"
    assert comparison.culprit.label == "mul_2_3"
    assert "more than torch.float16 holds" in comparison.headline
    assert len(comparison.unmatched) == 0
    backwards = tl.compare_models(Overflowing().half(), Overflowing(), x)
    assert backwards.culprit.label == "mul_2_3"
    assert len(backwards.unmatched) == 0


def test_values_that_are_not_finite_in_both_are_equal_and_matched():
    comparison = tl.compare_models(Overflowing().half(), Overflowing().half(), x)
    assert comparison.verdict == "equal"
    assert len(comparison.unmatched) == 0
    assert tl.compare_models(lambda t: t / 0 * 0, lambda t: t / 0 * 0, x).verdict == "equal"


def test_an_input_that_the_dtype_of_b_does_not_hold_is_the_culprit():
    comparison = tl.compare_models(Overflowing(), Overflowing().half(), x * 1e6)
    assert comparison.culprit.label == "input_1_0"
    assert "not finite in b" in comparison.headline


@pytest.mark.parametrize(
    ("one", "other"),
    [(lambda t: t / 0, lambda t: -t / 0), (lambda t: t.sqrt(), lambda t: t.abs().sqrt()), (lambda t: t, lambda t: t / 0)],
)
def test_outputs_that_are_not_finite_in_one_are_different(one, other):
    assert not tl.compare_models(one, other, x, tolerance=1e9)


# What a norm keeps of values that are all equal ---------------------------------------------------------------------------


def test_a_value_that_rounding_leaves_nothing_of_is_no_error_of_the_operation():
    model = Cancelling(300.0)
    comparison = tl.compare_models(model, copy.deepcopy(model).bfloat16(), x)
    assert comparison.verdict == "different"
    assert comparison.culprit is None
    assert comparison.largest_jump.a.layer_type == "layernorm"
    assert len(comparison.unmatched) == 0


# Nothing to compare -----------------------------------------------------------------------------------------------------


def silent(change):
    def model(t):
        model.kept = change(t.sin())

    return model


def test_models_that_return_nothing_are_compared_by_what_they_run():
    same = tl.compare_models(silent(torch.cos), silent(torch.cos), x)
    assert same.verdict == "equal"
    assert same.headline == "equal: neither returns a tensor; 3 operations give the same bits"
    assert same.parts.outputs == "not compared: neither returns a tensor"
    assert same.output_error is None
    other = tl.compare_models(silent(torch.cos), silent(torch.tan), x)
    assert other.verdict == "different"
    assert (other.culprit.a.layer_type, other.culprit.b.layer_type) == ("cos", "tan")
    longer = tl.compare_models(silent(torch.cos), silent(lambda t: t.cos() * 2), x)
    assert "mul_1_3 runs in b and not in a" in longer.headline


def test_models_that_do_nothing_are_not_compared():
    with pytest.warns(tl.EmptyLogWarning):
        comparison = tl.compare_models(lambda t: None, lambda t: None, x)
    assert comparison.verdict == "not compared"
    assert "there is nothing to compare" in comparison.headline


@pytest.mark.parametrize("order", [1, -1])
def test_a_model_that_returns_nothing_is_not_equal_to_one_that_returns_a_tensor(order):
    comparison = tl.compare_models(*[silent(torch.cos), lambda t: t.sin().cos()][::order], x)
    assert comparison.verdict == "different"
    assert "returns no tensor" in comparison.headline


def partly_written(by=1.0, rows=2):
    def model(t):
        made = torch.empty(4, 8)
        made[:rows] = t[:rows] * by
        return made

    return model


def test_memory_that_was_never_written_is_not_compared():
    for _ in range(5):  # whatever the memory holds
        comparison = tl.compare_models(partly_written(), partly_written(), x)
        assert comparison.verdict == "equal"
        assert "16 of 32 elements of output_1_5 were never written, and not compared" in comparison.headline
        assert tl.compare_models(partly_written(), partly_written(2.0), x).culprit.arguments
        alone = tl.compare_models(lambda t: torch.empty(999), lambda t: torch.empty(999), x)
        assert alone.verdict == "not compared"
        assert "output_1_2 is memory that was never written" in alone.headline
        some = tl.compare_models(lambda t: (t.sin(), torch.empty(9) + 1), lambda t: (t.sin(), torch.empty(9) + 1), x)
        assert some.verdict == "equal"
        assert "output_2_5 is memory that was never written, and is not compared" in some.headline


def rows_of_garbage(t):
    made = torch.empty(6, 8)
    made[:4] = t
    return made.softmax(-1), made[:4] * 2


@pytest.mark.parametrize(
    ("model", "left_out"),
    [
        (rows_of_garbage, "16 of 48 elements of output_1_6"),
        (lambda t: (t.sin(), torch.empty_strided((30, 40), (1, 30))), "output_2_4 is memory"),
        (lambda t: (t.sin(), torch.empty(30, 1).expand(30, 40)), "output_2_5 is memory"),
        (lambda t: (t.sin(), torch.empty(30, dtype=torch.bool)), "output_2_4 is memory"),
        (lambda t: (t.sin(), torch.empty(30, dtype=torch.uint8) + 1), "output_2_5 is memory"),
    ],
)
def test_what_was_computed_from_memory_that_was_never_written_is_not_compared(model, left_out, tmp_path):
    comparison = tl.compare_models(model, model, x)
    assert comparison.verdict == "equal", comparison
    assert left_out in comparison.headline
    paths = [tl.log_forward_pass(model, x).save(tmp_path / f"{name}.safetensors") for name in "ab"]
    loaded = tl.compare(*map(tl.load, paths))
    assert loaded.verdict == "equal"
    assert left_out in loaded.headline


def test_memory_of_a_resized_tensor_is_not_compared():
    comparison = tl.compare_models(lambda t: torch.zeros(3).resize_(2000), lambda t: torch.zeros(3).resize_(2000), x)
    assert comparison.verdict == "equal"
    assert "1997 of 2,000 elements" in comparison.headline


def test_a_buffer_that_is_written_as_a_whole_is_compared():
    def model(t):
        return torch.empty_like(t).copy_(t.sin())

    comparison = tl.compare_models(model, model, x)
    assert comparison.verdict == "equal"
    assert "never written" not in str(comparison)


# Outputs of other kinds --------------------------------------------------------------------------------------------------


def test_an_integer_that_differs_is_different_though_rounding_made_it_so():
    class Largest(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.linear = nn.Linear(8, 20_000)

        def forward(self, x):
            return self.linear(x * 0.01).argmax(-1)

    model, other = Largest(), Largest().bfloat16()
    differing = int((model(x) != other(x.bfloat16())).sum())
    comparison = tl.compare_models(model, other, x)
    assert differing
    assert comparison.verdict == "different"
    assert comparison.culprit is None
    assert f"({differing} of 4 values)" in comparison.headline
    assert "at argmax_1_3" in comparison.headline


def test_values_that_are_equal_in_another_dtype_or_sign_of_zero_are_not_called_the_same_bits():
    assert "the same values, some in another dtype" in tl.compare_models(torch.relu, lambda t: t.relu().double(), x).headline
    assert tl.compare_models(lambda t: t * 0.0, lambda t: t * -0.0, x).headline == "equal: 3 operations give the same values"


def test_one_output_of_several_decides():
    def model(by):
        return lambda t: {"same": t.sin(), "other": t.cos() * by}

    comparison = tl.compare_models(model(1.0), model(1.001), x)
    assert not comparison
    within = tl.compare_models(model(1.0), model(1.001), x, tolerance=0.01)
    assert within.verdict == "equal within tolerance"
    assert "output_2_5 differs by 1.0e-03 of its scale" in within.headline
    assert not tl.compare_models(lambda t: (t.sin(), torch.zeros(3)), lambda t: (t.sin(), torch.zeros(4)), x)


def test_outputs_without_elements_are_equal():
    assert tl.compare_models(lambda t: t[:0], lambda t: t[:0], x).verdict == "equal"


def test_a_few_large_values_that_are_the_scale_are_noted():
    def model(by):
        return lambda t: torch.cat([t.flatten() * by, torch.tensor([3000.0])])

    comparison = tl.compare_models(model(1.0), model(1.5), x, tolerance=0.01)
    assert "a few large values are the scale" in str(comparison)
    assert "a few large values" not in str(tl.compare_models(model(1.0), model(1.001), x, tolerance=0.01))


# Gradients ----------------------------------------------------------------------------------------------------------------


def test_gradients_beyond_the_tolerance_are_different():
    model = Cancelling(60.0).train()

    def loss(out):
        return out.float().square().mean()

    comparison = tl.compare_models(model, copy.deepcopy(model).bfloat16(), x, loss=loss, tolerance=0.2)
    gradients = []
    for one, given in ((model, x), (copy.deepcopy(model).bfloat16(), x.bfloat16())):
        found = torch.autograd.grad(loss(one(given)), list(one.parameters()))
        gradients.append([gradient.double() for gradient in found])
    assert max(largest_error(*both) for both in zip(*gradients, strict=True)) > 0.2
    assert comparison.output_error < 0.2
    assert comparison.verdict == "different"
    assert "gradient" in comparison.headline
    assert tl.compare_models(model, copy.deepcopy(model).bfloat16(), x, loss=loss, tolerance=0.9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_gradient_that_should_be_zero_is_no_error(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    comparison = tl.compare_models(model, copy.deepcopy(model).to(dtype), x, loss=lambda out: out.float().square().mean())
    assert comparison.verdict == "equal within tolerance", comparison


class Offset(nn.Module):
    """Layer norms of numbers that are nearly equal: each of them, a single call, loses most digits of what it is given."""

    def __init__(self, eps=1e-5):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(16, eps=eps) for _ in range(4))

    def forward(self, t):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            t = norm(layer(t) * 1e-3 + 5)
        return t


@pytest.mark.parametrize(("ours", "theirs"), [(torch.float64, torch.float32), (torch.float32, torch.bfloat16)])
def test_a_call_that_loses_digits_by_itself_is_rounding_and_no_culprit(ours, theirs):
    t = torch.rand(3, 16, dtype=ours)
    comparison = tl.compare_models(Offset().to(ours), Offset().to(theirs), t)
    assert comparison.verdict == "different"
    assert comparison.culprit is None, comparison.headline
    assert "no operation is wrong by itself; rounding grows" in comparison.headline
    assert comparison.largest_jump.a.layer_type == "layernorm"


def test_another_argument_is_a_culprit_also_where_rounding_is_as_large():
    t = torch.rand(3, 16, dtype=torch.float64)
    comparison = tl.compare_models(Offset().double(), Offset(1.1e-5).float(), t)
    assert comparison.culprit.arguments == (("eps", 1e-5, 1.1e-5),)
