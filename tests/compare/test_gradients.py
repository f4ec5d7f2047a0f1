"""With a loss, gradients are split into own and inherited error too, and the operation whose backward is wrong is named."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torcheer as tl
from models import autograd_function


class Net(nn.Module):
    """Two blocks with something between them."""

    def __init__(self, between=lambda h: h * 1.5, eps=1e-5, is_checkpointed=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second, self.last = nn.Linear(6, 8), nn.LayerNorm(8, eps), nn.Linear(8, 8), nn.Linear(8, 3)
        self.between, self.is_checkpointed = between, is_checkpointed

    def block(self, h):
        return self.second(self.norm(h)).tanh()

    def forward(self, x):
        h = self.between(self.first(x))
        h = checkpoint(self.block, h, use_reentrant=False) if self.is_checkpointed else self.block(h)
        return self.last(h + h.sin())


@pytest.fixture
def x():
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(3))


def loss(out):
    return out.square().sum()


def wrong_forward(ctx, x, factor):
    ctx.factor = factor
    return x * 1.5


# A product whose backward may be wrong.
Wrong = autograd_function("Wrong", wrong_forward, lambda ctx, gradient: (gradient * ctx.factor, None))


class Projection(torch.autograd.Function):
    """A linear layer whose backward may leave out the scale of the weight's gradient."""

    @staticmethod
    def forward(ctx, x, weight, factor):
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, ctx.factor * gradient.T @ x, None


class Projected(nn.Module):
    def __init__(self, factor):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.last, self.factor = nn.Parameter(torch.randn(5, 6)), nn.Linear(5, 2), factor

    def forward(self, x):
        return self.last(Projection.apply(x, self.weight, self.factor).tanh())


def compared(a, b, x):
    assert tl.compare_models(a, b, x).culprit is None
    return tl.compare_models(a, b, x, loss=loss)


def test_a_custom_function_with_a_wrong_backward_is_named(x):
    comparison = compared(Net(), Net(lambda h: Wrong.apply(h, 3.0)), x)
    culprit = comparison.gradient_culprit
    assert culprit.b.label == "mul_1_2"
    assert culprit.function == "WrongBackward"
    assert culprit.at == "linear_1_1"
    assert culprit.own_error.relative == pytest.approx(1.0, rel=1e-4)  # twice the gradient
    assert comparison.headline.startswith(
        "different: the backward of mul_1_2 (WrongBackward in b) gives linear_1_1 another gradient"
    )
    assert comparison.verdict == "different"


def test_the_page_has_a_wrong_backward_as_the_cause_of_its_difference(x):
    comparison = compared(Net(), Net(lambda h: Wrong.apply(h, 3.0)), x)
    for payload in comparison._payloads(previews=False, max_bytes=10**6):
        [culprit] = payload["culprits"]
        assert payload["nodes"][culprit]["cause"] == str(comparison.gradient_culprit)


def test_a_right_custom_function_is_no_difference(x):
    assert compared(Net(), Net(lambda h: Wrong.apply(h, 1.5)), x)
    both = compared(Net(lambda h: Wrong.apply(h, 1.5)), Net(lambda h: Wrong.apply(h, 3.0)), x)
    assert both.gradient_culprit.b.label == "mul_1_2"


def test_a_wrong_gradient_of_a_weight_is_named(x):
    assert compared(Projected(1.0), Projected(1.0), x)
    comparison = compared(Projected(1.0), Projected(0.5), x)
    assert comparison.gradient_culprit.b.layer_type == "matmul"
    assert comparison.gradient_culprit.at == "weight"
    assert comparison.gradient_culprit.own_error.relative == pytest.approx(0.5, rel=1e-4)


def test_a_detach_that_was_left_in_is_named(x):
    comparison = compared(Net(), Net(lambda h: h.detach() * 1.5), x)
    assert comparison.gradient_culprit.b.layer_type == "detach"
    assert "no gradient in b, which has one in a" in comparison.headline
    backwards = compared(Net(lambda h: h.detach() * 1.5), Net(), x)
    assert backwards.gradient_culprit.a.layer_type == "detach"


def test_part_of_a_graph_that_is_detached_is_named(x):
    comparison = compared(Net(lambda h: h * 1.5 + h.tanh()), Net(lambda h: h * 1.5 + h.detach().tanh()), x)
    assert comparison.gradient_culprit.b.layer_type == "detach"


def test_no_grad_that_was_left_in_is_named(x):
    def between(h):
        with torch.no_grad():
            factor = h.abs() + 1
        return h * factor

    comparison = compared(Net(lambda h: h * (h.abs() + 1)), Net(between), x)
    assert comparison.gradient_culprit.b.layer_type == "abs"


def test_a_gradient_that_is_scaled_twice_is_named(x):
    def hooked(h):
        h = h * 1.5
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient * 2)
        return h

    comparison = compared(Net(), Net(hooked), x)
    assert comparison.gradient_culprit.b.label in ("mul_1_2", "layernorm_1_3")
    scaled = compared(Net(), Net(lambda h: Wrong.apply(h, 2.25)), x)
    assert scaled.gradient_culprit.b.label == "mul_1_2"


def test_gradient_checkpointing_gives_equal_gradients(x):
    assert compared(Net(), Net(is_checkpointed=True), x)
    comparison = compared(Net(), Net(lambda h: Wrong.apply(h, 3.0), is_checkpointed=True), x)
    assert comparison.gradient_culprit.b.label == "mul_1_2"


def test_the_trap_of_where_is_named_at_the_function_that_gives_nan(x):
    def careless(h):
        return torch.where(h > 0, h.sqrt(), 0.0)

    def careful(h):
        return torch.where(h > 0, torch.where(h > 0, h, 1.0).sqrt(), 0.0)

    def outer(of):
        return lambda h: of(torch.cat([h[:, :-1], h[:, -1:] * 0], 1))

    a, b = Net(outer(careful)), Net(outer(careless))
    comparison = tl.compare_models(a, b, x, loss=loss)
    assert comparison.culprit is None
    assert comparison.gradient_culprit.b.layer_type == "sqrt"
    assert math.isinf(comparison.gradient_culprit.own_error.relative)


Straight = autograd_function("Straight", lambda ctx, x: x.round(), lambda ctx, gradient: gradient)


def test_a_straight_through_estimator_is_told_from_the_real_gradient(x):
    comparison = compared(Net(lambda h: (4 * h).round()), Net(lambda h: Straight.apply(4 * h)), x)
    assert comparison.gradient_culprit.b.layer_type == "round"
    assert comparison.gradient_culprit.function == "StraightBackward"
    backwards = compared(Net(lambda h: Straight.apply(4 * h)), Net(lambda h: (4 * h).round()), x)
    assert backwards.gradient_culprit.b.layer_type == "round"


def test_an_error_of_the_forward_pass_is_named_first(x):
    comparison = tl.compare_models(Net(), Net(eps=1e-2), x, loss=loss)
    assert comparison.culprit.module == "norm"
    assert comparison.headline.startswith("different: layernorm_1_3 in 'norm' differs: eps is")
    assert comparison.gradient_culprit is None
    rows = {row.label: row for row in comparison.rows}
    assert rows["mul_1_2"].own_gradient_error.relative > 1e-3  # its gradient comes from the norm with another eps
    assert rows["linear_1_1"].own_gradient_error.is_none
    assert rows["linear_1_1"].inherited_gradient_error.relative > 1e-3


def test_own_errors_of_gradients_are_in_the_table(x):
    comparison = compared(Net(), Net(lambda h: Wrong.apply(h, 3.0)), x)
    frame = comparison.to_pandas()
    assert {"own_gradient_error", "inherited_gradient_error"} <= set(frame.columns)
    beyond = frame[frame.own_gradient_error > 1e-3]
    assert list(beyond.label) == ["linear_1_1"]
    assert "own gradient error" in str(comparison.table)


def test_what_cannot_be_known_is_none(x):
    """After a first wrong backward, the error of a second custom function cannot be told from the one it inherits."""

    def twice(h):
        return Wrong.apply(Wrong.apply(h, 3.0), 3.0)

    comparison = compared(Net(lambda h: h * 1.5 * 1.5), Net(twice), x)
    assert comparison.gradient_culprit.b.label == "mul_2_3"
    rows = {row.b.label: row for row in comparison.rows}
    assert rows["linear_1_1"].gradient_error.relative > 1
    assert rows["linear_1_1"].own_gradient_error is None


def test_a_frozen_parameter_is_named(x):
    other = Net()
    other.second.weight.requires_grad_(False)
    comparison = compared(Net(), other, x)
    assert comparison.gradient_culprit.at == "second.weight"
    assert "requires_grad" in comparison.headline


def test_gradients_in_place_and_through_views_have_no_culprit(x):
    def between(h):
        h = h * 1.5
        h[:, :2] *= 2
        h.view(-1)[3:5].mul_(0.5)
        return h

    assert compared(Net(between), Net(between), x).verdict == "equal"


def test_dropout_with_one_seed_has_equal_gradients(x):
    def model():
        return Net(lambda h: nn.functional.dropout(h * 1.5, 0.3))

    assert tl.compare_models(model(), model(), x, loss=loss).verdict == "equal"
    eager = tl.compare_models(model(), Net(lambda h: Wrong.apply(nn.functional.dropout(h, 0.3), 3.0)), x, loss=loss)
    assert eager.verdict == "different"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_of_another_dtype_have_no_culprit(x, dtype):
    comparison = tl.compare_models(Net(), copy.deepcopy(Net()).to(dtype), x, loss=loss)
    assert comparison.gradient_culprit is None, comparison


def test_gradients_of_fused_and_eager_attention_agree():
    def eager(q):
        return ((q @ q.mT / math.sqrt(q.shape[-1])).softmax(-1) @ q).tanh()

    def fused(q):
        return nn.functional.scaled_dot_product_attention(q, q, q).tanh()

    def wrong(q):
        return nn.functional.scaled_dot_product_attention(q, q.detach(), q).tanh()

    class Attention(nn.Module):
        def __init__(self, attention):
            super().__init__()
            torch.manual_seed(0)
            self.fc, self.attention = nn.Linear(8, 8), attention

        def forward(self, x):
            return self.attention(self.fc(x).view(2, 2, 5, 8))

    x = torch.randn(4, 5, 8)
    comparison = tl.compare_models(Attention(eager), Attention(fused), x, loss=loss)
    assert comparison, comparison
    comparison = tl.compare_models(Attention(eager), Attention(wrong), x, loss=loss)
    assert comparison.gradient_culprit.b.layer_type == "detach"
