"""The names in one recording, with which keys are matched."""

from __future__ import annotations

import copy
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from ..display import few, nearest
from ..errors import InvalidArgument
from ..functions import facts, groups
from ..records import FUNCTION, ClassNames, Log, ModuleCall, Origin
from .index import Index
from .layers.labels import LayerTable


class IndexNames:
    """The labels, addresses and types of a recording. See `torcheer.keys.Names`."""

    def __init__(self, index: Index, operation: Callable[[Index, int], Any] | None = None) -> None:
        self._table: LayerTable = index.table
        self._index = weakref.ref(index)
        self._operation = operation
        self._numbers = range(index.length)
        self._calls = index.calls
        self._registered = index.log.registered
        self.first_addresses: Mapping[str, str] = index.first_addresses

    def without_tensors(self) -> IndexNames:
        """The same names without a reference to any tensor, for objects that live longer than the history."""
        light = copy.copy(self)
        light.__dict__["classes"] = self.classes
        light._registered = {}
        log = self._table.log
        light._table = copy.copy(self._table)
        light._table.log = Log(log.title, rows=log.rows, functions=log.functions)
        return light

    # Layers ---------------------------------------------------------------------------------------------------------

    def labelled(self, label: str, *, short: bool = False) -> Sequence[int] | None:
        entry = self._table.labelled(label, short=short)
        return entry.passes if entry is not None else None

    def label_of(self, number: int) -> str:
        return self._table.label_of(number)

    def layers(self, which: slice) -> list[Sequence[int]]:
        return [self._table.layer(number).passes for number in range(len(self._table))[which]]

    def __len__(self) -> int:
        return len(self._table)

    def labels(self) -> Iterator[tuple[str, Sequence[int]]]:
        return ((self._table.label(layer), layer.passes) for layer in self._table.layers)

    def ends(self, kind: str) -> list[Sequence[int]]:
        origin, log = Origin(kind), self._table.log
        return [layer.passes for layer in self._table.layers if log.function_of(layer.passes[0]).origin is origin]

    def shows(self, number: int) -> bool:
        return self._table.shows(number)

    # Modules ----------------------------------------------------------------------------------------------------------

    @cached_property
    def classes(self) -> Mapping[str, type | ClassNames]:
        return {address: module.cls for address, module in self._registered.items()}

    def calls(self, address: str) -> Sequence[ModuleCall]:
        return self._calls.get(address, ())

    # Operations -------------------------------------------------------------------------------------------------------

    def of_function(self, function: Callable[..., Any]) -> list[int]:
        log, kind = self._table.log, layer_type_of(function)
        fitting = {number for number, known in enumerate(log.functions) if known.type == kind}
        return [n for n in self._numbers if log.rows[n][FUNCTION] in fitting and self.shows(n)]

    def operations(self) -> Iterator[tuple[int, Any]]:
        index, make = self._index(), self._operation
        if index is None or make is None:
            raise InvalidArgument(
                "a function of an operation needs the history that this graph was made from, which is gone. "
                "Keep the history, or use another key."
            )
        return ((number, make(index, number)) for number in index.operations)

    # What can be typed ------------------------------------------------------------------------------------------------

    def known(self) -> list[str]:
        """Every label and every module address that can be typed."""
        return [*(label for label, _ in self.labels()), *(address for address in self._calls if address)]

    def not_found(self, what: str) -> str:
        others = [other for other, first in self.first_addresses.items() if first in self._calls]
        known = [*self.known(), *others]
        some = [address for address in self._calls if address][:3] + known[1:3]
        hint = nearest(what, known, "keys")
        if not hint and known:
            hint = f" Keys are, for example, {', '.join(map(repr, dict.fromkeys(some)))}."
        return f"no layer fits {what!r}: this history has {len(self)} layers.{hint}{self.hint(what)}"

    def hint(self, what: str) -> str:
        kind = what.replace("_", "").lower()
        if kind in {known.type for known in self._table.log.functions}:
            return f" {kind!r} is a type of layers: '{kind}_*' means all of them."
        if "softmax" not in kind:
            return ""
        fused = [label for label, passes in self.labels() if self._table.log.function_of(passes[0]).is_in(groups.ATTENTION)]
        if not fused:
            return ""
        computes = "compute" if len(fused) > 1 else "computes"
        return (
            f" Attention is fused here: {few(fused, 3)} {computes} it as one function, inside which there is no softmax to "
            "see. To see inside, use attn_implementation='eager' (models of transformers); need_weights=True and "
            "torch.backends.mha.set_fastpath_enabled(False) (nn.MultiheadAttention); or write "
            "softmax(q @ k.transpose(-2, -1) * scale, -1) @ v."
        )


def layer_type_of(function: Callable[..., Any]) -> str:
    """The layer type of a torch function's operations; `operator.truediv` is what `/` is."""
    name = getattr(function, "__name__", "")
    if getattr(operator, name, None) is function:
        function = getattr(Tensor, f"__{name.strip('_')}__", function)
    return facts(function).type
