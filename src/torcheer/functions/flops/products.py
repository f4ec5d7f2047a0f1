"""Products: matrix multiplication in all its spellings, convolution, attention, recurrent kernels.

A multiply-accumulate (MAC) is two FLOPs. The bias is the first term of an accumulation, so it adds none.
"""

from __future__ import annotations

import math

from ..calls import Call, Operand
from .work import NOTHING, Work, formula, product, simple

SOFTMAX = 5  # maximum, subtraction, exponential, sum, division
SIGMOID = 4  # negation, exponential, addition, division


@formula("linear")
def _linear(call: Call) -> Work:
    x, weight = call.operand(0, "input"), call.operand(1, "weight")
    return product(call, call.made * x.shape[-1], (x, weight))


@formula("matmul mm bmm mv dot vdot inner linalg_vecdot")
def _matmul(call: Call) -> Work:
    a, b = call.operands[1::-1] if call.function.is_reflected else call.operands[:2]
    if call.name == "inner" and not (a.shape and b.shape):
        return simple(call, call.made)
    return product(call, call.made * a.shape[-1], (a, b))


@formula("addmm baddbmm addmv sspaddmm")
def _add_product(call: Call) -> Work:
    a, b = call.operands[1:3]
    return product(call, call.made * a.shape[-1], (a, b))


@formula("addbmm")
def _add_batched_product(call: Call) -> Work:
    a, b = call.operands[1:3]
    return product(call, a.numel * b.shape[-1], (a, b))


@formula("outer kron")
def _outer(call: Call) -> Work:
    return simple(call, call.made, 2)


@formula("addr")
def _add_outer(call: Call) -> Work:
    return simple(call, 2 * call.made)


@formula("grouped_mm transformers::grouped_mm_fallback")  # the latter where torch has no `_grouped_mm` for the device
def _grouped_mm(call: Call) -> Work:
    a, b = call.operands[:2]
    return product(call, a.numel * b.shape[-1], (a, b))


@formula("tensordot")
def _tensordot(call: Call) -> Work:
    a, b = call.operands[:2]
    if not call.made:
        return NOTHING
    contracted = math.isqrt(a.numel * b.numel // call.made)  # each contracted size is in both, and in no result
    return product(call, call.made * contracted, (a, b))


@formula("chain_matmul linalg_multi_dot")
def _multi_dot(call: Call) -> Work:
    factors = call.operands
    if len(factors) == 1:
        return NOTHING
    first, last = factors[0].shape, factors[-1].shape
    sizes = [first[0] if len(first) == 2 else 1]
    sizes += [factor.shape[0] for factor in factors[1:]]
    sizes += [last[1] if len(last) == 2 else 1]
    return product(call, _cheapest_chain(sizes), factors)


def _cheapest_chain(sizes: list[int]) -> int:
    """MACs of a chain of matrix products in the best order, which is the one torch finds."""
    count = len(sizes) - 1
    best = [[0] * count for _ in range(count)]
    for span in range(1, count):
        for i in range(count - span):
            j = i + span
            best[i][j] = min(best[i][k] + best[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j))
    return best[0][-1]


@formula("linalg_matrix_power")
def _matrix_power(call: Call) -> Work:
    (a,) = call.operands[:1]
    power = abs(int(call.value(1, "n")))
    if power < 2:
        return NOTHING
    times = power.bit_length() - 1 + power.bit_count() - 1
    return product(call, times * a.numel * a.shape[-1], (a, a))


@formula("bilinear")
def _bilinear(call: Call) -> Work:
    a, b, weight = call.operands[:3]
    rows = a.numel // a.shape[-1]
    outputs, one, other = weight.shape
    return product(call, rows * outputs * (one * other + other), (a, b, weight))


# Convolution ------------------------------------------------------------------------------------------------------


@formula("conv1d conv2d conv3d mkldnn_convolution cudnn_convolution")
def _convolution(call: Call) -> Work:
    x, weight = call.operand(0, "input"), call.operand(1, "weight")
    return product(call, call.made * math.prod(weight.shape[1:]), (x, weight))


@formula("conv_transpose1d conv_transpose2d conv_transpose3d")
def _transposed_convolution(call: Call) -> Work:
    x, weight = call.operand(0, "input"), call.operand(1, "weight")
    return product(call, x.numel * math.prod(weight.shape[1:]), (x, weight))


@formula("convolution")
def _any_convolution(call: Call) -> Work:
    return _transposed_convolution(call) if call.value(6, "transposed") else _convolution(call)  # type: ignore[return-value]


@formula("conv_tbc")
def _time_batch_channel(call: Call) -> Work:
    x, weight = call.operands[:2]
    return product(call, call.made * math.prod(weight.shape[:2]), (x, weight))


# Attention --------------------------------------------------------------------------------------------------------


@formula(
    "scaled_dot_product_attention scaled_dot_product_flash_attention scaled_dot_product_flash_attention_for_cpu "
    "scaled_dot_product_efficient_attention scaled_dot_product_cudnn_attention scaled_dot_product_attention_math"
)
def _attention(call: Call) -> Work:
    """Two products and a softmax over all pairs: a causal mask saves nothing here, and groups share heads."""
    query, key, value = call.operands[:3]
    length, width = query.shape[-2:]
    scores = math.prod(call.shape[:-2]) * length * key.shape[-2]
    work = product(call, scores * (width + value.shape[-1]), ())
    mask = call.value(3, "attn_mask", call.value(3, "attn_bias"))
    dropout = call.value(4, "dropout_p", 0.0)
    per_score = 1 + SOFTMAX + isinstance(mask, Operand) + (2 if isinstance(dropout, float) and dropout > 0 else 0)
    also = scores * per_score
    # each product has two gradients; fused kernels do not keep the scores and compute them again
    products = 2.5 if "DotProduct" in (call.node or "") else 2
    return Work(work.flops + also, work.macs, round(work.flops * products) + also)


def _self_attention(x: Operand, heads: int, is_masked: bool) -> Work:
    """Self-attention with its four projections, of every position with every other."""
    batch, length, width = x.shape
    pairs = batch * length * length
    macs = 4 * x.numel * width + 2 * pairs * width
    return Work(2 * macs + pairs * heads * (1 + SOFTMAX + is_masked), macs)


@formula("native_multi_head_attention")
def _fused_attention(call: Call) -> Work:
    """Runs without gradients only, so it has no backward."""
    return _self_attention(call.operand(0, "query"), call.value(4, "num_head"), isinstance(call.value(9, "mask"), Operand))


@formula("transformer_encoder_layer_fwd")
def _fused_encoder_layer(call: Call) -> Work:
    """Attention, two linear layers with ReLU or GELU between them, two norms with weight and bias, two sums."""
    x, wide = call.operand(0, "src"), call.operand(14, "ffn_weight_1").shape[0]
    attention = _self_attention(x, call.value(2, "num_heads"), isinstance(call.value(18, "mask"), Operand))
    macs = 2 * x.numel * wide
    activation = (SIGMOID + 1 if call.value(7, "use_gelu") else 1) * (x.numel // x.shape[-1]) * wide
    return Work(attention.flops + 2 * macs + activation + 2 * (5 + 2) * x.numel + 2 * x.numel, attention.macs + macs)


# Recurrent kernels ------------------------------------------------------------------------------------------------

# Gates of each kind, and FLOPs per hidden unit and step besides the products.
_RECURRENT = {
    "lstm": (4, 3 * SIGMOID + 2 + 4 + 4),  # three sigmoids, two tanh, sums of input and state, f*c + i*g and o*tanh(c)
    "gru": (3, 2 * SIGMOID + 1 + 3 + 1 + 4),  # two sigmoids, one tanh, sums, r*n, (1 - z)*n + z*h
    "rnn_tanh": (1, 2),
    "rnn_relu": (1, 2),
}


@formula("lstm gru rnn_tanh rnn_relu")
def _recurrent(call: Call) -> Work:
    """Every weight matrix (of each layer and direction, projections too) multiplies every step of every sequence once."""
    weights = next((a for a in call.args if isinstance(a, list)), None)
    if weights is None:
        raise LookupError("no list of weights")
    return _steps(call, call.name, call.operands[0], weights)


@formula("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell")
def _recurrent_cell(call: Call) -> Work:
    x = call.operands[0]
    weights = call.operands[3 if call.name == "lstm_cell" else 2 :]
    return _steps(call, call.name.removesuffix("_cell"), x, weights)


def _steps(call: Call, kind: str, x: Operand, weights: list[Operand]) -> Work:
    steps = math.prod(x.shape[:-1])
    gates, per_unit = _RECURRENT[kind]
    matrices = [weight for weight in weights if len(weight.shape) == 2]
    # gates * hidden rows: twice for each layer and direction; a projection has fewer rows than the hidden size
    rows = matrices[0].shape[0]
    units = sum(1 for weight in matrices if weight.shape[0] == rows) // 2 * (rows // gates)
    work = product(call, steps * sum(weight.numel for weight in matrices), ())
    also = steps * units * per_unit
    return Work(work.flops + also, work.macs, 2 * work.flops + also)
