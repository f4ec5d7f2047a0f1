"""Transforms and linear algebra, by the counts that textbooks give (Golub and Van Loan).

They are leading terms: what a library really does depends on the algorithm it picks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from ..calls import Call
from .work import Work, formula, simple

# Fourier --------------------------------------------------------------------------------------------------------------


@formula(
    "fft_fft fft_ifft fft_fft2 fft_ifft2 fft_fftn fft_ifftn fft_rfft fft_irfft fft_hfft fft_ihfft "
    "fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn fft_hfft2 fft_ihfft2 fft_hfftn fft_ihfftn"
)
def _fft(call: Call) -> Work:
    """5 N log2 N for each transform of N complex values; half of it where one side is real."""
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
    if name.startswith(("rfft", "ihfft")):  # real in, half of a spectrum out
        asked = call.value(1, "s" if name[-1] in "n2" else "n")
        asked = asked[-1] if isinstance(asked, (tuple, list)) else asked
        sizes[dims[-1]] = before[dims[-1]] if asked is None else asked
    is_real = name.startswith(("rfft", "ihfft", "irfft", "hfft"))
    length = math.prod(sizes.values())
    outside = math.prod(after) // max(1, math.prod(after[dim] for dim in dims))
    flops = (2.5 if is_real else 5.0) * outside * length * math.log2(length)
    return Work(round(flops), 0, round(flops))


def _last(call: Call, dims: int) -> list[int]:
    sizes = call.value(1, "s")
    count = len(sizes) if sizes is not None else dims
    return list(range(-count, 0))


@formula("stft istft")
def _stft(call: Call) -> Work:
    """A window and a real transform for each frame."""
    size = int(call.value(1, "n_fft"))
    spectrum = call.shape if call.name == "stft" else call.operands[0].shape
    spectrum = spectrum if call.name == "istft" or call.results[0][1].is_complex else spectrum[:-1]
    frames = math.prod(spectrum) // max(1, spectrum[-2])
    flops = round(frames * size * (1 + 2.5 * math.log2(size)))
    return Work(flops, 0, flops)


# Matrices -------------------------------------------------------------------------------------------------------------

# FLOPs for one m × n matrix with m >= n, and a right-hand side of k columns where the function takes one.
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
    "linalg_matrix_sqrth": lambda m, n, k: 11 * n**3,  # of a symmetric matrix, by its eigenvectors
    "linalg_polar": lambda m, n, k: 4 * m**2 * n + 10 * m * n**2 + 11 * n**3,  # by singular values
    "linalg_eigvalsh": lambda m, n, k: 4 * n**3 / 3,
    "linalg_eig": lambda m, n, k: 25 * n**3,
    "linalg_eigvals": lambda m, n, k: 10 * n**3,
    "linalg_solve linalg_solve_ex solve": lambda m, n, k: 2 * n**3 / 3 + 2 * n**2 * k,
    "linalg_lstsq": lambda m, n, k: 2 * m * n**2 - 2 * n**3 / 3 + 4 * m * n * k,
}
# The same for functions whose first argument is the right-hand side.
_SOLVED: dict[str, Callable[[int, int], float]] = {
    "triangular_solve": lambda n, k: n**2 * k,
    "cholesky_solve lu_solve": lambda n, k: 2 * n**2 * k,
}


def _decompose(count: Callable[[int, int, int], float], call: Call) -> Work:
    shape = call.operands[0].shape
    m, n = max(shape[-2:]), min(shape[-2:])
    right = call.operands[1].shape if len(call.operands) > 1 else ()
    columns = right[-1] if len(right) >= 2 else 1
    times = 2 if call.operands[0].dtype.is_complex else 1  # a real matrix may have complex eigenvalues
    flops = round(times * math.prod(shape[:-2]) * count(m, n, columns))
    return Work(flops, 0, 2 * flops)


def _solve(count: Callable[[int, int], float], call: Call) -> Work:
    right = call.operands[0].shape
    return simple(call, math.prod(right[:-2]) * count(right[-2], right[-1]), 2)


for _names, _count in _MATRIX.items():
    formula(_names)(partial(_decompose, _count))
for _names, _solved in _SOLVED.items():
    formula(_names)(partial(_solve, _solved))


@formula("linalg_solve_triangular")
def _solve_triangular(call: Call) -> Work:
    right = call.operands[1].shape
    return simple(call, math.prod(call.shape[:-2]) * right[-2] ** 2 * right[-1], 2)
