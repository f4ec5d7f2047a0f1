"""Finds which elements of an input reach an element of a layer, and which elements of an output this element reaches.

The logged graph is walked, from call to call. For each kind of function a **rule** in `RULES` says which elements of an
argument reach which elements of the result. The rule is a linear function of that argument; a coefficient is not 0 exactly if
the element reaches the result. So a rule is one line of torch: calling it goes forward, differentiating it goes backward. The
result is a mask, exact with skips, strides and dilation, whatever the values of the parameters are.

A function without a rule is assumed to connect all elements. The field names it, and says that it may be too large.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .._text import few
from .._torch.containers import get_path
from .._torch.functions import groups
from .._torch.functions.facts import Origin
from .._torch.internals import DisableTorchFunction
from ..errors import InvalidArgument, TorcheerError
from ..log.operation import OperationFacts
from ..log.run import Index
from ..log.templates import fill_call

Direction = Literal["receptive", "projective"]
Linear = Callable[[Tensor], Tensor]
Unit = tuple[int, ...]
_SEED = 0


class NoRule(Exception):
    """Raised by a rule that cannot handle the arguments of a call."""


class Call:
    """A logged call, as rules see it: shapes, arguments that are no tensors, and integer tensors such as indices."""

    def __init__(self, index: Index, number: int) -> None:
        self.index, self.number = index, number
        self.record = index.record(number)
        self.name = self.record.function.plain_name
        self.out = tuple(self.record.shape)

    def shape(self, slot: int) -> tuple[int, ...]:
        parent = self.record.parents[slot]
        return tuple(self.index.record(parent).shape if parent >= 0 else self.index.state(parent).tensor.shape)

    def dtype(self, slot: int) -> torch.dtype:
        parent = self.record.parents[slot]
        return self.index.record(parent).dtype if parent >= 0 else self.index.state(parent).tensor.dtype

    def value(self, slot: int) -> Tensor:
        """The values of an argument. Raises if the values were not kept."""
        value = OperationFacts(self.index, self.number)._argument(slot)
        if not isinstance(value, Tensor):
            raise NoRule
        return value.detach().cpu()

    def option(self, position: int, name: str, default: Any = None) -> Any:
        kwargs, args = self.record.kwargs, self.record.args
        return kwargs[name] if name in kwargs else args[position] if position < len(args) else default

    def run(self, tensors: list[Tensor]) -> Tensor:
        """Call the function with these tensors in place of the logged tensor arguments."""
        if self.record.function.func is None:
            raise NoRule
        args, kwargs = fill_call(self.record.template, self.record.names, iter(tensors))
        result = self.record.function.func(*args, **kwargs)
        result = tensors[0] if result is None else result  # x[…] = y
        found = get_path(result, self.record.details.output_path)
        if not isinstance(found, Tensor) or tuple(found.shape) != self.out:
            raise NoRule
        return found


# Rules --------------------------------------------------------------------------------------------------------------
#
# A rule gets a call and the number of an argument, and returns a function of that argument; it raises `NoRule` if it cannot.

Rule = Callable[[Call, int], Linear]


def elementwise(call: Call, slot: int) -> Linear:
    """Each element reaches the elements that it is broadcast to."""
    shape = call.shape(slot)
    if any(own not in (1, size) for own, size in zip(reversed(shape), reversed(call.out), strict=False)) or (
        len(shape) > len(call.out)
    ):
        raise NoRule
    return lambda x: x.broadcast_to(call.out)


def nothing(call: Call, slot: int) -> Linear:
    """No element of the argument reaches the result: only the argument's shape or dtype is used."""
    return lambda x: (0 * x.sum()).expand(call.out)


def conversions(call: Call, slot: int) -> Linear:
    """`x.to(y)` has the values of x."""
    return elementwise(call, slot) if slot == 0 else nothing(call, slot)


def everything(call: Call, slot: int) -> Linear:
    """Each element reaches every element."""
    return lambda x: x.sum().expand(call.out)


def products(call: Call, slot: int) -> Linear:
    """Convolutions, products and sums: the function itself, with ones in place of the other arguments."""
    others = [torch.ones(call.shape(other), device="cpu") for other in range(len(call.record.parents))]

    def linear(x: Tensor) -> Tensor:
        first, second = ([*others[:slot], one, *others[slot + 1 :]] for one in (x, torch.zeros_like(x)))
        return call.run(first) - call.run(second).detach()

    return linear


def moves(call: Call, slot: int) -> Linear:
    """Functions that move elements: the function runs on numbered elements, which shows where each element came from."""
    count = len(call.record.parents)
    moved = [one for one in range(count) if one == 0 or call.dtype(one).is_floating_point or call.name in _JOINING]
    if slot != 0 and call.name in ("view_as", "reshape_as", "expand_as", "broadcast_tensors"):
        return nothing(call, slot)
    if slot not in moved:  # the argument is an index, which decides the elements that are taken
        return everything(call, slot)
    rest = {other: call.value(other) for other in range(count) if other not in moved}
    first, second, starts, start = [], [], {}, 1
    for one in range(count):
        if one in rest:
            first.append(rest[one])
            second.append(rest[one])
            continue
        size = math.prod(call.shape(one))
        numbers = torch.arange(start, start + size, dtype=torch.float64, device="cpu").reshape(call.shape(one))
        first.append(numbers)
        second.append(3 * numbers + 7)
        starts[one], start = start, start + size
    found, again = call.run(first).detach(), call.run(second).detach()
    is_moved = again == 3 * found + 7  # not a number that the function itself put there
    source = (found - starts[slot]).long()
    is_own = is_moved & (source >= 0) & (source < math.prod(call.shape(slot)))
    source = torch.where(is_own, source, 0)
    return lambda x: torch.where(is_own, x.reshape(-1)[source] if x.numel() else 0.0, 0.0)


def reductions(call: Call, slot: int) -> Linear:
    """Functions along dimensions, whose size becomes 1 (`amax`), another size (`topk`) or stays the same (`softmax`)."""
    if slot != 0:
        return elementwise(call, slot) if call.name in ("max", "min") else everything(call, slot)
    if len(call.record.parents) > 1 and call.name in ("max", "min"):
        return elementwise(call, slot)
    shape = call.shape(slot)
    dim = call.option(_DIM_AT.get(call.name, 1), "dim", call.record.kwargs.get("axis", _DIM_OF.get(call.name)))
    if dim is None and call.name in ("softmax", "log_softmax", "softmin"):
        dim = 0 if len(shape) in (0, 1, 3) else 1
    if isinstance(dim, bool) or not (dim is None or isinstance(dim, (int, list, tuple))):
        raise NoRule
    dims = list(range(len(shape))) if dim is None or dim == () else [dim] if isinstance(dim, int) else list(dim)
    dims = [one % max(len(shape), 1) for one in dims]
    return _along(call, dims)


def _along(call: Call, dims: list[int]) -> Linear:
    def linear(x: Tensor) -> Tensor:
        whole = x.sum(dims, keepdim=True) if dims and x.dim() else x
        return whole.reshape(call.out) if whole.numel() == math.prod(call.out) else whole.expand(call.out)

    return linear


def running(call: Call, slot: int) -> Linear:
    """`cumsum` and similar functions: an element reaches the results at its own position and at later positions."""
    dim = call.option(1, "dim")
    if not isinstance(dim, int) or call.shape(slot) != call.out:
        raise NoRule
    return lambda x: x.cumsum(dim)


def norms(call: Call, slot: int) -> Linear:
    """Normalisations: an element reaches all elements along the dimensions whose statistics are computed."""
    if slot != 0 or call.shape(0) != call.out:
        raise NoRule
    dims = len(call.out)
    if call.name in ("layer_norm", "rms_norm"):
        shape = call.option(1, "normalized_shape")
        return _along(call, list(range(dims - (1 if isinstance(shape, int) else len(shape)), dims)))
    if call.name == "group_norm":
        count = call.option(1, "num_groups")
        if not isinstance(count, int):
            raise NoRule
        by_group = (call.out[0], count, -1)
        return lambda x: (x.reshape(by_group).sum(-1, keepdim=True) + 0 * x.reshape(by_group)).reshape(call.out)
    if call.name == "instance_norm":
        return _along(call, list(range(2, dims))) if call.option(5, "use_input_stats", True) else elementwise(call, slot)
    if call.name == "batch_norm":
        is_training = call.option(5, "training", False)
        return _along(call, [0, *range(2, dims)]) if is_training else elementwise(call, slot)
    raise NoRule


def largest(call: Call, slot: int) -> Linear:
    """Max pooling: each element reaches all windows that contain it, even if another element is the largest there."""
    shape, dims = call.shape(slot), _space(call.name)
    if slot != 0:
        raise NoRule
    size, stride, padding, dilation = (
        _each(call.option(at, name, default), dims)
        for at, name, default in ((1, "kernel_size", None), (2, "stride", None), (3, "padding", 0), (4, "dilation", 1))
    )
    if size is None or padding is None or dilation is None:
        raise NoRule
    stride = stride or size
    space, out = shape[-dims:], call.out[-dims:]
    # with `ceil_mode` the last window may end behind the padding
    needed = [(n - 1) * step + wide * (k - 1) + 1 for n, step, wide, k in zip(out, stride, dilation, size, strict=True)]
    pads = [(pad, max(need - pad - n, 0)) for pad, need, n in zip(padding, needed, space, strict=True)]
    convolve = (torch.conv1d, torch.conv2d, torch.conv3d)[dims - 1]
    ones = torch.ones((1, 1, *size), device="cpu")

    def linear(x: Tensor) -> Tensor:
        planes = x.reshape(-1, 1, *space)
        padded = torch.nn.functional.pad(planes, [one for pair in reversed(pads) for one in pair])
        windows = convolve(padded, ones, None, stride, 0, dilation)
        for dim, count in enumerate(out):
            windows = windows.narrow(2 + dim, 0, count)
        return windows.reshape(call.out)

    return linear


def _space(name: str) -> int:
    """How many dimensions a function has in its name: 2 of `max_pool2d`."""
    return int(name.partition("pool")[2][0])


def _each(value: Any, dims: int) -> list[int] | None:
    if isinstance(value, int):
        return [value] * dims
    if isinstance(value, (list, tuple)) and all(isinstance(one, int) for one in value):
        return list(value) * dims if len(value) == 1 else list(value) or None
    return None


def adaptive_largest(call: Call, slot: int) -> Linear:
    """Adaptive max pooling has the windows of adaptive average pooling."""
    size = call.out[-_space(call.name) :]
    pool = getattr(torch.nn.functional, f"adaptive_avg_pool{len(size)}d")
    return lambda x: pool(x, size)


def attention(call: Call, slot: int) -> Linear:
    """Fused attention: a query attends to all keys that the mask allows; its weights depend on all elements of both."""
    if slot > 2 or len(call.record.parents) < 3 or call.option(7, "enable_gqa", False):
        raise NoRule
    shapes = [call.shape(one) for one in range(3)]
    may = torch.ones(shapes[0][-2], shapes[1][-2], device="cpu")
    if call.option(5, "is_causal", False):
        may = may.tril()
    if len(call.record.parents) > 3:
        mask = call.value(3)
        may = may * (mask if mask.dtype is torch.bool else mask > -math.inf)
    if slot == 0:
        return lambda x: ((may.sum(-1, keepdim=True) > 0) * x.sum(-1, keepdim=True)).expand(call.out)
    if slot == 1:
        return lambda x: (may @ x.sum(-1, keepdim=True)).expand(call.out)
    return lambda x: may @ x


def recurrent(call: Call, slot: int) -> Linear:
    """Fused recurrent layers: an input reaches its sample's outputs at its own and later times; if bidirectional, at all."""
    shape = call.shape(slot)
    args = call.record.args
    if call.name.endswith("_cell"):
        return lambda x: x.sum(-1, keepdim=True).expand(call.out) if x.dim() == len(call.out) else x.sum().expand(call.out)
    if call.name not in ("lstm", "gru", "rnn_tanh", "rnn_relu") or len(args) != 9 or not len(shape) == len(call.shape(0)) == 3:
        raise NoRule
    is_both, is_batch_first = bool(args[7]), bool(args[8])
    is_sequence = call.record.details.output_path == (0,)
    is_turned = is_batch_first and is_sequence

    def result(y: Tensor) -> Tensor:
        return y.transpose(0, 1) if is_turned else y

    out = (call.out[1], call.out[0], call.out[2]) if is_turned else call.out

    def linear(x: Tensor) -> Tensor:
        if slot != 0:  # the first state
            return result(x.sum((0, 2))[None, :, None].expand(out))
        x = x.transpose(0, 1) if is_batch_first else x
        seen = x.sum(2, keepdim=True)
        seen = seen.sum(0, keepdim=True) if is_both or not is_sequence else seen.cumsum(0)
        return result(seen.expand(out))

    return linear


def look_up(call: Call, slot: int) -> Linear:
    """Embedding: an index reaches the row that it selects; a row reaches each position whose index selects it."""
    if call.dtype(slot).is_floating_point:
        taken = call.value(1 - slot)
        return lambda x: x[taken]
    return lambda x: x.unsqueeze(-1).expand(call.out)


def _named(text: str) -> frozenset[str]:
    return frozenset(text.split())


_JOINING = _named("cat concat concatenate stack hstack vstack dstack column_stack")
_RUNNING = _named("cumsum cumprod cummax cummin logcumsumexp")
_DIM_AT = {"norm": 2, "linalg_vector_norm": 2, "quantile": 2, "nanquantile": 2, "topk": 2, "kthvalue": 2}
_DIM_OF = {"topk": -1, "sort": -1, "argsort": -1, "kthvalue": -1, "glu": -1, "median": None}
_ALONG = _named(
    "amax amin max min argmax argmin prod std var std_mean var_mean norm linalg_vector_norm all any topk logsumexp median "
    "nanmedian quantile nanquantile kthvalue count_nonzero sort argsort nansum softmax log_softmax softmin safe_softmax"
)
_PRODUCTS = groups.CONVOLUTIONS | _named(
    "linear addmm matmul mm bmm baddbmm addbmm addmv mv dot vdot inner outer einsum tensordot bilinear sum mean trace kron "
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d unfold fold im2col col2im "
    "interpolate upsample upsample_nearest upsample_bilinear"
)
_MOVES = (
    groups.RESHAPES
    | groups.MOVES_CHANNELS
    | groups.ARRANGEMENTS
    | groups.UNSCHEMED_VIEWS
    | _JOINING
    | _named(
        "getitem setitem index_select gather take take_along_dim select_scatter slice_scatter diagonal_scatter masked_select "
        "index_copy index_put pixel_shuffle pixel_unshuffle channel_shuffle split chunk tensor_split unbind narrow contiguous"
    )
)
# The kinds of functions, each with its rule. The first entry that contains a function's name applies.
RULES: tuple[tuple[frozenset[str], Rule], ...] = (
    (_PRODUCTS, products),
    (_named("max_pool1d max_pool2d max_pool3d"), largest),
    (_named("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"), adaptive_largest),
    (_named("scaled_dot_product_attention"), attention),
    (groups.NORMALISATIONS, norms),
    (groups.RECURRENT, recurrent),
    (_named("embedding"), look_up),
    (_RUNNING, running),
    (_ALONG, reductions),
    (_MOVES, moves),
    (groups.CONVERSIONS, conversions),
    (groups.CONSTRUCTORS - _named("tensor as_tensor asarray"), nothing),
    (groups.DROPOUTS | groups.COPIES, elementwise),
)


def rule_of(call: Call) -> Rule | None:
    """The rule of a call; None if there is none."""
    record = call.record
    if record.origin in (Origin.ALIAS, Origin.OUTPUT):
        return elementwise
    if record.origin is not Origin.OPERATION or record.details.is_transformed or record.details.is_collective:
        return None
    for names, rule in RULES:
        if call.name in names:
            return rule
    if record.function.is_elementwise:
        return elementwise
    return moves if record.function.is_view else None


# The walk -----------------------------------------------------------------------------------------------------------


class Walk:
    """Follows masks through the graph of a log, in both directions."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.unknown: dict[int, str] = {}  # operations whose function has no rule: they reach everything
        self.unchecked: dict[int, str] = {}  # operations through which no gradient could be computed
        self._made: dict[tuple[int, int], Linear] = {}
        self._random = torch.Generator("cpu").manual_seed(_SEED)

    def edges(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield (slot, operation) for each operation that `number` depends on. Slot -1: it wrote to an argument's memory."""
        record = self.index.record(number)
        for slot, parent in enumerate(record.parents):
            if parent >= 0:
                yield slot, parent
        for writer in record.details.also:
            yield -1, writer

    def back(self, number: int, mask: Tensor) -> dict[int, Tensor]:
        """Map each input to a mask of the elements that reach the operation's elements in `mask`."""
        masks, found = {number: mask}, {}
        for one in range(number, -1, -1):
            reached = masks.pop(one, None)
            if reached is None:
                continue
            if self.index.record(one).origin is Origin.INPUT:
                found[one] = reached
                continue
            for slot, parent in self.edges(one):
                if self.index.from_input[parent]:
                    shape = tuple(self.index.record(parent).shape)
                    more = self._transposed(one, slot, shape, reached)
                    if more.any():
                        masks[parent] = masks[parent] | more if parent in masks else more
        return dict(sorted(found.items()))

    def forth(self, number: int, mask: Tensor) -> dict[int, Tensor]:
        """Map each output to a mask of the elements that the operation's elements in `mask` reach."""
        masks = {number: mask}
        for one in range(number + 1, len(self.index.log.rows)):
            for slot, parent in self.edges(one):
                if parent in masks and self.index.to_output[one]:
                    more = self._applied(one, slot, masks[parent])
                    if more.any():
                        masks[one] = masks[one] | more if one in masks else more
        return {one: masks[one] for one in sorted(self.index.outputs) if one in masks}

    def _weighted(self, mask: Tensor) -> Tensor:
        """Fill a mask with positive random numbers, so that coefficients of both signs do not cancel out."""
        return mask * (1 + torch.rand(mask.shape, generator=self._random, device="cpu"))

    def _transposed(self, number: int, slot: int, shape: tuple[int, ...], mask: Tensor) -> Tensor:
        def run(linear: Linear) -> Tensor:
            with torch.inference_mode(False), torch.enable_grad():
                x = torch.zeros(shape, device="cpu", requires_grad=True)
                y = linear(x)
                if not y.requires_grad:  # it has no elements
                    return torch.zeros(shape, dtype=torch.bool, device="cpu")
                (found,) = torch.autograd.grad(y, x, self._weighted(mask), allow_unused=True)
            return torch.zeros(shape, dtype=torch.bool, device="cpu") if found is None else found != 0

        return self._followed(number, slot, run)

    def _applied(self, number: int, slot: int, mask: Tensor) -> Tensor:
        def run(linear: Linear) -> Tensor:
            with torch.no_grad():
                return linear(self._weighted(mask)) != 0

        return self._followed(number, slot, run)

    def _followed(self, number: int, slot: int, run: Callable[[Linear], Tensor]) -> Tensor:
        call = Call(self.index, number)
        key = number, slot
        with DisableTorchFunction(), torch.autocast("cpu", enabled=False):
            rule = rule_of(call) if slot >= 0 else None
            if rule is not None and number not in self.unknown:
                try:
                    if key not in self._made:
                        self._made[key] = rule(call, slot)
                    return run(self._made[key])
                except (NoRule, TorcheerError, RuntimeError, TypeError, ValueError, IndexError):
                    self._made.pop(key, None)  # arguments that the rule does not know
            self.unknown[number] = self.index.label(number)
            return run(everything(call, slot))

    def gradient(self, number: int, mask: Tensor, *stops: int) -> dict[int, Tensor]:
        """Compute the gradient of a weighted sum of elements at inputs and `stops`, by torch's autograd on logged values."""
        gradients, found = {number: self._weighted(mask).double()}, {}
        for one in range(number, -1, -1):
            incoming = gradients.pop(one, None)
            if incoming is None:
                continue
            if self.index.record(one).origin is Origin.INPUT or one in stops:
                found[one] = incoming
                continue
            for parent, gradient in self._step(one, incoming):
                gradients[parent] = gradients[parent] + gradient if parent in gradients else gradient
        return found

    def _step(self, number: int, incoming: Tensor) -> list[tuple[int, Tensor]]:
        call = Call(self.index, number)
        parents = call.record.parents
        if call.record.origin in (Origin.ALIAS, Origin.OUTPUT):
            return [(parents[0], incoming)] if tuple(self.index.record(parents[0]).shape) == call.out else []
        wanted = [slot for slot, parent in enumerate(parents) if parent >= 0 and self.index.from_input[parent]]
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            leaves = []
            for slot in range(len(parents)):
                value = call.value(slot).clone()
                value = value.double() if value.is_floating_point() else value
                leaves.append(value.requires_grad_(value.is_floating_point() and slot in wanted))
            try:
                result = call.run([leaf * 1 if leaf.requires_grad else leaf for leaf in leaves])  # written to in place
                if not result.requires_grad:
                    return []
                inputs = [slot for slot in wanted if leaves[slot].requires_grad]
                found = torch.autograd.grad(
                    result, [leaves[slot] for slot in inputs], incoming.to(result.dtype), allow_unused=True
                )
            except (NoRule, RuntimeError, TypeError, ValueError):
                self.unchecked[number] = self.index.label(number)
                return []
        return [(parents[slot], one.double()) for slot, one in zip(inputs, found, strict=True) if one is not None]


# What the user holds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FieldCheck:
    """Compares a field with the gradient of the logged pass. True if all was checked and no gradient is outside the field."""

    gradients: int  # elements with a gradient that is not 0
    elements: int  # number of elements of the field
    outside: int  # elements with a gradient that are not in the field
    unchecked: tuple[str, ...] = ()  # operations through which no gradient could be computed

    @property
    def is_equal(self) -> bool:
        """True if every element of the field has a gradient, too. A ReLU or a maximum may hide one."""
        return bool(self) and self.gradients == self.elements

    def __bool__(self) -> bool:
        return self.outside == 0 and not self.unchecked

    def __str__(self) -> str:
        verdict = "is wrong" if self.outside else "could not be checked whole" if self.unchecked else "holds"
        inside = self.gradients - self.outside
        said = (
            f"The field {verdict}: {inside:,} of its {self.elements:,} elements have a gradient, and {self.outside:,} outside."
        )
        return f"{said} No gradient could be computed through {few(self.unchecked, 3)}." if self.unchecked else said


class Field:
    """The elements of one input (or output) that reach (or are reached by) chosen elements of a layer."""

    def __init__(
        self, owner: Influence, unit: Any, chosen: Tensor, number: int, mask: Tensor, unknown: tuple[str, ...]
    ) -> None:
        self._owner, self._chosen, self._number = owner, chosen, number
        self.unit = unit
        self.mask = mask
        self.unknown = unknown

    @property
    def of(self) -> str:
        """The label of the layer."""
        return self._owner.label

    @property
    def at(self) -> str:
        """The label of the input or output in which the field lies."""
        return self._owner.index.label(self._number)

    @property
    def is_exact(self) -> bool:
        """True if every function on the way has a rule. Otherwise the field may be too large; `unknown` names the functions."""
        return not self.unknown

    @property
    def box(self) -> tuple[slice, ...] | None:
        """The smallest box around the field: a slice for each dimension, to index the tensor with; None if it is empty."""
        if not self.mask.any():
            return None
        found = []
        for dim in range(self.mask.dim()):
            places = self.mask.movedim(dim, 0).reshape(self.mask.shape[dim], -1).any(1).nonzero()[:, 0]
            found.append(slice(int(places[0]), int(places[-1]) + 1))
        return tuple(found)

    @property
    def size(self) -> tuple[int, ...]:
        """The size of the box in each dimension."""
        return tuple(one.stop - one.start for one in self.box) if self.box is not None else (0,) * self.mask.dim()

    @property
    def elements(self) -> int:
        """How many elements are in the field."""
        return int(self.mask.sum())

    def check(self) -> FieldCheck:
        """Compare the field with the gradient of the logged pass, computed call by call from the saved values.

        Raises:
            ActivationNotSaved: values of a call on the way were not saved.
        """
        walk = Walk(self._owner.index)
        ends = self._number, self._owner.number
        walk.unchecked.update(
            {one: walk.index.label(one) for one in ends if not walk.index.record(one).dtype.is_floating_point}
        )
        if self._owner.direction == "receptive":
            gradient = walk.gradient(self._owner.number, self._chosen).get(self._number)
            found = gradient != 0 if gradient is not None else torch.zeros_like(self.mask)
        else:
            found = self._reached(walk)
        outside = int((found & ~self.mask).sum())
        return FieldCheck(int(found.sum()), self.elements, outside, tuple(walk.unchecked.values()))

    def _reached(self, walk: Walk) -> Tensor:
        """Find the output elements that have a gradient at the chosen elements, by a backward pass for each output element."""
        found = torch.zeros_like(self.mask)
        for place in range(found.numel()):
            one = torch.zeros_like(found)
            one.reshape(-1)[place] = True
            gradient = walk.gradient(self._number, one, self._owner.number).get(self._owner.number)
            found.reshape(-1)[place] = gradient is not None and bool((gradient != 0)[self._chosen].any())
        return found

    def draw(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The field as a Matplotlib figure, over the values of the tensor; with `path` also written to a file.

        Of a tensor with four dimensions the sample of the field is shown, its channels as their mean; otherwise the last two.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("drawing a field needs matplotlib: pip install matplotlib") from error
        facts = OperationFacts(self._owner.index, self._number)
        try:
            values = facts.tensor_contents.detach().cpu().double()
        except (TorcheerError, AttributeError):
            values = torch.zeros(self.mask.shape, dtype=torch.float64, device="cpu")
        shown, picture = self._plane(self.mask.double()), self._plane(values)
        figure = Figure(figsize=(5, 5 * min(max(shown.shape[0] / shown.shape[1], 0.25), 2) + 0.6), layout="constrained")
        axes = figure.subplots()
        axes.imshow(picture.numpy(), cmap="gray", aspect="auto" if self.mask.dim() < 4 else "equal")
        colour = torch.tensor([0.83, 0.18, 0.0, 1.0], dtype=torch.float64, device="cpu")
        overlay = colour.repeat(*shown.shape, 1)
        overlay[..., 3] = 0.55 * (shown > 0)
        axes.imshow(overlay.numpy(), aspect="auto" if self.mask.dim() < 4 else "equal")
        sizes = " × ".join(map(str, self.size))
        axes.set_title(f"{self.of} {list(self.unit)} in {self.at}\n{self.elements:,} elements, box {sizes}", fontsize=9)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure

    def _plane(self, values: Tensor) -> Tensor:
        if values.dim() >= 4:
            sample = self.box[0].start if self.box is not None else 0
            values = values[sample]
            return values.reshape(-1, *values.shape[-2:]).mean(0)
        if values.dim() < 2:
            return values.reshape(1, -1)
        return values.reshape(-1, *values.shape[-2:]).amax(0)

    def __repr__(self) -> str:
        return f"<Field of {self.of} {list(self.unit)} in {self.at}: {self.elements:,} elements>"

    def __str__(self) -> str:
        box = ", ".join(f"{one.start}:{one.stop}" for one in self.box or ())
        way = "reach" if self._owner.direction == "receptive" else "are reached by"
        said = (
            f"{self.elements:,} of {self.mask.numel():,} elements of {self.at} {way} {self.of} {list(self.unit)}: box [{box}]"
        )
        if not self.is_exact:
            said += f". No rule is known for {few(self.unknown, 3)}, taken to reach everything"
        return said


class Influence:
    """The receptive or projective fields of a layer: `influence[0, :, 3, 3]` is the field of these elements.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Conv1d(1, 1, 3), torch.nn.Conv1d(1, 1, 3, dilation=2))
    >>> history = torcheer.log_forward_pass(model, torch.rand(1, 1, 16))
    >>> field = history["conv1d_2"].receptive_field[0, 0, 4]
    >>> field.box[2], field.elements, bool(field.check())
    (slice(4, 11, None), 7, True)
    """

    def __init__(self, index: Index, number: int, direction: Direction) -> None:
        self.index, self.number, self.direction = index, number, direction
        self._walk = Walk(index)

    @property
    def label(self) -> str:
        return self.index.label(self.number)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the layer's tensor, which is indexed."""
        return tuple(self.index.record(self.number).shape)

    @property
    def middle(self) -> Field:
        """The field of the element in the middle: of the first sample, in the middle of every other dimension."""
        shape = self.shape
        return self[tuple(0 if dim == 0 and len(shape) > 1 else size // 2 for dim, size in enumerate(shape))]

    def __getitem__(self, unit: Any) -> Field:
        """The field of an element, or of several, in the first input (or output) that is connected with them."""
        fields = self.fields(unit)
        if not fields:
            what = "input reaches it" if self.direction == "receptive" else "output is reached by it"
            raise InvalidArgument(f"{self.label} has no {self.direction} field: no {what}.")
        return next((one for one in fields if one.elements), fields[0])

    def fields(self, unit: Any = ...) -> list[Field]:
        """The field of chosen elements (by default all) in each input (or output) that is connected with these elements."""
        chosen = torch.zeros(self.shape, dtype=torch.bool, device="cpu")
        unit = unit if isinstance(unit, tuple) else (unit,)
        try:
            chosen[unit] = True
        except (IndexError, TypeError, ValueError) as error:
            raise InvalidArgument(
                f"a unit of {self.label} is an index into its shape {self.shape}, such as (0, ...); got {unit!r:.80}: {error}"
            ) from error
        masks = (self._walk.back if self.direction == "receptive" else self._walk.forth)(self.number, chosen)
        unknown = tuple(self._walk.unknown.values())
        return [Field(self, unit, chosen, number, mask, unknown) for number, mask in masks.items()]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Influence):
            return NotImplemented
        return (self.index, self.number, self.direction) == (other.index, other.number, other.direction)

    def __hash__(self) -> int:
        return hash((id(self.index), self.number, self.direction))

    def __repr__(self) -> str:
        return f"<{self.direction} field of {self.label} with shape {self.shape}: index it with a unit, or ask for its middle>"
