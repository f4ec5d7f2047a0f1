"""Whether a function is an operation, a query, a read by Python, or a composite to be opened."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..torch_internals import TENSOR_MODULE
from .collectives import is_collective, only_sends
from .schemas import schemas_of, writes


class Kind(enum.IntEnum):
    """What a torch function does, as far as recording it is concerned."""

    QUERY = 0  # asks about a tensor, makes none
    PYTHON_READ = 1  # hands values to Python
    OPERATION = 2
    COMPOSITE = 3  # Python around several operations: opened
    BACKWARD = 4  # runs autograd, makes no tensor


class Origin(enum.Enum):
    """How a tensor came to be."""

    INPUT = "input"  # given to the model
    OPERATION = "operation"  # made by a torch function that was watched
    OPAQUE = "opaque"  # made inside something that cannot be watched; its inputs are known
    ALIAS = "alias"  # another view of a recorded tensor, made where it could not be watched
    SOURCE = "source"  # turned up unexplained: closed over, made by NumPy or on another thread
    OUTPUT = "output"  # handed back by the model


# Properties that return a tensor; every other property read is a query.
TENSOR_PROPERTIES = frozenset({"T", "H", "mT", "mH", "real", "imag", "data", "grad", "_grad"})

# Where values leave torch for Python.
PYTHON_READS = frozenset(
    "__bool__ __float__ __int__ __index__ __complex__ __contains__ __array__ __dlpack__ "
    "item tolist numpy is_nonzero equal allclose _local_scalar_dense _nested_tensor_from_mask_left_aligned".split()
)

# Functions that concern a tensor but neither compute nor hand out its values, and that no schema describes.
QUERIES = frozenset(
    "dim ndimension numel nelement size stride storage_offset element_size get_device storage untyped_storage "
    "data_ptr const_data_ptr is_contiguous is_pinned is_shared is_floating_point is_complex is_signed is_inference is_conj "
    "is_neg is_distributed is_same_size has_names names is_set_to _is_view _is_zerotensor _nnz sparse_dim dense_dim "
    "is_coalesced qscheme q_scale q_zero_point q_per_channel_axis is_sparse result_type can_cast promote_types iinfo finfo "
    "__len__ __repr__ __str__ __format__ __hash__ __dir__ __reduce_ex__ __reduce__ __setstate__ __dlpack_device__ "
    "__cuda_array_interface__ requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook share_memory_ "
    "record_stream _set_grad_enabled set_grad_enabled is_tensor is_storage _has_compatible_shallow_copy_type _typed_storage "
    "_reduce_ex_internal has_torch_function set_default_device get_default_device set_default_dtype get_default_dtype "
    "is_grad_enabled sym_float sym_int sym_ite sym_max sym_min sym_not sym_sum _sym_sqrt autocast".split()
)

# Functions that are Python around other calls, but that people think of as one operation, and that make exactly one inner
# operation. `tests/functions/test_functions.py` opens each of them and counts.
SINGLE: frozenset[Callable[..., Any]] = frozenset(
    getattr(owner, name)
    for owner, names in (
        (
            F,
            "relu relu6 leaky_relu elu selu celu silu mish hardtanh hardswish hardsigmoid glu rrelu threshold tanh sigmoid "
            "softmax log_softmax dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout batch_norm "
            "instance_norm layer_norm group_norm rms_norm max_pool1d max_pool2d max_pool3d adaptive_max_pool1d "
            "adaptive_max_pool2d adaptive_max_pool3d adaptive_avg_pool2d adaptive_avg_pool3d interpolate pad grid_sample "
            "affine_grid unfold fold cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div "
            "ctc_loss hinge_embedding_loss cosine_embedding_loss margin_ranking_loss multi_margin_loss "
            "triplet_margin_loss poisson_nll_loss bilinear",
        ),
        (
            torch,
            "einsum tensordot cdist meshgrid norm split broadcast_tensors istft unique unique_consecutive lu_unpack",
        ),
        (Tensor, "split norm unflatten unique"),
    )
    for name in names.split()
    if hasattr(owner, name)
)

GUARDS = frozenset({"has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"})


def kind_of(func: Any, name: str) -> Kind:
    """How a call of this function is recorded."""
    access = getattr(func, "__name__", None)
    if access == "__get__":
        return Kind.OPERATION if name in TENSOR_PROPERTIES else Kind.QUERY
    if access in ("__set__", "__delete__"):
        return Kind.OPERATION if name == "set_data" else Kind.QUERY
    if is_collective(func):
        return Kind.PYTHON_READ if only_sends(func) else Kind.OPERATION
    if name == "backward":
        return Kind.BACKWARD
    if name in PYTHON_READS:
        return Kind.PYTHON_READ
    if name in QUERIES:
        return Kind.QUERY
    if isinstance(func, types.FunctionType):
        if func in SINGLE or func is torch.autograd.grad or (name.startswith("__") and func.__module__ == TENSOR_MODULE):
            return Kind.OPERATION  # an operator, such as 1 / x, is one operation for its author
        asks = GUARDS & set(func.__code__.co_names)
        return Kind.COMPOSITE if asks and asks & set(func.__globals__) else Kind.OPERATION
    schemas = schemas_of(func, name)
    if schemas and all(map(_makes_no_tensor, schemas)):
        return Kind.QUERY
    return Kind.OPERATION


def _makes_no_tensor(schema: Any) -> bool:
    makes_none = bool(schema.returns) and all("Tensor" not in str(result.type) for result in schema.returns)
    return makes_none and not any(map(writes, schema.arguments))
