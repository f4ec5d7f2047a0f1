"""The FLOPs of a call, by plain name of the function: all formulas are here."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..shapes import elements_of
from . import groups
from .groups import BATCH_NORMS, DROPOUTS

if TYPE_CHECKING:
    from ...analysis.calls import TorchCall


class Operand(NamedTuple):
    """A tensor among the arguments of a call, known by shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    slot: int
    needs_grad: bool

    @property
    def numel(self) -> int:
        return elements_of(self.shape)


# `Work` is the cost of one call, `FORMULAS` the table of formulas.
#
# A formula is a function from a `TorchCall` to its `Work`, or to None if it cannot know.


class Work(NamedTuple):
    """Floating-point operations and multiply-accumulates of one call, and the FLOPs of its backward."""

    flops: int
    macs: int = 0
    backward: int = 0


NOTHING = Work(0)
Formula = Callable[["TorchCall"], Work | None]
FORMULAS: dict[str, Formula] = {}  # plain name -> formula


def formula(names: str) -> Callable[[Formula], Formula]:
    """Decorator: enter a formula into `FORMULAS` for the functions in `names`."""

    def enter(function: Formula) -> Formula:
        FORMULAS.update(dict.fromkeys(names.split(), function))
        return function

    return enter


def _enter(rule: Callable[..., Work | None], table: Mapping[str, Any]) -> None:
    """Enter `rule(entry, call)` for all functions named in the keys of a table of entries."""
    for names, entry in table.items():
        formula(names)(partial(rule, entry))


def product(call: TorchCall, macs: int, factors: Iterable[Operand], also: int = 0) -> Work:
    """The work of a matrix product or a convolution: two FLOPs for each multiply-accumulate.

    Backward needs one such product for each factor that requires a gradient. `also` are other FLOPs, added to forward and to
    backward.
    """
    if call.is_complex:
        macs *= 4
    flops = 2 * macs
    return Work(flops + also, macs, flops * sum(factor.needs_grad for factor in factors) + also)


def simple(call: TorchCall, flops: float, backward: float = 1) -> Work:
    """The work of a call without products. Its backward has `backward` times as many FLOPs as its forward."""
    if call.is_complex:
        flops *= 2
    return Work(round(flops), 0, round(flops * backward))


# Products: matrix multiplication in all its spellings, convolution, attention, recurrent kernels.
#
# A multiply-accumulate (MAC) is two FLOPs. The bias is the first term of an accumulation, so it adds none.

SOFTMAX = 5  # maximum, subtraction, exponential, sum, division
SIGMOID = 4  # negation, exponential, addition, division


# Multiply-accumulates of a product of an input and a weight.
_WEIGHTED: dict[str, Callable[[TorchCall, Operand, Operand], int]] = {
    "linear": lambda call, x, weight: call.made * x.shape[-1],
    "conv1d conv2d conv3d mkldnn_convolution cudnn_convolution": (
        lambda call, x, weight: call.made * math.prod(weight.shape[1:])
    ),
    "conv_transpose1d conv_transpose2d conv_transpose3d": lambda call, x, weight: x.numel * math.prod(weight.shape[1:]),
    "convolution": (
        lambda call, x, weight: (x.numel if call.value(6, "transposed") else call.made) * math.prod(weight.shape[1:])
    ),
}
# Multiply-accumulates of a product of the first two tensors, and of two tensors whose product is added to the first.
_FACTORS: dict[str, Callable[[TorchCall, Operand, Operand], int]] = {
    "mm bmm mv dot vdot linalg_vecdot": lambda call, a, b: call.made * a.shape[-1],
    "conv_tbc": lambda call, x, weight: call.made * math.prod(weight.shape[:2]),
    # the fallback is used if torch has no `_grouped_mm` for the device
    "grouped_mm transformers::grouped_mm_fallback": lambda call, a, b: a.numel * b.shape[-1],
}
_ADDED: dict[str, Callable[[TorchCall, Operand, Operand], int]] = {
    "addmm baddbmm addmv sspaddmm": lambda call, a, b: call.made * a.shape[-1],
    "addbmm": lambda call, a, b: a.numel * b.shape[-1],
}


def _weighted_product(macs: Callable[[TorchCall, Operand, Operand], int], call: TorchCall) -> Work:
    factors = call.operand(0, "input"), call.operand(1, "weight")
    return product(call, macs(call, *factors), factors)


def _product_from(first: int, macs: Callable[[TorchCall, Operand, Operand], int], call: TorchCall) -> Work:
    a, b = call.operands[first : first + 2]
    return product(call, macs(call, a, b), (a, b))


_enter(_weighted_product, _WEIGHTED)
_enter(partial(_product_from, 0), _FACTORS)
_enter(partial(_product_from, 1), _ADDED)


@formula("matmul inner")
def _matmul(call: TorchCall) -> Work:
    a, b = call.operands[1::-1] if call.function.is_reflected else call.operands[:2]
    if not (a.shape and b.shape):  # `inner` multiplies by a number
        return simple(call, call.made)
    return product(call, call.made * a.shape[-1], (a, b))


@formula("tensordot")
def _tensordot(call: TorchCall) -> Work:
    a, b = call.operands[:2]
    if not call.made:
        return NOTHING
    contracted = math.isqrt(a.numel * b.numel // call.made)  # each contracted size is in both operands and not in the result
    return product(call, call.made * contracted, (a, b))


@formula("chain_matmul linalg_multi_dot")
def _multi_dot(call: TorchCall) -> Work:
    factors = call.operands
    if len(factors) == 1:
        return NOTHING
    first, last = factors[0].shape, factors[-1].shape
    sizes = [first[0] if len(first) == 2 else 1]
    sizes += [factor.shape[0] for factor in factors[1:]]
    sizes += [last[1] if len(last) == 2 else 1]
    return product(call, _cheapest_chain(sizes), factors)


def _cheapest_chain(sizes: list[int]) -> int:
    """Count the MACs of a chain of matrix products in the cheapest order, which torch chooses."""
    count = len(sizes) - 1
    best = [[0] * count for _ in range(count)]
    for span in range(1, count):
        for i in range(count - span):
            j = i + span
            best[i][j] = min(best[i][k] + best[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j))
    return best[0][-1]


@formula("linalg_matrix_power")
def _matrix_power(call: TorchCall) -> Work:
    (a,) = call.operands[:1]
    power = abs(int(call.value(1, "n")))
    if power < 2:
        return NOTHING
    times = power.bit_length() - 1 + power.bit_count() - 1
    return product(call, times * a.numel * a.shape[-1], (a, a))


@formula("bilinear")
def _bilinear(call: TorchCall) -> Work:
    a, b, weight = call.operands[:3]
    rows = a.numel // a.shape[-1]
    outputs, one, other = weight.shape
    return product(call, rows * outputs * (one * other + other), (a, b, weight))


# Attention --------------------------------------------------------------------------------------------------------


@formula(
    "scaled_dot_product_attention scaled_dot_product_flash_attention scaled_dot_product_flash_attention_for_cpu "
    "scaled_dot_product_efficient_attention scaled_dot_product_cudnn_attention scaled_dot_product_attention_math"
)
def _attention(call: TorchCall) -> Work:
    """Count two products and a softmax over all pairs. A causal mask saves nothing here; grouped heads count as full heads."""
    query, key, value = call.operands[:3]
    length, width = query.shape[-2:]
    scores = math.prod(call.shape[:-2]) * length * key.shape[-2]
    work = product(call, scores * (width + value.shape[-1]), ())
    mask = call.value(3, "attn_mask", call.value(3, "attn_bias"))
    dropout = call.value(4, "dropout_p", 0.0)
    per_score = 1 + SOFTMAX + isinstance(mask, Operand) + (2 if isinstance(dropout, float) and dropout > 0 else 0)
    also = scores * per_score
    # Backward needs two products for each product; fused kernels also recompute the scores, half a product more.
    products = 2.5 if "DotProduct" in (call.node or "") else 2
    return Work(work.flops + also, work.macs, round(work.flops * products) + also)


def _self_attention(x: Operand, heads: int, is_masked: bool) -> Work:
    """The work of self-attention with four projections; every position attends to every position."""
    batch, length, width = x.shape
    pairs = batch * length * length
    macs = 4 * x.numel * width + 2 * pairs * width
    return Work(2 * macs + pairs * heads * (1 + SOFTMAX + is_masked), macs)


@formula("native_multi_head_attention")
def _fused_attention(call: TorchCall) -> Work:
    """The work of attention in one call. It runs only without gradients, so it has no backward."""
    return _self_attention(call.operand(0, "query"), call.value(4, "num_head"), isinstance(call.value(9, "mask"), Operand))


@formula("transformer_encoder_layer_fwd")
def _fused_encoder_layer(call: TorchCall) -> Work:
    """Add up attention, two linear layers with ReLU or GELU between them, two norms with weight and bias, and two sums."""
    x, wide = call.operand(0, "src"), call.operand(14, "ffn_weight_1").shape[0]
    attention = _self_attention(x, call.value(2, "num_heads"), isinstance(call.value(18, "mask"), Operand))
    macs = 2 * x.numel * wide
    activation = (SIGMOID + 1 if call.value(7, "use_gelu") else 1) * (x.numel // x.shape[-1]) * wide
    return Work(attention.flops + 2 * macs + activation + 2 * (5 + 2) * x.numel + 2 * x.numel, attention.macs + macs)


# Recurrent kernels ------------------------------------------------------------------------------------------------

# For each kind: the number of gates, and the FLOPs per hidden unit and step besides products.
_RECURRENT = {
    "lstm": (4, 3 * SIGMOID + 2 + 4 + 4),  # three sigmoids, two tanh, sums of input and state, f*c + i*g and o*tanh(c)
    "gru": (3, 2 * SIGMOID + 1 + 3 + 1 + 4),  # two sigmoids, one tanh, sums, r*n, (1 - z)*n + z*h
    "rnn_tanh": (1, 2),
    "rnn_relu": (1, 2),
}


@formula("lstm gru rnn_tanh rnn_relu")
def _recurrent(call: TorchCall) -> Work:
    """Count one product for each weight matrix (of every layer, direction and projection) and step of each sequence."""
    weights = next((a for a in call.args if isinstance(a, list)), None)
    if weights is None:
        raise LookupError("no list of weights")
    return _steps(call, call.name, call.operands[0], weights)


@formula("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell")
def _recurrent_cell(call: TorchCall) -> Work:
    x = call.operands[0]
    weights = call.operands[3 if call.name == "lstm_cell" else 2 :]
    return _steps(call, call.name.removesuffix("_cell"), x, weights)


def _steps(call: TorchCall, kind: str, x: Operand, weights: list[Operand]) -> Work:
    steps = math.prod(x.shape[:-1])
    gates, per_unit = _RECURRENT[kind]
    matrices = [weight for weight in weights if len(weight.shape) == 2]
    # gates * hidden size, twice for each layer and direction; a projection has fewer rows
    rows = matrices[0].shape[0]
    units = sum(1 for weight in matrices if weight.shape[0] == rows) // 2 * (rows // gates)
    work = product(call, steps * sum(weight.numel for weight in matrices), ())
    also = steps * units * per_unit
    return Work(work.flops + also, work.macs, 2 * work.flops + also)


# Work over windows and axes: reductions, normalisations, pooling, losses, interpolation.

# Reductions ---------------------------------------------------------------------------------------------------------


@formula("sum nansum prod amax amin argmax argmin any all sum_to_size")
def _fold(call: TorchCall) -> Work:
    """Count one FLOP for each value, except for the first value of each result."""
    return simple(call, max(0, call.given - call.made))


@formula("max min")
def _extreme(call: TorchCall) -> Work:
    if len(call.parents) > 1 and "out" not in call.kwargs:
        return simple(call, call.made)  # a function of two tensors: one FLOP for each value of the result
    return simple(call, max(0, call.given - math.prod(call.shape)))


# FLOPs per value of the first argument: running totals, statistics, distances, losses.
PER_VALUE: dict[str, int] = {
    "mean cumsum cumprod cummax cummin count_nonzero bincount trace diff segment_reduce histc col2im": 1,
    "nanmean norm aminmax linalg_norm linalg_vector_norm frobenius_norm norm_except_dim": 2,
    """
        dist renorm pairwise_distance mse_loss l1_loss cross linalg_cross histogram histogramdd trapz trapezoid
        cumulative_trapezoid
    """: 3,
    """
        var std var_mean std_mean logsumexp logcumsumexp kl_div poisson_nll_loss hinge_embedding_loss
        margin_ranking_loss multi_margin_loss multilabel_margin_loss cov
    """: 4,
    "softmax log_softmax smooth_l1_loss huber_loss soft_margin_loss safe_softmax softmax_backward_data": 5,
    "softmin cosine_similarity cosine_embedding_loss triplet_margin_loss corrcoef": 6,
    "binary_cross_entropy": 7,
    "binary_cross_entropy_with_logits": 8,
}


def _per_value(per_value: int, call: TorchCall) -> Work | None:
    if call.name == "linalg_norm" and call.value(1, "ord") in ("nuc", 2, -2):
        return None  # needs singular values
    return simple(call, per_value * call.given)


_enter(_per_value, PER_VALUE)


@formula("linalg_matrix_norm")
def _matrix_norm(call: TorchCall) -> Work | None:
    return simple(call, 2 * call.given) if call.value(1, "ord", "fro") in ("fro", 1, -1, math.inf, -math.inf) else None


@formula("cross_entropy cross_entropy_loss")
def _cross_entropy(call: TorchCall) -> Work:
    x, target = call.operand(0, "input"), call.operand(1, "target")
    return simple(call, SOFTMAX * x.numel + (2 if x.shape == target.shape else 1) * target.numel)


@formula("ctc_loss")
def _ctc(call: TorchCall) -> Work:
    """Count thirteen FLOPs for each cell of the lattice: a log-sum-exp of three values, and the emission."""
    x, targets = call.operand(0, "log_probs"), call.operand(1, "targets")
    batch = x.shape[1] if len(x.shape) == 3 else 1
    return simple(call, 13 * x.shape[0] * (2 * targets.numel + batch), 2)


@formula("index_add scatter_add scatter_reduce index_reduce")
def _accumulate(call: TorchCall) -> Work:
    source = [operand for operand in call.operands[1:] if operand.dtype.is_floating_point or operand.dtype.is_complex]
    return simple(call, (source[-1] if source else call.operands[-1]).numel)


@formula("embedding_bag")
def _embedding_bag(call: TorchCall) -> Work:
    tables = [operand for operand in call.operands if len(operand.shape) == 2 and operand.dtype.is_floating_point]
    indices = next(operand for operand in call.operands if not operand.dtype.is_floating_point)
    weighted = 2 if isinstance(call.value(6, "per_sample_weights"), Operand) else 1
    return simple(call, weighted * indices.numel * tables[0].shape[1])


# Normalisation ------------------------------------------------------------------------------------------------------


def _affine(call: TorchCall) -> int:
    """Count one FLOP per value for a weight, and one for a bias, if the call has them."""
    given = [call.value(-1, name) for name in ("weight", "bias")]
    if not any(isinstance(value, Operand) for value in given):
        given = [value for value in call.args[1:] if isinstance(value, Operand)][:2]
    return sum(isinstance(value, Operand) for value in given)


@formula(" ".join(sorted(BATCH_NORMS)))
def _batch_norm(call: TorchCall) -> Work:
    """Count as many FLOPs as for other norms in training; with running statistics, only a subtraction and a scaling."""
    statistics = call.value(5, "training", call.value(5, "use_input_stats", call.name == "instance_norm"))
    is_python = call.function.func is not None and call.function.func.__module__ == "torch.nn.functional"
    first = 3 if is_python else 1
    affine = sum(isinstance(call.value(first + at, name), Operand) for at, name in enumerate(("weight", "bias")))
    return simple(call, ((5 if statistics else 2) + affine) * call.given, 2 if statistics else 1)


# Pooling ------------------------------------------------------------------------------------------------------------


def _window(size: Any, dims: int) -> int:
    sizes = list(size) if isinstance(size, (tuple, list)) else [size]
    return math.prod(sizes if len(sizes) == dims else sizes * dims)


def _dims(call: TorchCall) -> int:
    """The number of pooled dimensions: `avg_pool2d`, `max_pool2d_with_indices`."""
    return int(call.name[call.name.index("pool") + 4])


@formula(
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d "
    "adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices"
)
def _adaptive_pool(call: TorchCall) -> Work:
    dims, before, after = _dims(call), call.operands[0].shape, call.shape
    covered = math.prod(after[:-dims])
    for size, windows in zip(before[-dims:], after[-dims:], strict=True):
        covered *= sum(-(-(i + 1) * size // windows) - i * size // windows for i in range(windows))
    return simple(call, covered - (math.prod(after) if "max" in call.name else 0))


# Interpolation ------------------------------------------------------------------------------------------------------

_TAPS = {"nearest": 0, "nearest-exact": 0, "linear": 2, "bilinear": 4, "trilinear": 8, "bicubic": 16}


def _weighted(taps: int) -> int:
    """FLOPs of a weighted sum of `taps` values."""
    return max(0, 2 * taps - 1)


@formula("interpolate")
def _interpolate(call: TorchCall) -> Work:
    mode = call.value(3, "mode", "nearest")
    if mode == "area":
        return simple(call, max(call.given, call.made))
    return simple(call, _weighted(_TAPS[mode]) * call.made)


@formula(
    "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d upsample_bilinear2d_aa upsample_bicubic2d_aa"
)
def _upsample(call: TorchCall) -> Work:
    mode = next(mode for mode in ("bicubic", "trilinear", "bilinear", "linear") if mode in call.name)
    return simple(call, _weighted(_TAPS[mode]) * call.made)


@formula("grid_sample grid_sampler grid_sampler_2d grid_sampler_3d")
def _grid_sample(call: TorchCall) -> Work:
    """Count four FLOPs per coordinate to find the position, and a weighted sum of the neighbours."""
    grid = call.operand(1, "grid")
    mode = call.value(2, "mode", call.value(2, "interpolation_mode", "bilinear"))
    mode = {0: "bilinear", 1: "nearest", 2: "bicubic"}.get(mode, mode)
    taps = {"nearest": 0, "bilinear": 2, "bicubic": 4}[mode] ** grid.shape[-1]
    return simple(call, 4 * grid.numel + _weighted(taps) * call.made)


@formula("affine_grid affine_grid_generator")
def _affine_grid(call: TorchCall) -> Work:
    theta = call.operands[0]
    return product(call, call.made * theta.shape[-1], (theta,))


# Functions with a formula of one line: the formula, and how many times as many FLOPs the backward has.
_SIMPLE: dict[str, tuple[Callable[[TorchCall], float], int]] = {
    "outer kron": (lambda call: call.made, 2),
    "addr": (lambda call: 2 * call.made, 1),
    "nll_loss nll_loss2d nll_loss_nd": (lambda call: call.operand(1, "target").numel, 1),
    "cdist pdist": (lambda call: 3 * call.made * call.operands[0].shape[-1], 1),
    # mean, deviation, square, mean of squares, scaling; weight and bias
    "layer_norm native_layer_norm group_norm native_group_norm": (lambda call: (5 + _affine(call)) * call.given, 2),
    # square, mean of squares, scaling; weight
    "rms_norm fused_rms_norm": (lambda call: (3 + min(1, _affine(call))) * call.given, 2),
    "local_response_norm": (lambda call: (call.value(1, "size") + 4) * call.given, 2),
    "avg_pool1d avg_pool2d avg_pool3d": (lambda call: call.made * _window(call.value(1, "kernel_size"), _dims(call)), 1),
    "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
    "fractional_max_pool2d fractional_max_pool3d fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices": (
        lambda call: math.prod(call.shape) * (_window(call.value(1, "kernel_size"), _dims(call)) - 1),
        1,
    ),
    "thnn_fused_lstm_cell": (lambda call: call.given * (3 * SIGMOID + 10) / 4, 1),
    "gelu": (lambda call: (9 if call.value(1, "approximate", "none") == "tanh" else 5) * call.made, 1),
}

_enter(lambda entry, call: simple(call, entry[0](call), entry[1]), _SIMPLE)


# Fourier transforms and linear algebra, by textbook counts (Golub and Van Loan).
#
# These are leading terms: the true cost depends on the algorithm of the library.

# Fourier --------------------------------------------------------------------------------------------------------------


@formula(
    "fft_fft fft_ifft fft_fft2 fft_ifft2 fft_fftn fft_ifftn fft_rfft fft_irfft fft_hfft fft_ihfft "
    "fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn fft_hfft2 fft_ihfft2 fft_hfftn fft_ihfftn"
)
def _fft(call: TorchCall) -> Work:
    """Count 5 N log2 N FLOPs for each transform of N complex values; half of that if input or output is real."""
    before, after = call.operands[0].shape, call.shape
    name = call.name.removeprefix("fft_")
    if name.endswith("n"):
        given = call.value(2, "dim")
        dims = list(given) if given is not None else _last(call, len(after))
    elif name.endswith("2"):
        dims = list(call.value(2, "dim", (-2, -1)))
    else:
        dims = [call.value(2, "dim", -1)]
    sizes = {dim: after[dim] for dim in dims}
    if name.startswith(("rfft", "ihfft")):  # real input, half a spectrum as output
        asked = call.value(1, "s" if name[-1] in "n2" else "n")
        asked = asked[-1] if isinstance(asked, (tuple, list)) else asked
        sizes[dims[-1]] = before[dims[-1]] if asked is None else asked
    is_real = name.startswith(("rfft", "ihfft", "irfft", "hfft"))
    length = math.prod(sizes.values())
    outside = math.prod(after) // max(1, math.prod(after[dim] for dim in dims))
    flops = (2.5 if is_real else 5.0) * outside * length * math.log2(length)
    return Work(round(flops), 0, round(flops))


def _last(call: TorchCall, dims: int) -> list[int]:
    sizes = call.value(1, "s")
    count = len(sizes) if sizes is not None else dims
    return list(range(-count, 0))


@formula("stft istft")
def _stft(call: TorchCall) -> Work:
    """The FLOPs of a short-time Fourier transform: a window and a real transform for each frame."""
    size = int(call.value(1, "n_fft"))
    spectrum = call.shape if call.name == "stft" else call.operands[0].shape
    spectrum = spectrum if call.name == "istft" or call.results[0][1].is_complex else spectrum[:-1]
    frames = math.prod(spectrum) // max(1, spectrum[-2])
    flops = round(frames * size * (1 + 2.5 * math.log2(size)))
    return Work(flops, 0, flops)


# Matrices -------------------------------------------------------------------------------------------------------------

# FLOPs for one m × n matrix with m >= n, and a right-hand side of k columns if there is one.
_MATRIX: dict[str, Callable[[int, int, int], float]] = {
    "linalg_cholesky linalg_cholesky_ex cholesky": lambda m, n, k: n**3 / 3,
    "linalg_lu linalg_lu_factor linalg_lu_factor_ex lu lu_with_info linalg_det linalg_slogdet logdet": (
        lambda m, n, k: m * n**2 - n**3 / 3
    ),
    "linalg_ldl_factor linalg_ldl_factor_ex": lambda m, n, k: n**3 / 3,
    "linalg_inv linalg_inv_ex": lambda m, n, k: 2 * n**3,
    "cholesky_inverse": lambda m, n, k: n**3,
    "linalg_qr qr": lambda m, n, k: 4 * m * n**2 - 4 * n**3 / 3,
    "geqrf": lambda m, n, k: 2 * m * n**2 - 2 * n**3 / 3,
    "linalg_householder_product": lambda m, n, k: 2 * m * n**2 - 2 * n**3 / 3,
    "linalg_svd svd linalg_pinv": lambda m, n, k: 4 * m**2 * n + 8 * m * n**2 + 9 * n**3,
    "linalg_svdvals linalg_matrix_rank linalg_cond": lambda m, n, k: 4 * m * n**2 - 4 * n**3 / 3,
    "linalg_eigh": lambda m, n, k: 9 * n**3,
    "linalg_matrix_sqrth": lambda m, n, k: 11 * n**3,  # square root of a symmetric matrix, by eigenvectors
    "linalg_polar": lambda m, n, k: 4 * m**2 * n + 10 * m * n**2 + 11 * n**3,  # polar decomposition, by singular values
    "linalg_eigvalsh": lambda m, n, k: 4 * n**3 / 3,
    "linalg_eig": lambda m, n, k: 25 * n**3,
    "linalg_eigvals": lambda m, n, k: 10 * n**3,
    "linalg_solve linalg_solve_ex solve": lambda m, n, k: 2 * n**3 / 3 + 2 * n**2 * k,
    "linalg_lstsq": lambda m, n, k: 2 * m * n**2 - 2 * n**3 / 3 + 4 * m * n * k,
}
# FLOPs for functions whose first argument is the right-hand side.
_SOLVED: dict[str, Callable[[int, int], float]] = {
    "triangular_solve": lambda n, k: n**2 * k,
    "cholesky_solve lu_solve": lambda n, k: 2 * n**2 * k,
}


def _decompose(count: Callable[[int, int, int], float], call: TorchCall) -> Work:
    shape = call.operands[0].shape
    m, n = max(shape[-2:]), min(shape[-2:])
    right = call.operands[1].shape if len(call.operands) > 1 else ()
    columns = right[-1] if len(right) >= 2 else 1
    times = 2 if call.operands[0].dtype.is_complex else 1  # a real matrix may have complex eigenvalues
    flops = round(times * math.prod(shape[:-2]) * count(m, n, columns))
    return Work(flops, 0, 2 * flops)


def _solve(count: Callable[[int, int], float], call: TorchCall) -> Work:
    right = call.operands[0].shape
    return simple(call, math.prod(right[:-2]) * count(right[-2], right[-1]), 2)


_enter(_decompose, _MATRIX)
_enter(_solve, _SOLVED)


@formula("linalg_solve_triangular")
def _solve_triangular(call: TorchCall) -> Work:
    right = call.operands[1].shape
    return simple(call, math.prod(call.shape[:-2]) * right[-2] ** 2 * right[-1], 2)


# Einsum: the cost of an equation whose operands are contracted from left to right, as torch does.
#
# With the optional package opt_einsum, torch may choose a cheaper order for three and more operands; this is not considered.

Labels = list[Hashable]


@formula("einsum")
def _einsum(call: TorchCall) -> Work:
    operands, terms, output = _parse(call.args)
    sizes: dict[Hashable, int] = {}
    for operand, term in zip(operands, terms, strict=True):
        for label, size in zip(term, operand.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1)) if size else 0
    macs, flops = contraction([set(term) for term in terms], set(output), sizes)
    return product(call, macs, operands, flops)


def contraction(terms: Sequence[set[Hashable]], output: set[Hashable], sizes: dict[Hashable, int]) -> tuple[int, int]:
    """Contract the terms from left to right. Returns the number of MACs, and of other FLOPs."""

    def volume(labels: set[Hashable]) -> int:
        return math.prod(sizes[label] for label in labels)

    macs = flops = 0
    left = terms[0]
    for number, right in enumerate(terms[1:], 1):
        later = output.union(*terms[number + 1 :])
        for side, other in ((left, right), (right, left)):
            kept = side & (other | later)
            flops += volume(side) - volume(kept)  # labels that only one of the two terms has are summed first
        left, right = left & (right | later), right & (left | later)
        contracted = (left & right) - later
        if contracted:
            macs += volume(left | right)
        else:
            flops += volume(left | right)  # a product of two terms without a sum
        left = (left | right) - contracted
    flops += volume(left) - volume(left & output)
    return macs, flops


def _parse(args: tuple[Any, ...]) -> tuple[list[Operand], list[Labels], Labels]:
    given = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) and not isinstance(args[1], Operand) else args[1:]
    operands = list(given)
    left, arrow, right = args[0].replace(" ", "").partition("->")  # torch converts lists of dimensions to an equation
    parts = [_split(term) for term in left.split(",")]
    target = _split(right) if arrow else None
    terms = [_spread(part, len(operand.shape)) for part, operand in zip(parts, operands, strict=True)]
    hidden = [len(operand.shape) - len(part) + 1 for part, operand in zip(parts, operands, strict=True) if ... in part]
    widest = max(hidden, default=0)
    if target is None:
        everything = [label for term in terms for label in term if not isinstance(label, tuple)]
        output: Labels = [(..., place) for place in range(widest)]
        output += [label for label in dict.fromkeys(everything) if everything.count(label) == 1]
    else:
        output = _spread(target, len(target) - 1 + widest)
    return operands, terms, output


def _split(term: str) -> Labels:
    before, dots, after = term.partition("...")
    return [*before, ..., *after] if dots else list(before)


def _spread(part: Labels, dims: int) -> Labels:
    """The labels of an operand of einsum, with one label for each dimension of the ellipsis, counted from the right."""
    if ... not in part:
        return part
    at, hidden = part.index(...), dims - len(part) + 1
    return [*part[:at], *((..., place) for place in reversed(range(hidden))), *part[at + 1 :]]


# Work that is counted per element: arithmetic, functions, comparisons, activations.
#
# An addition, a multiplication, a comparison, or one evaluation of a basic function (square root, exp, log, sin, tanh, erf)
# is one FLOP; any other function is the sum of the FLOPs in its formula. Choosing and moving values costs nothing. Integers
# and booleans count like floating-point numbers; complex numbers count twice, and six times if they are multiplied or
# divided.

# FLOPs per element of the result.
PER_ELEMENT: dict[str, int] = {
    """
        abs add sub rsub mul div floor_divide remainder fmod neg reciprocal sqrt exp exp2 expm1 log log2 log10 log1p
        sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc erfinv erfcx ndtr ndtri log_ndtr
        lgamma digamma polygamma mvlgamma igamma igammac zeta i0 i0e i1 i1e bessel_j0 bessel_j1 bessel_y0 bessel_y1
        airy_ai modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1
        scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0 ceil floor round trunc frac sign sgn
        signbit square pow float_power relu maximum minimum fmax fmin clamp_min clamp_max threshold heaviside
        copysign nextafter angle eq ne lt le gt ge logical_and logical_or logical_xor logical_not bitwise_and
        bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift isnan isinf isfinite isneginf
        isposinf deg2rad rad2deg gcd lcm conj_physical polar linalg_vander
    """: 1,
    """
        clamp relu6 hardtanh leaky_relu prelu rrelu rsqrt tanhshrink softshrink hardshrink ldexp xlogy xlog1py entr
        frexp isin
    """: 2,
    "quantize_per_tensor quantize_per_channel quantile nanquantile addcmul addcdiv lerp sinc logit softsign nan_to_num": 3,
    "sigmoid elu softplus logsigmoid hardsigmoid hypot logaddexp logaddexp2 isclose": 4,
    "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine silu hardswish selu celu mish glu": 5,
}
_PRODUCTS = frozenset("mul div reciprocal square pow addcmul addcdiv".split())


def _elementwise(per_element: int, call: TorchCall) -> Work:
    times = 3 if call.name in _PRODUCTS and call.is_complex else 1
    return simple(call, times * per_element * call.made)


_enter(_elementwise, PER_ELEMENT)


@formula(" ".join(sorted(DROPOUTS)))
def _dropout(call: TorchCall) -> Work:
    """Count a mask and a scaling in training. Drawing the random numbers does not count."""
    p, training = call.value(1, "p", 0.5), call.value(2, "training", call.value(2, "train", True))
    return simple(call, 2 * call.made, 0.5) if p and training else NOTHING


# Functions without arithmetic: they move, choose, make, draw, sort or convert values. Views are found by torch's schemas.

_MOVE = (
    groups.CONVERSIONS
    | groups.RESHAPES
    | groups.ONE_FOR_EACH
    | groups.UNSCHEMED_VIEWS
    | groups.COPIES
    | groups.ARRANGEMENTS
    | groups.SELECTIONS
    | groups.CONSTRUCTORS
    | groups.OVERWRITES
    | groups.SAMPLING
)
_OTHERS = """
    input output source alias adjoint unique unique2 unique_consecutive unique_dim sort argsort msort topk kthvalue median
    nanmedian mode embedding pixel_shuffle pixel_unshuffle im2col max_unpool1d max_unpool2d max_unpool3d expand_copy view_copy
    real imag complex view_as_real view_as_complex conj dirichlet_grad result_type can_cast values indices isreal positive
    hash_tensor assert_async functional_assert_async .grad ._grad lu_unpack linalg_diagonal
    fft_fftshift fft_ifftshift fft_fftfreq fft_rfftfreq upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_nearest_exact1d upsample_nearest_exact2d upsample_nearest_exact3d
"""

for _name in (*sorted(_MOVE), *_OTHERS.split()):
    FORMULAS.setdefault(_name, lambda call: NOTHING)
