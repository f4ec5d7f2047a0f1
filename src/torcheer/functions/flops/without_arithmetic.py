"""Functions that move, choose, make, draw, sort or convert: no arithmetic. Torch's schemas say which functions are views."""

from __future__ import annotations

from .. import groups
from .work import FORMULAS, NOTHING

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
