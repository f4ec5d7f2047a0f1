"""Groups of functions, by plain name, that torch's schemas and tags do not distinguish."""

from __future__ import annotations

from typing import Any


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Building blocks of layers ---------------------------------------------------------------------------------------------

CONVOLUTIONS = _names(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution conv_tbc cudnn_convolution "
    "mkldnn_convolution cudnn_convolution_transpose cudnn_convolution_relu cudnn_convolution_add_relu "
    "miopen_convolution miopen_convolution_transpose miopen_depthwise_convolution miopen_convolution_relu "
    "miopen_convolution_add_relu"
)
LINEAR = _names("linear addmm matmul mm bilinear")  # fully connected, if one factor is a parameter
LOOK_UPS = _names("embedding embedding_bag")
INPUTS_FIRST = _names("addmm matmul mm") | LOOK_UPS  # functions whose weight has the shape inputs × units
RECURRENT = _names(
    "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell thnn_fused_lstm_cell thnn_fused_gru_cell "
    "cudnn_rnn mkldnn_rnn_layer lstm_mps miopen_rnn quantized_lstm_cell quantized_gru_cell quantized_rnn_relu_cell "
    "quantized_rnn_tanh_cell"
)
ATTENTION = _names(
    "scaled_dot_product_attention scaled_dot_product_flash_attention scaled_dot_product_flash_attention_for_cpu "
    "scaled_dot_product_efficient_attention scaled_dot_product_cudnn_attention scaled_dot_product_attention_math "
    "multi_head_attention_forward native_multi_head_attention flash_attention_forward efficient_attention_forward "
    "transformer_encoder_layer_fwd scaled_dot_product_fused_attention_overrideable triton_multi_head_attention "
    "triton_scaled_dot_attention cudnn_attention_forward scaled_dot_product_attention_math_for_mps flex_attention"
)
# Functions that torch's modules call on their fused path.
FUSED_LAYERS = _names("transformer_encoder_layer_fwd native_multi_head_attention")
ACTIVATIONS = _names(
    "relu relu6 leaky_relu prelu rrelu rrelu_with_noise elu selu celu gelu silu mish glu tanh sigmoid logsigmoid hardtanh "
    "hardswish hardsigmoid hardshrink softshrink tanhshrink softplus softsign softmax log_softmax softmin threshold "
    "gumbel_softmax masked_softmax safe_softmax"
)
# Activation functions for which a unit that never exceeds zero is not dead.
TWO_SIDED = _names(
    "tanh sigmoid logsigmoid hardtanh hardsigmoid hardshrink softshrink tanhshrink softplus softsign softmax log_softmax "
    "softmin glu gumbel_softmax masked_softmax safe_softmax"
)
BATCH_NORMS = _names(
    "batch_norm native_batch_norm native_batch_norm_legit batch_norm_with_update batch_norm_impl_index "
    "cudnn_batch_norm miopen_batch_norm instance_norm"
)  # batch norms may update running statistics
NORMALISATIONS = BATCH_NORMS | _names(
    "native_batch_norm_legit_no_training batch_norm_no_update batch_norm_elemt quantized_batch_norm layer_norm "
    "native_layer_norm group_norm native_group_norm rms_norm fused_rms_norm local_response_norm normalize "
    "batch_norm_stats batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_update_stats "
    "batch_norm_backward_elemt batch_norm_backward_reduce"
)
DROPOUTS = _names(
    "dropout alpha_dropout feature_dropout feature_alpha_dropout dropout1d dropout2d dropout3d native_dropout fused_dropout"
)
POOLING = frozenset(
    f"{kind}{dims}d{end}"
    for kind in _names("max_pool avg_pool adaptive_max_pool adaptive_avg_pool lp_pool fractional_max_pool max_unpool")
    for dims in "123"
    for end in ("", "_with_indices")
) | _names(
    "mkldnn_max_pool2d mkldnn_adaptive_avg_pool2d mkldnn_max_pool3d quantized_max_pool1d quantized_max_pool2d "
    "quantized_max_pool3d"
)
RESAMPLING = frozenset(
    f"upsample_{mode}"
    for mode in "nearest1d nearest2d nearest3d nearest_exact1d nearest_exact2d nearest_exact3d linear1d "
    "bilinear2d trilinear3d bicubic2d bilinear2d_aa bicubic2d_aa".split()
) | _names(
    "interpolate upsample upsample_nearest upsample_bilinear grid_sample grid_sampler grid_sampler_2d grid_sampler_3d "
    "cudnn_grid_sampler pixel_shuffle pixel_unshuffle"
)
LOSSES = _names(
    "cross_entropy cross_entropy_loss nll_loss nll_loss2d nll_loss_nd binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div ctc_loss cudnn_ctc_loss miopen_ctc_loss mse_loss l1_loss smooth_l1_loss "
    "huber_loss soft_margin_loss hinge_embedding_loss cosine_embedding_loss margin_ranking_loss multi_margin_loss "
    "multilabel_margin_loss multilabel_soft_margin_loss triplet_margin_loss triplet_margin_with_distance_loss "
    "poisson_nll_loss gaussian_nll_loss linear_cross_entropy"
)

QUANTIZED_LINEAR = _names(
    "fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation fbgemm_linear_int8_weight "
    "fbgemm_linear_int8_weight_fp32_activation"
)
# Arithmetic without a FLOP formula, listed so that `TorchFunction.is_known` finds it.
UNCOUNTED = _names(
    "gradient hspmm smm linalg_matrix_exp native_norm ormqr linalg_ldl_solve linalg_lu_solve linalg_tensorinv "
    "linalg_tensorsolve choose_qparams_optimized fbgemm_linear_quantize_weight fused_moving_avg_obs_fake_quant "
    "quantize_per_tensor_dynamic cudnn_affine_grid_generator mkldnn_linear_backward_weights"
)

# Reductions that torch does not tag.
REDUCTIONS = _names(
    "sum mean max min amax amin argmax argmin prod std var std_mean var_mean norm linalg_norm linalg_vector_norm "
    "linalg_matrix_norm frobenius_norm nuclear_norm norm_except_dim all any topk cumsum cumprod cummax cummin logcumsumexp "
    "logsumexp median nanmedian quantile nanquantile mode kthvalue count_nonzero sort argsort msort unique unique2 "
    "unique_consecutive unique_dim aminmax nanmean nansum trace histc histogram histogramdd histogramdd_bin_edges "
    "histogramdd_from_bin_cts histogramdd_from_bin_tensors bincount segment_reduce dist sum_to_size hash_tensor linalg__powsum"
)

# Moving, choosing and making values -----------------------------------------------------------------------------------

CONVERSIONS = _names(
    "to type type_as float double half bfloat16 int long short char byte bool cfloat cdouble chalf cpu cuda xpu ipu mtia "
    "autocast_to_full_precision autocast_to_reduced_precision"
)
RESHAPES = _names("reshape reshape_as flatten ravel align_as")  # views if the strides allow
ONE_FOR_EACH = _names("broadcast_tensors meshgrid atleast_1d atleast_2d atleast_3d")  # return a view of each argument
# Functions whose result has the values of their argument, possibly several times, in another order, dtype or memory.
REARRANGEMENTS = (
    CONVERSIONS
    | RESHAPES
    | _names(
        "clone contiguous detach alias expand expand_as broadcast_to broadcast_tensors repeat tile repeat_interleave view "
        "view_as unflatten unsqueeze squeeze transpose permute movedim moveaxis swapaxes swapdims t adjoint getitem select "
        "narrow slice as_strided view_as_real view_as_complex .T .mT .H .mH .data atleast_1d atleast_2d atleast_3d "
        "to_dense resolve_conj resolve_neg lift_fresh identity autocast_to_full_precision autocast_to_reduced_precision "
        "unsafe_view reshape_alias pin_memory"
    )
)
JOINS = _names("cat stack hstack vstack dstack column_stack concat concatenate")
HAND_BACK = _names("contiguous getitem conj_physical histogramdd sum_to_size")  # may return an argument
UNSCHEMED_VIEWS = _names(  # views that no schema marks
    "unsafe_view reshape_alias unsafe_chunk unsafe_split unsafe_split_with_sizes resolve_conj resolve_neg "
    ".T .mT .H .mH .real .imag .data"
)
MOVES_CHANNELS = _names("transpose permute movedim t .T .mT .H .mH adjoint")
COPIES = _names(
    "clone copy contiguous to_dense to_sparse to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc to_mkldnn "
    "to_padded_tensor nested_to_padded_tensor dequantize lift_fresh lift_fresh_copy pin_memory deepcopy array_wrap "
    "int_repr sparse_mask sparse_mask_projection fbgemm_pack_gemm_matrix_fp16 fbgemm_pack_quantized_matrix "
    "q_per_channel_scales q_per_channel_zero_points nested_tensor_size nested_tensor_storage_offsets "
    "nested_tensor_strides coalesce reversed"
)
ARRANGEMENTS = _names(
    "cat stack hstack vstack dstack column_stack block_diag tile repeat repeat_interleave roll rot90 flip fliplr flipud tril "
    "triu diag diagflat diag_embed pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d "
    "replication_pad2d replication_pad3d meshgrid broadcast_tensors broadcast_to cartesian_prod combinations "
    "channel_shuffle native_channel_shuffle pack_padded_sequence pad_packed_sequence pad_sequence nested_from_padded "
    "nested_tensor_from_tensor_list numpy_T chunk_cat"
)
SELECTIONS = _names(
    "getitem setitem index index_put index_copy index_fill index_select masked_fill masked_scatter masked_select where gather "
    "scatter select_scatter slice_scatter diagonal_scatter as_strided_scatter take take_along_dim put nonzero nonzero_static "
    "argwhere one_hot searchsorted bucketize index_add scatter_add scatter_reduce index_reduce nonzero_numpy"
)
CONSTRUCTORS = _names(  # the result depends on no values of another tensor
    "zeros ones full empty empty_quantized empty_affine_quantized empty_per_channel_affine_quantized make_dep_token "
    "functional_sym_constrain_range empty_strided empty_permuted "
    "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided new_tensor new "
    "tensor as_tensor scalar_tensor from_file frombuffer from_numpy asarray eye arange range linspace logspace vander "
    "hann_window hamming_window bartlett_window blackman_window kaiser_window tril_indices triu_indices "
    "sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor sparse_compressed_tensor "
    "from_dlpack"
)
OVERWRITES = _names(
    "fill fill_diagonal zero apply map map2 coalesced sparse_resize sparse_resize_and_clear set set_data data resize "
    "resize_as resize_as_sparse resize_output detach requires_grad"
)
SAMPLING = _names(  # functions that draw random numbers, beyond torch's tags
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial poisson binomial "
    "uniform random exponential geometric cauchy log_normal standard_gamma sample_dirichlet"
)
RANDOM_BESIDES = _names("gumbel_softmax fractional_max_pool2d fractional_max_pool3d")  # random functions of other categories
UNINITIALISED = _names(
    "empty empty_like new_empty empty_strided new_empty_strided empty_permuted empty_quantized empty_affine_quantized "
    "empty_per_channel_affine_quantized new"
)
RESIZING = _names("resize resize_as resize_output")  # only elements beyond the old size are uninitialised

# Other properties -----------------------------------------------------------------------------------------------------

# Functions whose result differs in some bits if their work space has another address, on the CPU too.
VARY_WITH_MEMORY = _names("linalg_lstsq")
# Functions that torch does not promise to be deterministic, mostly because of atomic additions on accelerators.
NONDETERMINISTIC = (
    _names(
        "index_add scatter_add scatter_reduce index_reduce index_put setitem put bincount cumsum cumprod histc interpolate "
        "grid_sample grid_sampler grid_sampler_2d grid_sampler_3d ctc_loss embedding_bag median nanmedian kthvalue nll_loss "
        "cross_entropy cross_entropy_loss adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d col2im grad "
        "scaled_dot_product_attention upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d upsample_linear1d "
        "max_unpool1d max_unpool2d max_unpool3d"
    )
    | VARY_WITH_MEMORY
)
# Functions that may write several values to one place; on accelerators any of the values may stay.
RACING = _names("index_put setitem put scatter index_copy max_unpool1d max_unpool2d max_unpool3d")
# Functions whose two arguments may be swapped.
COMMUTATIVE = _names(
    "add mul eq ne maximum minimum fmax fmin logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor hypot "
    "logaddexp logaddexp2 isclose allclose equal dot vdot inner cdist mse_loss l1_loss gcd lcm"
)
# Element-wise functions without torch's tag `pointwise`, mostly composed of other functions.
ELEMENTWISE = _names(
    "abs acos acosh asin asinh atan atanh atan2 mul sub div neg clamp trunc gt ge lt le ne sigmoid digamma lgamma "
    "igamma igammac mvlgamma floor_divide hardswish isclose logsigmoid ndtr polar prelu softsign tanhshrink selu celu "
    "relu6 mish silu rrelu fake_quantize_per_tensor_affine quantize_per_tensor dropout alpha_dropout native_dropout "
    "copy fill zero clone contiguous detach positive rsub float_power ldexp xlog1py log_ndtr softplus threshold "
    "leaky_relu hardtanh hardshrink softshrink hardsigmoid conj where masked_fill isreal frexp complex ilshift irshift .real "
    ".imag .data real imag"
)
NOT_ELEMENTWISE = _names("max min equal glu isin")  # only some overloads are tagged `pointwise`
# Functions that may come between a layer and its activation: normalisation, pooling, dropout, reshaping, adding a shortcut.
BETWEEN_LAYERS = (
    _names("add sub mul div contiguous clone pad constant_pad_nd interpolate cat identity")
    | NORMALISATIONS
    | DROPOUTS
    | POOLING
    | CONVERSIONS
    | RESHAPES
)
# Functions that hand out the memory of a tensor, to which any code may write from then on.
EXPORTS = frozenset({"numpy", "__array__", "__dlpack__"})
# Queries that hand out the memory, too, but are mostly used to compare addresses.
POINTERS = frozenset({"data_ptr", "storage", "untyped_storage", "_typed_storage", "share_memory_", "__cuda_array_interface__"})
# Functions that make a tensor from the memory of an argument that is not a tensor.
TAKE_MEMORY = frozenset({"as_tensor", "asarray", "from_file", "frombuffer", "from_dlpack", "__array_wrap__"})
GRADIENT_ACCESS = frozenset({"grad", "_grad", "set_grad", "set__grad"})
GRADIENT_SWITCHES = frozenset({"requires_grad_", "set_requires_grad", "detach_"})
UNSCALES = "amp_foreach_non_finite_check_and_unscale"  # a gradient scaler calls it to divide the gradients


def groups() -> dict[str, Any]:
    """Every group, by name."""
    return {name: value for name, value in globals().items() if name.isupper() and isinstance(value, frozenset)}
