"""Short texts that are equal where models, batches and functions are: by them it is known that an extraction may be resumed."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..containers import find_tensors, format_path
from ..torch_internals import DisableTorchFunction

_SIZE = 12  # bytes
_CHUNK = 1 << 24  # elements that are read at once


def tensor_digest(tensor: Tensor) -> str:
    """Of all values of a tensor, its type and its shape."""
    found = blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=_SIZE)
    with DisableTorchFunction(), torch.no_grad():
        plain = tensor.detach()
        if plain.is_nested or plain.layout is not torch.strided or plain.device.type == "meta":
            return found.hexdigest()
        if plain.is_quantized:
            plain = plain.int_repr()
        plain = plain.resolve_conj().resolve_neg()
        for part in torch.split(plain.reshape(-1), _CHUNK) if plain.numel() else ():
            data: Any = part.contiguous().view(torch.uint8).cpu().numpy()
            found.update(data)
    return found.hexdigest()


def state_digests(model: Module) -> dict[str, str]:
    """Of every parameter and buffer of a model, by name."""
    tensors = {name: one for name, one in (*model.named_parameters(), *model.named_buffers()) if _is_there(one)}
    with ThreadPoolExecutor(4) as pool:  # hashing does not hold Python's lock
        return dict(zip(tensors, pool.map(tensor_digest, tensors.values()), strict=True))


def _is_there(tensor: Tensor) -> bool:
    return not torch.nn.parameter.is_lazy(tensor)


def batch_digest(batch: Any) -> str:
    """Of all tensors in a batch and where they are, or of what else it is."""
    found = blake2b(digest_size=_SIZE)
    tensors = list(find_tensors(batch, into_objects=False))
    for path, tensor in tensors:
        found.update(f"{format_path(path)} {tensor_digest(tensor)}\n".encode())
    if not tensors:
        found.update(repr(batch).encode())
    return found.hexdigest()


def described_function(function: Any) -> Any:
    """A function in values that JSON has: its name and a digest of what it does, as far as Python shows it."""
    if function is None or isinstance(function, str):
        return function
    if isinstance(function, functools.partial):
        return ["partial", described_function(function.func), _value(function.args), _value(function.keywords)]
    if isinstance(function, Module):
        return [type(function).__qualname__, repr(function), batch_digest(list(state_digests(function).items()))]
    owner = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None and not isinstance(function, type):
        called = getattr(type(function).__call__, "__code__", None)
        state = {name: _value(value) for name, value in getattr(function, "__dict__", {}).items()}
        return [type(function).__qualname__, getattr(function, "__qualname__", ""), state, _code_digest(called)]
    cells = [_cell(cell) for cell in getattr(function, "__closure__", None) or ()]
    given = [_value(getattr(function, "__defaults__", None)), _value(getattr(function, "__kwdefaults__", None))]
    whose = type(owner).__qualname__ if owner is not None else ""
    return [whose, getattr(function, "__qualname__", repr(type(function))), _code_digest(code), cells, given]


def _cell(cell: Any) -> Any:
    try:
        return _value(cell.cell_contents)
    except ValueError:  # empty
        return None


def _value(value: Any) -> Any:
    """A value that a function uses: plain ones as they are, tensors by a digest, others by their class."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return tensor_digest(value)
    if isinstance(value, (list, tuple)):
        return [_value(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _value(one) for name, one in value.items()}
    if hasattr(value, "__code__"):
        return described_function(value)
    return type(value).__qualname__


def _code_digest(code: CodeType | None) -> str:
    if code is None:
        return ""
    found = blake2b(code.co_code, digest_size=_SIZE)
    for one in code.co_consts:
        found.update((_code_digest(one) if isinstance(one, CodeType) else repr(one)).encode())
    found.update(repr((code.co_names, code.co_varnames[: code.co_argcount])).encode())
    return found.hexdigest()
