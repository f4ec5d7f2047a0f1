"""Decides which functions a file may name: only functions that compute on their arguments and do nothing else.

A saved history names functions, and a replay calls them with arguments from the file. So only torch's public functions and
tensor methods that its dispatcher knows, and the names below, are allowed. Functions that take addresses, read or write
files, start processes or change settings are excluded, and so are private functions that no model calls.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from ...errors import InvalidArgument
from ..internals import FUNCTION_MODULES, TENSOR_MODULE, OpOverload, OpOverloadPacket
from ..memory import parts_of_sparse, sparse_of_parts
from . import groups
from .facts import TENSOR_PROPERTIES, TorchFunction
from .names import function_name
from .schemas import C_FUNCTIONS, aten_schemas, is_dispatched, schemas_of
from .signatures import names_of, positional_names

LIBRARIES = frozenset({"aten", "prims", "quantized"})  # namespaces of torch's own operators


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Private functions that programs, torch's modules or exported programs call. All `_foreach_…` functions are allowed, too.
_PRIVATE = _names(
    "_adaptive_avg_pool2d _adaptive_avg_pool3d _add_relu _add_relu_ _addmm_activation _aminmax "
    "_amp_foreach_non_finite_check_and_unscale_ _amp_update_scale_ _assert_async _assert_scalar _assert_tensor_metadata "
    "_batch_norm_impl_index _batch_norm_with_update _cast_Byte _cast_Char _cast_Double _cast_Float "
    "_cast_Half _cast_Int _cast_Long _cast_Short _chunk_cat _coalesce _conj _conj_copy _conj_physical _convolution "
    "_convolution_mode _ctc_loss _cudnn_ctc_loss _cudnn_rnn _cudnn_rnn_flatten_weight _dim_arange "
    "_efficientzerotensor _embedding_bag _embedding_bag_forward_only _empty_affine_quantized "
    "_empty_per_channel_affine_quantized _euclidean_dist _fake_quantize_learnable_per_channel_affine "
    "_fake_quantize_learnable_per_tensor_affine _fft_c2c _fft_c2r _fft_r2c _flash_attention_forward "
    "_efficient_attention_forward _fused_adagrad_ _fused_adam_ _fused_adamw_ _fused_dropout "
    "_fused_moving_avg_obs_fq_helper _fused_rms_norm _fused_sgd_ _grouped_mm _histogramdd_bin_edges "
    "_histogramdd_from_bin_cts _histogramdd_from_bin_tensors _indices _indices_copy _int_mm _is_all_true "
    "_is_any_true _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd _local_scalar_dense "
    "_log_softmax _log_softmax_backward_data _logcumsumexp _make_dual _make_dual_copy _masked_softmax _native_batch_norm_legit "
    "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training _native_multi_head_attention _neg_view "
    "_neg_view_copy _nested_from_padded _nested_get_lengths _nested_get_max_seqlen _nested_get_min_seqlen _nested_get_offsets "
    "_nested_get_values _nested_get_values_copy _nested_tensor_from_mask _nested_tensor_from_tensor_list "
    "_nested_tensor_softmax_with_shape _no_grad_embedding_renorm_ _no_grad_fill_ _no_grad_normal_ _no_grad_trunc_normal_ "
    "_no_grad_uniform_ _no_grad_zero_ _pack_padded_sequence _pad_circular _pad_enum _pad_packed_sequence _pdist_forward "
    "_pin_memory _powsum _prelu_kernel _safe_softmax _sample_dirichlet "
    "_scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_fused_attention_overrideable _scaled_grouped_mm _scaled_grouped_mm_v2 _scaled_mm _scaled_mm_v2 "
    "_segment_reduce _shape_as_tensor _softmax _softmax_backward_data _sparse_mm_reduce_impl _sparse_softmax "
    "_sparse_log_softmax _sparse_sparse_matmul _sparse_sum _stack _standard_gamma _thnn_fused_gru_cell "
    "_thnn_fused_lstm_cell _to_copy _to_dense _to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc _to_sparse_csr "
    "_transformer_encoder_layer_fwd _trilinear _unique _unique2 _unpack_dual _unsafe_index "
    "_unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate _unsafe_view _upsample_bicubic2d_aa "
    "_upsample_bilinear2d_aa _upsample_lanczos2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d _values _values_copy _weight_norm _coalesced_ _grad _sparse_mm "
    "_sparse_addmm _spdiags _spsolve _autocast_to_full_precision _autocast_to_reduced_precision"
)
# Derivatives that programs call. All other derivatives are refused: they do not check the indices and sizes they get.
_BACKWARD = _names(
    "convolution_backward native_dropout_backward max_pool2d_with_indices_backward _softmax_backward_data "
    "_log_softmax_backward_data threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward elu_backward "
    "leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward softplus_backward mse_loss_backward"
)
# Python's special methods that are not operators.
_METHODS = _names("__getitem__ __setitem__ __delitem__ __reversed__ __iter__ __deepcopy__ __array_wrap__ __long__ __nonzero__")
_OPERATORS = _names(
    "abs add and div eq floordiv ge gt invert le lshift lt matmul mod mul ne neg or pos pow rshift sub truediv xor"
)
# C functions without an operator, or whose operator has another name.
_WITHOUT_SCHEMA = _names(
    "as_tensor asarray tensor frombuffer from_numpy sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor "
    "sparse_bsc_tensor sparse_compressed_tensor nested_tensor new new_tensor range full type apply_ map_ map2_ pad_sequence "
    "double float half bfloat16 int long short char byte bool cfloat cdouble chalf cpu cuda xpu ipu mtia contiguous dsmm hsmm "
    "saddmm"
)
# Public functions that are excluded: they access files, memory or other processes, or do not compute.
_REFUSED = _names(
    "from_file from_blob from_dlpack to_dlpack data_ptr record_stream "
    # these read addresses, or a memory layout, from the values of a packed tensor
    "fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation fbgemm_linear_int8_weight "
    "fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_quantize_weight fbgemm_pack_gemm_matrix_fp16 "
    "fbgemm_pack_quantized_matrix mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight mkldnn_rnn_layer miopen_rnn "
    "quantized_lstm_cell quantized_gru_cell quantized_rnn_relu_cell quantized_rnn_tanh_cell"
)


def is_harmless(func: Any) -> bool:
    """True if a file may name a function: it belongs to torch and only computes on its arguments.

    >>> import torch
    >>> is_harmless(torch.relu), is_harmless(torch.set_num_threads), is_harmless(torch.from_file)
    (True, False, False)
    """
    try:
        return _is_harmless(func)
    except TypeError:  # an unhashable callable
        return False


@cache
def _is_harmless(func: Any) -> bool:
    name = function_name(func)
    if getattr(func, "__name__", None) in ("__get__", "__set__"):
        return name in TENSOR_PROPERTIES or name == "set_data"
    if name in _REFUSED:
        return False
    if isinstance(func, (OpOverload, OpOverloadPacket)):
        library = func.namespace if isinstance(func, OpOverload) else str(func).partition(".")[0]
        return library in LIBRARIES and _may_be_named(name) and any(map(is_dispatched, schemas_of(func, name)))
    if isinstance(func, types.FunctionType):
        is_helper = func.__module__ != TENSOR_MODULE  # a Python function that calls operators by name
        return func is torch.autograd.grad or (func.__module__ in FUNCTION_MODULES and (is_helper or _may_be_named(name)))
    if not isinstance(func, C_FUNCTIONS) or not _may_be_named(name):
        return False
    is_method = name.startswith("__")
    return is_method or name in _WITHOUT_SCHEMA or bool(aten_schemas(name))


def _may_be_named(name: str) -> bool:
    """True if a function's name is public, or is the name of a private function that programs call."""
    if name.startswith("__"):
        bare = name.strip("_")
        return name in _METHODS or any(bare == f"{before}{one}" for before in ("", "i", "r") for one in _OPERATORS)
    if "backward" in name:
        return name in _BACKWARD
    if name.startswith("inductor_"):
        return False  # operators that torch's compiler uses internally
    return not name.startswith("_") or name in _PRIVATE or name.startswith("_foreach_")


# Invalid arguments that torch does not check, and that make a function access foreign memory. A replay refuses them.
#
# A saved history says with which arguments a replay calls a function. torch checks nearly all of them. The rest was found by
# calling every allowed function with tensors at the end of a memory page, where reading beyond them ends the process.

_Arguments = dict[str, Any]  # argument name -> value
_ENUMERATIONS = ("memory_format", "layout", "dtype")  # operators also take these as integers
_STATISTICS = ("weight", "bias", "running_mean", "running_var")


def refuse_stray(function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise `InvalidArgument` if a call with these arguments would access memory outside its tensors."""
    check = _CHECKS.get(function.plain_name)
    is_group = function.name.startswith(("_foreach_", "_fused_"))
    if check is None and not is_group and not any(type(one) is int for one in map(kwargs.get, _ENUMERATIONS)):
        return
    named = _named(function, args, kwargs)
    for name in _ENUMERATIONS:
        _require(type(named.get(name)) is not int, f"{name} is a whole number")
    if is_group:
        _lists(named, function.name.startswith("_fused_"))
    if check is not None:
        check(named)


def _named(function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    names = positional_names(function, args, [isinstance(one, Tensor) for one in args])
    if not all(names):
        names = list(names_of(function))
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _require(holds: object, what: str) -> None:
    if not holds:
        _refuse(what)


def _refuse(what: str) -> NoReturn:
    raise InvalidArgument(f"torch does not check these arguments, and they are invalid: {what}")


def _tensor(named: _Arguments, *names: str) -> Tensor | None:
    """The first of these arguments that is a tensor."""
    return next((named[name] for name in names if isinstance(named.get(name), Tensor)), None)


def _is_within(values: Tensor, low: int, high: int) -> bool:
    """True if all values are at least `low` and below `high`."""
    plain = values.detach()
    return not plain.numel() or (int(plain.min()) >= low and int(plain.max()) < high)


def _numbers(value: Any) -> Tensor:
    return value.detach().to("cpu", torch.int64) if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.int64)


# Checks by function name --------------------------------------------------------------------------------------------------


def _batch_norm(named: _Arguments) -> None:
    given = _tensor(named, "input")
    if given is None or given.dim() < 2:
        _refuse("the input has no channels")
    for name in _STATISTICS:
        one = named.get(name)
        _require(
            not isinstance(one, Tensor) or tuple(one.shape) == (given.shape[1],),
            f"{name} does not have one value for each channel",
        )
    if not named.get("training", named.get("train", True)):
        _require(all(isinstance(named.get(name), Tensor) for name in _STATISTICS[2:]), "there are no running statistics")


def _pivots(named: _Arguments) -> None:
    matrix, pivots = _tensor(named, "LU_data", "LU", "LD"), _tensor(named, "LU_pivots", "pivots")
    if matrix is None or pivots is None or matrix.dim() < 2:
        _refuse("there are no pivots")
    shape = (*matrix.shape[:-2], min(matrix.shape[-2:]))
    _require(tuple(pivots.shape) == tuple(shape), "the number of pivots is not the number of rows")
    _require(_is_within(pivots.abs(), 1, matrix.shape[-2] + 1), "a pivot is out of range")


def _segments(named: _Arguments) -> None:
    data, axis = _tensor(named, "data"), named.get("axis") or 0
    if data is None or not isinstance(axis, int) or not 0 <= axis < data.dim():
        _refuse("there is no such axis")
    for name, ends in (("lengths", False), ("offsets", True)):
        given = _tensor(named, name)
        if given is None:
            continue
        _require(given.shape[:-1] == data.shape[:axis] and given.dim() == axis + 1, f"{name} do not fit the data")
        numbers = _numbers(given)
        _require(_is_within(numbers, 0, data.shape[axis] + 1), f"{name} reach beyond the data")
        if ends:
            _require(not bool((numbers.diff(dim=-1) < 0).any()) and numbers.shape[-1], "offsets do not increase")
        else:
            _require(not bool((numbers.sum(-1) > data.shape[axis]).any()), "the lengths add up to more than the data")


def _ctc(named: _Arguments) -> None:
    values, targets = _tensor(named, "log_probs"), _tensor(named, "targets")
    if values is None or targets is None or values.dim() < 2 or not values.shape[-1]:
        _refuse("there are no targets or no classes")
    inputs, lengths = (_numbers(named.get(name)).reshape(-1) for name in ("input_lengths", "target_lengths"))
    _require(_is_within(targets, 0, values.shape[-1]), "a target is out of range")
    _require(0 <= (named.get("blank") or 0) < values.shape[-1], "the blank is out of range")
    _require(_is_within(inputs, 0, values.shape[0] + 1), "an input length is larger than the number of steps")
    most = targets.shape[1] if targets.dim() == 2 and values.dim() == 3 else targets.numel()
    _require(_is_within(lengths, 0, most + 1), "a target length is larger than the number of targets")
    _require(targets.dim() != 1 or int(lengths.sum()) <= targets.numel(), "the target lengths add up to more than the targets")


def _embedding_bag(named: _Arguments) -> None:
    weight, indices, offsets = _tensor(named, "weight"), _tensor(named, "input", "indices"), _tensor(named, "offsets")
    if weight is None or indices is None or weight.dim() != 2:
        _refuse("there is no weight or no index")
    if indices.is_floating_point() and not weight.is_floating_point():  # old order of the arguments
        weight, indices = indices, weight
    _require(_is_within(indices, 0, weight.shape[0]), "an index is out of range")
    factors = _tensor(named, "per_sample_weights")
    _require(factors is None or factors.shape == indices.shape, "the weights and the indices differ in shape")
    if offsets is not None:
        _require(_is_within(offsets, 0, indices.numel() + 1), "an offset is beyond the indices")
        _require(not bool((_numbers(offsets).diff() < 0).any()), "offsets do not increase")


def _transform(named: _Arguments) -> None:
    given, dims = _tensor(named, "self"), named.get("dim")
    count = given.dim() if given is not None else 0
    _require(all(isinstance(one, int) and -count <= one < count for one in dims or ()), "there is no such dimension")


def _samples(named: _Arguments) -> None:
    samples = _tensor(named, "_random_samples", "random_samples")
    _require(samples is None or bool(((samples >= 0) & (samples <= 1)).all()), "a random sample is outside 0 to 1")


def _sequences(named: _Arguments) -> None:
    """Check packed sequences: `batch_sizes` has the number of sequences at each step."""
    sizes, data = _tensor(named, "batch_sizes"), _tensor(named, "data", "input")
    if sizes is None or data is None:
        return
    numbers = _numbers(sizes)
    _require(
        numbers.dim() == 1 and numbers.numel() and _is_within(numbers, 1, len(data) + 1), "the batch sizes are out of range"
    )
    _require(not bool((numbers.diff() > 0).any()) and int(numbers.sum()) == len(data), "the batch sizes do not fit the data")
    states = named.get("hx")
    for one in states if isinstance(states, (list, tuple)) else [states]:
        _require(not isinstance(one, Tensor) or one.shape[-2:-1] == (int(numbers[0]),), "the states do not fit the batch sizes")


def _lengths(named: _Arguments) -> None:
    given, lengths = _tensor(named, "input"), named.get("lengths")
    if given is None or lengths is None or given.dim() < 2:
        _refuse("there are no sequences")
    is_first = bool(named.get("batch_first"))
    numbers = _numbers(lengths)
    _require(numbers.numel() == given.shape[0 if is_first else 1], "the number of lengths is not the number of sequences")
    _require(_is_within(numbers, 1, given.shape[1 if is_first else 0] + 1), "a length is out of range")


def _scales(named: _Arguments) -> None:
    given, sizes = _tensor(named, "input", "self"), named.get("output_size")
    factors = [named.get(name) for name in ("scales_h", "scales_w")]
    if given is None or given.dim() != 4 or not isinstance(sizes, (list, tuple)):
        return
    for there, made, factor in zip(given.shape[2:], sizes, factors, strict=False):
        fits = factor is None or (isinstance(factor, (int, float)) and factor > 0 and made - 0.5 <= there * factor)
        _require(fits, "a scale is too small for the output size")


def _max_pool_backward(named: _Arguments) -> None:
    given, indices = _tensor(named, "self", "input"), _tensor(named, "indices")
    if given is None or indices is None or given.dim() < 3:
        _refuse("there are no indices")
    _require(_is_within(indices, 0, given.shape[-1] * given.shape[-2]), "an index is out of range")


def _pieces(named: _Arguments) -> None:
    tensors = named.get("tensors")
    _require(all(isinstance(one, Tensor) and one.dim() for one in tensors or ()), "a tensor has no dimensions")


def _new(named: _Arguments) -> None:
    _require("cdata" not in named, "an address was given")


def _lists(named: _Arguments, is_fused: bool) -> None:
    """Check that lists of tensors have equal lengths and, for a fused optimizer, tensors of equal shapes."""
    lists = {name: one for name, one in named.items() if isinstance(one, (list, tuple)) and one and isinstance(one[0], Tensor)}
    whole = next(iter(lists.values()), ())
    for name, one in lists.items():
        _require(len(one) == len(whole), "the lists of tensors differ in length")
        for first, other in zip(whole, one, strict=True) if is_fused else ():
            _require(isinstance(other, Tensor), "a list of tensors holds another object")
            is_right = other.numel() == 1 if name == "state_steps" else other.shape == first.shape
            _require(is_right, f"tensors differ in shape: {name}")


def _weight_norm(named: _Arguments) -> None:
    directions, lengths, axis = named.get("v"), named.get("g"), named.get("dim", 0)
    if isinstance(directions, Tensor) and isinstance(lengths, Tensor) and axis in (0, directions.dim() - 1):
        _require(lengths.numel() == directions.shape[axis], "the number of norms is not the number of directions")


def refuse_stray_indices(tensor: Tensor) -> None:
    """Raise `InvalidArgument` if a sparse tensor has indices out of range, which torch does not check by default."""
    try:
        with torch.no_grad():
            if parts := parts_of_sparse(tensor):
                sparse_of_parts(tensor.layout, parts, tensor.shape)
    except RuntimeError as error:
        _refuse(f"the indices of a sparse tensor are out of range ({error})")


_CHECKS: dict[str, Callable[[_Arguments], None]] = {
    **dict.fromkeys(groups.BATCH_NORMS - {"batch_norm", "batch_norm_impl_index", "instance_norm"}, _batch_norm),
    **dict.fromkeys(("native_batch_norm_legit_no_training", "native_batch_norm_legit_functional"), _batch_norm),
    **dict.fromkeys(("lu_unpack", "lu_solve", "linalg_lu_solve", "linalg_ldl_solve", "ldl_solve"), _pivots),
    "segment_reduce": _segments,
    "ctc_loss": _ctc,
    **dict.fromkeys(("embedding_bag", "embedding_bag_forward_only"), _embedding_bag),
    **dict.fromkeys(("fft_c2c", "fft_c2r", "fft_r2c"), _transform),
    **{f"fractional_max_pool{dims}d{end}": _samples for dims in "23" for end in ("", "_with_indices")},
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu", "pad_packed_sequence"), _sequences),
    "pack_padded_sequence": _lengths,
    **dict.fromkeys(("upsample_bilinear2d_aa", "upsample_bicubic2d_aa", "upsample_lanczos2d_aa"), _scales),
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "chunk_cat": _pieces,
    "weight_norm": _weight_norm,
    "new": _new,
}
