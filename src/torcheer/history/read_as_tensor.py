"""Lets NumPy and torch read the activation of a layer or an operation, as a dense tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._torch.internals import DisableTorchFunction
from ..errors import InvalidArgument

# dtype that NumPy lacks -> the dtype that NumPy gets instead
_WIDER = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_WIDER.update({kind: torch.float32 for name, kind in vars(torch).items() if name.startswith("float8_")})


class ReadAsTensor:
    """Lets NumPy (`__array__`) and torch (`__dlpack__`) read a layer or an operation."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def activation(self) -> Any: ...

        @property
        def label(self) -> str: ...

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """The tensor for NumPy; float32 for the dtypes bfloat16 and float8, which NumPy does not have."""
        import numpy

        value = self.activation
        if not isinstance(value, Tensor):
            return numpy.asarray(value, dtype=dtype)
        plain = self._dense()
        try:
            with DisableTorchFunction():
                array = plain.to(_WIDER.get(plain.dtype, plain.dtype)).cpu().numpy()
        except (TypeError, RuntimeError) as error:
            raise self._refusal("by NumPy", error) from error
        wanted = array if dtype is None else array.astype(dtype, copy=False)
        if copy is False and not (wanted is array and _is_at(array.ctypes.data, value)):
            raise ValueError(f"the activation of {self.label} cannot be given to NumPy without a copy.")
        return wanted.copy() if copy and wanted is array else wanted

    def __dlpack__(self, **options: Any) -> Any:
        """The tensor for `torch.as_tensor` and other readers of DLPack."""
        try:
            return self._dense().__dlpack__(**options)
        except (BufferError, TypeError, RuntimeError) as error:
            raise self._refusal("by DLPack", error) from error

    def __dlpack_device__(self) -> Any:
        return self._dense().__dlpack_device__()

    def _dense(self) -> Tensor:
        """The activation as a strided tensor whose memory holds its values."""
        value = self.activation
        if not isinstance(value, Tensor):
            raise InvalidArgument(f"what activation_postfunc made is no tensor, but {type(value).__name__}: use .activation.")
        with DisableTorchFunction():
            if value.device.type == "meta":
                raise InvalidArgument(
                    f"the activation of {self.label} is on the meta device: it has a shape and a dtype, but no values."
                )
            if value.is_nested:
                raise InvalidArgument(
                    f"the activation of {self.label} is a nested tensor, which has no one shape: use .activation.unbind()."
                )
            plain = value.detach()
            if plain.is_quantized:
                plain = plain.dequantize()
            if plain.layout is not torch.strided:
                plain = plain.to_dense()
            return plain.resolve_conj().resolve_neg()

    def _refusal(self, reader: str, error: Exception) -> InvalidArgument:
        value = self.activation
        kind = f"{value.dtype}, {value.layout}, {type(value).__name__}".replace("torch.", "")
        return InvalidArgument(f"the activation of {self.label} cannot be read {reader} ({kind}): {error}. Use .activation.")


def _is_at(address: int, value: Tensor) -> bool:
    try:
        return value.data_ptr() == address
    except RuntimeError:  # a sparse tensor has no memory of its own
        return False
