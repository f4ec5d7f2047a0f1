"""Work that is counted per element: arithmetic, functions, comparisons, activations.

An addition, a multiplication, a comparison, and one evaluation of a basic function (a square root, exp, log, sin, tanh,
erf) are one FLOP each; what is written in terms of those counts as it is written. Choosing and moving values counts nothing.
Integers and truth values count like floating-point numbers; complex ones twice, six times where they are multiplied or divided.
"""

from __future__ import annotations

from .calls import TorchCall
from .work import FORMULAS, NOTHING, Work, formula, simple

# FLOPs per element of the result.
PER_ELEMENT: dict[int, str] = {
    1: """
        abs absolute add sub subtract rsub mul multiply div divide true_divide floor_divide remainder fmod neg negative
        reciprocal sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin arcsin acos arccos atan arctan atan2
        arctan2 sinh cosh tanh asinh arcsinh acosh arccosh atanh arctanh erf erfc erfinv erfcx ndtr ndtri log_ndtr
        lgamma gammaln digamma psi polygamma mvlgamma multigammaln gammainc gammaincc igamma igammac zeta i0 i0e i1 i1e
        bessel_j0 bessel_j1 bessel_y0 bessel_y1 airy_ai modified_bessel_i0 modified_bessel_i1 modified_bessel_k0
        modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0 ceil floor round
        trunc fix frac sign sgn signbit square pow float_power relu maximum minimum fmax fmin clamp_min clamp_max
        threshold heaviside copysign nextafter angle eq ne lt le gt ge greater greater_equal less less_equal not_equal
        logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift
        bitwise_right_shift isnan isinf isfinite isneginf isposinf deg2rad rad2deg gcd lcm conj_physical polar
        linalg_vander
    """,
    2: """
        clamp clip relu6 hardtanh leaky_relu prelu rrelu rsqrt tanhshrink softshrink hardshrink ldexp xlogy xlog1py entr
        frexp isin
    """,
    3: "quantize_per_tensor quantize_per_channel quantile nanquantile addcmul addcdiv lerp sinc logit softsign nan_to_num",
    4: "sigmoid expit elu softplus logsigmoid log_sigmoid hardsigmoid hypot logaddexp logaddexp2 isclose",
    5: "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine silu hardswish selu celu mish glu",
}
_PRODUCTS = frozenset("mul multiply div divide true_divide reciprocal square pow addcmul addcdiv".split())


def _rule(per_element: int) -> None:
    @formula(PER_ELEMENT[per_element])
    def _elementwise(call: TorchCall) -> Work:
        times = 3 if call.name in _PRODUCTS and call.is_complex else 1
        return simple(call, times * per_element * call.made)


for _count in PER_ELEMENT:
    _rule(_count)


@formula("gelu")
def _gelu(call: TorchCall) -> Work:
    return simple(call, (9 if call.value(1, "approximate", "none") == "tanh" else 5) * call.made)


@formula("dropout alpha_dropout feature_dropout feature_alpha_dropout dropout1d dropout2d dropout3d native_dropout")
def _dropout(call: TorchCall) -> Work:
    """A mask and a scale, in training; drawing the mask is not counted."""
    p, training = call.value(1, "p", 0.5), call.value(2, "training", call.value(2, "train", True))
    return simple(call, 2 * call.made, 0.5) if p and training else NOTHING


# Moving, choosing, making, drawing, sorting, converting: no arithmetic. Views are known from torch's schemas (storage.py).
WITHOUT_ARITHMETIC = """
    input output source alias adjoint clone copy contiguous to type type_as float double half bfloat16 int long short
    char byte bool cfloat cdouble chalf cpu cuda xpu to_dense to_sparse to_mkldnn to_padded_tensor dequantize cat concat
    concatenate stack hstack vstack dstack row_stack column_stack block_diag getitem setitem index index_put index_copy
    index_fill index_select masked_fill masked_scatter masked_select where gather scatter select_scatter slice_scatter
    diagonal_scatter as_strided_scatter take take_along_dim put tile repeat repeat_interleave roll rot90 flip fliplr
    flipud tril triu tril_indices triu_indices diag diagflat diag_embed pad constant_pad_nd reflection_pad1d
    reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d nonzero
    nonzero_static argwhere unique unique2 unique_consecutive unique_dim sort argsort msort topk kthvalue median
    nanmedian mode searchsorted bucketize multinomial embedding one_hot channel_shuffle native_channel_shuffle
    pixel_shuffle pixel_unshuffle unfold im2col max_unpool1d max_unpool2d max_unpool3d meshgrid broadcast_tensors
    broadcast_to cartesian_prod combinations expand_copy atleast_1d atleast_2d atleast_3d numpy_T real imag complex
    view_as_real view_as_complex resolve_conj resolve_neg conj zeros ones full empty empty_strided empty_permuted
    zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided new_tensor tensor
    as_tensor scalar_tensor from_file frombuffer asarray eye arange range linspace logspace vander hann_window
    hamming_window bartlett_window blackman_window kaiser_window rand randn randint randperm rand_like randn_like
    randint_like normal bernoulli poisson binomial uniform random exponential geometric cauchy log_normal standard_gamma
    sample_dirichlet dirichlet_grad fill fill_diagonal zero detach requires_grad set set_data data resize resize_as
    pack_padded_sequence pad_packed_sequence pin_memory lift_fresh lift_fresh_copy unsafe_view reshape_alias reshape
    view_copy result_type can_cast values indices coalesce ravel flatten reversed deepcopy record_stream isreal positive
    hash_tensor unsafe_chunk unsafe_split unsafe_split_with_sizes nested_tensor_from_tensor_list
    nested_from_padded assert_async functional_assert_async
"""
ATTRIBUTES = ".T .H .mT .mH .real .imag .data .grad ._grad"

FORMULAS.update(dict.fromkeys((*WITHOUT_ARITHMETIC.split(), *ATTRIBUTES.split()), lambda call: NOTHING))
