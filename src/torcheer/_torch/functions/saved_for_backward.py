"""The tensors that autograd saves for the backward pass.

Most are derived: a node's class says which tensors it saves (`ReluBackward0._saved_result`), and the function's schema says
which arguments these are. There are rules for functions with several nodes (linear, matmul, dropout) and for internal
tensors that are saved (the indices of max pooling, the statistics of a norm).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ..internals import autograd_node_class
from .groups import DROPOUTS
from .schemas import aten_schemas, has_out

if TYPE_CHECKING:
    from ...analysis.calls import TorchCall
    from ...analysis.memory import Storages
    from .flops import Operand


class Saved(NamedTuple):
    """The tensors that autograd saves of one call: arguments by slot, results by position, and internal tensors as bytes."""

    slots: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    hidden: int = 0


_NONE = Saved()
_Rule = Callable[["TorchCall"], Saved]
_RULES: dict[str, _Rule] = {}


def _rule(names: str) -> Callable[[_Rule], _Rule]:
    def enter(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(names.split(), rule))
        return rule

    return enter


def saved_by(call: TorchCall, memory: Storages) -> Saved | None:
    """The tensors that autograd saves for a call that it follows; None if unknown."""
    overwritten = call.overwritten
    if call.node is None or (overwritten is None and not memory.is_fresh(call.numbers[0])):
        return _NONE  # a view saves nothing; a function that returned its argument made no node
    rule = _RULES.get(call.name)
    try:
        if call.name in ("linear", "matmul"):
            saved = _product(call, memory)
        elif rule is not None:
            saved = rule(call)
        else:
            names = _saved_names(call.node)
            if names is None:
                return None
            saved = _derived(call, names)
    except (LookupError, ValueError, TypeError):  # arguments in an unexpected form
        return None
    if overwritten in saved.slots:  # autograd saves a copy of the argument from before the write
        left = tuple(slot for slot in saved.slots if slot != overwritten)
        return Saved(left, saved.results, saved.hidden + _bytes(call.operands[overwritten]))
    return saved


@cache
def _saved_names(node: str) -> frozenset[str] | None:
    kind = autograd_node_class(node)
    if kind is None:
        return None
    return frozenset(name.removeprefix("_saved_") for name in dir(kind) if name.startswith("_saved_"))


@cache
def _tensor_arguments(name: str) -> tuple[str, ...]:
    """The names of a function's tensor arguments, in order; from the first overload that has any."""
    for schema in aten_schemas(name):
        found = tuple(argument.name for argument in schema.arguments if str(argument.type) in ("Tensor", "Optional[Tensor]"))
        if found:
            return found
    return ()


@cache
def _result_names(name: str) -> tuple[str, ...]:
    """The names of a function's results, if it has several: `('values', 'indices')`."""
    for schema in aten_schemas(name):
        if len(schema.returns) > 1 and not has_out(schema):
            return tuple(result.name for result in schema.returns)
    return ()


# Each factor of a pair is saved only for the gradient of the other.
_PAIRS = {
    "MulBackward0": ("self", "other"),
    "MmBackward0": ("self", "mat2"),
    "BmmBackward0": ("self", "mat2"),
    "MvBackward0": ("self", "vec"),
    "DotBackward0": ("self", "tensor"),
    "VdotBackward0": ("self", "other"),
    "AddmmBackward0": ("mat1", "mat2"),
    "AddmvBackward0": ("mat", "vec"),
    "AddbmmBackward0": ("batch1", "batch2"),
    "BaddbmmBackward0": ("batch1", "batch2"),
    "AddcmulBackward0": ("tensor1", "tensor2"),
}


def _derived(call: TorchCall, names: frozenset[str]) -> Saved:
    node, operands = call.node or "", call.operands
    by_name = dict(zip(_tensor_arguments(call.name) or ("self",), operands, strict=False))

    def needs_grad(name: str) -> bool:
        return name in by_name and by_name[name].needs_grad

    unneeded: set[str] = set()
    if node in _PAIRS:
        one, other = _PAIRS[node]
        unneeded = {name for name, partner in ((one, other), (other, one)) if not needs_grad(partner)}
    elif node == "DivBackward0" and not needs_grad("other"):
        unneeded = {"self"}
    slots = [operand.slot for name, operand in by_name.items() if name in names and name not in unneeded]
    named = _result_names(call.name) if len(call.numbers) > 1 else ()
    lists = names & {"indices", "tensors"} - set(named)
    if lists:  # lists of tensors: autograd saves all arguments, or all except the first
        slots += [operand.slot for operand in operands[1 if "indices" in lists else 0 :] if operand.slot not in slots]
    results = [position for position in range(len(call.numbers)) if f"result{position or ''}" in names]
    results += [position for position, name in enumerate(named[: len(call.numbers)]) if name in names]
    return Saved(tuple(slots), tuple(results))


def _bytes(operand: Operand) -> int:
    return operand.numel * operand.dtype.itemsize


# Products -------------------------------------------------------------------------------------------------------------


def _product(call: TorchCall, memory: Storages) -> Saved:
    """A factor is saved if the other factor needs a gradient. If torch reshapes it to a plain matrix product with a copy, the
    copy is saved.
    """
    a, b = (call.operand(0, "input"), call.operand(1, "weight")) if call.name == "linear" else call.operands[:2]
    batched = len(a.shape) > 2 and len(b.shape) > 2
    slots: list[int] = []
    hidden = 0
    for one, other in ((a, b), (b, a)):
        if not other.needs_grad:
            continue
        shape = (*call.shape[:-2], *one.shape[-2:]) if batched else one.shape
        flat = (math.prod(shape[:-2]), *shape[-2:]) if batched else (math.prod(shape[:-1]), shape[-1])
        is_flat = len(shape) <= 2 and not batched
        is_expanded = math.prod(shape) != one.numel
        if is_flat or (not is_expanded and memory.reshapes_freely(call.parents[one.slot], flat)):
            slots.append(one.slot)
        else:
            hidden += math.prod(shape) * one.dtype.itemsize
    return Saved(tuple(slots), (), hidden)


@_rule("einsum tensordot inner")
def _contraction(call: TorchCall) -> Saved:
    operands = call.operands
    return Saved(tuple(one.slot for one in operands if any(other.needs_grad for other in operands if other is not one)))


@_rule("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution")
def _convolution(call: TorchCall) -> Saved:
    return Saved((call.operand(0, "input").slot, call.operand(1, "weight").slot))


@_rule("scaled_dot_product_attention")
def _attention(call: TorchCall) -> Saved:
    """Fused kernels save arguments, result and one number per row; the plain path saves scaled copies and the scores."""
    operands = call.operands
    query, key = operands[:2]
    rows = math.prod(call.shape[:-1])
    if "DotProduct" in (call.node or ""):
        return Saved(tuple(one.slot for one in operands), (0,), rows * 4)
    scores = rows * key.shape[-2] * query.dtype.itemsize
    return Saved((operands[2].slot,), (), _bytes(query) + _bytes(key) + scores)


@_rule("lstm gru rnn_tanh rnn_relu")
def _recurrent(call: TorchCall) -> Saved:
    """Estimate, because kernels differ: the gates, the state and the output of every step are saved."""
    weights = next(a for a in call.args if isinstance(a, list))
    x = call.operands[0]
    rows = [weight.shape[0] for weight in weights if len(weight.shape) == 2 and weight.shape[0] == weights[0].shape[0]]
    steps = math.prod(x.shape[:-1])
    return Saved((x.slot,), (0,), round(1.5 * steps * sum(rows) / 2) * x.dtype.itemsize)


# Layers ---------------------------------------------------------------------------------------------------------------


@_rule(" ".join(sorted(DROPOUTS - {"native_dropout", "fused_dropout"})))
def _dropout(call: TorchCall) -> Saved:
    if not (call.value(1, "p", 0.5) and call.value(2, "training", call.value(2, "train"))):
        return _NONE
    shape, dtype, device = call.results[0]
    by_channel = "feature" in call.name or call.name[-1] == "d"
    count = math.prod(shape[:2]) if by_channel else math.prod(shape)
    return Saved((), (), count * (1 if device.type == "cuda" and not by_channel else dtype.itemsize))


@_rule("max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d")
def _max_pool(call: TorchCall) -> Saved:
    x = call.operands[0]
    if len(call.numbers) > 1:
        return Saved((x.slot,), (1,))
    return Saved((x.slot,), (), 8 * call.made)


def _statistics(call: TorchCall, rows: int) -> Saved:
    """The input, weight and bias are saved, and the mean and deviation of each row."""
    x = call.operands[0]
    slots = tuple(one.slot for one in call.operands if one.slot == x.slot or one.dtype.is_floating_point)
    return Saved(slots, (), 2 * rows * max(4, x.dtype.itemsize))


@_rule("layer_norm")
def _layer_norm(call: TorchCall) -> Saved:
    x = call.operands[0]
    width = math.prod(call.value(1, "normalized_shape"))
    return _statistics(call, x.numel // max(1, width))


@_rule("rms_norm")
def _rms_norm(call: TorchCall) -> Saved:
    both = _layer_norm(call)
    return both._replace(hidden=both.hidden // 2)


@_rule("group_norm")
def _group_norm(call: TorchCall) -> Saved:
    return _statistics(call, call.operands[0].shape[0] * int(call.value(1, "num_groups")))


@_rule("batch_norm instance_norm")
def _batch_norm(call: TorchCall) -> Saved:
    x = call.operands[0]
    statistics = call.value(5, "training", call.value(5, "use_input_stats", call.name == "instance_norm"))
    rows = x.shape[1] * (x.shape[0] if call.name == "instance_norm" else 1)
    return _statistics(call, rows if statistics else 0)


@_rule("cross_entropy")
def _cross_entropy(call: TorchCall) -> Saved:
    x, target = call.operand(0, "input"), call.operand(1, "target")
    return Saved((target.slot,), (), _bytes(x) + x.dtype.itemsize)


@_rule("embedding")
def _embedding(call: TorchCall) -> Saved:
    indices = next(one for one in call.operands if not one.dtype.is_floating_point)
    return Saved((indices.slot,))


@_rule("getitem")
def _getitem(call: TorchCall) -> Saved:
    """Autograd saves the indices of an indexing; lists of indices are first converted to integer tensors."""
    index = call.args[1]
    items = index if type(index) is tuple else (index,)
    numbers = sum(_leaves(item) for item in items if isinstance(item, list))
    return Saved(tuple(one.slot for one in call.operands[1:]), (), 8 * numbers)


def _leaves(value: object) -> int:
    return sum(map(_leaves, value)) if isinstance(value, list) else 1


@_rule("gelu silu hardswish hardsigmoid hardtanh relu6 mish elu celu selu leaky_relu threshold")
def _activation(call: TorchCall) -> Saved:
    names = _saved_names(call.node or "") or frozenset()
    saves_result = "result" in names
    return Saved(() if saves_result else (call.operands[0].slot,), (0,) if saves_result else ())
