"""Tensors that are made of others: sparse, quantised and nested ones, and those on the meta device.

Each is taken apart into strided tensors, which are written as such, and a few facts. A tensor that could not be put together
again is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import CannotBeSaved
from ..tensor_memory import COMPRESSED
from ..torch_internals import nested_from_parts, nested_parts, quantised_from_parts, sparse_parts
from .checking import fields, flag, number, real, refuse, sizes, text
from .values import read_dtype

Form = tuple[dict[str, Any], dict[str, Tensor]]  # facts, and parts by name

_LAYOUTS = {str(layout)[6:]: layout for layout in COMPRESSED}


def parts_of(tensor: Tensor, what: str) -> Form | None:
    """What a tensor is made of; None for a strided tensor, which is written as it is."""
    if tensor.is_nested:
        return _nested(tensor, what)
    if tensor.is_quantized:
        return _quantised(tensor, what)
    if tensor.device.type == "meta":
        shape, strides = list(tensor.shape), list(tensor.stride())
        return {"form": "meta", "dtype": str(tensor.dtype)[6:], "shape": shape, "strides": strides}, {}
    if tensor.layout is torch.strided:
        return None
    if type(tensor) is Tensor and tensor.layout is torch.sparse_coo:
        facts = {"form": "sparse_coo", "shape": list(tensor.shape), "is_coalesced": tensor.is_coalesced()}
        return facts, dict(zip(("indices", "values"), sparse_parts(tensor), strict=True))
    if type(tensor) is Tensor and tensor.layout in COMPRESSED:
        parts = {key: getattr(tensor, key)() for key in COMPRESSED[tensor.layout]}
        return {"form": str(tensor.layout)[6:], "shape": list(tensor.shape)}, parts
    raise _refused(tensor, what)


def _refused(tensor: Tensor, what: str) -> CannotBeSaved:
    return not_in_a_file(what, f"{type(tensor).__name__} ({tensor.dtype}, {tensor.layout})")


def not_in_a_file(what: str, kind: str) -> CannotBeSaved:
    """The error for a tensor of a kind that no file can give back."""
    return CannotBeSaved(
        f"{what} is a {kind}, which no file can give back. Leave it out: activations= of save, or layers_to_save= of a log "
        "with save_to=, says which activations are written; parameters are written with params=True alone."
    )


def _nested(tensor: Tensor, what: str) -> Form:
    found = nested_parts(tensor)
    if found is None:
        raise _refused(tensor, what)
    facts, parts = found
    return {"form": "nested", **facts}, parts


def _quantised(tensor: Tensor, what: str) -> Form:
    scheme = tensor.qscheme()
    facts: dict[str, Any] = {"form": "quantised", "dtype": str(tensor.dtype)[6:]}
    if scheme is torch.per_tensor_affine and tensor.dtype in (torch.quint8, torch.qint8, torch.qint32):
        facts |= {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
        return facts, {"values": tensor.int_repr()}
    if scheme in (torch.per_channel_affine, torch.per_channel_affine_float_qparams) and tensor.dtype is not torch.quint4x2:
        parts = {"values": tensor.int_repr(), "scales": tensor.q_per_channel_scales()}
        return facts | {"axis": tensor.q_per_channel_axis()}, parts | {"zero_points": tensor.q_per_channel_zero_points()}
    raise _refused(tensor, what)


# Reading ----------------------------------------------------------------------------------------------------------------


def put_together(facts: dict[str, Any], part: Callable[[str], Tensor]) -> Tensor:
    """The tensor that was made of these parts, which `part(name)` reads."""
    form = text(facts.get("form"), "the form of a tensor")
    if form == "meta":
        shape, strides = sizes(facts.get("shape"), "a shape"), sizes(facts.get("strides"), "strides")
        return torch.empty_strided(shape, strides, dtype=read_dtype(facts.get("dtype")), device="meta")
    names = fields(facts.get("parts"), "the parts of a tensor")

    def read(key: str) -> Tensor:
        return part(text(names.get(key), "a part of a tensor"))

    if form == "quantised":
        return _read_quantised(facts, read)
    if form == "nested":
        return nested_from_parts(facts, {key: read(key) for key in names})
    shape = sizes(facts.get("shape"), "a shape")
    with torch.sparse.check_sparse_tensor_invariants(enable=True):  # type: ignore[no-untyped-call]  # torch's own
        if form == "sparse_coo":
            is_coalesced = flag(facts.get("is_coalesced"), "whether a tensor is coalesced")
            return torch.sparse_coo_tensor(read("indices"), read("values"), shape, is_coalesced=is_coalesced)
        if form not in _LAYOUTS:
            refuse(f"a tensor has an unknown form, {form[:40]!r}")
        layout = _LAYOUTS[form]
        compressed, plain, values = map(read, COMPRESSED[layout])
        return torch.sparse_compressed_tensor(compressed, plain, values, shape, layout=layout)


def _read_quantised(facts: dict[str, Any], read: Callable[[str], Tensor]) -> Tensor:
    dtype = read_dtype(facts.get("dtype"))
    if "axis" in facts:
        axis = number(facts["axis"], "an axis", 0, 64)
        return quantised_from_parts(read("values"), dtype, (read("scales"), read("zero_points"), axis))
    scale, zero = real(facts.get("scale"), "a scale"), number(facts.get("zero_point"), "a zero point", -(2**31), 2**31)
    return quantised_from_parts(read("values"), dtype, (scale, zero))
