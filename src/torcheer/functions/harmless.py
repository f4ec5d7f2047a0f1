"""Which functions a file may name: those that compute on their arguments alone.

A saved history names functions, and a replay calls them with arguments that the file says. So they come from this list: torch's
public functions and methods of tensors that its dispatcher knows, and what is named here. What takes addresses, reads or writes
files, starts processes or changes settings is not in it; neither are torch's private functions that nobody's model calls.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Any

import torch

from ..torch_internals import FUNCTION_MODULES, TENSOR_MODULE, OpOverload, OpOverloadPacket
from .kinds import TENSOR_PROPERTIES
from .names import function_name
from .schemas import C_FUNCTIONS, aten_schemas, is_dispatched, schemas_of

LIBRARIES = frozenset({"aten", "prims", "quantized"})  # of operators that are torch's own


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Private functions that programs call, or that torch's modules and exported programs call for them. All `_foreach_…` are too.
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
# Derivatives that programs call. Others trust the indices and sizes that they are given.
_BACKWARD = _names(
    "convolution_backward native_dropout_backward max_pool2d_with_indices_backward _softmax_backward_data "
    "_log_softmax_backward_data threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward elu_backward "
    "leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward softplus_backward mse_loss_backward"
)
# Python's own names of methods that are no operators.
_METHODS = _names("__getitem__ __setitem__ __delitem__ __reversed__ __iter__ __deepcopy__ __array_wrap__ __long__ __nonzero__")
_OPERATORS = _names(
    "abs add and div eq floordiv ge gt invert le lshift lt matmul mod mul ne neg or pos pow rshift sub truediv xor"
)
# Functions in C that no operator is behind, or that only have other names than their operators.
_WITHOUT_SCHEMA = _names(
    "as_tensor asarray tensor frombuffer from_numpy sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor "
    "sparse_bsc_tensor sparse_compressed_tensor nested_tensor new new_tensor range full type apply_ map_ map2_ pad_sequence "
    "double float half bfloat16 int long short char byte bool cfloat cdouble chalf cpu cuda xpu ipu mtia contiguous dsmm hsmm "
    "saddmm"
)
# Public functions that are not in the list: they reach files, memory or other processes, or are no computation.
_REFUSED = _names(
    "from_file from_blob from_dlpack to_dlpack data_ptr record_stream "
    # these read addresses, or the layout of memory, from the values of a packed tensor
    "fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation fbgemm_linear_int8_weight "
    "fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_quantize_weight fbgemm_pack_gemm_matrix_fp16 "
    "fbgemm_pack_quantized_matrix mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight mkldnn_rnn_layer miopen_rnn "
    "quantized_lstm_cell quantized_gru_cell quantized_rnn_relu_cell quantized_rnn_tanh_cell"
)


def is_harmless(func: Any) -> bool:
    """Whether a file may name a function: it is torch's own, and computes on its arguments alone.

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
        is_helper = func.__module__ != TENSOR_MODULE  # Python around functions that are called by name
        return func is torch.autograd.grad or (func.__module__ in FUNCTION_MODULES and (is_helper or _may_be_named(name)))
    if not isinstance(func, C_FUNCTIONS) or not _may_be_named(name):
        return False
    is_method = name.startswith("__")
    return is_method or name in _WITHOUT_SCHEMA or bool(aten_schemas(name))


def _may_be_named(name: str) -> bool:
    """Whether a function is public by its name, or one of the private ones that programs call."""
    if name.startswith("__"):
        bare = name.strip("_")
        return name in _METHODS or any(bare == f"{before}{one}" for before in ("", "i", "r") for one in _OPERATORS)
    if "backward" in name:
        return name in _BACKWARD
    if name.startswith("inductor_"):
        return False  # operators of torch's compiler for its own code
    return not name.startswith("_") or name in _PRIVATE or name.startswith("_foreach_")
