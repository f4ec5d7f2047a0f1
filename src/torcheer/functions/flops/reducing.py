"""Work over windows and axes: reductions, normalisations, pooling, losses, interpolation."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from ..calls import Call, Operand
from ..groups import BATCH_NORMS
from .products import SIGMOID, SOFTMAX
from .work import Work, formula, product, simple

# Reductions ---------------------------------------------------------------------------------------------------------


@formula("sum nansum prod amax amin argmax argmin any all sum_to_size")
def _fold(call: Call) -> Work:
    """One step for each value but the first of each result."""
    return simple(call, max(0, call.given - call.made))


@formula("max min")
def _extreme(call: Call) -> Work:
    if len(call.parents) > 1 and "out" not in call.kwargs:
        return simple(call, call.made)  # of two tensors
    return simple(call, max(0, call.given - math.prod(call.shape)))


# FLOPs per value of the first argument: running totals, statistics, distances, losses.
PER_VALUE: dict[int, str] = {
    1: "mean cumsum cumprod cummax cummin count_nonzero bincount trace diff segment_reduce histc col2im",
    2: "nanmean norm aminmax linalg_norm linalg_vector_norm frobenius_norm norm_except_dim",
    3: """
        dist renorm pairwise_distance mse_loss l1_loss cross linalg_cross histogram histogramdd trapz trapezoid
        cumulative_trapezoid
    """,
    4: """
        var std var_mean std_mean logsumexp logcumsumexp kl_div poisson_nll_loss hinge_embedding_loss
        margin_ranking_loss multi_margin_loss multilabel_margin_loss cov
    """,
    5: "softmax log_softmax smooth_l1_loss huber_loss soft_margin_loss safe_softmax softmax_backward_data",
    6: "softmin cosine_similarity cosine_embedding_loss triplet_margin_loss corrcoef",
    7: "binary_cross_entropy",
    8: "binary_cross_entropy_with_logits",
}


def _per_value(per_value: int, call: Call) -> Work | None:
    if call.name == "linalg_norm" and call.value(1, "ord") in ("nuc", 2, -2):
        return None  # by singular values
    return simple(call, per_value * call.given)


for _count, _names in PER_VALUE.items():
    formula(_names)(partial(_per_value, _count))


@formula("linalg_matrix_norm")
def _matrix_norm(call: Call) -> Work | None:
    return simple(call, 2 * call.given) if call.value(1, "ord", "fro") in ("fro", 1, -1, math.inf, -math.inf) else None


@formula("nll_loss nll_loss2d nll_loss_nd")
def _nll(call: Call) -> Work:
    return simple(call, call.operand(1, "target").numel)


@formula("cross_entropy cross_entropy_loss")
def _cross_entropy(call: Call) -> Work:
    x, target = call.operand(0, "input"), call.operand(1, "target")
    return simple(call, SOFTMAX * x.numel + (2 if x.shape == target.shape else 1) * target.numel)


@formula("ctc_loss")
def _ctc(call: Call) -> Work:
    """Thirteen for each cell of the lattice: a log-sum-exp of three, and the emission."""
    x, targets = call.operand(0, "log_probs"), call.operand(1, "targets")
    batch = x.shape[1] if len(x.shape) == 3 else 1
    return simple(call, 13 * x.shape[0] * (2 * targets.numel + batch), 2)


@formula("index_add scatter_add scatter_reduce index_reduce")
def _accumulate(call: Call) -> Work:
    source = [operand for operand in call.operands[1:] if operand.dtype.is_floating_point or operand.dtype.is_complex]
    return simple(call, (source[-1] if source else call.operands[-1]).numel)


@formula("embedding_bag")
def _embedding_bag(call: Call) -> Work:
    tables = [operand for operand in call.operands if len(operand.shape) == 2 and operand.dtype.is_floating_point]
    indices = next(operand for operand in call.operands if not operand.dtype.is_floating_point)
    weighted = 2 if isinstance(call.value(6, "per_sample_weights"), Operand) else 1
    return simple(call, weighted * indices.numel * tables[0].shape[1])


@formula("cdist pdist")
def _distances(call: Call) -> Work:
    return simple(call, 3 * call.made * call.operands[0].shape[-1])


# Normalisation ------------------------------------------------------------------------------------------------------


def _affine(call: Call) -> int:
    """FLOPs per value for weight and bias: one each."""
    given = [call.value(-1, name) for name in ("weight", "bias")]
    if not any(isinstance(value, Operand) for value in given):
        given = [value for value in call.args[1:] if isinstance(value, Operand)][:2]
    return sum(isinstance(value, Operand) for value in given)


@formula("layer_norm native_layer_norm group_norm native_group_norm")
def _norm(call: Call) -> Work:
    """Mean, deviation, square and its mean, scaling: five per value, and weight and bias."""
    return simple(call, (5 + _affine(call)) * call.given, 2)


@formula("rms_norm fused_rms_norm")
def _rms_norm(call: Call) -> Work:
    """Square and its mean, scaling: three per value, and the weight."""
    return simple(call, (3 + min(1, _affine(call))) * call.given, 2)


@formula(" ".join(sorted(BATCH_NORMS)))
def _batch_norm(call: Call) -> Work:
    """As the others in training; with running statistics only a subtraction and a scaling."""
    statistics = call.value(5, "training", call.value(5, "use_input_stats", call.name == "instance_norm"))
    is_python = call.function.func is not None and call.function.func.__module__ == "torch.nn.functional"
    first = 3 if is_python else 1
    affine = sum(isinstance(call.value(first + at, name), Operand) for at, name in enumerate(("weight", "bias")))
    return simple(call, ((5 if statistics else 2) + affine) * call.given, 2 if statistics else 1)


@formula("local_response_norm")
def _local_response_norm(call: Call) -> Work:
    return simple(call, (call.value(1, "size") + 4) * call.given, 2)


# Pooling ------------------------------------------------------------------------------------------------------------


def _window(size: Any, dims: int) -> int:
    sizes = list(size) if isinstance(size, (tuple, list)) else [size]
    return math.prod(sizes if len(sizes) == dims else sizes * dims)


@formula("avg_pool1d avg_pool2d avg_pool3d")
def _avg_pool(call: Call) -> Work:
    return simple(call, call.made * _window(call.value(1, "kernel_size"), int(call.name[-2])))


@formula(
    "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
    "fractional_max_pool2d fractional_max_pool3d fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices"
)
def _max_pool(call: Call) -> Work:
    dims = int(call.name[call.name.index("pool") + 4])
    return simple(call, math.prod(call.shape) * (_window(call.value(1, "kernel_size"), dims) - 1))


@formula(
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d "
    "adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices"
)
def _adaptive_pool(call: Call) -> Work:
    dims = int(call.name[call.name.index("pool") + 4])
    before, after = call.operands[0].shape, call.shape
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
def _interpolate(call: Call) -> Work:
    mode = call.value(3, "mode", "nearest")
    if mode == "area":
        return simple(call, max(call.given, call.made))
    return simple(call, _weighted(_TAPS[mode]) * call.made)


@formula(
    "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d upsample_bilinear2d_aa upsample_bicubic2d_aa"
)
def _upsample(call: Call) -> Work:
    mode = next(mode for mode in ("bicubic", "trilinear", "bilinear", "linear") if mode in call.name)
    return simple(call, _weighted(_TAPS[mode]) * call.made)


@formula("grid_sample grid_sampler grid_sampler_2d grid_sampler_3d")
def _grid_sample(call: Call) -> Work:
    """Where to look (four per coordinate), and a weighted sum of the neighbours."""
    grid = call.operand(1, "grid")
    mode = call.value(2, "mode", call.value(2, "interpolation_mode", "bilinear"))
    mode = {0: "bilinear", 1: "nearest", 2: "bicubic"}.get(mode, mode)
    taps = {"nearest": 0, "bilinear": 2, "bicubic": 4}[mode] ** grid.shape[-1]
    return simple(call, 4 * grid.numel + _weighted(taps) * call.made)


@formula("affine_grid affine_grid_generator")
def _affine_grid(call: Call) -> Work:
    theta = call.operands[0]
    return product(call, call.made * theta.shape[-1], (theta,))


@formula("thnn_fused_lstm_cell")
def _fused_cell(call: Call) -> Work:
    return simple(call, call.given * (3 * SIGMOID + 10) / 4)
