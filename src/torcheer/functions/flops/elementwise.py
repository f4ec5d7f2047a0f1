"""Work that is counted per element: arithmetic, functions, comparisons, activations.

An addition, a multiplication, a comparison, and one evaluation of a basic function (a square root, exp, log, sin, tanh,
erf) are one FLOP each; any other function is the sum of those in its formula. Choosing and moving values counts nothing.
Integers and truth values count like floating-point numbers; complex ones twice, six times where they are multiplied or divided.
"""

from __future__ import annotations

from functools import partial

from ..calls import Call
from ..groups import DROPOUTS
from .work import NOTHING, Work, formula, simple

# FLOPs per element of the result.
PER_ELEMENT: dict[int, str] = {
    1: """
        abs add sub rsub mul div floor_divide remainder fmod neg reciprocal sqrt exp exp2 expm1 log log2 log10 log1p
        sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc erfinv erfcx ndtr ndtri log_ndtr
        lgamma digamma polygamma mvlgamma igamma igammac zeta i0 i0e i1 i1e bessel_j0 bessel_j1 bessel_y0 bessel_y1
        airy_ai modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1
        scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0 ceil floor round trunc frac sign sgn
        signbit square pow float_power relu maximum minimum fmax fmin clamp_min clamp_max threshold heaviside
        copysign nextafter angle eq ne lt le gt ge logical_and logical_or logical_xor logical_not bitwise_and
        bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift isnan isinf isfinite isneginf
        isposinf deg2rad rad2deg gcd lcm conj_physical polar linalg_vander
    """,
    2: """
        clamp relu6 hardtanh leaky_relu prelu rrelu rsqrt tanhshrink softshrink hardshrink ldexp xlogy xlog1py entr
        frexp isin
    """,
    3: "quantize_per_tensor quantize_per_channel quantile nanquantile addcmul addcdiv lerp sinc logit softsign nan_to_num",
    4: "sigmoid elu softplus logsigmoid hardsigmoid hypot logaddexp logaddexp2 isclose",
    5: "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine silu hardswish selu celu mish glu",
}
_PRODUCTS = frozenset("mul div reciprocal square pow addcmul addcdiv".split())


def _elementwise(per_element: int, call: Call) -> Work:
    times = 3 if call.name in _PRODUCTS and call.is_complex else 1
    return simple(call, times * per_element * call.made)


for _count, _names in PER_ELEMENT.items():
    formula(_names)(partial(_elementwise, _count))


@formula("gelu")
def _gelu(call: Call) -> Work:
    return simple(call, (9 if call.value(1, "approximate", "none") == "tanh" else 5) * call.made)


@formula(" ".join(sorted(DROPOUTS)))
def _dropout(call: Call) -> Work:
    """A mask and a scale, in training; drawing the mask is not counted."""
    p, training = call.value(1, "p", 0.5), call.value(2, "training", call.value(2, "train", True))
    return simple(call, 2 * call.made, 0.5) if p and training else NOTHING
