"""What was kept of tensors: their statistics and, as far as there is room, small pictures of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import InvalidArgument
from ..graph import Node
from ..history import Operation
from ..history.index import Index
from ..history.printing.text import plural
from ..measure import Statistics, short, statistics_of
from ..shapes import shape_of
from ..web.page import packed
from ..web.schema import GRAPH, Plain, lean
from .previews import Plan, plan_of, preview_of

_Found = TypeVar("_Found")
Look = Callable[[], Plain | None]
Metrics = Mapping[str, Callable[[Tensor], Any]]
_TOGETHER = 1.03  # a part may compress a little worse among the others than on its own


class Values:
    """The kept tensors of one history. A tensor that is there twice (an output is what some operation made) is read once."""

    def __init__(self, index: Index, nodes: tuple[Node, ...]) -> None:
        self._index = index
        self._nodes = nodes
        self._tensors: dict[int, Tensor] = {}  # by node
        self._known: dict[object, tuple[Tensor, Plain | None]] = {}  # by memory, which the tensor keeps alive
        self._unread: list[str] = []
        self._failed: dict[str, list[str]] = {}  # by metric: where it raised
        self._metric_notes: list[str] = []

    @property
    def notes(self) -> list[str]:
        """What could not be read, and why."""
        tensors = plural(len(self._unread), "tensor")
        unread = [f"The values of {tensors} could not be read; the first: {self._unread[0]}"] if self._unread else []
        return [*self._metric_notes, *unread]

    # Statistics -----------------------------------------------------------------------------------------------------

    def add_statistics(self, plains: list[Plain]) -> None:
        """Add the statistics of each node's tensor, and of its gradient."""
        for number, (node, plain) in enumerate(zip(self._nodes, plains, strict=True)):
            if not node.operations:
                continue
            operation = Operation(self._index, node.operations[0])
            if operation.has_saved_activations and not self._index.log.is_lost(node.operations[0]):
                plain["saved"] = True
                value = operation.tensor_contents
                if isinstance(value, Tensor):
                    self._tensors[number] = value
                    plain |= self._statistics(node, value)
            gradient = operation.grad_contents
            if gradient is not None:
                plain["grad"] = {"shape": shape_of(gradient), **self._statistics(node, gradient)}

    def add_metrics(self, plains: list[Plain], metrics: Metrics) -> None:
        """Add what the user's functions return for the tensor of each node, where it was kept."""
        for number, tensor in self._tensors.items() if metrics else ():
            plains[number]["metrics"] = [self._figure(name, function, number, tensor) for name, function in metrics.items()]
        for name in metrics:
            failed = self._failed.get(name, [])
            if failed:
                self._metric_notes.append(f"{name!r} could not be worked out for {plural(len(failed), 'tensor')}: {failed[0]}.")

    def _figure(self, name: str, function: Callable[[Tensor], Any], number: int, tensor: Tensor) -> float | None:
        try:
            found = function(tensor.detach().clone())  # a copy, for it may be written to
        except Exception as error:  # a user's function may raise anything
            self._failed.setdefault(name, []).append(f"{self._nodes[number].key}, {type(error).__name__}: {error!s:.200}")
            return None
        try:
            figure = float(found)
        except (TypeError, ValueError, RuntimeError) as error:
            said = f"it returned {type(found).__name__} for {self._nodes[number].key}"
            raise InvalidArgument(f"metrics[{name!r}] is a function from a tensor to one number; {said}.") from error
        return short(figure) if math.isfinite(figure) else None

    def _statistics(self, node: Node, tensor: Tensor) -> Plain:
        """The key `stats`, where the tensor has statistics."""
        found = self._read(node, lambda: self._looked_up(tensor))
        return {"stats": found} if found is not None else {}

    def _looked_up(self, tensor: Tensor) -> Plain | None:
        key = _memory(tensor)
        if key is None or key not in self._known:
            self._known[key] = (tensor, shown_statistics(tensor))
        return self._known[key][1]

    def _read(self, node: Node, look: Callable[[], _Found]) -> _Found | None:
        try:
            return look()
        except Exception as error:  # a tensor of a user-defined class may raise anything
            self._unread.append(f"{node.key}, {type(error).__name__}: {error!s:.200}")
            return None

    # Previews -------------------------------------------------------------------------------------------------------

    def add_previews(self, plains: list[Plain], weights: list[tuple[Plain, Tensor]], room: int) -> int:
        """Add previews, the most telling first, until they take `room` bytes of a page. Returns how many are left out."""
        left_out = 0
        for plain, plan, look in self._pictures(plains, weights):
            if room <= 0:
                left_out += plan is not None
                continue
            preview = look()
            if preview is None:
                continue
            size = int(len(packed(json.dumps(preview).encode())) * _TOGETHER)
            if size > room:
                left_out += 1
                continue
            room -= size
            plain["preview"] = preview
        return left_out

    def _pictures(self, plains: list[Plain], weights: list[tuple[Plain, Tensor]]) -> Iterator[tuple[Plain, Plan | None, Look]]:
        """For each preview: the plain value it belongs to, its plan, and a function that draws it; activations first."""
        for number in sorted(self._tensors, key=self._rank):
            node, tensor = self._nodes[number], self._tensors[number]
            if _is_pattern(plains[number], tensor):
                continue
            plan = None if tensor.is_nested else plan_of(tuple(tensor.shape), is_input=node.kind == "input")
            yield plains[number], plan, partial(self._read, node, partial(_preview, tensor, plan))
        for plain, tensor in weights:
            plan = plan_of(tuple(tensor.shape), is_input=False)
            yield plain, plan, partial(_preview, tensor, plan)

    def _rank(self, number: int) -> tuple[int, int]:
        """Inputs and outputs, what leaves a module, maps of attention; then first passes, then the rest."""
        node = self._nodes[number]
        shape = node.shape or ()
        is_square = len(shape) > 1 and shape[-1] == shape[-2]
        if node.kind in ("input", "output"):
            return 0, number
        return (1 if node.passes[0] == 1 and (node.exits or is_square) else 2 if node.passes[0] == 1 else 3), number


def _preview(tensor: Tensor, plan: Plan | None) -> Plain | None:
    found = preview_of(tensor, plan) if plan is not None else None
    return lean("preview", found) if found is not None else None


def _is_pattern(plain: Plain, tensor: Tensor) -> bool:
    """Whether a tensor is the pattern of attention, whose heads are shown already."""
    shown = plain.get("attention")
    return shown is not None and tuple(tensor.shape[-2:]) == (shown["queries"], shown["keys"])


def _memory(tensor: Tensor) -> object:
    """Equal for tensors that share all their values; None where that cannot be told."""
    is_plain = type(tensor) is Tensor and tensor.layout is torch.strided and tensor.device.type != "meta"
    if not is_plain or tensor.is_nested or tensor.is_neg() or not tensor.is_contiguous():
        return None
    return (tensor.device, tensor.dtype, tensor.data_ptr(), tensor.numel())


def shown_statistics(tensor: Tensor) -> Plain | None:
    """The statistics of a tensor as a payload has them; None where there are none."""
    found = statistics_of(tensor, "linear")
    return lean("stats", _shown(found)) if found is not None else None


def _shown(found: Statistics) -> Plain:
    """Statistics as the page shows them."""
    values = {name: getattr(found, name) for name in GRAPH["stats"]}
    numbers = {name: short(value) if isinstance(value, float) else value for name, value in values.items()}
    bins = {"low": numbers["min"], "high": numbers["max"], "counts": list(found.histogram)} if found.histogram else None
    return {**numbers, "histogram": bins}
