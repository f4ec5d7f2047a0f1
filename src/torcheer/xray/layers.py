"""Decides which layers and kinds are watched, and finds the operations of a history that belong to them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from .._text import did_you_mean
from .._torch.functions import groups
from .._torch.internals import compiled_and_disabled_functions, is_compiled, is_of_compiler, may_be_compiled
from ..analysis.attention import AttentionPart, attention_of, is_attention, is_fused
from ..errors import InvalidArgument, LayerNotFound
from ..history import Call, ModelHistory, Operation
from ..log.keys import Match, parse_key
from ..log.operation import index_of
from ..log.run import run_of
from .run import evenly


def attentions(operations: Iterable[Operation]) -> list[Operation]:
    """The operations that compute an attention pattern: fused kernels, and softmax between two matrix products."""
    return [one for one in operations if is_attention(one)]


def pattern_of(operation: Operation) -> tuple[Callable[[], Tensor], list[str]]:
    """A function that returns the pattern, 1 × heads × queries × keys, and notes about it."""
    found = attention_of(operation)
    samples = found.shape[0]
    said = [f"the first of {samples} samples"] if samples > 1 else []
    return lambda: found.heads(AttentionPart(is_first_only=True)).pattern, [
        *said,
        *(["worked out from queries and keys"] if is_fused(operation) else []),
    ]


# Refuses compiled models and compiled callers: compiled code would run uncompiled while it is recorded.

_REFUSED = (
    "xray.step() cannot watch {what}: recorded, it would run uncompiled, and the training would not be the same as without it. "
    "Use xray.take_graphs() after backward() instead: it probes the original model and leaves the compiled one alone."
)


def refuse_compiled(model: Module) -> None:
    """Raise if a model, or a part of it, is compiled."""
    for address, module in model.named_modules():
        if is_compiled(module):
            raise InvalidArgument(_REFUSED.format(what=f"the compiled module {address!r}" if address else "a compiled model"))


class CompiledCodeRefusal:
    """Raises `InvalidArgument` when it is called with the frames of a call that compiled code makes.

    Make it before the recording, which has torch run compiled code uncompiled. Code that `torch.compiler.disable` is around
    runs uncompiled anyway.
    """

    def __init__(self) -> None:
        self._has_compiler, self._before = may_be_compiled(), compiled_and_disabled_functions()
        self._raised: InvalidArgument | None = None

    def __call__(self, codes: list[CodeType]) -> None:
        compiled, disabled = self._before if self._has_compiler else compiled_and_disabled_functions()
        if next((id(code) for code in codes if id(code) in compiled or id(code) in disabled), None) in compiled:
            self._raised = InvalidArgument(_REFUSED.format(what="compiled code"))
            raise self._raised

    def raise_again(self, error: BaseException | None) -> None:
        """Raise the refusal again if torch's compiler (up to 2.6) turned it into another error."""
        if error is not None and self._raised is not None and is_of_compiler(error):
            raise self._raised from None


# Kinds that a user may ask for. `grad` is the gradient of the weight and, if there is a loss, of the output.
ASKED: tuple[str, ...] = ("weight", "layer", "activation", "attention", "grad")
# Class names of modules that are activation functions. A function is recognised by its category.
_ACTIVATION_CLASS = re.compile(r"(relu|elu|gelu|silu|swish|mish|tanh|sigmoid|softmax|softplus|activation|glu)", re.IGNORECASE)
_CORES = groups.CONVOLUTIONS | groups.LINEAR | groups.INPUTS_FIRST
_REACH = 12  # a search goes at most this many operations away from its start
_PASSES = 4  # by default at most this many passes of a layer are watched
MOST_WATCHED = 256  # one key may mean at most this many tensors


@dataclass(frozen=True, slots=True)
class Watch:
    """A layer that is watched, and the kinds that are watched of it."""

    name: str  # a key of one operation: the user's key, or a label or address if that means several operations
    kinds: frozenset[str]  # some of `ASKED`

    def wants(self, kind: str) -> bool:
        return kind in self.kinds


@dataclass(slots=True)
class Found:
    """The operations and parameters of a watched layer in one history."""

    watch: Watch
    weight: str | None = None  # the name of the parameter
    output: Operation | None = None
    activation: Operation | None = None
    attention: Operation | None = None  # the operation that computes the layer's attention pattern
    core: Operation | None = None  # the convolution, matrix product or look-up that computed the output
    notes: tuple[str, ...] = ()  # which kinds are missing, and why


def parse_layers(layers: Any, history: ModelHistory) -> list[Watch]:
    """Parse the argument `layers`: keys, a dictionary of keys and kinds, or None for the defaults."""
    if layers is None:
        return default_watches(history)
    kinds: dict[str, frozenset[str]] = {}
    for key, wanted in _keys_and_kinds(layers):
        for name in _names(history, key):
            inner = _patterns_inside(history, name) if "attention" in wanted else []
            for one in inner:
                kinds[one] = kinds.get(one, frozenset()) | {"attention"}
            if left := wanted - {"attention"} if inner else wanted:
                kinds[name] = kinds.get(name, frozenset()) | left
    if not any(kinds.values()):
        raise InvalidArgument(f"layers={layers!r:.80} names nothing to watch. Leave it out for the default, or name layers.")
    return [Watch(name, wanted) for name, wanted in kinds.items()]


def _patterns_inside(history: ModelHistory, name: str) -> list[str]:
    """If a module contains several attention operations, return their names: a watch has only one pattern. Else empty."""
    call, _ = _locate(history, name)
    found = attentions(call.operations) if call is not None else []
    return [one for _, one, _ in _named(history, [(one, frozenset()) for one in found])] if len(found) > 1 else []


def _keys_and_kinds(layers: Any) -> list[tuple[Any, frozenset[str]]]:
    if isinstance(layers, Mapping):
        return [(key, _kinds(key, kinds)) for key, kinds in layers.items()]
    if isinstance(layers, (list, tuple, set, frozenset)):
        return [(key, frozenset(ASKED)) for key in layers]
    return [(layers, frozenset(ASKED))]


def _names(history: ModelHistory, key: Any) -> list[str]:
    """The names of the operations that a key means: the key itself for a single operation, else a label or address for each."""
    matches = _matches(history, key)
    if len(matches) > MOST_WATCHED:
        raise InvalidArgument(
            f"{key!r} means {len(matches)} tensors in one pass; an Xray watches at most {MOST_WATCHED} of one key. "
            f"Name some of them, for example {matches[0].name!r} and {matches[-1].name!r}."
        )
    if isinstance(key, str) and len(matches) == 1:
        return [key]
    return [match.name for match in matches]


def _matches(history: ModelHistory, key: Any) -> Sequence[Match]:
    try:
        return parse_key(key).meaning(run_of(history).lookup.names).matches
    except LayerNotFound as error:
        raise LayerNotFound(f"no layer {key!r} to watch: {error}") from None


def _kinds(name: Any, kinds: Any) -> frozenset[str]:
    if not isinstance(kinds, Iterable):
        raise InvalidArgument(f"the kinds of layer {name!r} are a dictionary or a list of {', '.join(ASKED)}; got {kinds!r}.")
    given = [kinds] if isinstance(kinds, str) else list(kinds)
    unknown = [kind for kind in given if kind not in ASKED]
    if unknown:
        hint = did_you_mean(unknown[0], ASKED)
        raise InvalidArgument(f"layer {name!r}: a kind is one of {', '.join(map(repr, ASKED))}; got {unknown[0]!r}.{hint}")
    return frozenset(kind for kind in given if not isinstance(kinds, Mapping) or kinds[kind])


def default_watches(history: ModelHistory) -> list[Watch]:
    """Return the default watches: convolutions (output, activation), fully connected layers (activation, or output if no
    activation function follows), attention (pattern), recurrent layers (output).

    A module that is one attention, with its projections, is watched by its output and its pattern. Of a layer that runs several
    times up to four passes are watched. A model without any of these layers is watched by the outputs of its layers with
    parameters, a model without parameters by its last operation.
    """
    patterns = [(operation, frozenset({"attention"})) for operation in attentions(history.operations)]
    around = Counter({one.layer_label: one.containing_module for one, _ in patterns}.values())
    whole = {address for address, count in around.items() if address and count == 1}
    candidates = [(operation, kinds) for operation in history.operations if (kinds := _default_kinds(operation))]
    inner = {one.containing_module for one, _ in candidates if one.containing_module in whole}
    candidates = [(one, kinds) for one, kinds in candidates if one.containing_module not in inner]
    patterns = [(one, kinds | {"layer"} if one.containing_module in inner else kinds) for one, kinds in patterns]
    if not candidates and not patterns:
        last = [one for one in history.operations if one.layer_type not in ("input", "output")]
        candidates = [(one, frozenset({"layer"})) for one in [one for one in last if one.parent_params] or last[-1:]]
    named = [*_named(history, candidates), *_named(history, patterns)]
    found: dict[str, frozenset[str]] = {}
    for _, name, kinds in sorted(named, key=lambda one: one[0]):
        found[name] = found.get(name, frozenset()) | kinds
    if not found:
        raise InvalidArgument("the model computes nothing with this input, so there is no layer to watch.")
    return [Watch(name, kinds) for name, kinds in found.items()]


def _named(history: ModelHistory, candidates: list[tuple[Operation, frozenset[str]]]) -> list[tuple[int, str, frozenset[str]]]:
    """Number, name and kinds of each operation. The name is the module's if no other candidate is inside it, else the label.

    Of a layer with several passes, up to four are named, each with the number of its pass.
    """
    inside = Counter({one.layer_label: one.containing_module for one, _ in candidates}.values())
    found = []
    for operation, kinds in candidates:
        address, label, passes = operation.containing_module, operation.layer_label, operation.num_passes
        if operation.pass_num - 1 not in evenly(passes, _PASSES):
            continue
        is_alone = address and inside[address] == 1 and (passes == 1 or history.modules[address].num_calls == passes)
        turn = f":{operation.pass_num}" if passes > 1 else ""
        found.append((operation._number, f"{address if is_alone else label}{turn}", kinds))
    return found


def _default_kinds(operation: Operation) -> frozenset[str]:
    if _is_in(operation, groups.CONVOLUTIONS):
        return frozenset({"layer", "activation"} if activation_after(operation) is not None else {"layer"})
    if _is_in(operation, groups.LINEAR) and operation.parent_params:
        return frozenset({"activation" if activation_after(operation) is not None else "layer"})
    # the first tensor that the call returned is its output; the others are its last state
    is_first = operation._record.call == operation._number
    return frozenset({"layer"} if _is_in(operation, groups.RECURRENT) and is_first else ())


# Finding watched layers in a history -----------------------------------------------------------------------------------


def find(history: ModelHistory, watch: Watch, *, must_exist: bool = False) -> Found:
    """Find a watched layer in a history; notes say what it lacks. Raises only with `must_exist`."""
    try:
        call, output = _locate(history, watch.name)
    except LayerNotFound as error:
        if must_exist:
            raise
        return Found(watch, notes=(f"{watch.name}: did not run this time ({str(error).partition('.')[0]})",))
    notes: list[str] = []
    found = Found(watch, output=output, core=core_of(output))
    if watch.kinds & {"weight", "grad"}:
        found.weight = _weight_name(call, output)
        if found.weight is None:
            notes.append(f"{watch.name}: has no weight")
    if watch.wants("activation"):
        found.activation = activation_after(output)
        if found.activation is None:
            notes.append(f"{watch.name}: no activation function consumes it")
    if watch.wants("attention"):
        found.attention = _attention(call, output, notes)
        if found.attention is None and watch.kinds != frozenset(ASKED):
            notes.append(f"{watch.name}: makes no attention pattern")
    found.notes = tuple(notes)
    return found


def _locate(history: ModelHistory, name: str) -> tuple[Call | None, Operation]:
    """Find the operation that a name means, and, if the name is a module's, the module call that returned it."""
    match = _matches(history, name)[0]
    call = Call(run_of(history).index, match.call) if match.call is not None else None
    return call, Operation(run_of(history).index, match.number)


def _attention(call: Call | None, output: Operation, notes: list[str]) -> Operation | None:
    """The operation that computes the attention pattern in a layer: the operation itself, or the first inside the module."""
    found = attentions(call.operations if call is not None else [output])
    if len(found) > 1:
        notes.append(f"the attention pattern is the first of {len(found)} inside the module")
    return found[0] if found else None


def _weight_name(call: Call | None, output: Operation) -> str | None:
    """The name of the layer's weight: the parameter named `weight`, else the largest parameter with two or more dimensions."""
    if call is not None:
        within = call.module.params
        own = f"{call.module.address}.parametrizations."  # weight_norm and similar functions put the parameters there
        params = [*call.module.own_params, *(param for param in within if param.name.startswith(own))]
        if not params and call.num_operations:  # the module is a wrapper around one layer
            params = within if len({param.name.rpartition(".")[0] for param in within}) == 1 else []
    else:
        params = output.parent_params
    named = [param for param in params if param.name.rpartition(".")[2] == "weight"]
    wide = sorted((param for param in params if len(param.shape) > 1), key=lambda param: -param.numel)
    best = (named or wide or params)[:1]
    return best[0].name if best else None


def activation_after(output: Operation) -> Operation | None:
    """The output of the activation function that uses a tensor, whether it is a module or a function.

    The search goes on behind operations that only move, normalise, pool or add, and stops at another layer that multiplies.
    """
    index, start = index_of(output), output._number

    def onward(operation: Operation) -> list[int]:
        if operation._number != start and not _is_passed_through(operation):
            return []
        return [child for child in index.children.get(operation._number, ()) if index.table.shows(child)]

    for operation in _reached(output, onward):
        if operation._number != start:
            whole = _activation_module(operation, output)
            if whole is not None or _is_in(operation, groups.ACTIVATIONS):
                return whole if whole is not None else operation
    return None


def core_of(output: Operation) -> Operation | None:
    """The convolution, matrix product or look-up whose result was at most normalised, activated or reshaped to `output`."""

    def onward(operation: Operation) -> Iterable[int]:
        is_between = _is_in(operation, groups.ACTIVATIONS) or _is_passed_through(operation)
        return (
            index_of(output).parents(operation._number) if is_between and not _is_in(operation, groups.MOVES_CHANNELS) else ()
        )

    return next((operation for operation in _reached(output, onward) if _is_in(operation, _CORES)), None)


def _reached(start: Operation, onward: Callable[[Operation], Iterable[int]]) -> Iterator[Operation]:
    """An operation and the operations that `onward` leads to, nearest first, each once, at most `_REACH` steps away."""
    waiting = [start._number]
    seen = set(waiting)
    for _ in range(_REACH + 1):
        following: list[int] = []
        for number in waiting:
            operation = Operation(index_of(start), number)
            yield operation
            following += [one for one in dict.fromkeys(onward(operation)) if one not in seen]
            seen.update(following)
        waiting = following


def can_die(activation: Operation) -> bool:
    """True if a unit that is never above zero counts as dead: for ReLU, not for tanh."""
    return not _is_in(activation, groups.TWO_SIDED)


def _is_in(operation: Operation, group: frozenset[str]) -> bool:
    return operation._record.function.is_in(group)


def _is_passed_through(operation: Operation) -> bool:
    """True if an operation may be between a layer and its activation function."""
    function = operation._record.function
    return function.is_view or function.is_in(groups.BETWEEN_LAYERS) or function.plain_name == "getitem"


def _activation_module(operation: Operation, output: Operation) -> Operation | None:
    """The output of the activation module that an operation runs in, such as a GELU written out in several operations."""
    index = index_of(operation)
    call = index.record(operation._number).module
    around = index.record(output._number).module
    while call is not None and call is not around:
        if _ACTIVATION_CLASS.search(call.class_name) and call.outputs and output._number not in range(call.first, call.end):
            return Operation(index, call.outputs[0])
        call = call.outer
    return None


def dimensions_of(core: Operation | None, tensor: Operation | None) -> int:
    """Return the number of spatial dimensions of a convolution's maps: 2 for pictures; 0 for others, or if channels moved."""
    if core is None or tensor is None or not _is_in(core, groups.CONVOLUTIONS):
        return 0
    digit = re.search(r"\d", core.layer_type)
    return int(digit[0]) if digit and len(core.tensor_shape) == len(tensor.tensor_shape) else 0


def has_inputs_first(core: Operation | None, weight: str) -> bool:
    """True if a weight has its inputs before its units, as in a transposed convolution, an embedding, or `x @ weight`."""
    if core is None:
        return False
    if _is_in(core, groups.INPUTS_FIRST):
        return any(weight in (param.name, *param.other_names) for param in core.parent_params)
    return "transpose" in core.layer_type


def tensor_of(model: torch.nn.Module, name: str) -> Tensor | None:
    """Find a parameter of a model by its name. None if the model has no such parameter, or no longer has it."""
    address, _, attribute = name.rpartition(".")
    try:
        found = getattr(model.get_submodule(address), attribute)
    except AttributeError:
        return None
    return found if isinstance(found, Tensor) else None
