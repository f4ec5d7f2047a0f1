"""Which tensors share memory: views, in-place results, and what only sometimes copies (`reshape`, `contiguous`, `to`).

Views are known from torch's schemas. Whether `reshape` and its like copied depends on strides, which a log does not hold: they
are followed from view to view on meta tensors, and taken from kept activations where there are any. A tensor that is no view
is taken to be contiguous, except that most elementwise results are laid out like their first argument of the same shape.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..containers import get_path
from ..functions import groups
from ..records import NAMES, TEMPLATE, Log, Origin
from ..shapes import contiguous_strides
from ..templates import fill_call
from ..torch_internals import DisableTorchFunction, storage_address
from .calls import FactsOf, TorchCall, calls_of

Strides = tuple[int, ...]

_LAID_OUT_LIKE = groups.DROPOUTS | {"gelu", "clone", "scaled_dot_product_attention"}
_LAID_OUT_AFRESH = frozenset({"masked_fill", "mvlgamma"})  # elementwise, and contiguous whatever their argument is
_LAID_OUT_AS_ASKED = groups.CONVERSIONS | {"clone", "contiguous"}
_RANKS = {torch.channels_last: 4, torch.channels_last_3d: 5}


class Storages:
    """The memory behind every operation of a log.

    `roots[n]` is the operation that first had the memory of operation `n`; a negative number is a parameter or a buffer.
    """

    def __init__(self, log: Log, facts: FactsOf, length: int) -> None:
        self._log = log
        self._facts = facts
        self._strides: dict[int, Strides] = {}  # where not contiguous
        self.roots: list[int] = []
        with DisableTorchFunction(), torch.no_grad():
            for call in calls_of(log, facts, length):
                for number in call.numbers:
                    slot = self._shared(call, number)
                    base = call.parents[slot] if slot is not None and slot < len(call.parents) else None
                    self.roots.append(number if base is None else self.root(base))
                    self._note_strides(call, number, base)

    def root(self, number: int) -> int:
        return self.roots[number] if number >= 0 else number

    def is_fresh(self, number: int) -> bool:
        """Whether an operation's tensor is the first in its memory: no view, and not written in place."""
        return self.roots[number] == number

    def strides(self, number: int) -> Strides:
        """How a tensor is laid out, as far as it is known."""
        if number < 0:
            state = self._log.states[-1 - number].tensor
            return tuple(state.stride()) if state.layout is torch.strided else ()
        return self._strides.get(number) or contiguous_strides(self._facts.of(number)[0])

    def reshapes_freely(self, number: int, shape: tuple[int, ...]) -> bool:
        """Whether a tensor can be seen in another shape without a copy."""
        if number >= 0 and number not in self._strides:
            return True
        with DisableTorchFunction(), torch.no_grad():
            tensor = self._meta(number)
            try:
                return storage_address(tensor.reshape(shape)) == storage_address(tensor)
            except RuntimeError:  # sizes that do not fit one another: a saved file may say anything
                return False

    def _shared(self, call: TorchCall, number: int) -> int | None:
        """The slot of the argument that a result shares its memory with."""
        function = call.function
        if function.origin is not Origin.OPERATION:
            return 0 if function.origin in (Origin.ALIAS, Origin.OUTPUT, Origin.INPUT) else None
        record = self._log.operations[number]
        if record.overwritten is not None:
            return record.overwritten
        name, parents = call.name, call.parents
        if not parents:
            return None
        if name == "getitem":
            return 0 if self._is_basic(call) else None
        if name in groups.CONVERSIONS:
            same = self._facts.of(number)[1:] == self._facts.of(parents[0])[1:]
            return 0 if same and not call.value(-1, "copy") and self._has_format(parents[0], _format(call)) else None
        if name == "contiguous":
            return 0 if self._has_format(parents[0], _format(call)) else None
        if name in groups.RESHAPES:
            return 0 if self.reshapes_freely(parents[0], self._facts.of(number)[0]) else None
        if name in groups.DROPOUTS:  # hands back its argument where there is nothing to drop
            training = call.value(2, "training", call.value(2, "train"))
            return None if call.value(1, "p", 0.5) and training else 0
        if name in groups.ONE_FOR_EACH:
            return number - call.numbers[0]
        return 0 if function.is_view else None

    def _has_format(self, number: int, layout: torch.memory_format) -> bool:
        """Whether a tensor is laid out as asked for, so that nothing is copied. Strides of dimensions of one do not count."""
        if layout is torch.preserve_format:
            return True
        is_plain = number >= 0 and number not in self._strides and layout is torch.contiguous_format
        return is_plain or self._meta(number).is_contiguous(memory_format=layout)

    def _is_basic(self, call: TorchCall) -> bool:
        """Whether an index makes a view: no lists, masks or tensors of indices in it."""
        index = call.args[1]
        items = index if type(index) is tuple else (index,)
        for item in items:
            if item is None or item is ... or type(item) in (int, slice):
                continue
            shape, dtype = getattr(item, "shape", None), getattr(item, "dtype", None)
            if shape != () or dtype is torch.bool:
                return False
        return True

    # Layout ---------------------------------------------------------------------------------------------------------

    def _note_strides(self, call: TorchCall, number: int, base: int | None) -> None:
        shape = self._facts.of(number)[0]
        if min(shape, default=0) < 0 or not shape:
            return
        found: Strides | None
        if base is None:
            found = self._kept_strides(number, shape) or self._inherited(call, shape)
        elif self._facts.of(base)[0] == shape and self._log.operations[number].overwritten is not None:
            found = self.strides(base)
        else:
            found = self._viewed(call, number)
        if (
            found is not None and len(found) == len(shape) and found != contiguous_strides(shape)
        ):  # a transform hides dimensions
            self._strides[number] = found

    def _kept_strides(self, number: int, shape: tuple[int, ...]) -> Strides | None:
        value = self._log.values[number]
        if isinstance(value, Tensor) and self._log.holds_tensors and value.layout is torch.strided and value.shape == shape:
            return tuple(value.stride())
        return None

    def _inherited(self, call: TorchCall, shape: tuple[int, ...]) -> Strides | None:
        layout = _format(call) if call.name in _LAID_OUT_AS_ASKED else torch.preserve_format
        if layout is not torch.preserve_format:
            rank = _RANKS.get(layout, len(shape))  # a transform hides dimensions
            return tuple(torch.empty(shape, device="meta", memory_format=layout).stride()) if rank == len(shape) else None
        is_elementwise = call.function.is_elementwise and call.name not in _LAID_OUT_AFRESH
        if is_elementwise or call.name in _LAID_OUT_LIKE:
            for parent in call.parents:
                if self._facts.of(parent)[0] == shape:
                    is_plain = parent >= 0 and parent not in self._strides
                    return None if is_plain else tuple(torch.empty_like(self._meta(parent)).stride())
        return None

    def _viewed(self, call: TorchCall, number: int) -> Strides | None:
        """The strides of a view: of the same view of a meta tensor."""
        func = call.function.func
        if func is None or call.name in groups.DROPOUTS or call.name in groups.CONVERSIONS:
            parent = call.parents[0]
            return self.strides(parent) if self._facts.of(parent)[0] == call.shape else None
        row = self._log.rows[number]
        tensors = (self._meta(parent) for parent in call.parents)
        try:
            args, kwargs = fill_call(row[TEMPLATE], row[NAMES], tensors)
            result = func(*args, **kwargs)
            view = get_path(result, self._log.operations[number].details.output_path)
        except Exception:  # functions may raise anything on meta tensors
            return None
        return tuple(view.stride()) if isinstance(view, Tensor) and view.layout is torch.strided else None

    def _meta(self, number: int) -> Tensor:
        shape, dtype, _ = self._facts.of(number)
        if not shape and not dtype.is_floating_point and not dtype.is_complex:
            return torch.zeros((), dtype=dtype, device="cpu")  # may be an index, and then its value is asked for
        return torch.empty_strided(shape, self.strides(number), dtype=dtype, device="meta")


def _format(call: TorchCall) -> torch.memory_format:
    """How a call is asked to lay its result out."""
    is_contiguous = call.name == "contiguous"
    default = torch.contiguous_format if is_contiguous else torch.preserve_format
    asked: torch.memory_format = call.value(1 if is_contiguous else -1, "memory_format", default)
    return asked
