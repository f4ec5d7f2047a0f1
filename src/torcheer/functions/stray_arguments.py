"""Arguments that lead a function of torch's out of memory, and that torch does not check: a replay refuses them.

A saved history says with which arguments a replay calls a function. torch checks nearly all of them. What it does not check was
found by calling every function that a file may name with arguments that lie at the end of memory, beyond which a read ends the
process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..errors import InvalidArgument
from ..tensor_memory import COMPRESSED
from ..torch_internals import sparse_parts
from . import groups
from .facts import TorchFunction
from .signatures import names_of, positional_names

_Arguments = dict[str, Any]  # by name
_ENUMERATIONS = ("memory_format", "layout", "dtype")  # which operators take as whole numbers, too
_STATISTICS = ("weight", "bias", "running_mean", "running_var")


def refuse_stray(function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise `InvalidArgument` where a call with these arguments would read or write memory that is not theirs."""
    check = _CHECKS.get(function.plain_name)
    is_group = function.name.startswith(("_foreach_", "_fused_"))
    if check is None and not is_group and not any(type(one) is int for one in map(kwargs.get, _ENUMERATIONS)):
        return
    named = _named(function, args, kwargs)
    for name in _ENUMERATIONS:
        _must(type(named.get(name)) is not int, f"{name} is a whole number")
    if is_group:
        _lists(named, function.name.startswith("_fused_"))
    if check is not None:
        check(named)


def _named(function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    names = positional_names(function, args, [isinstance(one, Tensor) for one in args])
    if not all(names):
        names = list(names_of(function))
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _must(holds: object, what: str) -> None:
    if not holds:
        _refuse(what)


def _refuse(what: str) -> NoReturn:
    raise InvalidArgument(f"its arguments lead out of memory: {what}")


def _tensor(named: _Arguments, *names: str) -> Tensor | None:
    """The first of these arguments that is a tensor."""
    return next((named[name] for name in names if isinstance(named.get(name), Tensor)), None)


def _is_within(values: Tensor, low: int, high: int) -> bool:
    """Whether all values are from `low` to below `high`."""
    plain = values.detach()
    return not plain.numel() or (int(plain.min()) >= low and int(plain.max()) < high)


def _numbers(value: Any) -> Tensor:
    return value.detach().to("cpu", torch.int64) if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.int64)


# What is checked, by name of the function ----------------------------------------------------------------------------------


def _batch_norm(named: _Arguments) -> None:
    given = _tensor(named, "input")
    if given is None or given.dim() < 2:
        _refuse("what is normalised has no channels")
    for name in _STATISTICS:
        one = named.get(name)
        _must(
            not isinstance(one, Tensor) or tuple(one.shape) == (given.shape[1],), f"{name} is not one number for each channel"
        )
    if not named.get("training", named.get("train", True)):
        _must(all(isinstance(named.get(name), Tensor) for name in _STATISTICS[2:]), "there are no running statistics")


def _pivots(named: _Arguments) -> None:
    matrix, pivots = _tensor(named, "LU_data", "LU", "LD"), _tensor(named, "LU_pivots", "pivots")
    if matrix is None or pivots is None or matrix.dim() < 2:
        _refuse("there are no pivots")
    shape = (*matrix.shape[:-2], min(matrix.shape[-2:]))
    _must(tuple(pivots.shape) == tuple(shape), "the pivots are not as many as the rows")
    _must(_is_within(pivots.abs(), 1, matrix.shape[-2] + 1), "a pivot is the number of no row")


def _segments(named: _Arguments) -> None:
    data, axis = _tensor(named, "data"), named.get("axis") or 0
    if data is None or not isinstance(axis, int) or not 0 <= axis < data.dim():
        _refuse("there is no such axis")
    for name, ends in (("lengths", False), ("offsets", True)):
        given = _tensor(named, name)
        if given is None:
            continue
        _must(given.shape[:-1] == data.shape[:axis] and given.dim() == axis + 1, f"{name} do not fit the data")
        numbers = _numbers(given)
        _must(_is_within(numbers, 0, data.shape[axis] + 1), f"{name} reach beyond the data")
        if ends:
            _must(not bool((numbers.diff(dim=-1) < 0).any()) and numbers.shape[-1], "offsets do not increase")
        else:
            _must(not bool((numbers.sum(-1) > data.shape[axis]).any()), "lengths add up to more than there is")


def _ctc(named: _Arguments) -> None:
    values, targets = _tensor(named, "log_probs"), _tensor(named, "targets")
    if values is None or targets is None or values.dim() < 2 or not values.shape[-1]:
        _refuse("there are no targets or no classes")
    inputs, lengths = (_numbers(named.get(name)).reshape(-1) for name in ("input_lengths", "target_lengths"))
    _must(_is_within(targets, 0, values.shape[-1]), "a target is no class")
    _must(0 <= (named.get("blank") or 0) < values.shape[-1], "the blank is no class")
    _must(_is_within(inputs, 0, values.shape[0] + 1), "an input is longer than there are steps")
    most = targets.shape[1] if targets.dim() == 2 and values.dim() == 3 else targets.numel()
    _must(_is_within(lengths, 0, most + 1), "a target is longer than there are numbers")
    _must(targets.dim() != 1 or int(lengths.sum()) <= targets.numel(), "targets add up to more than there is")


def _embedding_bag(named: _Arguments) -> None:
    weight, indices, offsets = _tensor(named, "weight"), _tensor(named, "input", "indices"), _tensor(named, "offsets")
    if weight is None or indices is None or weight.dim() != 2:
        _refuse("there is no weight or no index")
    if indices.is_floating_point() and not weight.is_floating_point():  # the order of the arguments was another one
        weight, indices = indices, weight
    _must(_is_within(indices, 0, weight.shape[0]), "an index is the number of no row")
    factors = _tensor(named, "per_sample_weights")
    _must(factors is None or factors.shape == indices.shape, "there are not as many weights as indices")
    if offsets is not None:
        _must(_is_within(offsets, 0, indices.numel() + 1), "an offset is beyond the indices")
        _must(not bool((_numbers(offsets).diff() < 0).any()), "offsets do not increase")


def _transform(named: _Arguments) -> None:
    given, dims = _tensor(named, "self"), named.get("dim")
    count = given.dim() if given is not None else 0
    _must(all(isinstance(one, int) and -count <= one < count for one in dims or ()), "there is no such dimension")


def _samples(named: _Arguments) -> None:
    samples = _tensor(named, "_random_samples", "random_samples")
    _must(samples is None or bool(((samples >= 0) & (samples <= 1)).all()), "a random sample is not from 0 to 1")


def _sequences(named: _Arguments) -> None:
    """Sequences of several lengths, one after the other: `batch_sizes` says how many are in each step."""
    sizes, data = _tensor(named, "batch_sizes"), _tensor(named, "data", "input")
    if sizes is None or data is None:
        return
    numbers = _numbers(sizes)
    _must(numbers.dim() == 1 and numbers.numel() and _is_within(numbers, 1, len(data) + 1), "there are no batch sizes")
    _must(not bool((numbers.diff() > 0).any()) and int(numbers.sum()) == len(data), "the batch sizes do not fit the data")
    states = named.get("hx")
    for one in states if isinstance(states, (list, tuple)) else [states]:
        _must(not isinstance(one, Tensor) or one.shape[-2:-1] == (int(numbers[0]),), "the states do not fit the batch sizes")


def _lengths(named: _Arguments) -> None:
    given, lengths = _tensor(named, "input"), named.get("lengths")
    if given is None or lengths is None or given.dim() < 2:
        _refuse("there are no sequences")
    is_first = bool(named.get("batch_first"))
    numbers = _numbers(lengths)
    _must(numbers.numel() == given.shape[0 if is_first else 1], "there are not as many lengths as sequences")
    _must(_is_within(numbers, 1, given.shape[1 if is_first else 0] + 1), "a length is more than there is")


def _scales(named: _Arguments) -> None:
    given, sizes = _tensor(named, "input", "self"), named.get("output_size")
    factors = [named.get(name) for name in ("scales_h", "scales_w")]
    if given is None or given.dim() != 4 or not isinstance(sizes, (list, tuple)):
        return
    for there, made, factor in zip(given.shape[2:], sizes, factors, strict=False):
        fits = factor is None or (isinstance(factor, (int, float)) and factor > 0 and made - 0.5 <= there * factor)
        _must(fits, "a scale leads beyond the picture")


def _max_pool_backward(named: _Arguments) -> None:
    given, indices = _tensor(named, "self", "input"), _tensor(named, "indices")
    if given is None or indices is None or given.dim() < 3:
        _refuse("there are no indices")
    _must(_is_within(indices, 0, given.shape[-1] * given.shape[-2]), "an index is that of no pixel")


def _pieces(named: _Arguments) -> None:
    tensors = named.get("tensors")
    _must(all(isinstance(one, Tensor) and one.dim() for one in tensors or ()), "a tensor has no dimension")


def _new(named: _Arguments) -> None:
    _must("cdata" not in named, "an address was given")


def _lists(named: _Arguments, is_fused: bool) -> None:
    """Lists of tensors that are taken together: of one length and, where an optimizer works on them, of the same shapes."""
    lists = {name: one for name, one in named.items() if isinstance(one, (list, tuple)) and one and isinstance(one[0], Tensor)}
    whole = next(iter(lists.values()), ())
    for name, one in lists.items():
        _must(len(one) == len(whole), "the lists of tensors are not of one length")
        for first, other in zip(whole, one, strict=True) if is_fused else ():
            _must(isinstance(other, Tensor), "a list holds something that is no tensor")
            is_right = other.numel() == 1 if name == "state_steps" else other.shape == first.shape
            _must(is_right, f"tensors are not of one shape: {name}")


def _weight_norm(named: _Arguments) -> None:
    directions, lengths, axis = named.get("v"), named.get("g"), named.get("dim", 0)
    if isinstance(directions, Tensor) and isinstance(lengths, Tensor) and axis in (0, directions.dim() - 1):
        _must(lengths.numel() == directions.shape[axis], "there is not one length for each direction")


def refuse_stray_indices(tensor: Tensor) -> None:
    """Raise `InvalidArgument` where a sparse tensor has indices that are outside it, which torch does not check by itself."""
    if tensor.layout is not torch.sparse_coo and tensor.layout not in COMPRESSED:
        return
    try:
        with torch.no_grad():
            if tensor.layout is torch.sparse_coo:
                torch.sparse_coo_tensor(*sparse_parts(tensor), tensor.shape, check_invariants=True)
            else:
                compressed, plain, values = (getattr(tensor, name)() for name in COMPRESSED[tensor.layout])
                torch.sparse_compressed_tensor(
                    compressed, plain, values, tensor.shape, layout=tensor.layout, check_invariants=True
                )
    except RuntimeError as error:
        _refuse(f"the indices of a sparse tensor do not fit it ({error})")


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
